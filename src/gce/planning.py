"""An adapted system as dynamics that a planner can work with: flat, normalised, in its actuated controls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.control.task import dense_path
from gce.control.tracking import DensePath
from gce.implicit_slopes import slopes
from gce.rollout import rollout
from gce.system import System

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class StateDynamics:
    """The model as it predicts: the state x of all nodes, features taken anew at every step.

    controls: which (node, action) entries are planned; the others stay 0. opening: whether the first step opens an
    episode. exogenous: known inputs at every step, normalised.
    """

    system: System
    controls: Bool[Array, "nodes a"]
    opening: bool = False
    exogenous: Float[Tensor, "M nodes e"] | None = None

    # ---- between the planner's states and the model's ----

    def reduced(self, states: Float[Tensor, "*batch nodes c"]) -> Float[Array, "*batch s"]:
        """The planner's state behind a state of the model."""
        return states.flatten(-2).double().numpy()

    def lifted(self, x: Float[Array, "*batch s"]) -> Float[Tensor, "*batch nodes c"]:
        """The model's state behind a state of the planner."""
        return torch.as_tensor(x, dtype=torch.float32).unflatten(-1, (self.system.graph.num_nodes, -1))

    def _inputs(self, u: Float[Array, "*batch M n"]) -> Float[Tensor, "*batch M nodes inputs"]:
        actions = np.zeros((*u.shape[:-1], *self.controls.shape), np.float32)
        actions[..., self.controls] = u
        inputs = torch.from_numpy(actions)
        if self.exogenous is None:
            return inputs
        known = self.exogenous[: u.shape[-2]].expand(*inputs.shape[:-1], -1)
        return torch.cat([inputs, known], dim=-1)

    def _fresh(self, steps: int) -> Float[Tensor, "steps 1 1"]:
        fresh = torch.zeros(steps, 1, 1)
        fresh[0] = float(self.opening)
        return fresh

    # ---- what a planner asks ----

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        model, topology = self.system.model, self.system.topology
        inputs = self._inputs(u)
        with torch.no_grad():
            start = self.lifted(x0).expand(*u.shape[:-2], -1, -1)
            step = model.stepper([self.system.operator], topology)
            fresh = self._fresh(u.shape[-2]).expand(*u.shape[:-1], topology.num_nodes, 1)
            return self.reduced(rollout(step, model.features(start, topology), inputs, fresh))

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        """Derivatives of the free coordinates backwards through the model; the rest of a step is linear and known."""
        model, topology = self.system.model, self.system.topology
        earlier = self.lifted(np.concatenate([x0[None], x[:-1]])).requires_grad_(True)
        inputs = self._inputs(u).requires_grad_(True)
        step = model.stepper([self.system.operator], topology, reproject=False)
        after = step(model.features(earlier, topology), inputs, self._fresh(len(u)))[0]
        M, N, c = after.shape
        every = torch.eye(N * c)[:, None, :].expand(-1, M, -1)
        by_x, by_u = torch.autograd.grad(after.flatten(1), (earlier, inputs), every, is_grads_batched=True)
        A = by_x.flatten(-2).transpose(0, 1).double().numpy()
        B = by_u[..., : self.controls.shape[1]].transpose(0, 1).double().numpy()[..., self.controls]
        return dense_path(A, B, x0, x, u)

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        """The normalised observations of all nodes."""
        d = self.system.model.config.num_observations
        by_node = x.reshape(*x.shape[:-1], self.system.graph.num_nodes, -1)[..., :d]
        return by_node.reshape(*x.shape[:-1], -1)

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "1 p s"]:
        return self.outputs(np.eye(x.shape[-1])).T[None]


class BodyDynamics(StateDynamics):
    """Bodies of tied points under implicit features: every corner once, then the previous actions.

    x = [positions; velocities of the corners, in physical units; previous actions of the planned controls]. A step is
    the model's; its derivative is that of the implicit features (`implicit_slopes`), and of the operator where that
    adds to them.
    """

    @cached_property
    def _corner(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """(corner of each point [nodes, points], place columns, speed columns, number of corners)."""
        model, topology = self.system.model, self.system.topology
        assert model.implicit is not None
        bodies = model.implicit._bodies(topology, model._held_points(topology))
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
        return torch.cat([torch.as_tensor(self._observed(x), dtype=torch.float32), inputs], dim=-1)

    def _observed(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch nodes d"]:
        corner, places, speeds, size = self._corner
        model = self.system.model
        o = np.zeros((*x.shape[:-1], *corner.shape[:1], model.config.num_observations))
        for columns, start in ((places, 0), (speeds, 2 * size)):
            at = x[..., start : start + 2 * size].reshape(*x.shape[:-1], size, 2)[..., corner.numpy(), :]
            o[..., columns.numpy()] = at.reshape(*at.shape[:-2], -1)
        return model.normalise(torch.as_tensor(o)).numpy()

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        model, topology, dt = self.system.model, self.system.topology, self.system.model.config.dt
        corner, _, _, size = self._corner
        assert model.implicit is not None
        assert self.system.operator.channels is not None
        earlier = self.lifted(np.concatenate([x0[None], x[:-1]]))
        held = model._held_points(topology)
        with torch.no_grad():
            found = slopes(model.implicit, earlier, topology, held, self.system.operator.channels[None])
        # A corner moves as the mean of its points; held points do not move.
        count = torch.bincount(corner.flatten(), minlength=size).clamp_min(1)
        still = torch.zeros(size).index_add(0, corner.flatten(), held.flatten().float()) / count
        moving = (1 - still).double().repeat_interleave(2).numpy()[:, None]
        by_q, by_v = found.by_position.numpy() * moving, found.by_velocity.numpy() * moving
        by_a = found.by_action.numpy()[..., np.nonzero(self.controls)[0]] * moving
        M, n, s2 = len(x), u.shape[1], 2 * size
        A, B = np.zeros((M, 2 * s2 + n, 2 * s2 + n)), np.zeros((M, 2 * s2 + n, n))
        A[:, s2 : 2 * s2] = np.concatenate([by_q, by_v + np.eye(s2), by_a], axis=-1)
        A[:, :s2] = dt * A[:, s2 : 2 * s2]
        A[:, :s2, :s2] += np.eye(s2)
        B[:, 2 * s2 :] = np.eye(n)
        return dense_path(A, B, x0, x, u)

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        observed = self._observed(x)
        return observed.reshape(*x.shape[:-1], -1)

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "1 p s"]:
        eye = np.eye(x.shape[-1])
        return (self.outputs(eye) - self.outputs(np.zeros_like(eye))).T[None]


def dynamics_of(
    system: System,
    controls: Bool[Array, "nodes a"],
    opening: bool = False,
    exogenous: Float[Tensor, "M nodes e"] | None = None,
) -> StateDynamics:
    """The dynamics that suit a system's model."""
    kind = BodyDynamics if system.model.implicit is not None else StateDynamics
    return kind(system, controls, opening, exogenous)
