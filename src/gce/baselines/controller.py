"""A controller for an adapted baseline, with the problem, solvers and protocol of our own.

A linear step with a linear output is one quadratic problem; everything else is solved, followed and linearised again
(as in iterative LQR), at most `iterations` times. Linear steps of large graphs are planned by their impulse responses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.baselines.base import Adapted
from gce.baselines.impulse import LARGE_STATE, Impulse, ImpulseDynamics
from gce.baselines.koopman import LinearAdapted
from gce.baselines.planning import BaselineDynamics, EmbeddingDynamics
from gce.control.problem import Problem
from gce.errors import InputError
from gce.planning.controller import Plan, Turns, check_problem, exogenous_after, settled_plan

Array = np.ndarray


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
