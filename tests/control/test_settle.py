"""Plans along dynamics that are linear only around a path."""

from dataclasses import replace

import numpy as np
import pytest

from gce.control.settle import Task, settle
from gce.control.solver import solve_qp
from gce.control.tracking import ControlLimits
from plans import Linear, Pendulum, random_path, random_task, slopes_by_differences

START = np.array([3.0, 0.4])


def quadratic(problem, u):
    return solve_qp(problem)


def swing(M: int = 25, bound: float = np.inf, **others) -> Task:
    """Swing the pendulum to where it stands upright, at rest at the end."""
    goal, W = np.tile([0.0, 1.0, 0.0], (M, 1)), np.full((M, 3), 0.05)
    W[-1] = 3.0
    limits = ControlLimits(np.full((M, 1), -bound), np.full((M, 1), bound))
    return replace(Task(goal, W, np.full((M, 1), 0.05), limits), **others)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("bound", "rate"),
    [(np.inf, None), (0.3, None), (0.3, 0.1)],
    ids=["no limits", "bounds", "bounds and rate"],
)
def test_linear_dynamics_need_one_solve(seed, bound, rate):
    path = random_path(seed)
    M, s, n = path.B.shape
    dynamics, task, solves = Linear(path), random_task(seed, M, s, n, bound, rate), []

    def solver(problem, u):
        solves.append(u)
        return solve_qp(problem)

    found = settle(dynamics, task, path.x0, np.zeros((M, n)), solver)
    best, _ = solve_qp(task.along(dynamics, path.x0, dynamics.rollout(path.x0, found.u), found.u))
    assert found.status == "solved"
    assert found.iterations == 1
    assert len(solves) <= 2  # the second only shows that nothing is left to gain
    assert np.allclose(found.u, best, atol=1e-6)
    assert np.isclose(found.cost, task.cost(dynamics.rollout(path.x0, best), best), rtol=1e-9)


def trace(dynamics, task, u, iterations):
    """The costs after 0, 1, .. turns."""
    return [settle(dynamics, task, START, u, quadratic, iterations=k).cost for k in range(iterations)]


@pytest.mark.parametrize("bound", [np.inf, 0.4])
@pytest.mark.parametrize("seed", range(3))
def test_a_worse_plan_is_never_accepted(seed, bound):
    """Full steps to the linear optimum are worse here at times, so that the rule matters."""
    u = np.random.default_rng(seed).standard_normal((25, 1))
    task = swing(bound=bound)
    costs = trace(Pendulum(), task, u, 12)
    assert (np.diff(costs) <= 0).all()
    assert costs[-1] < costs[0]


def test_full_steps_would_be_worse_here():
    """Otherwise the test before this one could not fail."""
    dynamics, task = Pendulum(), swing()
    u = np.random.default_rng(0).standard_normal((25, 1))
    costs = []
    for _ in range(6):
        x = dynamics.rollout(START, u)
        costs.append(float(task.cost(dynamics.outputs(x), u)))
        u, _ = solve_qp(task.along(dynamics, START, x, u))
    assert (np.diff(costs) > 0).any()


@pytest.mark.parametrize("bound", [np.inf, 0.4])
def test_a_settled_plan_is_a_local_optimum_within_its_bounds(bound):
    dynamics, task = Pendulum(), swing(10, bound)
    found = settle(dynamics, task, START, np.zeros((10, 1)), quadratic, iterations=100)
    assert found.status == "solved"
    assert (np.abs(found.u) <= bound).all()
    assert np.isclose(found.cost, task.cost(dynamics.outputs(dynamics.rollout(START, found.u)), found.u))

    def cost(flat):
        u = flat.reshape(-1, 1)
        return task.cost(dynamics.outputs(dynamics.rollout(START, u)), u)

    slope = slopes_by_differences(cost, found.u.ravel())
    inside = np.abs(found.u.ravel()) < bound
    assert np.abs(slope[inside]).max() < 1e-3 * np.abs(slopes_by_differences(cost, 0 * slope)).max()
    assert (slope[~inside] * found.u.ravel()[~inside] <= 0).all()


def test_a_rate_limited_plan_of_bent_dynamics_settles():
    dynamics, task = Pendulum(), swing(bound=0.6)
    task = replace(task, limits=replace(task.limits, rate=np.array([0.2]), before=np.zeros(1)))
    found = settle(dynamics, task, START, np.zeros((25, 1)), quadratic, iterations=100)
    assert found.status == "solved"
    assert (np.abs(found.u) <= 0.6).all()
    assert (np.abs(np.diff(found.u[:, 0], prepend=0.0)) <= 0.2 * (1 + 1e-12)).all()


def test_a_step_that_never_helps_is_not_called_solved():
    """A solver that always points uphill: trusted less and less, but never taken for an optimum."""
    dynamics, task = Pendulum(), swing()

    def uphill(problem, u):
        return u + 1e-4 * problem.gradient(u), "solved"

    u = np.random.default_rng(1).standard_normal((25, 1))
    found = settle(dynamics, task, START, u, uphill, iterations=60)
    assert found.status != "solved"
    assert np.array_equal(found.u, 0 * u)  # doing nothing, which is cheaper than what was begun from
    u *= 0.01
    assert np.array_equal(settle(dynamics, task, START, u, uphill, iterations=60).u, u)


class Explosive(Pendulum):
    def rollout(self, x0, u):
        x = super().rollout(x0, u)
        return np.where(np.abs(u).max((-1, -2), keepdims=True) > 0.5, np.nan, x)


def test_predictions_that_are_not_finite_are_left_for_others():
    found = settle(Explosive(), swing(), START, np.ones((25, 1)), quadratic, iterations=5)
    assert np.isfinite(found.cost)
    assert np.isfinite(found.x).all()
    assert np.isfinite(found.u).all()


class Hopeless(Pendulum):
    def rollout(self, x0, u):
        return np.full((*u.shape[:-1], 2), np.nan)


def test_a_model_that_answers_nan_is_named():
    found = settle(Hopeless(), swing(bound=1.0), START, np.ones((25, 1)), quadratic)
    assert found.status == "the model's prediction is not finite"
    assert np.isfinite(found.u).all()
