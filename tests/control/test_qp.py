"""The condensed program against an independent solver, and its limits."""

from dataclasses import replace

import numpy as np
import pytest

from gce.control.solver import box_qp, solve_qp
from gce.control.tracking import ControlLimits, projected_gradient
from plans import random_problem

CASES = {
    "no limits": {},
    "loose bounds": {"bound": 50.0},
    "bounds": {"bound": 0.3},
    "rate": {"rate": 0.2},
    "bounds and rate": {"bound": 0.4, "rate": 0.15},
    "soft limits": {"soft": 0.3},
    "all": {"bound": 0.4, "rate": 0.15, "soft": 0.3},
}


def independent(problem):
    """The optimal cost with the states as variables."""
    cp = pytest.importorskip("cvxpy")
    path, limits = problem.path, problem.limits
    M, s, n = path.B.shape
    u, x = cp.Variable((M, n)), cp.Variable((M, s))
    cost, kept = 0, []
    for t in range(M):
        earlier = path.x0 if t == 0 else x[t - 1]
        kept.append(x[t] == path.A[t] @ earlier + path.B[t] @ u[t] + path.c[t])
        cost += cp.sum_squares(problem.E[t] @ x[t] - problem.e[t])
        cost += cp.sum_squares(cp.multiply(problem.w[t], u[t]) - problem.v[t])
        if np.isfinite(limits.low[t]).all():
            kept += [u[t] >= limits.low[t], u[t] <= limits.high[t]]
        if limits.rate is not None:
            kept.append(cp.abs(u[t] - (limits.before if t == 0 else u[t - 1])) <= limits.rate)
        if problem.soft is not None:
            values = problem.soft.S[t] @ x[t]
            cost += cp.sum_squares(cp.pos(values - problem.soft.high[t]))
            cost += cp.sum_squares(cp.pos(problem.soft.low[t] - values))
    return cp.Problem(cp.Minimize(cost), kept).solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_that_of_an_independent_solve(case, seed):
    problem = random_problem(seed, **CASES[case])
    u, status = solve_qp(problem)
    assert status == "solved"
    expected = independent(problem)
    assert abs(problem.cost(u) - expected) <= 1e-5 * expected


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [None, 0.1])
def test_tight_bounds_are_kept_exactly(seed, rate):
    problem = random_problem(seed, bound=0.01 / 3, rate=rate)
    u, status = solve_qp(problem)
    assert status == "solved"
    assert (u >= problem.limits.low).all()
    assert (u <= problem.limits.high).all()
    assert (np.abs(u) == 0.01 / 3).any()  # they bind


@pytest.mark.parametrize("bound", [0.003, 0.03, 0.3, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_of_the_projected_gradient(seed, bound):
    problem = random_problem(seed, bound=bound)
    u, _ = solve_qp(problem)
    left = projected_gradient(u, problem.gradient(u), problem.limits)
    assert np.linalg.norm(left) < 1e-10 * np.linalg.norm(problem.gradient(0 * u))


def test_a_weakly_held_control_is_on_its_bound():
    """Heavily damped, bounds are held by multipliers far smaller than the curvature; no promise may be broken."""
    problem = random_problem(0, bound=0.1)
    u, _ = solve_qp(problem)
    for damping in (1e2, 1e5, 1e8):
        aim, _ = solve_qp(problem.damped(u, damping))
        assert np.abs(aim - u).max() < 1e-12
    elsewhere = 0.9 * u
    for damping in (1e2, 1e5, 1e8):
        aim, _ = solve_qp(problem.damped(elsewhere, damping))
        assert problem.cost(aim) < problem.cost(elsewhere)


def test_a_soft_limit_that_is_open_on_one_side_or_never_reached():
    problem = random_problem(1, soft=0.3)
    above = replace(problem, soft=replace(problem.soft, low=np.full_like(problem.soft.low, -np.inf)))
    u, status = solve_qp(above)
    assert status == "solved"
    assert np.abs(above.gradient(u)).max() < 1e-6 * np.abs(above.gradient(0 * u)).max()
    far = replace(problem, soft=replace(problem.soft, low=0 * problem.soft.low - 1e3, high=0 * problem.soft.low + 1e3))
    assert np.allclose(solve_qp(far)[0], solve_qp(replace(problem, soft=None))[0], atol=1e-6)


def test_controls_that_are_fixed_stay_where_they_are():
    problem = random_problem(2, bound=0.5)
    low, high = problem.limits.low.copy(), problem.limits.high.copy()
    low[:, 0] = high[:, 0] = 0.2
    u, status = solve_qp(replace(problem, limits=ControlLimits(low, high)))
    assert status == "solved"
    assert (u[:, 0] == 0.2).all()


@pytest.mark.parametrize("before", [3.0, -3.0])
def test_from_out_of_the_rates_reach_bounds_go_first(before):
    """The first control cannot come within the bounds at its rate: it jumps there, and the rest is optimal."""
    problem = random_problem(0, bound=0.5, rate=0.2)
    n = problem.w.shape[1]
    far = replace(problem, limits=replace(problem.limits, before=np.full(n, before)))
    near = replace(problem, limits=replace(problem.limits, before=np.full(n, np.sign(before) * 0.7)))
    u, status = solve_qp(far)
    assert status == "solved"
    assert np.array_equal(u[0], np.full(n, np.sign(before) * 0.5))
    assert np.isclose(far.cost(u), near.cost(solve_qp(near)[0]), rtol=1e-6)


def test_bounds_that_move_faster_than_the_rate_still_answer_within_them():
    problem = random_problem(0, bound=0.5, rate=0.1)
    low, high = problem.limits.low.copy(), problem.limits.high.copy()
    low[3:], high[:3] = 0.4, -0.4
    u, status = solve_qp(replace(problem, limits=replace(problem.limits, low=low, high=high)))
    assert status != "solved"
    assert (u >= low).all()
    assert (u <= high).all()


def test_numbers_that_are_not_finite_give_a_status_and_finite_controls():
    problem = random_problem(0, bound=0.5)
    e = problem.e.copy()
    e[2, 0] = np.nan
    u, status = solve_qp(replace(problem, e=e))
    assert status == "numerical trouble"
    assert np.isfinite(u).all()


@pytest.mark.parametrize("seed", range(5))
def test_projected_newton_meets_the_conditions_of_an_optimum(seed):
    rng = np.random.default_rng(seed)
    Y = rng.standard_normal((40, 20))
    H, g = Y.T @ Y, 5 * rng.standard_normal(20)
    low, high = -rng.uniform(0, 0.3, 20), rng.uniform(0, 0.3, 20)
    u, free = box_qp(H, g, low, high, rng.standard_normal(20))
    slope = H @ u + g
    assert (u >= low).all()
    assert (u <= high).all()
    assert 0 < free.sum() < 20
    assert np.abs(slope[free]).max() < 1e-12 * np.abs(g).max()
    assert (slope[u == low] >= 0).all()
    assert (slope[u == high] <= 0).all()
    assert ((u == low) | (u == high))[~free].all()
