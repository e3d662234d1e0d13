"""Noisy observations of simulated systems through the filter."""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gce.dynamics.anchored import AnchoredDynamics
from gce.dynamics.bodies import BodyDynamics
from gce.envs import world_named
from gce.envs.recording import Recording, record
from gce.errors import InputError
from gce.model.files import load_model, shipped
from gce.planning.observer import Filter, noise_scale
from gce.system.system import adapt
from gce.trajectory import Dataset

NOISE = 0.1


@cache
def noisy_system(world: str, objects: int = 5, steps: int = 25):
    """(system adapted to 8 noisy episodes, these, the truth of a ninth, what is seen of it)."""
    with tempfile.TemporaryDirectory() as folder:
        record(Recording(world, 9, (objects, objects), 9, seed=5, steps=steps), Path(folder) / "x.h5")
        with Dataset.open(Path(folder) / "x.h5") as data:
            episodes = list(data)
    rng, unit = np.random.default_rng(0), world_named(world).observation_std
    seen = [
        replace(e, observations=e.observations + NOISE * unit * rng.standard_normal(e.observations.shape))
        for e in episodes
    ]
    return adapt(load_model(shipped(world)), seen[:8], measure=False), seen[:8], episodes[8], seen[8].observations


def run(filtering: Filter, actions, observations):
    found = [filtering]
    for action, observation in zip(actions, observations[1:], strict=True):
        found.append(found[-1].stepped(action.astype(float), observation))
    return found


def error(world: str, estimates, truth) -> float:
    """In the world's units; observations with noise of a tenth of these are off by 0.1."""
    return float(np.sqrt(np.square((estimates - truth) / world_named(world).observation_std).mean()))


def test_a_noisy_rope_is_known_better_than_seen():
    system, adapted_to, truth, seen = noisy_system("rope")
    scale = noise_scale(system, adapted_to)
    found = run(Filter.opened(system, seen[0], scale=scale), truth.actions, seen)
    raw = error("rope", seen, truth.observations)
    filtered = error("rope", np.stack([f.estimate for f in found]), truth.observations)
    assert 0.09 < raw < 0.11
    assert filtered < 0.5 * raw
    claimed = error("rope", np.stack([f.deviation for f in found]), 0.0)
    assert filtered / 1.6 < claimed < 1.6 * filtered
    assert 0.6 < np.mean(found[-1].surprises) / seen[0].size < 1.4


def test_a_noisy_body_is_known_better_than_seen_and_stays_in_one_piece():
    system, _, truth, seen = noisy_system("soft", 4, 15)
    found = run(Filter.opened(system, seen[0]), truth.actions, seen)
    assert isinstance(found[0].dynamics, BodyDynamics)
    estimates = np.stack([f.estimate for f in found])
    assert error("soft", estimates, truth.observations) < 0.7 * error("soft", seen, truth.observations)
    tied = system.graph.tied
    for corner in np.unique(tied):
        assert np.ptp(estimates[-1][tied == corner]) < 1e-5


def test_noise_that_is_given_is_taken_instead():
    system, _, truth, seen = noisy_system("rope")
    unit = world_named("rope").observation_std
    told = run(Filter.opened(system, seen[0], noise=NOISE * unit), truth.actions[:5], seen[:6])[-1]
    found = run(Filter.opened(system, seen[0]), truth.actions[:5], seen[:6])[-1]
    assert np.allclose(told.variance, found.variance, rtol=0.2)
    o = truth.observations[:6].astype(float)
    sharp = run(Filter.opened(system, o[0], noise=1e-3 * unit), truth.actions[:5], o)[-1]
    assert error("rope", sharp.estimate, o[5]) < 0.02


def test_observations_that_say_nothing_leave_the_prediction():
    system, _, truth, seen = noisy_system("rope")
    opened = Filter.opened(system, seen[0])
    blunt = run(replace(opened, variance=1e9 * opened.variance), truth.actions[:5], seen[:6])[-1]
    assert np.allclose(blunt.estimate, system.predict(seen[0], truth.actions[:5])[-1], atol=1e-5)


def test_noise_of_velocities_moves_the_positions_that_follow_them():
    system, _, _, seen = noisy_system("rope")
    Q = Filter.opened(system, seen[0]).process.reshape(5, 4, 5, 4)
    ratios = np.array(system.model.ratios)
    assert np.allclose(Q[2, [0, 1], 2, [0, 1]], ratios**2 * Q[2, [2, 3], 2, [2, 3]])
    assert np.allclose(Q[2, [0, 1], 2, [2, 3]], ratios * Q[2, [2, 3], 2, [2, 3]])
    assert not Q[0, :, 1].any()
    assert not Q[0, 1].any()  # the first mass stays on its rail


def test_bad_input_is_refused():
    system, _, truth, seen = noisy_system("rope")
    with pytest.raises(InputError, match="standard deviations in physical units"):
        Filter.opened(system, seen[0], noise=-1.0)
    opened = Filter.opened(system, seen[0])
    with pytest.raises(InputError, match="finite"):
        opened.stepped(truth.actions[0].astype(float), np.full_like(seen[1], np.nan))


def test_a_large_graph_is_filtered_around_one_state(monkeypatch):
    monkeypatch.setattr("gce.features.base.MANY_NODES", 4)
    system, adapted_to, truth, seen = noisy_system("grid", 6)
    noise = NOISE * world_named("grid").observation_std
    found = run(Filter.opened(system, seen[0], noise=noise), truth.actions, seen)
    assert isinstance(found[0].dynamics, AnchoredDynamics)
    assert noise_scale(system, adapted_to) == 1
    estimates = np.stack([f.estimate for f in found])
    assert error("grid", estimates, truth.observations) < 0.9 * error("grid", seen, truth.observations)
    assert (found[-1].deviation > 0).all()
