"""Adapted systems as dynamics for planners: the model's own predictions, and their derivatives."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from gce.dynamics.bodies import BodyDynamics
from gce.dynamics.message import MessageDynamics
from gce.dynamics.state import FrozenDynamics, StateDynamics
from gce.planning.controller import dynamics_of
from gce.system.system import System, adapt
from small import recorded, system_episodes, untrained

ALONE = 1e9
"""A ridge that leaves implicit features alone."""


@cache
def adapted(world: str, ridge: float | None, **overrides) -> System:
    """In double precision, so that differences can be measured."""
    system = adapt(untrained(world, **overrides), system_episodes(world)[:3], ridge, measure=False)
    system.model.double()
    return system


def dynamics(world: str, ridge: float | None = None, opening: bool = False, **overrides) -> StateDynamics:
    limits = recorded(world).group(0).limits
    system, controls = adapted(world, ridge, **overrides), (limits.low != 0) | (limits.high != 0)
    if ridge not in (None, ALONE):  # what kernels leave out
        return StateDynamics(system, controls, opening)
    return dynamics_of(system, controls, opening)


def stretch(known: StateDynamics, world: str, steps: int, first: int):
    """(state, controls) of a recorded episode from step `first` on."""
    episode = system_episodes(world)[3]
    o = episode.observations.astype(float)
    before = (o[first - 1], episode.actions[first - 1].astype(float)) if first else None
    x0 = known.reduced(known.system.state(o[first], first == 0, before))
    u = episode.actions[first : first + steps] / known.system.model.action_std.numpy()
    return x0, u[:, known.controls].astype(float), episode


CASES = {
    "rope": ("rope", None, {}),
    "rope, two observations and the previous action": ("rope", None, {"history": 2, "previous_action": True}),
    "rope, message passing without net flows": ("rope", None, {"conservative": False}),
    "grid": ("grid", None, {}),
    "soft, implicit alone": ("soft", ALONE, {}),
    "soft, implicit and operator": ("soft", 1e-3, {}),
    "soft, message passing": ("soft", None, {"implicit": False}),
    "swim, implicit alone": ("swim", ALONE, {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opening", [True, False])
def test_a_rollout_is_the_models_prediction(case, opening):
    world, ridge, overrides = CASES[case]
    known = dynamics(world, ridge, opening, **overrides)
    first = 0 if opening else 4
    x0, u, episode = stretch(known, world, 6, first)
    o = episode.observations.astype(float)
    before = None if opening else (o[3], episode.actions[3].astype(float))
    model = known.system.model
    predicted = known.system.predict(o[first], episode.actions[first : first + 6], opening=opening, before=before)[1:]
    expected = model.normalise(torch.as_tensor(predicted)).numpy().reshape(6, -1)
    found = known.outputs(known.rollout(x0, u))
    assert np.abs(found - expected).max() < 1e-5 * max(10, np.abs(expected).max())
    many = known.rollout(x0, np.stack([u, 0 * u]))
    assert np.allclose(known.outputs(many[0]), found, atol=1e-5)
    assert np.abs(many[1] - many[0]).max() > 1e-3  # controls do something


@pytest.mark.parametrize("case", CASES)
def test_the_path_is_the_derivative_of_a_rollout(case):
    """Along directions in which tied coordinates stay tied."""
    world, ridge, overrides = CASES[case]
    known = dynamics(world, ridge, **overrides)
    x0, u, _ = stretch(known, world, 3, 5)
    x = known.rollout(x0, u)
    path = known.path(x0, x, u)
    assert np.allclose(path.forward(u), x, atol=1e-6 * np.abs(x).max())
    size, tolerance = 1e-6, 1e-5
    topology, model = known.system.topology, known.system.model

    def kept(direction):
        """Tied coordinates of a direction at their mean."""
        if topology.tied is None or isinstance(known, BodyDynamics):
            return direction
        zero = model.merge(known.lifted(0 * direction)[..., : model.config.num_observations], topology)
        d, moved = model.config.num_observations, known.lifted(direction).clone()
        moved[..., :d] = model.merge(moved[..., :d], topology) - zero
        return known.reduced(moved)

    rng = np.random.default_rng(0)
    for _ in range(4):
        dx = kept(rng.standard_normal(len(x0)))
        up, down = (known.rollout(x0 + sign * size * dx, u) for sign in (1, -1))
        moved = path.A[0] @ dx
        assert np.allclose(moved, (up - down)[0] / (2 * size), atol=tolerance * np.abs(moved).max())
        du = rng.standard_normal(u.shape)
        up, down = (known.rollout(x0, u + sign * size * du) for sign in (1, -1))
        moved = path.forward(du, affine=False)
        assert np.allclose(moved, (up - down) / (2 * size), atol=2 * tolerance * np.abs(moved).max())


@pytest.mark.parametrize("case", CASES)
def test_a_rollout_is_its_steps(case):
    world, ridge, overrides = CASES[case]
    known = dynamics(world, ridge, opening=True, **overrides)
    x0, u, _ = stretch(known, world, 3, 0)
    controls = np.stack([u, 0 * u])
    x = np.stack([x0, x0])
    for t in range(3):
        x = known.step(t, x, controls[:, t])
    assert np.allclose(x, known.rollout(x0, controls)[:, -1])


@pytest.mark.parametrize("case", CASES)
def test_states_go_to_the_model_and_back(case):
    world, ridge, overrides = CASES[case]
    known = dynamics(world, ridge, **overrides)
    x0, _, _ = stretch(known, world, 1, 5)
    assert np.allclose(known.reduced(known.lifted(x0)), x0, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("on", ["observations", "features"])
def test_output_slopes_are_the_derivative_of_outputs(case, on):
    world, ridge, overrides = CASES[case]
    known = replace(dynamics(world, ridge, **overrides), on=on)
    x0, u, _ = stretch(known, world, 2, 5)
    x = known.rollout(x0, u)
    slopes = known.output_slopes(x)
    for dx in np.random.default_rng(0).standard_normal((3, len(x0))):
        measured = (known.outputs(x[-1] + 1e-6 * dx) - known.outputs(x[-1] - 1e-6 * dx)) / 2e-6
        assert np.allclose(slopes[-1] @ dx, measured, atol=1e-5 * np.abs(measured).max())


def test_a_kind_of_features_names_its_dynamics():
    assert isinstance(dynamics("soft", ALONE), BodyDynamics)
    assert isinstance(dynamics("rope"), MessageDynamics)
    other = dynamics("rope", potential="laplace")  # which the kernel does not know
    assert isinstance(other, StateDynamics) and not isinstance(other, MessageDynamics)


def test_frozen_dynamics_are_linear_and_exact_at_their_state():
    known = dynamics("rope")
    x0, u, _ = stretch(known, "rope", 4, 5)
    frozen = FrozenDynamics(known, x0)
    path = frozen.path(x0, known.rollout(x0, u), u)
    assert np.allclose(path.forward(u), frozen.rollout(x0, u))
    still = 0 * u[:1]
    assert np.allclose(frozen.rollout(x0, still), known.rollout(x0, still), atol=1e-6)


def test_the_first_step_of_an_episode_knows_only_the_action():
    """Where the world says so (`fresh_start`), the state does not act on the velocities of the first step."""
    known = dynamics("rope", opening=True)
    x0, u, _ = stretch(known, "rope", 2, 0)
    path = known.path(x0, known.rollout(x0, u), u)
    N = known.system.graph.num_nodes
    A = path.A.reshape(2, N, 4, N, 4)[:, :, 2:]
    own = np.eye(N * 4).reshape(N, 4, N, 4)[:, 2:]
    assert np.allclose(A[0], own)
    assert not np.allclose(A[1], own, atol=1e-3)
