"""One turn a step: what is prepared waits for the state, and gives what a whole solve from it gives."""

from dataclasses import replace

import numpy as np
import pytest

from gce.control.realtime import ANEW, advance, condense, later, prepared
from gce.control.settle import Task, dense_path
from gce.control.solver import Suitable
from gce.control.tracking import ControlLimits, DensePath, Status
from plans import Linear, random_path, random_problem


def task_of(seed, bound=0.4, rate=None):
    rng, (M, s, n) = np.random.default_rng(seed), (6, 4, 2)
    limits = ControlLimits(np.full((M, n), -bound), np.full((M, n), bound), rate, None if rate is None else np.zeros(n))
    return Task(rng.standard_normal((M, s)), rng.uniform(0.5, 1, (M, s)), rng.uniform(0.1, 1, (M, n)), limits)


@pytest.mark.parametrize("rate", [None, np.array([0.1, 0.2])], ids=["box", "rate"])
@pytest.mark.parametrize("bound", [0.2, np.inf])
def test_feedback_is_the_whole_solve_from_the_measured_state(bound, rate):
    path, task = random_path(0), task_of(1, bound, rate)
    dynamics, u = Linear(path), np.zeros((6, 2))
    now = prepared(dynamics, task, path.x0, dynamics.rollout(path.x0, u), u)
    assert now.condensed is not None
    measured = path.x0 + 0.3
    found, status = now.feedback(measured, Suitable())
    whole = task.along(dynamics, measured, dynamics.rollout(measured, u), u)
    expected, _ = Suitable().solve(whole, u)
    assert status is Status.SOLVED
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_start_moves_the_gradient_as_condensed():
    problem = random_problem(3)
    H, g, G = condense(problem)
    for way in np.eye(4):
        there = replace(problem, path=replace(problem.path, x0=problem.path.x0 + way))
        at = there.gradient(np.zeros_like(problem.w)).reshape(-1) / 2
        np.testing.assert_allclose(g + G @ way, at, atol=1e-10)
    np.testing.assert_allclose(H, problem.path.gram(problem.E) + np.diag(np.square(problem.w).reshape(-1)))


class Bent(Linear):
    """Linear dynamics with a kink that a linearisation does not see."""

    def rollout(self, x0, u):
        x = super().rollout(x0, u)
        return x + 50 * np.maximum(np.abs(u).max(-1, keepdims=True) - 0.1, 0)


def test_a_step_that_makes_the_plan_dearer_is_kept_in_part_and_trusted_less():
    path, task, u = random_path(0), task_of(1), np.zeros((6, 2))
    for kind, trusted in ((Linear, True), (Bent, False)):
        dynamics = kind(path)
        now = prepared(dynamics, task, path.x0, Linear(path).rollout(path.x0, u), u)
        aim, _ = now.feedback(path.x0, Suitable())
        kept, x, damping, least = advance(dynamics, task, path.x0, now, aim)
        assert np.array_equal(kept[0], aim[0])  # it was carried out
        assert np.array_equal(x, dynamics.rollout(path.x0, kept))
        assert np.array_equal(kept, aim) == trusted
        assert (damping == 0) == trusted and damping >= least
    again = prepared(dynamics, task, path.x0, x, kept, damping, least)
    calmer, _ = again.feedback(path.x0, Suitable())
    assert np.abs(calmer - kept).sum() < np.abs(aim - kept).sum()


def test_what_remains_of_a_task():
    task = replace(task_of(1, rate=np.ones(2)), v=np.ones((6, 2)))
    rest = later(task, 2, np.full(2, 0.3))
    assert rest.horizon == 4 and len(rest.v) == len(rest.w) == len(rest.limits.low) == 4
    assert np.array_equal(rest.W, task.W[2:]) and np.array_equal(rest.limits.before, np.full(2, 0.3))
    assert isinstance(random_path(0), DensePath)


class Curved:
    """x' = sin(x) + u, one number a step; counts what was linearised."""

    def __init__(self):
        self.linearised = []

    def rollout(self, x0, u):
        found, x = np.empty((*u.shape[:-1], 1)), np.broadcast_to(x0, (*u.shape[:-2], 1))
        for t in range(u.shape[-2]):
            found[..., t, :] = x = np.sin(x) + u[..., t, :]
        return found

    def path(self, x0, x, u):
        self.linearised.append(len(u))
        earlier = np.concatenate([x0[None], x[:-1]])
        return dense_path(np.cos(earlier)[..., None], np.ones((len(u), 1, 1)), x0, x, u)

    def outputs(self, x):
        return x

    def output_slopes(self, x):
        return np.eye(1)[None]


def test_only_what_moved_furthest_is_linearised_anew():
    M, dynamics = 8, Curved()
    limits = ControlLimits(np.full((M, 1), -2.0), np.full((M, 1), 2.0))
    task = Task(np.full((M, 1), 0.7), np.ones((M, 1)), np.full((M, 1), 0.3), limits)
    x0, u = np.zeros(1), np.zeros((M, 1))
    now = prepared(dynamics, task, x0, dynamics.rollout(x0, u), u)
    moved = u.copy()
    moved[5] = 0.4  # steps 6 and 7 begin elsewhere
    x = dynamics.rollout(x0, moved)
    then = prepared(dynamics, task, x0, x, moved, before=now)
    assert dynamics.linearised == [M, int(ANEW * M)]
    path, whole = then.problem.path, Curved().path(x0, x, moved)
    np.testing.assert_allclose(path.forward(moved), x)
    stale = np.abs(path.A - whole.A).reshape(M)
    assert (stale > 1e-12).sum() == 1 and stale[7] > 0  # what moved: controls at 5, states at 6 and 7
    for _ in range(12):  # where the plan does not move any more, nothing is stale
        u, _ = then.feedback(x0, Suitable())
        x = dynamics.rollout(x0, u)
        then = prepared(dynamics, task, x0, x, u, before=then)
    expected = prepared(Curved(), task, x0, x, u).feedback(x0, Suitable())[0]
    np.testing.assert_allclose(u, expected, atol=1e-6)
    assert np.abs(u).max() > 0.1
    rest = prepared(dynamics, later(task, 1, u[0]), x[0], x[1:], u[1:], before=then, passed=1)
    np.testing.assert_allclose(rest.problem.path.forward(u[1:]), x[1:])
