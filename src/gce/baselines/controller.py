"""A controller for an adapted baseline, with the problem, solvers and protocol of our own.

A linear step with a linear output is one quadratic problem; everything else is solved, followed and linearised again
(as in iterative LQR), at most `iterations` times. Linear steps of large graphs are planned by their impulse responses,

    x' = A x + B u + c,   y = D x + d       gives       y_t = free_t + sum_{k < t} G_{t-1-k} u_k,   G_k = D A^k B

A plan then needs no states: a product is a convolution over time, by fast Fourier transforms. Where the output is not
linear (a decoder), D and d are those at the goal, near which a large network such as a grid stays; the plan is made
with these, and what is expected of it is told by the decoder itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.baselines.base import Adapted
from gce.baselines.koopman import LinearAdapted
from gce.control.problem import Problem
from gce.control.settle import dense_path
from gce.control.tracking import DensePath, Selection
from gce.errors import InputError
from gce.planning.controller import Plan, Turns, check_problem, exogenous_after, settled_plan

Array = np.ndarray

LARGE_STATE = 1000
"""States beyond which matrices along a path are too many numbers."""


@dataclass(frozen=True, eq=False)
class BaselineDynamics:
    """x is what the baseline steps: features, a latent state, or the observation itself.

    controls: which (node, action) entries are planned; the others stay 0. exogenous: known inputs at every step,
    normalised. Linear methods have the same matrices at every step, and then a plan is one quadratic problem.
    """

    adapted: Adapted
    controls: Bool[Array, "nodes a"]
    exogenous: Float[Tensor, "M nodes e"] | None = None

    def start(
        self, observation: Float[Array, "nodes d"], before: tuple[Array, Array] | None = None
    ) -> Float[Array, " s"]:
        """x_0 of an observation in physical units; before: (observation, action) one step earlier."""
        return self.adapted.start(observation, before).numpy()

    def _inputs(self, u: Float[Array, "*batch M n"]) -> Float[Tensor, "*batch M nodes inputs"]:
        actions = np.zeros((*u.shape[:-1], *self.controls.shape))
        actions[..., self.controls] = u
        inputs = torch.from_numpy(actions)
        if self.exogenous is None:
            return inputs
        known = self.exogenous[: u.shape[-2]].double().expand(*inputs.shape[:-1], -1)
        return torch.cat([inputs, known], dim=-1)

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        start = torch.from_numpy(x0).expand(*u.shape[:-2], -1)
        return self.adapted.rollout(start, self._inputs(u)).numpy()

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        earlier = torch.from_numpy(np.concatenate([x0[None], x[:-1]]))
        by_x, by_u = self.adapted.slopes(earlier, self._inputs(u))
        inputs = by_u.unflatten(-1, (self.controls.shape[0], -1))[..., : self.controls.shape[1]]
        return dense_path(by_x.numpy(), inputs.numpy()[..., self.controls], x0, x, u)

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        """What the outputs are at observations to reach, in physical units."""
        return self.adapted.outputs_at(observations, "observations")

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        """The normalised observations of all nodes."""
        with torch.no_grad():
            return self.adapted.observe(torch.from_numpy(x)).flatten(-2).numpy()

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        return self.adapted.output_slopes(torch.from_numpy(x)).numpy()


@dataclass(frozen=True, eq=False)
class EmbeddingDynamics(BaselineDynamics):
    """As published for Koopman operators (Li et al. 2020): outputs are the features psi of all nodes, a part of x."""

    adapted: LinearAdapted

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        """The features of observations when nothing is pushed; a goal that stays is encoded once."""
        distinct, which = np.unique(observations, axis=0, return_inverse=True)
        return self.outputs(self.adapted.outputs_at(distinct, "features"))[which.reshape(-1)]

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        return x[..., self.adapted.embedding]

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        return np.eye(x.shape[-1])[None, self.adapted.embedding]


class Impulse:
    """The responses of an adapted system's observations, worked out once for all its plans.

    goal: where the output is linearised, in physical units. steps: the longest plan.
    """

    def __init__(
        self, adapted: LinearAdapted, controls: Bool[Array, "nodes a"], goal: Float[Array, "nodes d"], steps: int
    ) -> None:
        at = adapted.start(goal.copy())
        D = adapted.output_slopes(at[None])[0].double()
        with torch.no_grad():
            d = adapted.observe(at).flatten() - D @ at
        inputs = adapted.B.unflatten(-1, (len(controls), -1))[..., : controls.shape[1]].flatten(-2)
        carried = inputs[:, torch.from_numpy(controls.flatten())].contiguous()
        responses = []
        for _ in range(steps):
            responses.append(D @ carried)
            carried = adapted.A @ carried
        self.D, self.d, self.responses = D.numpy(), d.numpy(), torch.stack(responses).numpy()


class ImpulseDynamics:
    """One plan's dynamics, and its path: what the planner takes for states are the outputs y_0, y_1..y_M themselves."""

    def __init__(self, plain: BaselineDynamics, impulse: Impulse, x0: Float[Array, " s"], steps: int) -> None:
        self.plain = plain
        still = plain.rollout(x0, np.zeros((steps, impulse.responses.shape[-1])))
        self.y0, self.free = impulse.D @ x0 + impulse.d, still @ impulse.D.T + impulse.d
        self.spectrum = np.fft.rfft(impulse.responses[:steps], 2 * steps, axis=0)

    def forward(self, u: Float[Array, "M n"], affine: bool = True) -> Float[Array, "M p"]:
        """y_1..y_M as a function of controls."""
        M = len(self.free)
        spectrum_of_outputs = np.einsum("fpn,fn->fp", self.spectrum, np.fft.rfft(u, 2 * M, axis=0), optimize=True)
        y = np.fft.irfft(spectrum_of_outputs, 2 * M, axis=0)[:M]
        return y + self.free if affine else y

    def adjoint(self, weights: Float[Array, "M p"]) -> Float[Array, "M n"]:
        M = len(self.free)
        seen = np.fft.rfft(weights, 2 * M, axis=0)
        spectrum_of_inputs = np.einsum("fpn,fp->fn", self.spectrum.conj(), seen, optimize=True)
        return np.fft.irfft(spectrum_of_inputs, 2 * M, axis=0)[:M]

    def rollout(self, x0: Float[Array, " p"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M p"]:
        each = [self.forward(one) for one in u.reshape(-1, *u.shape[-2:])]
        return np.stack(each).reshape(*u.shape[:-1], -1)

    def path(self, x0: Float[Array, " p"], x: Float[Array, "M p"], u: Float[Array, "M n"]) -> ImpulseDynamics:
        return self

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        return self.plain.goal(observations)

    def outputs(self, x: Float[Array, "*batch p"]) -> Float[Array, "*batch p"]:
        return x

    def output_slopes(self, x: Float[Array, "M p"]) -> Selection:
        p = x.shape[-1]
        return Selection(np.arange(p), np.ones((1, p)), p)


@dataclass(frozen=True, eq=False)
class BaselineController:
    """Plans for one adapted baseline and problem; goals are observations, or their features where these are linear."""

    adapted: Adapted
    problem: Problem
    iterations: int = 10
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        p, model = self.problem, self.adapted.model
        check_problem(p, self.adapted.graph.num_nodes, model.config)
        if p.on == "features" and not isinstance(self.adapted, LinearAdapted):
            raise InputError(f"{model.name} has no features to state a goal in; use observations")
        if p.on == "features" and _large(self.adapted):
            raise InputError(f"a plan in features is for at most {LARGE_STATE} of all nodes; use observations")

    @cached_property
    def _impulse(self) -> Impulse | None:
        """Responses in place of matrices along the path, where the method is linear and the graph large."""
        adapted, p = self.adapted, self.problem
        return Impulse(adapted, p.controls, p.goals[-1], p.horizon) if _large(adapted) else None

    def plan(
        self,
        observation: Float[Array, "nodes d"],
        *,
        step: int = 0,
        opening: bool = False,
        before: tuple[Array, Array] | None = None,
        start: Float[Array, "M nodes a"] | None = None,
    ) -> Plan:
        """The best actions from an observation on, for the steps that remain, as those of `gce.planning.controller`."""
        clock = time.process_time()
        p, model = self.problem, self.adapted.model
        known = (p.controls, exogenous_after(p, step, model.exogenous_std))
        plain = BaselineDynamics(self.adapted, *known)
        if p.on == "features" and isinstance(self.adapted, LinearAdapted):
            plain = EmbeddingDynamics(self.adapted, *known)
        begin = x0 = plain.start(observation, before)
        dynamics: BaselineDynamics | ImpulseDynamics = plain
        if self._impulse is not None:
            dynamics = ImpulseDynamics(plain, self._impulse, x0, p.horizon - step)
            begin = dynamics.y0
        turns = Turns(self.iterations, self.tolerance)
        settled, actions, cost = settled_plan(model, dynamics, dynamics, begin, p, step, before, start, turns)
        with torch.no_grad():
            states = settled.x if dynamics is plain else plain.rollout(x0, settled.u)
            path = torch.from_numpy(np.concatenate([x0[None], states]))
            expected = model.denormalise(self.adapted.observe(path)).numpy()
            features = self.adapted.features(path).numpy()
        expected[0] = observation
        return Plan(
            actions, expected, lambda: features, cost, settled.status, settled.iterations, settled.gradient,
            time.process_time() - clock,
        )  # fmt: skip


def _large(adapted: Adapted) -> TypeGuard[LinearAdapted]:
    return isinstance(adapted, LinearAdapted) and len(adapted.c) > LARGE_STATE
