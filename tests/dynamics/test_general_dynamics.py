"""Plans by the general method."""

import numpy as np
import pytest
import torch

import gce
from gce.dynamics.general import GeneralDynamics
from gce.errors import InputError
from gce.planning.controller import dynamics_of
from gce.planning.observer import filter_dynamics
from gce.training.preparation import config_for, prepare
from general import TINY_GENERAL, pendulums, trained

ACTING = np.array([[True], [False], [False]])


@pytest.fixture(scope="module")
def system():
    return gce.adapt(trained().model, [pendulums()[k] for k in range(3)], measure=False)


def later(**settings):
    """A system of an untrained model with other states."""
    data = pendulums()
    model = prepare(config_for(data, kind="general", **TINY_GENERAL, **settings), data).eval()
    return gce.adapt(model, [data[0], data[1]], measure=False)


@pytest.mark.parametrize(
    ("settings", "size"),
    [(None, 1e-2), ({"history": 2}, 0.5), ({"previous_action": True, "late_action": True}, 0.5)],
    ids=["trained", "history", "late"],
)
def test_slopes_are_those_of_rollouts(system, settings, size):
    """size: of the differences; untrained models hardly answer to actions, beside rounding."""
    system = system if settings is None else later(**settings)
    dynamics = dynamics_of(system, ACTING, opening=True)
    assert isinstance(dynamics, GeneralDynamics)
    rng, start = np.random.default_rng(0), pendulums()[3].observations[0].astype(float)
    x0, u = dynamics.reduced(system.state(start, True)), rng.normal(size=(6, 1))
    path = dynamics.path(x0, dynamics.rollout(x0, u), u)
    for _ in range(3):
        way = size * rng.normal(size=u.shape)
        found = (dynamics.rollout(x0, u + way) - dynamics.rollout(x0, u - way)) / 2
        expected = path.forward(way, affine=False)
        assert np.abs(expected).max() > 0
        assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    np.testing.assert_allclose(path.forward(u), dynamics.rollout(x0, u), atol=1e-4)
    many = np.stack([u, 0 * u])
    np.testing.assert_allclose(dynamics.rollout(x0, many)[0], dynamics.rollout(x0, u), atol=1e-4)


def test_a_late_action_shows_one_step_late():
    system = later(previous_action=True, late_action=True)
    x = system.state(pendulums()[3].observations[0].astype(float), True)[:, None].expand(-1, 2, -1)
    inputs = torch.zeros(2, 3, 2, 1)
    inputs[0, 0, 1] = 1.0
    with torch.no_grad():
        first, second = system.hierarchy.rollout(x, inputs)[..., :3]
    assert torch.equal(first[:, 0], first[:, 1])
    assert not torch.allclose(second[:, 0], second[:, 1])


def test_a_plan_comes_closer_to_its_goal_within_bounds(system):
    episode = pendulums()[4]
    start, goal = episode.observations[0].astype(float), episode.observations[20].astype(float)
    _, low, high = gce.control_limits(pendulums())
    problem = gce.Problem(horizon=20, goal=goal, low=low, high=high, action_cost=1e-4)
    controller = gce.Controller(system, problem)
    plan = controller.plan(start, opening=True)
    still = system.predict(start, 0 * plan.actions)[-1]
    assert np.linalg.norm(plan.observations[-1] - goal) < 0.7 * np.linalg.norm(still - goal)
    assert (plan.actions >= low).all() and (plan.actions <= high).all()
    np.testing.assert_allclose(plan.observations, system.predict(start, plan.actions), atol=1e-4)
    rest = controller.plan(plan.observations[5], step=5, start=plan.actions[5:])
    assert len(rest.actions) == 15


def test_what_it_cannot_plan_is_refused(system):
    with pytest.raises(InputError, match="observations"):
        dynamics_of(system, ACTING, on="features")
    with pytest.raises(InputError, match="no filter"):
        filter_dynamics(system, ACTING)
