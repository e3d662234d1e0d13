import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from gce.operators.regression import Moments, Prior, solve, solve_below


def rows(count: int, columns: int, seed: int, sets: tuple[int, ...] = ()) -> torch.Tensor:
    return torch.randn(*sets, count, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def even(columns: int, value: float) -> torch.Tensor:
    return torch.full((columns,), value, dtype=torch.float64)


def test_ridge_equals_least_squares_on_augmented_rows():
    X, Y, ridge = rows(20, 4, 0), rows(20, 3, 1), torch.tensor([0.1, 0.5, 0.0, 2.0], dtype=torch.float64)
    augmented = np.concatenate([X, np.diag(np.sqrt(20 * ridge.numpy()))])
    expected = np.linalg.lstsq(augmented, np.concatenate([Y, np.zeros((4, 3))]), rcond=None)[0]
    assert np.allclose(solve(Moments.of(X, Y), ridge).coefficients.numpy(), expected, atol=1e-12)


def test_bounded_coefficients_are_those_of_an_independent_solver():
    X, y = rows(20, 4, 0), rows(20, 1, 1)
    ridge, A = torch.tensor([0.1, 0.5, 0.0, 2.0], dtype=torch.float64), rows(3, 4, 2)
    found = solve_below(Moments.of(X[None], y[None]), Prior(ridge, A[None]))[0].numpy()
    free = solve(Moments.of(X, y), ridge).coefficients[:, 0]
    assert (A @ free).max() > 0.01  # a bound matters
    assert (A.numpy() @ found).max() < 1e-10

    def loss(c):
        return ((y.numpy()[:, 0] - X.numpy() @ c) ** 2).mean() + (ridge.numpy() * c**2).sum()

    within = {"type": "ineq", "fun": lambda c: -A.numpy() @ c}
    other = minimize(loss, np.zeros(4), constraints=[within], method="SLSQP", options={"ftol": 1e-14, "maxiter": 500})
    assert loss(found) <= other.fun + 1e-10
    assert np.allclose(found, other.x, atol=1e-5)


def test_bounds_that_hold_change_nothing():
    X, y, ridge = rows(20, 4, 0), rows(20, 1, 1), even(4, 0.1)
    free = solve(Moments.of(X, y), ridge).coefficients[:, 0]
    A = -torch.diag(torch.sign(free))
    assert torch.equal(solve_below(Moments.of(X[None], y[None]), Prior(ridge, A[None]))[0], free)


def test_regressions_apart_are_two_ridges():
    X, Y, ridge = rows(20, 5, 0), rows(20, 2, 1), even(5, 0.3)
    both = solve(Moments.of(X, Y), ridge, torch.tensor([0, 0, 1, 1, 1])).coefficients
    first = solve(Moments.of(X[:, :2], Y), ridge[:2]).coefficients
    second = solve(Moments.of(X[:, 2:], Y), ridge[2:]).coefficients
    assert torch.allclose(both, torch.cat([first, second]), atol=1e-13)


def test_apart_and_joint_agree_where_history_and_action_are_uncorrelated():
    basis = torch.linalg.qr(rows(20, 5, 0))[0]
    moments = Moments.of(basis, rows(20, 2, 1))
    split, joint = solve(moments, even(5, 0.1), torch.tensor([0, 0, 0, 1, 1])), solve(moments, even(5, 0.1))
    assert torch.allclose(split.coefficients, joint.coefficients, atol=1e-13)


def test_moments_add_up():
    X, Y = rows(30, 4, 0), rows(30, 2, 1)
    parts = Moments.of(X[:7], Y[:7]) + Moments.of(X[7:], Y[7:])
    whole = Moments.of(X, Y)
    assert parts.rows == whole.rows
    for name in ("gram", "cross", "square"):
        assert torch.allclose(getattr(parts, name), getattr(whole, name), atol=1e-12)


def test_independent_sets_are_solved_independently():
    X, Y = rows(12, 3, 0, sets=(4,)), rows(12, 2, 1, sets=(4,))
    together = solve(Moments.of(X, Y), even(3, 0.1))
    for k in range(4):
        alone = solve(Moments.of(X[k], Y[k]), even(3, 0.1))
        assert torch.allclose(together.coefficients[k], alone.coefficients, atol=1e-13)
        assert torch.allclose(together.residual[k], alone.residual, atol=1e-13)


def test_the_residual_is_the_covariance_of_what_is_left():
    X, Y = rows(20, 4, 0), rows(20, 3, 1)
    found = solve(Moments.of(X, Y), even(4, 0.2))
    left = Y - X @ found.coefficients
    assert torch.allclose(found.residual, left.T @ left / 20, atol=1e-13)


def test_gradients_flow_through_the_solve():
    X, Y = rows(6, 3, 0).requires_grad_(), rows(6, 2, 1).requires_grad_()
    ridge = even(3, 0.1).requires_grad_()

    def fit(X, Y, ridge):
        found = solve(Moments.of(X, Y), ridge)
        return found.coefficients, found.residual

    assert torch.autograd.gradcheck(fit, (X, Y, ridge))
    assert torch.autograd.gradcheck(
        lambda X: solve(Moments.of(X, Y.detach()), even(3, 0.1), torch.tensor([0, 1, 1])).coefficients, (X,)
    )


def test_a_constant_without_penalty_takes_up_any_offset():
    X, Y = torch.cat([rows(20, 3, 0), torch.ones(20, 1, dtype=torch.float64)], dim=1), rows(20, 2, 1)
    ridge = torch.tensor([5.0, 5.0, 5.0, 0.0], dtype=torch.float64)
    plain, moved = (solve(Moments.of(X, Y + offset), ridge).coefficients for offset in (0.0, 100.0))
    assert torch.allclose(moved[:3], plain[:3], atol=1e-10)
    assert torch.allclose(moved[3], plain[3] + 100, atol=1e-10)


def test_a_regressor_that_is_always_zero_changes_nothing():
    X, Y = rows(20, 3, 0), rows(20, 2, 1)
    padded = torch.cat([X, torch.zeros(20, 1, dtype=torch.float64)], dim=1)
    alone, beside = solve(Moments.of(X, Y), even(3, 0.0)), solve(Moments.of(padded, Y), even(4, 0.0))
    assert torch.allclose(beside.coefficients[:3], alone.coefficients, atol=1e-12)
    assert not beside.coefficients[3].any()
    assert beside.condition < 1e3


def test_repeated_regressors_without_ridge_still_fit():
    X = rows(20, 2, 0)
    twice, Y = torch.cat([X, X], dim=1), X @ rows(2, 2, 1)
    found = solve(Moments.of(twice, Y), even(4, 0.0))
    assert torch.allclose(twice @ found.coefficients, Y, atol=1e-5)


def test_numbers_that_are_not_finite_are_told():
    X = rows(5, 2, 0)
    X[0, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        solve(Moments.of(X, rows(5, 1, 1)), even(2, 0.1))


def test_the_condition_is_that_of_the_regularised_matrix():
    X = rows(20, 3, 0)
    found = solve(Moments.of(X, rows(20, 1, 1)), even(3, 0.5))
    expected = np.linalg.cond((X.T @ X / 20 + 0.5 * torch.eye(3, dtype=torch.float64)).numpy())
    assert found.condition.item() == pytest.approx(expected, rel=1e-9)
