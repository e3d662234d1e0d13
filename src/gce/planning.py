"""An adapted system as dynamics that a planner can work with: flat, normalised, in its actuated controls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.anchored_dynamics import AnchoredDynamics
from gce.body_step import BodyStep
from gce.control.task import dense_path
from gce.control.tracking import DensePath
from gce.errors import InputError
from gce.feature_dynamics import FeatureDynamics
from gce.implicit_slopes import slopes
from gce.rollout import rollout
from gce.system import System

Array = np.ndarray
NEGLIGIBLE = 1e-4
"""Coefficients of an operator that is all but switched off beside implicit features."""

MANY_NODES = 40
"""Beyond which the model is not linearised anew at every step of a path: derivatives would take minutes."""


@dataclass(frozen=True, eq=False)
class StateDynamics:
    """The model as it predicts: the state x of all nodes, features taken anew at every step.

    controls: which (node, action) entries are planned; the others stay 0. opening: whether the first step opens an
    episode. exogenous: known inputs at every step, normalised. on: outputs are the observations or the features.
    """

    system: System
    controls: Bool[Array, "nodes a"]
    opening: bool = False
    exogenous: Float[Tensor, "M nodes e"] | None = None
    on: str = "observations"

    # ---- between the planner's states and the model's ----

    def reduced(self, states: Float[Tensor, "*batch nodes c"]) -> Float[Array, "*batch s"]:
        """The planner's state behind a state of the model."""
        return states.flatten(-2).double().numpy()

    def lifted(self, x: Float[Array, "*batch s"]) -> Float[Tensor, "*batch nodes c"]:
        """The model's state behind a state of the planner."""
        return torch.as_tensor(x, dtype=self._precision).unflatten(-1, (self.system.graph.num_nodes, -1))

    @property
    def _precision(self) -> torch.dtype:
        return self.system.model.observation_std.dtype

    def _inputs(self, u: Float[Array, "*batch M n"]) -> Float[Tensor, "*batch M nodes inputs"]:
        actions = np.zeros((*u.shape[:-1], *self.controls.shape))
        actions[..., self.controls] = u
        inputs = torch.as_tensor(actions, dtype=self._precision)
        if self.exogenous is None:
            return inputs
        known = self.exogenous[: u.shape[-2]].expand(*inputs.shape[:-1], -1)
        return torch.cat([inputs, known], dim=-1)

    def _fresh(self, steps: int) -> Float[Tensor, "steps 1 1"]:
        fresh = torch.zeros(steps, 1, 1)
        fresh[0] = float(self.opening)
        return fresh

    # ---- what a planner asks ----

    def step(self, t: int, x: Float[Array, "*batch s"], u: Float[Array, "*batch n"]) -> Float[Array, "*batch s"]:
        """One step, the t-th, from states that may differ."""
        exogenous = None if self.exogenous is None else self.exogenous[t : t + 1]
        now = replace(self, opening=self.opening and t == 0, exogenous=exogenous)
        return now.rollout(x, u[..., None, :])[..., 0, :]

    def rollout(self, x0: Float[Array, "*#batch s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        model, topology = self.system.model, self.system.topology
        inputs = self._inputs(u)
        with torch.no_grad():
            start = self.lifted(x0).expand(*u.shape[:-2], -1, -1)
            step = model.stepper([self.system.operator], topology)
            fresh = self._fresh(u.shape[-2]).expand(*u.shape[:-1], topology.num_nodes, 1)
            return self.reduced(rollout(step, model.features(start, topology), inputs, fresh))

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        """Derivatives of what a step predicts, backwards through the model; the rest of it is linear and known."""
        model, topology, c = self.system.model, self.system.topology, self.system.model.config
        earlier = self.lifted(np.concatenate([x0[None], x[:-1]])).requires_grad_(True)
        inputs = self._inputs(u).requires_grad_(True)
        step = model.stepper([self.system.operator], topology, reproject=False)
        after = step(model.features(earlier, topology), inputs, self._fresh(len(u)))[0]
        (M, N, width), n = after.shape, u.shape[1]
        predicted = torch.zeros(N, width, dtype=torch.bool)
        # A held coordinate still moves with those it is tied to.
        held = model.held[topology.node_type][:, : len(model.free)]
        predicted[:, model.free] = ~held if topology.tied is None else True
        every = torch.eye(int(predicted.sum()), dtype=after.dtype)[:, None, :].expand(-1, M, -1)
        by_x, by_u = torch.autograd.grad(after[:, predicted], (earlier, inputs), every, is_grads_batched=True)
        A, B = np.zeros((M, N, width, N * width)), np.zeros((M, N, width, n))
        A[:] = np.eye(N * width).reshape(N, width, -1)
        where = predicted.numpy()
        A[:, where] = by_x.flatten(2).transpose(0, 1).double().numpy()
        B[:, where] = by_u[..., : c.num_actions].transpose(0, 1).double().numpy()[..., self.controls]
        for (position, velocity), ratio in zip(c.kinematics, model.ratios, strict=True):
            A[:, :, position] += ratio * A[:, :, velocity]
            B[:, :, position] += ratio * B[:, :, velocity]
        d = c.num_observations
        if c.history == 2:
            A[:, :, d : 2 * d] = np.eye(N * width).reshape(N, width, -1)[:, :d]
        if c.previous_action:
            A[:, :, width - c.num_actions :] = 0
            where = np.zeros((N, width), bool)
            where[:, width - c.num_actions :] = self.controls
            B[:, where] = np.eye(n)
        return dense_path(A.reshape(M, N * width, -1), B.reshape(M, N * width, n), x0, x, u)

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        """The normalised observations, or the features, of all nodes."""
        if self.on == "features":
            with torch.no_grad():
                psi = self.system.model.features(self.lifted(x), self.system.topology)
            return psi.flatten(-2).double().numpy()
        observed = self._observed(x)
        return observed.reshape(*x.shape[:-1], -1)

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        eye = np.eye(x.shape[-1])
        if self.on == "observations":
            return (self._observed(eye) - self._observed(0 * eye)).reshape(len(eye), -1).T[None]
        lift = (self.lifted(eye) - self.lifted(0 * eye)).flatten(1).T.double().numpy()
        states = self.lifted(x).requires_grad_(True)
        psi = self.system.model.features(states, self.system.topology).flatten(1)
        every = torch.eye(psi.shape[1], dtype=psi.dtype)[:, None, :].expand(-1, len(x), -1)
        (by_state,) = torch.autograd.grad(psi, states, every, is_grads_batched=True)
        return by_state.flatten(2).transpose(0, 1).double().numpy() @ lift

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        """The outputs at observations to be reached, at which nothing is pushed."""
        return self.system.outputs_at(observations, self.on)

    def _observed(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch nodes d"]:
        d = self.system.model.config.num_observations
        return x.reshape(*x.shape[:-1], self.system.graph.num_nodes, -1)[..., :d]


class BodyDynamics(StateDynamics):
    """Bodies of tied points under implicit features alone: every corner once, then the previous actions.

    x = [positions; velocities of the corners, in physical units; previous actions of the planned controls]. A step is
    the model's where the operator adds nothing to the implicit features; its derivative is theirs (`implicit_slopes`).
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
    def _moving(self) -> Float[Array, "corners 2"]:
        """The share of a corner's points that are not held, by axis: a corner moves as the mean of its points."""
        corner, _, _, size = self._corner
        model = self.system.model
        free = ~model.held[self.system.topology.node_type][:, model._speeds]
        total = np.zeros((size, 2))
        np.add.at(total, corner.numpy().ravel(), free.numpy().reshape(-1, 2).astype(float))
        return total / np.maximum(np.bincount(corner.numpy().ravel(), minlength=size), 1)[:, None]

    @cached_property
    def _body(self) -> BodyStep:
        model, topology, channels = self.system.model, self.system.topology, self.system.operator.channels
        assert model.implicit is not None
        assert channels is not None
        return BodyStep.of(model.implicit, topology, model._held_points(topology), channels)

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
        assert model.implicit is not None
        assert self.system.operator.channels is not None
        earlier = self.lifted(np.concatenate([x0[None], x[:-1]]))
        held = model._held_points(topology)
        with torch.no_grad():
            found = slopes(model.implicit, earlier, topology, held, self.system.operator.channels[None])
        moving = self._moving.reshape(-1, 1)
        by_q, by_v = found.by_position.numpy() * moving, found.by_velocity.numpy() * moving
        by_a = found.by_action.numpy()[..., np.nonzero(self.controls)[0]] * moving
        M, n, s2 = len(x), u.shape[1], 2 * size
        A, B = np.zeros((M, 2 * s2 + n, 2 * s2 + n)), np.zeros((M, 2 * s2 + n, n))
        A[:, s2 : 2 * s2] = np.concatenate([by_q, by_v + np.eye(s2), by_a], axis=-1)
        A[:, :s2] = dt * A[:, s2 : 2 * s2]
        A[:, :s2, :s2] += np.eye(s2)
        B[:, 2 * s2 :] = np.eye(n)
        return dense_path(A, B, x0, x, u)


@dataclass(frozen=True, eq=False)
class FrozenDynamics:
    """Everything as it is at the current state: one derivative serves all steps, a plan is one quadratic problem."""

    known: StateDynamics
    x0: Float[Array, " s"]

    @cached_property
    def _step(self) -> tuple[Array, Array, Array]:
        u = np.zeros((1, int(self.known.controls.sum())))
        later = replace(self.known, opening=False)
        path = later.path(self.x0, later.rollout(self.x0, u), u)
        return path.A[0], path.B[0], path.c[0]

    def _along(self, x0: Float[Array, " s"], steps: int) -> DensePath:
        A, B, c = (np.broadcast_to(m, (steps, *m.shape)) for m in self._step)
        return DensePath(A, B, c, x0)

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        return self._along(x0, len(u))

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        many = u.reshape(-1, *u.shape[-2:])
        path = self._along(x0, u.shape[-2])
        found = np.stack([path.forward(one) for one in many])
        return found.reshape(*u.shape[:-1], -1)

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        return self.known.outputs(x)

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        return self.known.output_slopes(x)


def dynamics_of(
    system: System,
    controls: Bool[Array, "nodes a"],
    opening: bool = False,
    exogenous: Float[Tensor, "M nodes e"] | None = None,
    on: str = "observations",
    frozen: bool = False,
) -> StateDynamics | FeatureDynamics | AnchoredDynamics:
    """The dynamics that suit a system's model: linear in features where it rolls out so, anchored on large graphs."""
    model = system.model
    if not model.config.selects:
        raise InputError("plans need a model whose features hold the observation; train one with --decoder selection")
    if not model.config.reproject and model.form.shared and model.implicit is None:
        return FeatureDynamics(system, controls, opening, exogenous, frozen, on)
    if model.implicit is None and system.graph.num_nodes > MANY_NODES and on == "observations":
        return AnchoredDynamics(system, controls, exogenous)
    return state_dynamics(system, controls, opening, exogenous, on)


def state_dynamics(
    system: System,
    controls: Bool[Array, "nodes a"],
    opening: bool = False,
    exogenous: Float[Tensor, "M nodes e"] | None = None,
    on: str = "observations",
) -> StateDynamics:
    """The dynamics of a system's state, by corners where implicit features are all there is."""
    added = system.operator.coefficients[..., : len(system.model.free)].abs().max()
    kind = BodyDynamics if system.model.implicit is not None and float(added) < NEGLIGIBLE else StateDynamics
    return kind(system, controls, opening, exogenous, on)
