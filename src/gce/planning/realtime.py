"""Plans in real time: one turn a control step, prepared before the measurement arrives (`gce.control.realtime`).

    turn = controller.begin(observation)          # a whole plan
    while ...:
        send(turn.action)
        ready = turn.prepare()                    # while the system moves
        turn = ready.feedback(measure())          # what is left to do after the measurement

Turns are values: nothing is kept between them but what they hold.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from gce.control.realtime import Prepared, advance, later, prepared
from gce.control.settle import Dynamics, Task
from gce.control.solver import Solver, Suitable, chosen_solver
from gce.control.tracking import DEADLINE, Status
from gce.dynamics.compiled import say_missing
from gce.errors import InputError, table
from gce.names import Shown
from gce.planning.closed_loop import Plans
from gce.planning.controller import SystemDynamics, dynamics_of, efforts, exogenous_after, task_of

if TYPE_CHECKING:
    from gce.planning.controller import Controller

Array = np.ndarray
FORGET = 0.9
"""How fast the time of a slow turn is forgotten while plans are shifted instead."""


@dataclass(frozen=True, eq=False)
class Frame:
    """What all turns of a run share; known: the dynamics of every step, where no inputs are known in advance."""

    controller: Controller
    task: Task
    solver: Solver
    scale: Float[Array, " n"]
    known: SystemDynamics

    @staticmethod
    def of(controller: Controller) -> Frame:
        p, model = controller.problem, controller.system.model
        say_missing()
        known = Frame._dynamics(controller, 0, False)
        task = task_of(model, known, p, 0, np.zeros(int(p.controls.sum())))
        scale = np.broadcast_to(model.arrays.action_std, p.low.shape)[p.controls]
        return Frame(controller, task, chosen_solver(controller.solver), scale, known)

    @staticmethod
    def _dynamics(controller: Controller, step: int, opening: bool) -> SystemDynamics:
        p, model = controller.problem, controller.system.model
        exogenous = exogenous_after(p, step, model.exogenous_std)
        return dynamics_of(controller.system, p.controls, opening, exogenous, p.on, controller.frozen)

    def dynamics(self, step: int, opening: bool) -> SystemDynamics:
        if opening or self.controller.problem.exogenous is not None:
            return self._dynamics(self.controller, step, opening)
        return self.known

    def at(self, known: SystemDynamics, x0: Float[Array, " s"]) -> Dynamics:
        return known.frozen_at(x0) if self.controller.frozen else known

    def actions(self, u: Float[Array, "M n"]) -> Float[Array, "M nodes a"]:
        p = self.controller.problem
        found = np.zeros((len(u), *p.low.shape))
        found[:, p.controls] = u * self.scale
        return np.clip(found, p.low, p.high)


@dataclass(frozen=True, eq=False, repr=False)
class Turn(Shown):
    """The plan from a step on, [steps that remain, nodes, a]; the first action is the one to carry out now.

    step: of the problem. seconds: CPU time of all of the turn; feedback_seconds: of what followed the measurement.
    pace: wall-clock seconds that turns take, to judge whether one more is in time.
    """

    frame: Frame
    step: int
    observation: Float[Array, "nodes d"]
    opening: bool
    before: tuple[Array, Array] | None
    u: Float[Array, "M n"]
    now: Prepared | None
    status: Status
    seconds: float
    feedback_seconds: float
    pace: float = 0.0

    @property
    def actions(self) -> Float[Array, "M nodes a"]:
        return self.frame.actions(self.u)

    @property
    def action(self) -> Float[Array, "nodes a"]:
        return self.frame.actions(self.u[:1])[0]

    def facts(self) -> dict[str, Any]:
        return {"step": self.step, "status": repr(str(self.status)), "seconds": f"{self.seconds:.2g}"}

    def prepare(self, recede: bool = False, applied: Float[Array, "nodes a"] | None = None) -> Ready:
        """Everything of the next turn that needs no measurement.

        recede: whether the horizon moves on instead of coming nearer. applied: the action as it acted, where an
        actuator did not do as it was told.
        """
        clock, begun, frame = time.process_time(), time.monotonic(), self.frame
        controller = frame.controller
        p, action = controller.problem, self.action if applied is None else table("the action applied", applied)
        if len(self.u) == 1 and not recede:
            raise InputError(f"the plan of {p.horizon} steps has ended; begin another one")
        if recede and (p.exogenous is not None or p.goal.ndim == 3):
            raise InputError("the horizon moves on only where goal and inputs are the same at all steps")
        known, step = frame.dynamics(self.step, self.opening), self.step + (not recede)
        x0 = known.reduced(controller.system.state(self.observation, self.opening, self.before))
        here, last = frame.at(known, x0), action[p.controls] / frame.scale
        now, late = None, controller.time_limit is not None and self.pace > controller.time_limit
        acted, damping, least = np.concatenate([last[None], self.u[1:]]), 0.0, 0.0
        if late:
            x = here.rollout(x0, acted[:1])
        elif self.now is None:
            x = here.rollout(x0, acted)
        else:
            task = later(frame.task, self.step, last)
            acted, x, damping, least = advance(here, task, x0, self.now, acted)
        expected, u, x = x[0], acted[1:], x[1:]
        if recede:
            u = np.concatenate([u, acted[-1:]])
        if not late:
            if recede:
                x = np.concatenate([x, here.rollout(x[-1] if len(x) else expected, u[-1:])])
            task = later(frame.task, step, last)
            task = task.keeping(u, efforts(p.change_cost, p, controller.system.model.arrays.action_std))
            if np.isfinite(x).all():
                after = frame.at(frame.dynamics(step, False), expected)
                own = not isinstance(frame.solver, Suitable)
                kept = self.now if not controller.frozen and p.exogenous is None else None
                now = prepared(after, task, expected, x, u, damping, least, not own, kept, 1)
        taken = time.process_time() - clock, time.monotonic() - begun
        return Ready(self, step, action, u, expected, now, late, *taken)


@dataclass(frozen=True, eq=False)
class Ready:
    """A turn that waits for its measurement; u: the plan before, shifted; expected: the state as it should be now.

    now: None where there was no time (`late`), or the model runs away; the plan before then goes on.
    """

    turn: Turn
    step: int
    applied: Float[Array, "nodes a"]
    u: Float[Array, "M n"]
    expected: Float[Array, " s"]
    now: Prepared | None
    late: bool
    seconds: float
    wall: float

    @property
    def expectation(self) -> Float[Array, "nodes d"]:
        """The observation as the model expects it."""
        system = self.turn.frame.controller.system
        states = self.turn.frame.known.lifted(self.expected)
        d = system.model.config.num_observations
        found: Array = system.model.denormalise(states[..., :d].double()).numpy()
        return found

    def feedback(self, observation: Float[Array, "nodes d"] | None) -> Turn:
        """The turn at a measurement; None where there is none: the plan before goes on from where it should be."""
        clock, begun, turn, frame = time.process_time(), time.monotonic(), self.turn, self.turn.frame
        controller, u, now = frame.controller, self.u, self.now
        spare = math.inf if controller.time_limit is None else controller.time_limit - self.wall
        status = Status.NOT_FINITE if now is None and not self.late else Status.SHIFTED
        if observation is None or spare <= 0:
            now = None
        if observation is None:
            observation = self.expectation
        before = (turn.observation, self.applied)
        if now is not None:
            x0 = frame.known.reduced(controller.system.state(observation, False, before))
            token = DEADLINE.set(begun + spare)
            try:
                u, status = now.feedback(x0, frame.solver)
            finally:
                DEADLINE.reset(token)
        taken, wall = time.process_time() - clock, self.wall + time.monotonic() - begun
        pace = FORGET * turn.pace if self.late else max(wall, FORGET * turn.pace)
        return Turn(
            frame, self.step, observation, False, before, u, now, status, self.seconds + taken, taken, pace
        )  # fmt: skip


class Turns(Plans):
    """One turn a step, after a first plan."""

    controller: Controller
    ready: Ready | None = None
    other: Frame | None = None

    def action(self, t: int) -> Array:
        ran = self.ran
        if t == 0:
            plan = replace(self.controller, time_limit=None).plan(ran.known[0], opening=True)
            self.turn = self.controller.begin(ran.known[0], plan)
            ran.plans.append(plan)
            ran.planned_at.append(0)
            self.keep(plan, plan.seconds, plan.iterations)
            self._rehearse()
            return self.turn.action
        assert self.ready is not None
        self.turn = self.ready.feedback(ran.known[-1])
        if self.other is not None:  # whose derivatives are others
            self.turn, self.other = replace(self.turn, frame=self.other, now=None), None
        if t in ran.missed:
            self.turn = replace(self.turn, status=Status.SHIFTED)
        self.keep(self.turn, self.turn.feedback_seconds, 1)
        return self.turn.action

    def prepare(self, t: int, action: Array) -> None:
        ready = self.ready
        known = ready is not None and ready.turn is self.turn and np.array_equal(ready.applied, action)
        if not known and self.turn.step + (t < self.moves) < self.controller.problem.horizon - (t >= self.moves):
            self.ready = self.turn.prepare(t < self.moves, action)

    def use(self, controller: Controller) -> None:
        super().use(controller)
        self.other = Frame.of(controller)

    def expected(self, t: int) -> Array:
        assert self.ready is not None
        return self.ready.expectation

    def _rehearse(self) -> None:
        """A time limit that no turn keeps to is refused before anything is done."""
        limit, horizon = self.controller.time_limit, self.controller.problem.horizon
        if limit is None or horizon == 1:
            return
        turns = replace(self.turn.frame, controller=replace(self.controller, time_limit=None))
        turn, least = replace(self.turn, frame=turns), math.inf
        for _ in range(2):
            begun = time.monotonic()
            turn.prepare().feedback(self.ran.known[0])
            least = min(least, time.monotonic() - begun)
        if least > limit:
            raise InputError(
                f"time_limit is {limit:g} s, and one turn takes {least:.2g} s here; allow more, shorten the horizon, "
                "or install the extra `fast`"
            )
