"""Plans for adapted systems, and what a badly stated problem gets."""

import dataclasses
import itertools
import time

import numpy as np
import pytest

from gce.control.matrix_free import solve_matrix_free
from gce.control.problem import Problem, weights_of
from gce.control.solver import SOLVERS, MatrixFree, Solver, Suitable, register_solver
from gce.control.tracking import Status
from gce.envs import world_named
from gce.errors import InputError
from gce.model.files import load_model, shipped
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller
from gce.system.system import adapt
from gce.trajectory import Episode

STEPS = 12


def recorded(env, parameters, episodes, steps=40):
    found = []
    for k in range(episodes):
        env.reset(seed=100 + k, options={"parameters": parameters})
        observations, actions = env.run(env.excitation(np.random.default_rng(k), steps), steps)
        found.append(Episode(env.graph, observations, actions))
    return found


@pytest.fixture(scope="module")
def rope():
    env = world_named("rope")(objects=5)
    env.reset(seed=3)
    episodes = recorded(env, env.parameters, 4)
    system = adapt(load_model(shipped("rope")).requires_grad_(False), episodes[1:])
    return env, system, episodes[0].observations[STEPS]


def problem_of(env, target, **changes):
    protocol = dataclasses.replace(env.recipe.protocol, horizon=STEPS)
    return dataclasses.replace(problem_for(env, target, protocol), **changes)


def start(env, goal=None):
    env.reset(seed=100, options={"parameters": env.parameters, "goal": goal})
    return env._observation()


def test_a_plan_comes_closer_than_doing_nothing(rope):
    env, system, goal = rope
    start(env, goal)
    run = control(env, Controller(system, problem_of(env, goal)), STEPS)
    told = figures(env, run)
    assert told["status"] == "solved"
    assert told["control_error"] < 0.5 * told["nothing"]
    assert run.plans[0].gradient <= 1e-4
    led = recorded(env, env.parameters, 1, STEPS)[0].actions
    start(env, goal)
    assert figures(env, run, led)["replay"] < 1e-5
    assert "replay" not in told


def test_later_plans_start_from_what_is_estimated(rope):
    env, system, goal = rope

    @dataclasses.dataclass
    class Knowing:
        estimate: np.ndarray

        def stepped(self, action, observation):
            return Knowing(env._observation())

    for observer, known in ((None, "seen"), (Knowing, "observations")):
        env.reset(seed=100, options={"parameters": env.parameters, "observation_noise": 0.1})
        run = control(env, Controller(system, problem_of(env, goal)), STEPS // 2, observer=observer)
        assert not np.allclose(run.seen, run.observations)
        assert np.array_equal(run.plans[1].observations[0], getattr(run, known)[STEPS // 2])


def test_forces_on_a_soft_body_change_slowly_from_plan_to_plan_too():
    env = world_named("soft")(objects=5)
    env.reset(seed=3)
    *episodes, target = recorded(env, env.parameters, 4)
    system = adapt(load_model(shipped("soft")).requires_grad_(False), episodes, measure=False)
    start(env, target.observations[STEPS].astype(float))
    problem = problem_of(env, target.observations[STEPS].astype(float))
    run = control(env, Controller(system, problem), STEPS // 2)
    change = np.abs(np.diff(run.actions, axis=0, prepend=np.zeros_like(run.actions[:1])))
    limit = env.recipe.protocol.rate
    assert change.max() <= limit + 1e-6
    free = control(env, Controller(system, dataclasses.replace(problem, rate=None)), STEPS // 2)
    assert np.abs(np.diff(free.actions, axis=0)).max() > limit


@pytest.fixture
def ticks(monkeypatch):
    """A clock on which a second passes whenever it is looked at."""
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    return clock


@pytest.mark.parametrize("large", [1, 10**6], ids=["by products", "dense"])
def test_a_plan_ends_in_time_with_the_best_so_far(rope, large, ticks):
    env, system, goal = rope
    start(env, goal)
    problem, first = problem_of(env, goal), env.observe()
    whole = Controller(system, problem, solver=Suitable(large))
    began = next(ticks)
    plan = whole.plan(first, opening=True)
    limit, began = 0.6 * (next(ticks) - began), next(ticks)
    short = dataclasses.replace(whole, time_limit=limit).plan(first, opening=True)
    assert next(ticks) - began <= 1.2 * limit
    assert short.status == "time limit" and "seconds" in short.status.advice
    assert 0 < short.iterations < plan.iterations and plan.cost <= short.cost
    none = dataclasses.replace(whole, time_limit=1e-9).plan(first, opening=True)
    assert none.iterations == 0 and not none.actions.any()
    for wrong in (0.0, -1.0, np.nan):
        with pytest.raises(InputError, match="time_limit"):
            dataclasses.replace(whole, time_limit=wrong)


def test_a_first_turn_that_takes_too_long_leaves_what_follows_if_nothing_is_done(ticks, monkeypatch):
    """On a large graph the derivatives alone may take longer than a plan may."""
    monkeypatch.setattr("gce.features.base.MANY_NODES", 3)
    env = world_named("grid")(objects=30)
    env.reset(seed=3)
    system = adapt(load_model(shipped("grid")).requires_grad_(False), recorded(env, env.parameters, 2), measure=False)
    first, problem = start(env), problem_of(env, np.ones_like(start(env)))
    limit = 25.0
    short = Controller(system, problem, time_limit=limit)
    began = next(ticks)
    plan = short.plan(first, opening=True)
    assert next(ticks) - began <= 1.2 * limit
    assert (plan.status, plan.iterations) == ("time limit", 0) and not plan.actions.any()
    np.testing.assert_allclose(plan.observations, system.predict(first, plan.actions), atol=1e-6)
    whole = dataclasses.replace(short, time_limit=None).plan(first, opening=True)
    assert whole.status.ok and whole.cost < plan.cost


def test_bounds_are_kept_exactly(rope):
    env, system, goal = rope
    problem = problem_of(env, goal)
    tight = dataclasses.replace(problem, low=0.1 * problem.low, high=0.1 * problem.high)
    plan = Controller(system, tight).plan(start(env), opening=True)
    assert (plan.actions >= tight.low).all()
    assert (plan.actions <= tight.high).all()
    assert np.isclose(np.abs(plan.actions).max(), tight.high.max())


def test_rate_limits_are_kept(rope):
    env, system, goal = rope
    rate = np.full(problem_of(env, goal).low.shape, 0.05)
    plan = Controller(system, problem_of(env, goal, rate=rate)).plan(start(env), opening=True)
    changes = np.diff(np.concatenate([np.zeros_like(plan.actions[:1]), plan.actions]), axis=0)
    assert np.abs(changes).max() <= 0.05 + 1e-9


def test_a_plan_predicts_what_the_system_predicts(rope):
    env, system, goal = rope
    observation = start(env)
    plan = Controller(system, problem_of(env, goal)).plan(observation, opening=True)
    np.testing.assert_allclose(plan.observations, system.predict(observation, plan.actions), atol=2e-4)


def test_frozen_weights_are_one_solve(rope):
    env, system, goal = rope
    plan = Controller(system, problem_of(env, goal), weights="frozen").plan(start(env), opening=True)
    assert plan.status == "solved"
    assert plan.iterations <= 1


def test_goals_of_some_nodes_leave_the_others_alone(rope):
    env, system, goal = rope
    tracked = np.zeros(env.graph.num_nodes, bool)
    tracked[-1] = True
    other = goal.copy()
    other[:-1] += 5.0
    plans = [
        Controller(system, problem_of(env, g, tracked=tracked)).plan(start(env), opening=True) for g in (goal, other)
    ]
    np.testing.assert_allclose(plans[0].actions, plans[1].actions, atol=1e-9)


def test_soft_limits_push_a_plan_inside(rope):
    env, system, goal = rope
    free = Controller(system, problem_of(env, goal)).plan(start(env), opening=True)
    speed = np.abs(free.observations[:, 0, 2]).max()
    low = np.full(goal.shape, -np.inf)
    low[0, 2] = -0.5 * speed
    held = Controller(system, problem_of(env, goal, soft_low=low, soft_high=-low, soft_cost=100.0))
    plan = held.plan(start(env), opening=True)
    assert np.abs(plan.observations[:, 0, 2]).max() < 0.8 * speed


def test_costs_on_features_reach_the_goal_too(rope):
    env, system, goal = rope
    plan = Controller(system, problem_of(env, goal, on="features"), iterations=4).plan(start(env), opening=True)
    still = system.predict(start(env), np.zeros_like(plan.actions))
    assert np.linalg.norm(plan.observations[-1] - goal) < np.linalg.norm(still[-1] - goal)


def test_a_matrix_cost_equals_its_diagonal(rope):
    env, system, goal = rope
    size = goal.size
    plans = [
        Controller(system, problem_of(env, goal, terminal_cost=cost)).plan(start(env), opening=True)
        for cost in (2.0, 2.0 * np.eye(size))
    ]
    np.testing.assert_allclose(plans[0].actions, plans[1].actions, atol=1e-4)


def test_the_square_root_of_a_matrix_cost():
    factor = np.random.default_rng(0).normal(size=(6, 6))
    W = weights_of(factor.T @ factor, (3, 2), 2.0)
    np.testing.assert_allclose(W.T @ W, 4 * factor.T @ factor, atol=1e-9)


def bad(goal):
    nodes = len(goal)
    bounds = np.zeros((nodes, 1))
    bounds[0] = 1.0
    far = np.array(goal)
    far[0, 0] = np.nan
    return {
        "horizon": ({"horizon": 0}, "a whole number, 1 or more"),
        "goal's shape": ({"goal": goal[0]}, "the goal has shape"),
        "goal": ({"goal": far}, "not a finite number"),
        "crossed": ({"low": bounds, "high": -bounds}, "crossed"),
        "nobody acts": ({"low": 0 * bounds, "high": 0 * bounds}, "no node takes an action"),
        "negative": ({"state_cost": -1.0}, "negative"),
        "indefinite": ({"terminal_cost": np.diag([1.0, -1.0] + [0.0] * (goal.size - 2))}, "positive semi-definite"),
        "rate": ({"rate": -np.ones((nodes, 1))}, "must not be negative"),
        "soft": ({"soft_low": goal}, "both ends"),
        "on": ({"on": "pixels"}, "'features'"),
    }


@pytest.mark.parametrize("name", bad(np.zeros((5, 4))))
def test_a_badly_stated_problem_is_refused_with_advice(rope, name):
    env, _, goal = rope
    changes, words = bad(goal)[name]
    with pytest.raises(InputError, match=words):
        problem_of(env, goal, **changes)


def test_forms_that_entangle_actions_cannot_be_controlled(rope):
    env, system, goal = rope
    tensor = adapt(system.model.with_form("tensor"), recorded(env, env.parameters, 2, 8))
    with pytest.raises(InputError, match="cannot be controlled"):
        Controller(tensor, problem_of(env, goal))


def test_a_goal_of_another_system_is_refused(rope):
    env, system, goal = rope
    wide = Problem(STEPS, np.zeros((7, 4)), -np.ones((7, 1)), np.ones((7, 1)))
    with pytest.raises(InputError, match="this system's observations"):
        Controller(system, wide)


@pytest.mark.parametrize("solver", ["condensed", "matrix_free", MatrixFree(tolerance=1e-6)])
def test_a_chosen_solver_finds_the_same_plan(rope, solver):
    env, system, goal = rope
    plans = [
        Controller(system, problem_of(env, goal), solver=choice).plan(start(env), opening=True)
        for choice in ("suitable", solver)
    ]
    assert plans[1].status is Status.SOLVED
    assert np.isclose(plans[0].cost, plans[1].cost, rtol=1e-3)


def test_a_solver_of_ones_own_is_a_class_and_a_registration(rope):
    env, system, goal = rope
    asked = []

    @register_solver
    class Fine(Solver):
        name = "fine"

        def solve(self, problem, start):
            asked.append(start.shape)
            return solve_matrix_free(problem, start, tolerance=1e-7)

    try:
        plan = Controller(system, problem_of(env, goal), solver="fine").plan(start(env), opening=True)
    finally:
        del SOLVERS["fine"]
    assert plan.status.ok and set(asked) == {(STEPS, 1)}
    with pytest.raises(InputError, match="there is no solver 'fine'; there are riccati, condensed"):
        Controller(system, problem_of(env, goal), solver="fine")


def test_a_solver_that_keeps_to_no_limits_refuses_a_bounded_problem(rope):
    env, system, goal = rope
    with pytest.raises(InputError, match="'riccati' keeps to no limits, and this problem has bounds"):
        Controller(system, problem_of(env, goal), solver="riccati").plan(start(env), opening=True)
