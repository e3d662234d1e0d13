"""The quadratic problem: products, gradients and limits."""

from dataclasses import replace

import numpy as np
import pytest

from gce.control.tracking import ControlLimits, projected_gradient, rows
from plans import Linear, Pendulum, random_path, random_problem, random_task, slopes_by_differences


@pytest.mark.parametrize("seed", range(5))
def test_forward_and_adjoint_are_adjoint(seed):
    path = random_path(seed)
    rng = np.random.default_rng(seed)
    M, s, n = path.B.shape
    u, weights = rng.standard_normal((M, n)), rng.standard_normal((M, s))
    assert np.isclose((path.forward(u, affine=False) * weights).sum(), (u * path.adjoint(weights)).sum(), rtol=1e-12)
    assert np.allclose(path.forward(u) - path.forward(0 * u), path.forward(u, affine=False), atol=1e-12)


def test_responses_are_what_controls_do_to_rows():
    path = random_path(3)
    M, s, n = path.B.shape
    E = np.random.default_rng(0).standard_normal((M, 3, s))
    E[2] = 0  # steps without rows are skipped
    found = path.responses(E).reshape(-1, M * n)
    measured = slopes_by_differences(lambda u: rows(E, path.forward(u.reshape(M, n))).ravel(), np.zeros(M * n))
    assert np.allclose(found, measured, atol=1e-8)


@pytest.mark.parametrize("soft", [None, 0.3])
def test_the_gradient_is_that_of_the_cost(soft):
    problem = random_problem(4, soft=soft)
    u = np.random.default_rng(1).standard_normal(problem.w.shape)
    measured = slopes_by_differences(lambda z: np.array(problem.cost(z.reshape(u.shape))), u.ravel())
    assert np.allclose(problem.gradient(u).ravel(), measured, rtol=1e-6, atol=1e-6)


def test_controls_within_limits_stay_and_others_keep_to_bounds_and_rate():
    rng = np.random.default_rng(0)
    M, n, rate = 40, 3, np.array([0.1, 0.5, 2.0])
    low, high = -rng.uniform(0.5, 1, (M, n)), rng.uniform(0.5, 1, (M, n))
    limits = ControlLimits(low, high, rate, np.zeros(n))
    kept = limits.nearest(5 * rng.standard_normal((M, n)))
    assert (kept >= low).all()
    assert (kept <= high).all()
    assert (np.abs(np.diff(kept, axis=0, prepend=np.zeros((1, n)))) <= rate * (1 + 1e-12)).all()
    assert np.array_equal(limits.nearest(kept), kept)


def test_a_control_too_far_out_to_return_in_time_still_keeps_to_the_bounds():
    limits = ControlLimits(np.full((3, 2), -1.0), np.full((3, 2), 1.0), np.array([0.1, 0.1]), np.array([5.0, -5.0]))
    kept = limits.nearest(np.zeros((3, 2)))
    assert np.array_equal(kept[0], [1.0, -1.0])
    assert (np.abs(kept) <= 1).all()


@pytest.mark.parametrize("high", [1.0, np.inf])
def test_only_pushes_against_bounds_are_left_out_of_the_gradient(high):
    limits = ControlLimits(np.zeros((1, 4)), np.full((1, 4), high))
    u, gradient = np.array([[0.0, 0.0, 0.5, 0.5]]), np.array([[1.0, -1.0, 1.0, -1.0]])
    assert np.array_equal(projected_gradient(u, gradient, limits), [[0.0, -1.0, 1.0, -1.0]])


def test_no_bounds_leave_the_gradient_as_it_is():
    limits = ControlLimits(np.full((1, 2), -np.inf), np.full((1, 2), np.inf))
    gradient = np.array([[1.0, -1.0]])
    assert np.array_equal(projected_gradient(0 * gradient, gradient, limits), gradient)


# ---- the quadratic problem of a task along a path ----


@pytest.mark.parametrize("matrix", [False, True])
def test_along_a_path_it_has_the_tasks_cost_and_slope(matrix):
    M, x0, dynamics = 8, np.array([3.0, 0.4]), Pendulum()
    task = random_task(0, M, 3, 1)
    if matrix:
        task = replace(task, W=np.random.default_rng(3).standard_normal((M, 2, 3)))
    task = replace(task, soft_low=np.full(3, -0.4), soft_high=np.full(3, 0.4), soft_weight=3.0)
    u = 0.3 * np.random.default_rng(1).standard_normal((M, 1))

    def cost(flat):
        v = flat.reshape(M, 1)
        return task.cost(dynamics.outputs(dynamics.rollout(x0, v)), v)

    problem = task.along(dynamics, x0, dynamics.rollout(x0, u), u)
    assert np.isclose(problem.cost(u), cost(u.ravel()))
    measured = slopes_by_differences(cost, u.ravel())
    assert np.allclose(problem.gradient(u).ravel(), measured, rtol=1e-5, atol=1e-5)


def test_damping_costs_what_leaves_the_controls():
    problem = random_problem(2)
    rng = np.random.default_rng(0)
    u, other = rng.standard_normal((2, *problem.w.shape))
    damped = problem.damped(u, 3.0)
    gained = (damped.cost(other) - damped.cost(u)) - (problem.cost(other) - problem.cost(u))
    assert np.isclose(gained, 3 * np.square(other - u).sum())
    assert np.allclose(damped.gradient(u), problem.gradient(u))


def test_keeping_to_a_plan_adds_the_cost_of_leaving_it():
    path = random_path(1)
    M, s, n = path.B.shape
    dynamics, task = Linear(path), random_task(1, M, s, n, bound=1.0)
    rng = np.random.default_rng(0)
    before, u, other = rng.standard_normal((3, M, n))
    k = rng.uniform(0, 2, n)
    kept = task.keeping(before, k)

    def total(controls):
        y = dynamics.rollout(path.x0, controls)
        return task.cost(y, controls) + np.square(k * (controls - before)).sum(), kept.cost(y, controls)

    (one, kept_one), (two, kept_two) = total(u), total(other)
    assert np.isclose(one - two, kept_one - kept_two)
    x = dynamics.rollout(path.x0, u)
    assert np.isclose(task.keeping(before, 0 * k).cost(x, u), task.cost(x, u))
    # The quadratic problem says the same.
    problem = kept.along(dynamics, path.x0, x, u)
    assert np.isclose(problem.cost(u), kept_one)
