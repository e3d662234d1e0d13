"""The Kalman filter against least squares over all time at once, and against chance."""

import numpy as np
import pytest

from gce.control.kalman import Belief, correct, predict
from gce.control.tracking import DensePath
from plans import Linear, random_path


class Seen(Linear):
    """Linear dynamics of which C x is observed."""

    def __init__(self, known, C):
        super().__init__(known)
        self.C = C

    def outputs(self, x):
        return x @ self.C.T

    def output_slopes(self, x):
        return self.C[None]


def system(seed: int, steps: int = 6, s: int = 4, p: int = 3):
    """(path, controls, C, Q, r, prior); Q of rank 2, as where noise enters velocities and positions follow."""
    rng = np.random.default_rng(seed)
    path = random_path(seed, steps, s, 2)
    root = 0.3 * rng.standard_normal((s, 2))
    prior = Belief(rng.standard_normal(s), np.diag(rng.uniform(0.2, 1, s)))
    u = rng.standard_normal((steps, 2))
    return path, u, rng.standard_normal((p, s)), root, rng.uniform(0.05, 0.5, p), prior


def one(path: DensePath, t: int, C) -> Seen:
    return Seen(DensePath(path.A[t : t + 1], path.B[t : t + 1], path.c[t : t + 1], path.x0), C)


def draw(path, u, C, root, r, prior, rng):
    x = prior.mean + np.sqrt(np.diag(prior.covariance)) * rng.standard_normal(len(prior.mean))
    states, seen = [], []
    for t in range(len(u)):
        x = path.A[t] @ x + path.B[t] @ u[t] + path.c[t] + root @ rng.standard_normal(root.shape[1])
        states.append(x)
        seen.append(C @ x + np.sqrt(r) * rng.standard_normal(len(r)))
    return np.array(states), np.array(seen)


def filtered(path, u, C, root, r, prior, seen):
    belief, found = prior, []
    for t in range(len(u)):
        found.append(correct(predict(belief, one(path, t, C), u[t], root @ root.T), one(path, t, C), seen[t], r))
        belief = found[-1].belief
    return found


@pytest.mark.parametrize("seed", range(4))
def test_it_is_least_squares_over_all_steps_at_once(seed):
    """Unknown: the start and every step's noise, each with unit variance; the last state is linear in them."""
    path, u, C, root, r, prior = setting = system(seed)
    _, seen = draw(*setting, np.random.default_rng(seed))
    s, q, M = len(prior.mean), root.shape[1], len(u)
    start = np.hstack([np.linalg.cholesky(prior.covariance), np.zeros((s, M * q))])
    x, X = prior.mean, start
    rows, rest = [np.eye(s + M * q)], [np.zeros(s + M * q)]
    for t in range(M):
        x = path.A[t] @ x + path.B[t] @ u[t] + path.c[t]
        X = path.A[t] @ X
        X[:, s + t * q : s + (t + 1) * q] += root
        rows.append(C @ X / np.sqrt(r)[:, None])
        rest.append((seen[t] - C @ x) / np.sqrt(r))
    J = np.vstack(rows)
    found = np.linalg.lstsq(J, np.concatenate(rest), rcond=None)[0]
    belief = filtered(*setting, seen)[-1].belief
    assert np.allclose(belief.mean, x + X @ found, atol=1e-9)
    assert np.allclose(belief.covariance, X @ np.linalg.inv(J.T @ J) @ X.T, atol=1e-9)


def test_its_likelihood_is_that_of_all_observations_together():
    setting = path, u, C, root, r, prior = system(1)
    _, seen = draw(*setting, np.random.default_rng(0))
    M, p, s = len(u), len(r), len(prior.mean)
    x, P, means, blocks = prior.mean, prior.covariance, [], []
    for t in range(M):
        x = path.A[t] @ x + path.B[t] @ u[t] + path.c[t]
        P = path.A[t] @ P @ path.A[t].T + root @ root.T
        means.append(C @ x)
        blocks.append(P)
    joint = np.zeros((M * p, M * p))
    for i in range(M):
        F = np.eye(s)
        for j in range(i, M):
            F = path.A[j] @ F if j > i else F
            joint[j * p : (j + 1) * p, i * p : (i + 1) * p] = C @ F @ blocks[i] @ C.T
            joint[i * p : (i + 1) * p, j * p : (j + 1) * p] = (C @ F @ blocks[i] @ C.T).T
    joint += np.diag(np.tile(r, M))
    off = (seen - means).reshape(-1)
    sign, log = np.linalg.slogdet(joint)
    expected = -0.5 * (off @ np.linalg.solve(joint, off) + log + M * p * np.log(2 * np.pi))
    assert sign == 1
    assert np.isclose(sum(step.likelihood for step in filtered(*setting, seen)), expected)


def test_its_covariance_is_that_of_its_errors():
    path, u, C, root, r, prior = setting = system(2, steps=3)
    rng, runs = np.random.default_rng(3), 150
    distances, surprises = [], []
    for _ in range(runs):
        states, seen = draw(*setting, rng)
        steps = filtered(*setting, seen)
        off = steps[-1].belief.mean - states[-1]
        distances.append(off @ np.linalg.solve(steps[-1].belief.covariance, off))
        surprises.append(steps[-1].surprise)
    for found, freedom in ((distances, len(prior.mean)), (surprises, len(r))):
        # Chi-squared: mean its freedom, variance twice that.
        assert abs(np.mean(found) - freedom) < 4 * np.sqrt(2 * freedom / runs)


def test_the_covariance_stays_definite_under_exact_observations():
    path, u, C, root, _, prior = system(0, steps=50)
    rng = np.random.default_rng(0)
    setting = path, u, C, root, np.full(len(C), 1e-12), prior
    _, seen = draw(*setting, rng)
    for step in filtered(*setting, seen):
        P = step.belief.covariance
        assert np.array_equal(P, P.T)
        assert np.linalg.eigvalsh(P).min() > -1e-12
    assert np.abs(C @ step.belief.mean - seen[-1]).max() < 1e-4


def test_an_observation_never_widens_what_is_known():
    path, u, C, root, r, prior = system(3)
    ahead = predict(prior, one(path, 0, C), u[0], root @ root.T)
    after = correct(ahead, one(path, 0, C), np.zeros(len(r)), r).belief
    assert np.linalg.eigvalsh(ahead.covariance - after.covariance).min() > -1e-12
