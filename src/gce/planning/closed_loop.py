"""The loop closed: plan, act, look, plan again, and keep what happened; on a system of one's own, or on a world.

    ran = gce.run(step, controller, observation)
    system = gce.adapt(model, [*episodes, *ran.episodes])

A `step` carries out an action [nodes, a] and answers with the observation [nodes, d] that follows, or with both the
observation and the action as it acted; StopIteration ends the run. One with the methods `send(action)` and `receive()`
lets a controller in real time prepare its next turn in between. `control` is the same on a world of the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from gce.control.problem import Problem, control_error
from gce.control.tracking import Status
from gce.envs.base import GraphEnv
from gce.envs.base import Protocol as WorldProtocol
from gce.errors import InputError, table, warn, whole
from gce.names import Shown
from gce.planning.controller import Controller, Plan, Planner
from gce.trajectory import Episode

Array = np.ndarray
SATURATED = 1e-6
"""A share of an action's size by which what acted may differ from what was asked for."""
LEARN = 5
"""Steps between updates of a system that is adapted while it acts."""


@runtime_checkable
class Link(Protocol):
    """A step in two parts."""

    def send(self, action: Array) -> object: ...

    def receive(self) -> Any: ...


@runtime_checkable
class Observer(Protocol):
    """What estimates the true observation from noisy ones: a value, each step gives the next one."""

    @property
    def estimate(self) -> Float[Array, "nodes d"]: ...

    def stepped(self, action: Float[Array, "nodes a"], observation: Float[Array, "nodes d"] | None) -> Observer: ...


@dataclass(eq=False, repr=False)
class Ran(Shown):
    """What happened: observations as measured (NaN where nothing was), actions as they acted, and how planning went.

    known: what plans started from, estimated where there was a filter. statuses: how plans and turns ended, counted.
    plan_seconds: CPU time, an entry a plan, or a step in real time; feedback_seconds: of it after the measurement.
    missed: steps with no measurement. saturated: steps at which an actuator did not do as it was told. ended: why it
    ended early, a sentence, or None. plans: all of them, or in real time the first. system: as it was in the end.
    """

    graph: Any
    observations: list[Array]
    known: list[Array]
    exogenous: Array | None = None
    actions: list[Array] = field(default_factory=list)
    statuses: Counter[Status] = field(default_factory=Counter)
    plan_seconds: list[float] = field(default_factory=list)
    feedback_seconds: list[float] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    saturated: list[int] = field(default_factory=list)
    ended: str | None = None
    plans: list[Plan] = field(default_factory=list)
    planned_at: list[int] = field(default_factory=list)
    system: Any = None

    def facts(self) -> dict[str, Any]:
        counts = ", ".join(f"{status} {count}" for status, count in self.statuses.items())
        return {"steps": len(self.actions), "nodes": len(self.known[0]), "plans": f"[{counts}]", "ended": self.ended}

    def curves(self) -> Array:
        return np.stack(self.observations)[..., 0]

    @property
    def status(self) -> Status:
        """Solved, or what was wrong first."""
        return next((status for status in self.statuses if not status.ok), Status.SOLVED)

    @property
    def episodes(self) -> list[Episode]:
        """To learn from: the whole run, or what lies between its missing measurements."""
        if self.graph is None:
            raise InputError("this controller does not say of which graph its system is; make an Episode by hand")
        found, first = [], 0
        for t in [*self.missed, len(self.observations)]:
            if t - first >= 2:
                some = None if self.exogenous is None else self.exogenous[first : t - 1]
                seen, acted = self.observations[first:t], self.actions[first : t - 1]
                found.append(Episode(self.graph, np.stack(seen), np.stack(acted), some))
            first = t + 1
        return found


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

    def keep(self, plan: Any, feedback: float, iterations: int) -> None:
        self.ran.statuses[plan.status] += 1
        self.ran.plan_seconds.append(plan.seconds)
        self.ran.feedback_seconds.append(feedback)
        self.ran.iterations.append(iterations)

    def prepare(self, t: int, action: Array) -> None:
        """Before the measurement."""

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


def run(
    step: Callable[[Array], Any] | Link,
    controller: Planner,
    observation: Float[Array, "nodes d"],
    *,
    steps: int | None = None,
    feedback: int = 1,
    observer: Callable[[Array], Observer] | None = None,
    progress: Callable[[int], None] = lambda steps: None,
    patience: int = 10,
    forget: float | None = None,
) -> Ran:
    """Control a simulator or robot from an observation on, and answer with what happened.

    steps: by default the problem's horizon; where more, the horizon moves along and comes nearer only at the end.
    feedback: plan again after so many; in real time (`Controller(mode="realtime")`) after each. observer: of the first
    observation, such as a `Filter`; plans then start from what it estimates. A measurement that is missing (NaN) is
    said, and the last plan goes on; after `patience` of them in a row the run ends. forget: a number up to 1, by which
    the system is adapted to what happens while it does (`System.update`), every few steps; None for not at all.
    """
    feedback, horizon = whole("feedback", feedback, 1), controller.problem.horizon
    total = horizon if steps is None else whole("steps", steps, 1)
    shape = controller.problem.goal.shape[-2:]
    first = _measured(observation, shape, controller.problem.low.shape, "the first observation")[0]
    if not np.isfinite(first).all():
        raise InputError(f"the first observation holds {_not_finite(first)}; begin from a whole measurement")
    realtime = isinstance(controller, Controller) and controller.mode == "realtime"
    if realtime and feedback != 1:
        raise InputError(f"feedback is every {feedback} steps; in real time every step is planned anew: leave it at 1")
    if total > horizon and (controller.problem.exogenous is not None or controller.problem.goal.ndim == 3):
        raise InputError("the horizon moves on only where goal and inputs are the same at all steps; leave steps out")
    watching = None if observer is None else observer(first)
    ran = Ran(
        getattr(getattr(controller, "system", None), "graph", None), [first], [first], controller.problem.exogenous
    )
    kind = Plans
    if realtime:
        from gce.planning.realtime import Turns

        kind = Turns
    plans = kind(controller, ran, total, feedback)
    ran.system = getattr(controller, "system", None)
    if forget is not None and not isinstance(controller, Controller):
        raise InputError("only a Controller of an adapted system learns while it acts; leave forget out")
    for t in range(total):
        asked = plans.action(t)
        try:
            if isinstance(step, Link):
                step.send(asked.copy())
                plans.prepare(t, asked)
                answer = step.receive()
            else:
                answer = step(asked.copy())
        except StopIteration as over:
            ran.ended = f"step {t}: {over or 'the system ended the run'}"
            warn(ran.ended)
            break
        seen, action = _measured(answer, shape, asked.shape, f"step {t}")
        if action is None:
            action = asked
        elif np.abs(action - asked).max() > SATURATED * max(1.0, float(np.abs(asked).max())):
            if not ran.saturated:
                node, k = np.unravel_index(int(np.abs(action - asked).argmax()), asked.shape)
                warn(
                    f"step {t}: the actuator of node {node} was told {asked[node, k]:.4g} and did "
                    f"{action[node, k]:.4g}; narrow its bounds (low, high) to what it can do"
                )
            ran.saturated.append(t)
        ran.actions.append(action)
        ran.observations.append(seen)
        plans.prepare(t, action)
        missing = not np.isfinite(seen).all()
        if missing:
            if not ran.missed:
                warn(f"step {t}: the observation holds {_not_finite(seen)}; the last plan goes on without it")
            ran.missed.append(t + 1)
        if watching is not None:
            watching = watching.stepped(action, None if missing else seen)
            ran.known.append(watching.estimate)
        else:
            ran.known.append(plans.expected(t) if missing else seen)
        if forget is not None and (t + 1) % LEARN == 0:
            plans.learn(t, forget)
        progress(1)
        if len(ran.missed) >= patience and ran.missed[-patience] == t + 2 - patience:
            ran.ended = f"{patience} measurements in a row were missing up to step {t}; nothing was done after it"
            warn(ran.ended)
            break
    return ran


def _measured(answer: Any, shape: tuple[int, ...], acts: tuple[int, ...], where: str) -> tuple[Array, Array | None]:
    """(observation, the action as it acted or None) of what a step answers."""
    action = None
    if isinstance(answer, tuple):
        if len(answer) != 2:
            raise InputError(
                f"{where} answered with {len(answer)} values; answer with the observation, or with it and the action"
            )
        answer, action = answer
        action = table(f"{where}: the action as it acted", action)
        if action.shape != acts:
            raise InputError(f"{where}: the action as it acted has shape {action.shape}, expected {acts}")
    try:
        seen = np.array(answer, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where} is {type(answer).__name__}, expected the observation {shape} in numbers") from None
    if seen.shape != shape:
        raise InputError(
            f"{where} answered with the shape {seen.shape}, expected {shape}: a row a node, a column a coordinate"
        )
    return seen, action


def _not_finite(values: Array) -> str:
    node, k = np.argwhere(~np.isfinite(values))[0]
    return f"{values[node, k]} at node {node}, coordinate {k}"


@dataclass(frozen=True)
class Run:
    """One controlled episode: true observations [M+1, nodes, d], actions [M, nodes, a], the goal, how planning went.

    seen: what the controller observed, the same as the true observations unless there is noise.
    """

    observations: Float[Array, "M_plus_1 nodes d"]
    seen: Float[Array, "M_plus_1 nodes d"]
    actions: Float[Array, "M nodes a"]
    goal: Float[Array, "nodes d"]
    ran: Ran

    @property
    def plans(self) -> list[Plan]:
        return self.ran.plans

    @property
    def planned_at(self) -> list[int]:
        return self.ran.planned_at

    @property
    def status(self) -> Status:
        return self.ran.status


def problem_for(env: GraphEnv, goal: Array, protocol: WorldProtocol, **changes: Any) -> Problem:
    """The problem of a world: its bounds, its actuated nodes, and costs in its units."""
    low, high = env.action_bounds
    unit, action_unit = protocol.unit, protocol.action_unit
    return Problem(
        horizon=protocol.horizon,
        goal=goal,
        low=low,
        high=high,
        state_cost=protocol.state_cost,
        terminal_cost=protocol.terminal_cost,
        action_cost=protocol.action_cost,
        change_cost=protocol.change_cost / protocol.feedback,
        rate=np.full_like(low, protocol.rate) if np.isfinite(protocol.rate) else None,
        unit=float(env.observation_std.mean()) if unit is None else unit,
        action_unit=env.action_std if action_unit is None else action_unit,
        tracked=np.broadcast_to(env.positions, goal.shape[-2:]) if protocol.positions_only else None,
        **changes,
    )


def control(
    env: GraphEnv,
    controller: Planner,
    feedback: int,
    progress: Callable[[int], None] = lambda steps: None,
    observer: Callable[[Array], Observer] | None = None,
) -> Run:
    """Plan at steps 0, feedback, 2 feedback, ..., each time for the steps that remain, and act on `env`, just reset.

    observer: of the first observation; later plans then start from what it estimates, not from what is seen.
    """
    true, first = [env._observation()], env.observe()

    def step(action: Array) -> Array:
        env._advance(action)
        true.append(env._observation())
        return env.observe()

    ran = run(step, controller, first, feedback=feedback, observer=observer, progress=progress)
    return Run(np.stack(true), np.stack(ran.observations), np.stack(ran.actions), controller.problem.goals[-1], ran)


def figures(env: GraphEnv, run: Run, recorded: Float[Array, "steps nodes a"] | None = None) -> dict[str, Any]:
    """What is reported of a run: errors in physical units, the reported cost, and how planning went.

    recorded: the actions that once led to the goal; replayed from the same start they say how near that comes.
    """
    final, still = run.observations[-1], uncontrolled(env, len(run.actions))[-1]
    places = env.positions
    error, nothing = control_error(final, run.goal), control_error(still, run.goal)
    rms = {
        name: [float(np.sqrt(np.square(o - run.goal)[:, which].mean())) for o in (final, still)]
        for name, which in (("rms_positions", places), ("rms_rates", ~places))
        if which.any()
    }
    found: dict[str, Any] = {
        "control_error": error,
        "control_error_positions": control_error(final[:, places], run.goal[:, places]),
        "control_error_over_nothing": error / nothing if nothing > 0 else None,
        "rms_positions": rms.get("rms_positions"),
        "rms_rates": rms.get("rms_rates"),
        "nothing": nothing,
        "cost": env.run_cost(run.observations[1:], run.actions, run.goal),
        "predicted_cost": run.plans[0].cost,
        "status": run.status,
        "plan_seconds": run.ran.plan_seconds,
        "iterations": run.ran.iterations,
    }
    if len(run.plans) < len(run.ran.plan_seconds):  # in real time
        found |= {"feedback_seconds": run.ran.feedback_seconds, "turns": dict(run.ran.statuses)}
    if recorded is not None and len(recorded) >= len(run.actions):
        found["replay"] = control_error(replayed(env, recorded[: len(run.actions)])[-1], run.goal)
    return found | env.extra_figures(run.observations, run.goal)


def uncontrolled(env: GraphEnv, steps: int) -> Float[Array, "M_plus_1 nodes d"]:
    """What happens when nothing is done, from the same start."""
    return replayed(env, np.zeros((steps, env.graph.num_nodes, len(env.action_names))))


def replayed(env: GraphEnv, actions: Float[Array, "M nodes a"]) -> Float[Array, "M_plus_1 nodes d"]:
    """What happens under given actions, from the same start."""
    twin = type(env)()
    twin.reset(seed=env.np_random_seed, options={"parameters": env.parameters, "process_noise": env.process_noise})
    return twin.run(lambda t: actions[t], len(actions))[0]
