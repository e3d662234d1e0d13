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

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float
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
        return self.adapted.model.normalise(torch.tensor(observations)).flatten(-2).numpy()

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
        return self.outputs(np.stack([self.start(goal) for goal in distinct]))[which.reshape(-1)]

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        return x[..., self.adapted.embedding]

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        return np.eye(x.shape[-1])[None, self.adapted.embedding]


@dataclass(frozen=True, eq=False)
class ImpulsePath:
    """y_1..y_M as a function of controls; what the planner takes for states are these outputs."""

    spectrum: Complex[Array, "frequencies p n"]
    free: Float[Array, "M p"]

    def forward(self, u: Float[Array, "M n"], affine: bool = True) -> Float[Array, "M p"]:
        M = len(self.free)
        found = np.einsum("fpn,fn->fp", self.spectrum, np.fft.rfft(u, 2 * M, axis=0), optimize=True)
        y = np.fft.irfft(found, 2 * M, axis=0)[:M]
        return y + self.free if affine else y

    def adjoint(self, weights: Float[Array, "M p"]) -> Float[Array, "M n"]:
        M = len(self.free)
        seen = np.fft.rfft(weights, 2 * M, axis=0)
        found = np.einsum("fpn,fp->fn", self.spectrum.conj(), seen, optimize=True)
        return np.fft.irfft(found, 2 * M, axis=0)[:M]


class Impulse:
    """The responses of an adapted system's observations, worked out once for all its plans.

    goal: where the output is linearised, in physical units. steps: the longest plan.
    """

    def __init__(
        self, adapted: LinearAdapted, controls: Bool[Array, "nodes a"], goal: Float[Array, "nodes d"], steps: int
    ) -> None:
        self.adapted, self.controls, self.steps = adapted, controls, steps
        at = adapted.start(goal.copy())
        self.D = adapted.output_slopes(at[None])[0].double()
        with torch.no_grad():
            self.d = adapted.observe(at).flatten() - self.D @ at

    @cached_property
    def responses(self) -> Float[Array, "M p n"]:
        nodes, a = self.controls.shape
        inputs = self.adapted.B.unflatten(-1, (nodes, -1))[..., :a].flatten(-2)
        carried = inputs[:, torch.from_numpy(self.controls.flatten())].contiguous()
        found = []
        for _ in range(self.steps):
            found.append(self.D @ carried)
            carried = self.adapted.A @ carried
        return torch.stack(found).numpy()


class ImpulseDynamics:
    """One plan's dynamics: what the planner takes for states are the outputs y_0, y_1..y_M themselves."""

    def __init__(self, plain: BaselineDynamics, impulse: Impulse, x0: Float[Array, " s"], steps: int) -> None:
        self.plain = plain
        still = plain.rollout(x0, np.zeros((steps, impulse.responses.shape[-1])))
        D, d = impulse.D.numpy(), impulse.d.numpy()
        self.y0, free = D @ x0 + d, still @ D.T + d
        self.along = ImpulsePath(np.fft.rfft(impulse.responses[:steps], 2 * steps, axis=0), free)

    def rollout(self, x0: Float[Array, " p"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M p"]:
        each = [self.along.forward(one) for one in u.reshape(-1, *u.shape[-2:])]
        return np.stack(each).reshape(*u.shape[:-1], -1)

    def path(self, x0: Float[Array, " p"], x: Float[Array, "M p"], u: Float[Array, "M n"]) -> ImpulsePath:
        return self.along

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
        p, c, n = self.problem, self.adapted.model.sizes, self.adapted.graph.num_nodes
        check_problem(p, n, c)
        if p.on == "features" and not isinstance(self.adapted, LinearAdapted):
            raise InputError(f"{self.adapted.model.name} has no features to state a goal in; use observations")
        if p.on == "features" and self._large:
            raise InputError(f"a plan in features is for at most {LARGE_STATE} of all nodes; use observations")

    @property
    def _large(self) -> bool:
        return isinstance(self.adapted, LinearAdapted) and len(self.adapted.c) > LARGE_STATE

    def _dynamics(self, controls: Bool[Array, "nodes a"], exogenous: Tensor | None) -> BaselineDynamics:
        if self.problem.on == "features" and isinstance(self.adapted, LinearAdapted):
            return EmbeddingDynamics(self.adapted, controls, exogenous)
        return BaselineDynamics(self.adapted, controls, exogenous)

    @cached_property
    def _impulse(self) -> Impulse | None:
        """Responses in place of matrices along the path, where the method is linear and the graph large."""
        adapted, p = self.adapted, self.problem
        if not (isinstance(adapted, LinearAdapted) and self._large):
            return None
        return Impulse(adapted, p.controls, p.goals[-1], p.horizon)

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
        exogenous = exogenous_after(p, step, model.exogenous_std)
        plain = self._dynamics(p.controls, exogenous)
        x0 = plain.start(observation, before)
        known = self._impulse
        dynamics: BaselineDynamics | ImpulseDynamics = plain
        begin = x0
        if known is not None:
            dynamics = ImpulseDynamics(plain, known, x0, p.horizon - step)
            begin = dynamics.y0
        turns = Turns(self.iterations, self.tolerance)
        settled, actions, cost = settled_plan(model, dynamics, dynamics, begin, p, step, before, start, turns)
        with torch.no_grad():
            states = settled.x if known is None else plain.rollout(x0, settled.u)
            path = torch.from_numpy(np.concatenate([x0[None], states]))
            expected = model.denormalise(self.adapted.observe(path)).numpy()
            features = self.adapted.features(path).numpy()
        expected[0] = observation
        return Plan(
            actions=actions,
            observations=expected,
            encode=lambda: features,
            cost=cost,
            status=settled.status,
            iterations=settled.iterations,
            gradient=settled.gradient,
            seconds=time.process_time() - clock,
        )
