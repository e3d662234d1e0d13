"""What to do at each step of a run: a settled plan every so many steps, by a system that may learn as it acts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gce.planning.controller import Controller, Plan, Planner
from gce.trajectory import Episode

if TYPE_CHECKING:
    from gce.planning.closed_loop import Ran
    from gce.planning.realtime import Turn

Array = np.ndarray
LEARN = 5
"""Steps between updates of a system that is adapted while it acts."""


class Plans:
    """A settled plan every so many steps."""

    plan: Plan

    def __init__(self, controller: Planner, ran: Ran, total: int, feedback: int) -> None:
        self.controller, self.ran, self.feedback = controller, ran, feedback
        self.moves = max(0, total - controller.problem.horizon)  # so often the horizon moves along
        self.at = 0

    def action(self, t: int) -> Array:
        ran, at = self.ran, self.at
        due = t - at >= self.feedback and t not in ran.missed
        if t == 0 or due or t - at >= len(self.plan.actions):
            before = (ran.known[-2], ran.actions[-1]) if t else None
            passed, start = max(0, t - self.moves), None
            if t:
                left = self.controller.problem.horizon - passed
                start = self.plan.actions[np.minimum(np.arange(t - at, t - at + left), len(self.plan.actions) - 1)]
            self.plan = self.controller.plan(ran.known[-1], step=passed, opening=t == 0, before=before, start=start)
            self.at = t
            self.keep(self.plan, self.plan.seconds, self.plan.iterations)
            if not (self.moves and ran.plans):  # a run may be long
                ran.plans.append(self.plan)
                ran.planned_at.append(t)
        return self.plan.actions[t - self.at]

    def keep(self, plan: Plan | Turn, feedback: float, iterations: int) -> None:
        self.ran.statuses[plan.status] += 1
        self.ran.plan_seconds.append(plan.seconds)
        self.ran.feedback_seconds.append(feedback)
        self.ran.iterations.append(iterations)

    def prepare(self, t: int, action: Array) -> None:
        """What can be done before the measurement."""

    def learn(self, t: int, forget: float) -> None:
        """Adapt to the last few steps, if all of them were measured."""
        ran, opening, controller = self.ran, t < LEARN, self.controller
        last = t + 2 - LEARN - (not opening)  # from which observation on
        if ran.missed and ran.missed[-1] >= last - 1:
            return
        assert isinstance(controller, Controller)
        known = None if ran.exogenous is None else ran.exogenous[last - 1 : t + 1]
        episode = Episode(ran.graph, np.stack(ran.observations[last - 1 :]), np.stack(ran.actions[last - 1 :]), known)
        ran.system = controller.system.update(episode, forget, opening)
        self.use(replace(controller, system=ran.system))

    def use(self, controller: Controller) -> None:
        """Plan by another controller from now on."""
        self.controller = controller

    def expected(self, t: int) -> Array:
        """The next observation, as the plan has it."""
        return self.plan.observations[t + 1 - self.at]
