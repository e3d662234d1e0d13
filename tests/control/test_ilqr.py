"""iLQR: LQR on linear problems, the quadratic program with bounds, a local optimum otherwise."""

from dataclasses import replace

import numpy as np
import pytest
from test_settle import START, Explosive, Hopeless, quadratic, swing

from gce.control.ilqr import ilqr
from gce.control.lqr import lqr, roll
from gce.control.qp import solve_qp
from gce.control.settle import settle
from gce.errors import InputError
from plans import Linear, Pendulum, random_path, random_task, slopes_by_differences


@pytest.mark.parametrize("seed", range(4))
def test_on_a_linear_problem_it_is_lqr_in_one_step(seed):
    path = random_path(seed)
    M, s, n = path.B.shape
    dynamics, task = Linear(path), random_task(seed, M, s, n)
    found = ilqr(dynamics, task, path.x0, np.random.default_rng(seed).standard_normal((M, n)))
    problem = task.along(dynamics, path.x0, found.x, found.u)
    gains = lqr(path, problem.E, problem.e, problem.w)
    assert found.status == "solved"
    assert found.iterations == 1
    assert np.allclose(found.u, roll(path, gains)[0], atol=1e-9)
    assert np.isclose(found.cost, gains.cost(path.x0))


@pytest.mark.parametrize("bound", [0.03, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_with_bounds_it_finds_the_programs_optimum_and_keeps_to_them(seed, bound):
    path = random_path(seed)
    M, s, n = path.B.shape
    dynamics, task = Linear(path), random_task(seed, M, s, n, bound)
    found = ilqr(dynamics, task, path.x0, np.zeros((M, n)), tolerance=1e-8)
    best, _ = solve_qp(task.along(dynamics, path.x0, found.x, found.u))
    assert found.status == "solved"
    assert (np.abs(found.u) <= bound).all()
    assert (np.abs(found.u) == bound).any()
    assert np.allclose(found.u, best, atol=1e-6)


def test_soft_limits_cost_what_they_do_elsewhere():
    path = random_path(1)
    M, s, n = path.B.shape
    task = replace(random_task(1, M, s, n), soft_low=np.full(s, -0.2), soft_high=np.full(s, 0.2), soft_weight=5.0)
    found = ilqr(Linear(path), task, path.x0, np.zeros((M, n)), tolerance=1e-7)
    other = settle(Linear(path), task, path.x0, np.zeros((M, n)), quadratic)
    assert found.status == "solved"
    assert np.isclose(found.cost, other.cost, rtol=1e-6)


@pytest.mark.parametrize("bound", [np.inf, 0.4])
def test_on_bent_dynamics_it_ends_at_a_local_optimum(bound):
    dynamics, task = Pendulum(), swing(10, bound)
    found = ilqr(dynamics, task, START, np.zeros((10, 1)), iterations=200)
    assert found.status == "solved"
    assert (np.abs(found.u) <= bound).all()

    def cost(flat):
        u = flat.reshape(-1, 1)
        return task.cost(dynamics.outputs(dynamics.rollout(START, u)), u)

    assert np.isclose(found.cost, cost(found.u.ravel()))
    slope = slopes_by_differences(cost, found.u.ravel())
    inside = np.abs(found.u.ravel()) < bound
    assert np.abs(slope[inside]).max() < 1e-3 * np.abs(slopes_by_differences(cost, 0 * slope)).max()
    assert (slope[~inside] * found.u.ravel()[~inside] <= 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_worse_plan_is_never_accepted(seed):
    u = np.random.default_rng(seed).standard_normal((25, 1))
    costs = [ilqr(Pendulum(), swing(bound=2.0), START, u, iterations=k).cost for k in range(10)]
    assert (np.diff(costs) <= 0).all()
    assert costs[-1] < costs[0]


def test_what_is_not_finite_is_left_or_named():
    class Bursting(Explosive):
        def step(self, t, x, u):
            return np.where(np.abs(u) > 0.5, np.nan, super().step(t, x, u))

    found = ilqr(Bursting(), swing(), START, np.ones((25, 1)), iterations=5)
    assert np.isfinite(found.cost)
    assert np.isfinite(found.u).all()
    hopeless = ilqr(Hopeless(), swing(bound=1.0), START, np.ones((25, 1)))
    assert hopeless.status == "the model's prediction is not finite"
    assert np.isfinite(hopeless.u).all()


def test_controls_without_cost_are_regularised():
    path = random_path(0, n=2)
    M, s, n = path.B.shape
    task = random_task(0, M, s, n)
    task = replace(task, w=0 * task.w, W=np.concatenate([0 * task.W[:-1], task.W[-1:]]))
    found = ilqr(Linear(path), task, path.x0, np.zeros((M, n)), iterations=100)
    assert found.status == "solved"
    assert found.cost < 1e-6


def test_limits_on_the_rate_are_refused():
    path = random_path(0)
    M, s, n = path.B.shape
    with pytest.raises(InputError, match="not to limits on the rate"):
        ilqr(Linear(path), random_task(0, M, s, n, 1.0, 0.1), path.x0, np.zeros((M, n)))
