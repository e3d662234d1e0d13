"""The matrix-free solver reaches the same optimum as the condensed program, Riccati and an independent solver."""

import numpy as np
import pytest

from gce.control.matrix_free import changes, changes_back, solve_matrix_free
from gce.control.settle import relative_gradient
from gce.control.solver import lqr, roll, solve_qp
from gce.control.tracking import ControlLimits, DensePath, Selection, SoftLimits, Tracking, columns, dense, rows

CASES = {
    "loose": {"bound": 50.0},
    "bounds": {"bound": 0.2},
    "no bounds": {"bound": np.inf},
    "soft": {"bound": 0.3, "soft": True},
    "rates": {"bound": 0.5, "rate": 0.2},
    "all": {"bound": 0.5, "rate": 0.2, "soft": True},
}


def random_problem(seed, bound, soft=False, rate=None, M=8, s=6, n=2, m=4):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((M, s, s))
    A *= 0.95 / np.abs(np.linalg.eigvals(A)).max(-1)[:, None, None]
    path = DensePath(A, rng.standard_normal((M, s, n)), 0.1 * rng.standard_normal((M, s)), rng.standard_normal(s))
    limits = ControlLimits(
        np.full((M, n), -bound),
        np.full((M, n), bound),
        None if rate is None else np.full(n, rate),
        None if rate is None else 0.1 * rng.standard_normal(n),
    )
    band = SoftLimits(rng.standard_normal((M, 3, s)), np.full((M, 3), -0.5), np.full((M, 3), 0.5)) if soft else None
    E, e = rng.standard_normal((M, m, s)), rng.standard_normal((M, m))
    w, v = 0.1 + rng.random((M, n)), 0.1 * rng.standard_normal((M, n))
    return Tracking(path, E, e, w, v, limits, band)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_the_condensed_program_has_the_same_optimum(case, seed):
    problem = random_problem(seed, **CASES[case])
    expected, _ = solve_qp(problem)
    found, status = solve_matrix_free(problem, np.zeros_like(expected), tolerance=1e-7)
    assert status == "solved"
    assert problem.cost(found) == pytest.approx(problem.cost(expected), rel=1e-6)
    assert (found == problem.limits.nearest(found)).all()
    if problem.limits.rate is None:
        assert relative_gradient(problem, found) <= 1e-7


@pytest.mark.parametrize("case", CASES)
def test_an_independent_solver_has_the_same_optimum(case):
    cvxpy = pytest.importorskip("cvxpy")
    problem = random_problem(7, **CASES[case])
    path, limits, band = problem.path, problem.limits, problem.soft
    M, s, n = path.B.shape
    u, x = cvxpy.Variable((M, n)), cvxpy.Variable((M + 1, s))
    held = [x[0] == path.x0]
    if np.isfinite(limits.low).all():
        held += [u >= limits.low, u <= limits.high]
    cost = cvxpy.sum_squares(cvxpy.multiply(problem.w, u) - problem.v)
    for t in range(M):
        held.append(x[t + 1] == path.A[t] @ x[t] + path.B[t] @ u[t] + path.c[t])
        cost += cvxpy.sum_squares(problem.E[t] @ x[t + 1] - problem.e[t])
        if limits.rate is not None:
            held.append(cvxpy.abs(u[t] - (u[t - 1] if t else limits.before)) <= limits.rate)
        if band is not None:
            outside = band.S[t] @ x[t + 1]
            cost += cvxpy.sum_squares(cvxpy.pos(outside - band.high[t]) + cvxpy.pos(band.low[t] - outside))
    best = cvxpy.Problem(cvxpy.Minimize(cost), held).solve(solver="CLARABEL")
    found, _ = solve_matrix_free(problem, np.zeros((M, n)), tolerance=1e-7)
    assert problem.cost(found) == pytest.approx(best, rel=1e-5)


def test_without_bounds_it_is_lqr():
    problem = random_problem(1, bound=np.inf)
    problem = Tracking(problem.path, problem.E, problem.e, problem.w, 0 * problem.v, problem.limits)
    gains = lqr(problem.path, problem.E, problem.e, problem.w)
    expected, _ = roll(problem.path, gains)
    found, _ = solve_matrix_free(problem, np.ones_like(expected), tolerance=1e-9)
    assert np.allclose(found, expected, atol=1e-6)
    assert problem.cost(found) == pytest.approx(gains.cost(problem.path.x0), rel=1e-8)


def test_an_optimum_stays_one():
    problem = random_problem(2, bound=0.2)
    found, _ = solve_matrix_free(problem, np.zeros_like(problem.w))
    again, status = solve_matrix_free(problem, found)
    assert status == "solved"
    assert (again == found).all()


def test_numbers_that_are_not_finite_are_answered_with_a_status():
    problem = random_problem(0, bound=0.2)
    problem.path.x0[0] = np.nan
    found, status = solve_matrix_free(problem, np.zeros_like(problem.w))
    assert status == "numerical trouble"
    assert np.isfinite(found).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_dynamics_that_explode_do_not_answer_nan():
    problem = random_problem(0, bound=0.2)
    problem.path.A[:] *= 1e60
    found, status = solve_matrix_free(problem, np.zeros_like(problem.w))
    assert status != "solved"
    assert (found == problem.limits.nearest(found)).all()


def test_changes_and_their_adjoint():
    rng = np.random.default_rng(0)
    u, r = rng.standard_normal((2, 5, 3))
    assert (changes(u) * r).sum() == pytest.approx((u * changes_back(r)).sum())


def test_a_selection_is_its_matrix():
    rng = np.random.default_rng(0)
    chosen = Selection(np.array([4, 0, 2]), rng.standard_normal((1, 3)), 6).weighed(rng.standard_normal((5, 3)))
    E, x, r = dense(chosen, 5), rng.standard_normal((5, 6)), rng.standard_normal((5, 3))
    assert np.allclose(rows(chosen, x), rows(E, x))
    assert np.allclose(columns(chosen, r), columns(E, r))
