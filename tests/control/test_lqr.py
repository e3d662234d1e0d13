"""Riccati: costs, gains and the program without limits agree."""

import numpy as np
import pytest

from gce.control.solver import lqr, roll, solve_qp
from gce.control.tracking import Tracking
from plans import free, random_path, random_problem


def without_limits(seed: int) -> Tracking:
    problem = random_problem(seed)
    M, _, n = problem.path.B.shape
    return Tracking(problem.path, problem.E, problem.e, problem.w, np.zeros_like(problem.v), free(M, n))


@pytest.mark.parametrize("seed", range(5))
def test_the_cost_is_that_of_following_the_gains_and_no_other_plan_is_cheaper(seed):
    problem = without_limits(seed)
    gains = lqr(problem.path, problem.E, problem.e, problem.w)
    u, x = roll(problem.path, gains)
    assert np.isclose(gains.cost(problem.path.x0), problem.cost(u), rtol=1e-10)
    assert np.allclose(x, problem.path.forward(u))
    size = np.abs(problem.gradient(0 * u)).max()
    assert np.abs(problem.gradient(u)).max() < 1e-10 * size


def test_the_cost_to_go_holds_from_every_step():
    problem = without_limits(1)
    path = problem.path
    gains = lqr(path, problem.E, problem.e, problem.w)
    u, x = roll(path, gains)
    for t in range(1, len(u)):
        # P_t counts the residual at x_t as well.
        rest = np.square(np.einsum("tms,ts->tm", problem.E, x) - problem.e)[t - 1 :].sum()
        rest += np.square(problem.w * u)[t:].sum()
        z = np.append(x[t - 1], 1.0)
        assert np.isclose(z @ gains.P[t] @ z, rest, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_loose_bounds_give_lqr(seed):
    problem = without_limits(seed)
    u, _ = roll(problem.path, lqr(problem.path, problem.E, problem.e, problem.w))
    M, _, n = problem.path.B.shape
    limits = type(problem.limits)(np.full((M, n), -1e3), np.full((M, n), 1e3))
    for bounded in (problem, Tracking(problem.path, problem.E, problem.e, problem.w, problem.v, limits)):
        found, status = solve_qp(bounded)
        assert status == "solved"
        assert np.allclose(found, u, atol=1e-6)


def test_feedback_recovers_from_a_push():
    """From another start the same gains are the best of that start."""
    problem = without_limits(2)
    path = problem.path
    gains = lqr(path, problem.E, problem.e, problem.w)
    moved = type(path)(path.A, path.B, path.c, path.x0 + 1.0)
    u, _ = roll(moved, gains)
    assert np.allclose(Tracking(moved, *list(vars(problem).values())[1:]).gradient(u), 0, atol=1e-8)


def test_a_path_has_the_gains_of_its_matrices_whatever_the_start():
    problem = without_limits(0)
    other = random_path(0)
    there = type(other)(other.A, other.B, other.c, 0 * other.x0)
    first, second = (lqr(path, problem.E, problem.e, problem.w) for path in (problem.path, there))
    assert np.array_equal(first.K, second.K)
