"""What plans promise, and what they must keep to."""

from dataclasses import replace

import numpy as np
import pytest

import gce
from gce.control.settle import Task, settle
from gce.control.tracking import ControlLimits, Status
from gce.errors import InputError
from gce.planning.controller import Controller
from gce.system.uncertainty import Outlook
from general import pendulums, trained
from plans import Linear, random_path
from small import system_episodes, untrained


@pytest.fixture(scope="module")
def planning():
    data = pendulums()
    system = gce.adapt(trained().model, [data[k] for k in range(3)])
    _, low, high = gce.control_limits(data)
    start, goal = data[4].observations[0].astype(float), data[4].observations[20].astype(float)
    return system, gce.Problem(horizon=20, goal=goal, low=low, high=high, action_cost=1e-4), start


def test_the_expected_error_is_that_of_the_prediction_and_of_left_out_episodes(planning):
    system, problem, start = planning
    plan, std = Controller(system, problem).plan(start, opening=True), system.model.arrays.observation_std
    away = np.sqrt(np.mean(np.square((plan.observations[-1] - problem.goal) / std)))
    wrong = np.sqrt(np.mean(np.square(system.spread.deviations(21)[-1]))) * (1 + plan.outlook.beyond)
    assert plan.outlook.error == pytest.approx(np.hypot(away, wrong))
    assert plan.outlook.high == pytest.approx(away + 1.645 * wrong) and plan.outlook.low < away
    idle = system.predict(start, 0 * plan.actions)[-1]
    assert plan.outlook.nothing == pytest.approx(np.sqrt(np.mean(np.square((idle - problem.goal) / std))), rel=1e-3)
    unmeasured = gce.adapt(system.model, [pendulums()[0]], measure=False)
    assert Controller(unmeasured, problem).plan(start, opening=True).outlook is None


def test_errors_grow_where_a_plan_leaves_what_was_recorded():
    episodes = system_episodes("rope")
    system, o = gce.adapt(untrained("rope"), episodes[:3]), episodes[3].observations.astype(float)
    problem = gce.Problem(5, o[5], *(side * np.abs(episodes[3].actions).max(0) for side in (-1, 1)))
    inside = Outlook.of(system, problem.goals[-1], None, o[:6], o[:6], episodes[0].actions[:5].astype(float))
    outside = Outlook.of(system, problem.goals[-1], None, o[:6], o[:6], 100 * episodes[0].actions[:5].astype(float))
    assert inside.beyond < 0.1 < outside.beyond and outside.error > inside.error
    assert (
        Outlook.of(system, problem.goals[-1], None, o[:6] * np.nan, o[:6], episodes[0].actions[:5].astype(float))
        is None
    )


def test_no_plan_is_dearer_than_doing_nothing():
    path, bad = random_path(0), np.full((6, 2), 5.0)
    dynamics = Linear(path)
    task = Task(np.zeros((6, 4)), np.ones((6, 4)), np.ones((6, 2)), ControlLimits(-bad, bad))
    cost = float(task.cost(dynamics.rollout(path.x0, 0 * bad), 0 * bad))
    assert float(task.cost(dynamics.rollout(path.x0, bad), bad)) > cost
    found = settle(dynamics, task, path.x0, bad, lambda problem, u: (u, "solved"), iterations=1)
    assert found.cost <= cost


def test_hard_limits_are_kept_or_the_plan_is_infeasible(planning):
    system, problem, start = planning
    free = Controller(system, problem).plan(start, opening=True)
    idle = system.predict(start, 0 * free.actions)
    sign = max((1, -1), key=lambda way: np.ptp((way * (free.observations - idle))[1:, 0, 2].clip(min=0)))
    highest, still = ((sign * o[1:, 0, 2]).max() for o in (free.observations, idle))
    top, none = np.full(problem.goal.shape, np.inf), np.full(problem.goal.shape, np.inf)
    top[0, 2] = still + 0.3 * (highest - still)  # the pushed pendulum turns as fast by itself, or nearly
    low, high = (-none, top) if sign > 0 else (-top, none)
    limited = replace(problem, soft_low=low, soft_high=high, hard=True)
    assert highest > still and limited.beyond(free.observations[1:]) > 1e-3
    kept = Controller(system, limited).plan(start, opening=True)
    assert limited.beyond(kept.observations[1:]) <= 1e-3 and kept.status is not Status.INFEASIBLE
    assert free.cost < kept.cost
    low = np.full(problem.goal.shape, -np.inf)
    low[2, 2] = 50.0  # nothing turns that fast
    never = replace(problem, soft_low=low, soft_high=none, hard=True)
    ended = Controller(system, never).plan(start, opening=True)
    assert ended.status is Status.INFEASIBLE and "No actions keep to all limits" in ended.status.advice
    assert never.beyond(ended.observations[1:]) <= never.beyond(idle[1:])  # the least violation
    with pytest.raises(InputError, match="hard limits"):
        replace(problem, hard=True)
