"""Where an environment, an adapted system and a controller meet: plan, act, look, plan again.

Beside it, an oracle that knows the true linear model: an upper bound to compare with, never a method. It minimises
sum_{t=1..M} |W_t (x_t - x*)|^2 + |w * u_{t-1}|^2 under x' = A x + B u + c by Riccati, and clips controls as they act.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from gce.control.problem import Problem, control_error
from gce.control.solver import Gains, lqr
from gce.control.tracking import DensePath, Status
from gce.envs import GraphEnv, Protocol
from gce.planning.controller import Plan, Planner
from gce.planning.running import Observer, Ran, run

Array = np.ndarray


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


def problem_for(env: GraphEnv, goal: Array, protocol: Protocol, **changes: Any) -> Problem:
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
    parts = {"rms_positions": places, "rms_rates": ~places}
    found: dict[str, Any] = {
        "control_error": error,
        "control_error_positions": control_error(final[:, places], run.goal[:, places]),
        "control_error_over_nothing": error / nothing if nothing > 0 else None,
        **{
            name: [_rms(o, run.goal, which) for o in (final, still)] if which.any() else None
            for name, which in parts.items()
        },
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


def harm(env: GraphEnv, found: dict[str, Any]) -> list[str]:
    """Sentences about coordinates that a run left further from the goal than doing nothing does."""
    return [
        f"{what} end {found[name][0]:.3g} from the goal (rms), {found[name][1]:.3g} if nothing is done"
        for name, what in (("rms_positions", env.words[2]), ("rms_rates", "rates of change"))
        if found[name] is not None and found[name][0] > found[name][1]
    ]


def _rms(observation: Array, goal: Array, which: Array) -> float:
    return float(np.sqrt(np.square(observation - goal)[:, which].mean()))


def uncontrolled(env: GraphEnv, steps: int) -> Float[Array, "M_plus_1 nodes d"]:
    """What happens when nothing is done, from the same start."""
    return replayed(env, np.zeros((steps, env.graph.num_nodes, len(env.action_names))))


def replayed(env: GraphEnv, actions: Float[Array, "M nodes a"]) -> Float[Array, "M_plus_1 nodes d"]:
    """What happens under given actions, from the same start."""
    twin = type(env)()
    twin.reset(seed=env.np_random_seed, options={"parameters": env.parameters, "process_noise": env.process_noise})
    return twin.run(lambda t: actions[t], len(actions))[0]


@dataclass(frozen=True)
class LinearOracle:
    """Gains of the whole horizon, and the model that they are of; |u| <= limit."""

    A: Float[Array, "s s"]
    B: Float[Array, "s n"]
    c: Float[Array, " s"]
    gains: Gains
    limit: float

    def act(self, t: int, x: Float[Array, " s"]) -> Float[Array, " n"]:
        """Feedback: the control at step t from the state there."""
        return np.clip(self.gains.control(t, x), -self.limit, self.limit)

    def plan(self, t: int, x: Float[Array, " s"]) -> Float[Array, "steps n"]:
        """The controls from step t to the end, from the state at t alone."""
        found = []
        for k in range(t, len(self.gains.K)):
            found.append(self.act(k, x))
            x = self.A @ x + self.B @ found[-1] + self.c
        return np.array(found)


def linear_oracle(
    A: Float[Array, "s s"],
    B: Float[Array, "s n"],
    c: Float[Array, " s"],
    goal: Float[Array, " s"],
    weight: Float[Array, "M s"],
    effort: float,
    limit: float,
) -> LinearOracle:
    """weight: square roots of the costs of x - goal at steps 1..M; effort: of the controls'."""
    M, used = len(weight), np.flatnonzero(weight.any(axis=0))
    E = np.zeros((M, len(used), len(A)))
    E[:, np.arange(len(used)), used] = weight[:, used]
    each = [np.broadcast_to(part, (M, *part.shape)) for part in (A, B, c)]
    path = DensePath(each[0], each[1], each[2], np.zeros(len(A)))
    gains = lqr(path, E, weight[:, used] * goal[used], np.full((M, B.shape[1]), effort))
    return LinearOracle(A, B, c, gains, limit)
