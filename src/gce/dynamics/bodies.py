"""Bodies of tied points as dynamics for a planner: every corner once, in plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.control.task import dense_path
from gce.control.tracking import DensePath
from gce.dynamics.body_kernel import BodyStep
from gce.dynamics.body_slopes import slopes
from gce.dynamics.state import StateDynamics

Array = np.ndarray
SWITCH = 0.3
"""Over which width of a normalised action a planner lets a medium come into play, which it does at once."""


@dataclass(frozen=True, eq=False)
class BodyDynamics(StateDynamics):
    """Bodies of tied points under implicit features alone: every corner once, then the previous actions.

    x = [positions; velocities of the corners, in physical units; previous actions of the planned controls]. A step is
    the model's where the operator adds nothing to the implicit features; its derivative is theirs (`implicit_slopes`).
    switch: over which width of a normalised action a medium comes into play; 0 for at once, as in the model.
    """

    switch: float = 0.0

    whole = False

    def for_plans(self) -> BodyDynamics:
        return replace(self, switch=SWITCH)

    @cached_property
    def _corner(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """(corner of each point [nodes, points], place columns, speed columns, number of corners)."""
        model, topology = self.system.model, self.system.topology
        bodies = model.features.channels._bodies(topology, model.features.held_points(topology))
        points = model.config.points
        places = torch.tensor([c for point in points for c in point[:2]])
        speeds = torch.tensor([c for point in points for c in point[2:]])
        return bodies.corner, places, speeds, bodies.size

    def reduced(self, states: Float[Tensor, "*batch nodes c"]) -> Float[Array, "*batch s"]:
        corner, places, speeds, size = self._corner
        d = self.system.model.config.num_observations
        o = self.system.model.denormalise(states[..., :d].double())
        found = []
        for columns in (places, speeds):
            at = torch.zeros(*o.shape[:-2], size, 2, dtype=o.dtype)
            at[..., corner.flatten(), :] = o[..., columns].unflatten(-1, (-1, 2)).flatten(-3, -2)
            found.append(at.flatten(-2).numpy())
        return np.concatenate([*found, states[..., d:].double().numpy()[..., self.controls]], axis=-1)

    def lifted(self, x: Float[Array, "*batch s"]) -> Float[Tensor, "*batch nodes c"]:
        _, _, _, size = self._corner
        inputs = self._inputs(x[..., None, 4 * size :])[..., 0, :, : self.controls.shape[1]]
        return torch.cat([torch.as_tensor(self._observed(x), dtype=self._precision), inputs], dim=-1)

    def _observed(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch nodes d"]:
        corner, places, speeds, size = self._corner
        model = self.system.model
        o = np.zeros((*x.shape[:-1], *corner.shape[:1], model.config.num_observations))
        for columns, start in ((places, 0), (speeds, 2 * size)):
            at = x[..., start : start + 2 * size].reshape(*x.shape[:-1], size, 2)[..., corner.numpy(), :]
            o[..., columns.numpy()] = at.reshape(*at.shape[:-2], -1)
        return model.normalise(torch.as_tensor(o)).numpy()

    @cached_property
    def _moving(self) -> Float[Array, "corners 1"]:
        """1, or 0 where a corner is held."""
        corner, _, _, size = self._corner
        moving = np.ones((size, 1))
        moving[corner[self.system.model.features.held_points(self.system.topology)].numpy()] = 0.0
        return moving

    @cached_property
    def _body(self) -> BodyStep:
        model, topology, channels = self.system.model, self.system.topology, self.system.operator.channels
        assert channels is not None
        return BodyStep.of(
            model.features.channels, topology, model.features.held_points(topology), channels, self.switch
        )

    def step(self, t: int, x: Float[Array, "*batch s"], u: Float[Array, "*batch n"]) -> Float[Array, "*batch s"]:
        return self.rollout(x, u[..., None, :])[..., 0, :]  # all steps are alike

    def rollout(self, x0: Float[Array, "*#batch s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        size, dt = self._corner[3], self.system.model.config.dt
        moving = self._moving
        start = np.broadcast_to(x0, (*u.shape[:-2], x0.shape[-1]))
        Q = start[..., : 2 * size].reshape(*u.shape[:-2], size, 2)
        V = start[..., 2 * size : 4 * size].reshape(*u.shape[:-2], size, 2)
        before = start[..., 4 * size :]
        actions = np.zeros((*u.shape[:-2], *self.controls.shape))
        found = np.empty((*u.shape[:-1], x0.shape[-1]))
        for t in range(u.shape[-2]):
            actions[..., self.controls] = before
            with np.errstate(all="ignore"):
                V = V + moving * self._body.change(Q, V, actions[..., 0])
                Q = Q + dt * V
            before = u[..., t, :]
            flat = (Q.reshape(*u.shape[:-2], -1), V.reshape(*u.shape[:-2], -1), before)
            found[..., t, :] = np.concatenate(flat, axis=-1)
        return found

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        model, topology, dt = self.system.model, self.system.topology, self.system.model.config.dt
        size = self._corner[3]
        assert self.system.operator.channels is not None
        earlier = self.lifted(np.concatenate([x0[None], x[:-1]]))
        held = model.features.held_points(topology)
        with torch.no_grad():
            found = slopes(
                model.features.channels, earlier, topology, held, self.system.operator.channels[None], self.switch
            )
        moving = self._moving.repeat(2, axis=0)
        by_q, by_v = found.by_position.numpy() * moving, found.by_velocity.numpy() * moving
        by_a = found.by_action.numpy()[..., np.nonzero(self.controls)[0]] * moving
        M, n, s2 = len(x), u.shape[1], 2 * size
        A, B = np.zeros((M, 2 * s2 + n, 2 * s2 + n)), np.zeros((M, 2 * s2 + n, n))
        A[:, s2 : 2 * s2] = np.concatenate([by_q, by_v + np.eye(s2), by_a], axis=-1)
        A[:, :s2] = dt * A[:, s2 : 2 * s2]
        A[:, :s2, :s2] += np.eye(s2)
        B[:, 2 * s2 :] = np.eye(n)
        return dense_path(A, B, x0, x, u)
