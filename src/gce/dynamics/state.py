"""An adapted system as it predicts, as dynamics for a planner: flat, normalised, in its actuated controls."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.control.settle import dense_path
from gce.control.tracking import DensePath
from gce.model.step import Stepper, rollout, slopes
from gce.system.system import System

Array = np.ndarray
Pull = Callable[[Array], tuple[Array, Array]]
"""Cotangents [k, nodes, c] of the next state to those of the state and of the inputs [k, nodes, inputs]."""


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

    along_paths: ClassVar[bool] = True
    """Whether it is linearised anew along a path, not around one state."""

    @classmethod
    def fits(cls, system: System) -> bool:
        """Whether this class knows all parts of a system's model; otherwise `StateDynamics`, which always does."""
        return True

    @classmethod
    def pullback(cls, system: System) -> tuple[Pull, Float[Array, " s"]]:
        """(the way back through a step from the mean observation, the state it leads to)."""
        model, topology, c = system.model, system.topology, system.model.config
        x = torch.zeros(topology.num_nodes, c.num_state, requires_grad=True)
        inputs = torch.zeros(topology.num_nodes, c.num_inputs, requires_grad=True)
        step = Stepper(model, [system.operator], topology, reproject=False)
        after = step(model.features(x, topology), inputs)[0]

        def pull(every: Array) -> tuple[Array, Array]:
            by = [torch.autograd.grad(after, (x, inputs), torch.as_tensor(o), retain_graph=True) for o in every]
            by_x, by_inputs = zip(*by, strict=True)
            return torch.stack(by_x).numpy(), torch.stack(by_inputs).numpy()

        return pull, after.detach().double().flatten().numpy()

    def for_plans(self) -> StateDynamics:
        """The same with what jumps made smooth, where anything does."""
        return self

    def frozen_at(self, x0: Float[Array, " s"]) -> FrozenDynamics:
        """Everything as it is at a state."""
        return FrozenDynamics(self, x0)

    def after_opening(self) -> StateDynamics:
        """The dynamics of later steps."""
        return replace(self, opening=False, exogenous=None) if self.opening else self

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
            step = Stepper(model, [self.system.operator], topology)
            fresh = self._fresh(u.shape[-2]).expand(*u.shape[:-1], topology.num_nodes, 1)
            return self.reduced(rollout(step, model.features(start, topology), inputs, fresh))

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        step = Stepper(self.system.model, [self.system.operator], self.system.topology, reproject=False)
        earlier = self.lifted(np.concatenate([x0[None], x[:-1]]))
        A, B, _ = slopes(step, earlier, self._inputs(u), self._fresh(len(u)))
        B = B[..., : self.controls.shape[1]][..., self.controls]
        return dense_path(A.reshape(len(u), x.shape[1], -1), B.reshape(len(u), *x.shape[1:], -1), x0, x, u)

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


@dataclass(frozen=True, eq=False)
class FrozenDynamics:
    """Everything as it is at the current state: one derivative serves all steps, a plan is one quadratic problem."""

    known: StateDynamics
    x0: Float[Array, " s"]

    ready: ClassVar[bool] = False
    """Whether the first prediction needs no derivatives before."""

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
        return np.stack([path.forward(one) for one in many]).reshape(*u.shape[:-1], -1)

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        return self.known.outputs(x)

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        return self.known.output_slopes(x)


def state_dynamics(
    system: System,
    controls: Bool[Array, "nodes a"],
    opening: bool = False,
    exogenous: Float[Tensor, "M nodes e"] | None = None,
    on: str = "observations",
) -> StateDynamics:
    """The dynamics of a system's state, by the kernel of its kind of features where that knows all of its parts."""
    return state_class(system)(system, controls, opening, exogenous, on)


def state_class(system: System) -> type[StateDynamics]:
    """The class that the kind of features names, or `StateDynamics`."""
    module, name = system.model.features.dynamics.split(":")
    named: type[StateDynamics] = getattr(importlib.import_module(module), name)
    return named if named.fits(system) else StateDynamics
