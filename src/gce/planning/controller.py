"""Controllers: an adapted system and a problem in, plans out.

Weights along the plan: `along` recomputes features and Gibbs weights along the predicted path and solves again until
the plan settles; `frozen` keeps everything as it is at the current state, which is the paper's reading and one solve.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.control.problem import Problem
from gce.control.settle import Tell
from gce.control.solver import Solver, chosen_solver
from gce.control.task import Dynamics
from gce.dynamics.choice import dynamics_of
from gce.errors import InputError
from gce.planning.plans import Plan, Turns, check_problem, exogenous_after, settled_plan
from gce.system.system import System

Array = np.ndarray
Weights = Literal["along", "frozen"]


@dataclass(frozen=True, eq=False)
class Controller:
    """Plans for one system and problem.

    iterations: how often a plan is solved again at most; tolerance: when it has settled; patience: after how many turns
    without much gain it is given up. tell: called at each turn of a plan, to show that it works or to stop it.
    solver: of the quadratic problem at each turn, a name in `gce.control.solver.SOLVERS` or a `Solver` of your own.
    """

    system: System
    problem: Problem
    weights: Weights = "along"
    iterations: int = 120
    tolerance: float = 1e-4
    patience: int = 4
    tell: Tell = lambda turn, share: None
    solver: str | Solver = "suitable"

    def __post_init__(self) -> None:
        p, c, n = self.problem, self.system.model.config, self.system.graph.num_nodes
        if not self.system.operator.form.controllable:
            raise InputError(
                f"an operator of the form {self.system.operator.form.name!r} entangles history and action and cannot "
                "be controlled; adapt with hom_mean, hom or dense"
            )
        check_problem(p, n, c)
        if self.weights not in ("along", "frozen"):
            raise InputError(f"weights are kept 'along' the plan or 'frozen', not {self.weights!r}")
        chosen_solver(self.solver)

    def plan(
        self,
        observation: Float[Array, "nodes d"],
        *,
        step: int = 0,
        opening: bool = False,
        before: tuple[Array, Array] | None = None,
        start: Float[Array, "M nodes a"] | None = None,
    ) -> Plan:
        """The best actions from an observation on, for the steps that remain.

        step: how many of the problem's steps have passed. opening: whether the observation opens an episode.
        before: (observation, action) one step earlier; needed where the model's state holds them, and for limits on
        the rate. start: the plan made before, of the steps that remain: to begin from, and to keep to (`change_cost`).
        """
        clock = time.process_time()
        p, model = self.problem, self.system.model
        exogenous = exogenous_after(p, step, model.exogenous_std)
        frozen = self.weights == "frozen"
        known = dynamics_of(self.system, p.controls, opening, exogenous, p.on, frozen)
        state = self.system.state(observation, opening, before)
        x0 = known.reduced(state)
        dynamics: Dynamics = known.frozen_at(x0) if frozen else known
        turns = Turns(self.iterations, self.tolerance, self.patience, self.tell)
        solver = chosen_solver(self.solver)
        settled, actions, cost = settled_plan(model, dynamics, known, x0, p, step, before, start, turns, solver)
        states = torch.cat([state[None], known.lifted(settled.x)])
        expected = model.denormalise(states[..., : model.config.num_observations].double()).numpy()
        expected[0] = observation
        return Plan(
            actions, expected, lambda: self._features(states), cost, settled.status, settled.iterations,
            settled.gradient, time.process_time() - clock,
        )  # fmt: skip

    def _features(self, states: Float[Tensor, "steps nodes c"]) -> Float[Array, "steps nodes f"]:
        """One step after another, which needs little room on large graphs."""
        with torch.no_grad():
            return np.stack([self.system.model.features(x, self.system.topology).double().numpy() for x in states])
