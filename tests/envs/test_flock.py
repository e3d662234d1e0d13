"""Identities of the flock: its weights, its step, its start and what it refuses."""

import dataclasses

import numpy as np
import pytest

from gce.envs.flock import GROUPS, REACH, Flock, FlockParameters, draw_groups
from gce.envs.recording import Recording, position_errors, record
from gce.errors import InputError
from gce.trajectory import Dataset


def drawn(sharpness=2.0, objects=15, seed=3):
    env = Flock(objects=objects, sharpness=sharpness)
    env.reset(seed=seed)
    return env


def table(env, weights):
    full = np.zeros((env.graph.num_nodes,) * 2)
    full[env.graph.receivers, env.graph.senders] = weights
    return full


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 2.0, 100.0])
def test_weights_of_a_neighbourhood_add_up_to_one_and_the_own_is_largest(sharpness):
    env = drawn(sharpness)
    observations, _ = env.run(env.excitation(np.random.default_rng(0), 20), 20)
    weights = env.weights(observations)
    assert weights.shape == (21, env.graph.num_edges)
    for at, found in zip(observations, weights, strict=True):
        full = table(env, found)
        assert np.allclose(full.sum(axis=1), 1)
        assert (full.max(axis=1) <= np.diag(full)).all()
        assert np.allclose(full @ at, env.mean_field(at))


def test_weights_fall_with_distance_as_a_gaussian():
    env = drawn()
    x = env.observe()
    full = table(env, env.weights(x))
    i, j = env.parameters.links[0]
    assert full[i, j] / full[i, i] == pytest.approx(np.exp(-2.0 * np.sum((x[i] - x[j]) ** 2)))


def test_without_sharpness_an_agent_moves_to_the_plain_mean():
    env = drawn(0.0)
    x, near = env.observe(), env.graph.relations() >= 0
    env.step(np.zeros(env.action_space.shape))
    assert np.allclose(env.observe(), near @ x / near.sum(axis=1, keepdims=True))


def test_with_much_of_it_an_agent_stays_where_it_is():
    env = drawn(100.0)
    x = env.observe()
    env.step(np.zeros(env.action_space.shape))
    assert np.allclose(env.observe(), x, atol=0.01)


def test_an_action_is_added_to_the_mean_of_steered_agents():
    env = drawn()
    x, action = env.observe(), np.full(env.action_space.shape, 0.4)
    env.step(action)
    assert np.allclose(env.observe(), env.mean_field(x) + REACH * 0.4 * env.actuated[:, None])


def test_relabelling_agents_permutes_what_they_do():
    env = drawn()
    p, order = env.parameters, np.random.default_rng(0).permutation(15)
    place = np.argsort(order)
    other = FlockParameters(place[np.array(p.links)], np.array(p.steered)[order], np.array(p.start)[order], p.sharpness)
    actions = np.random.default_rng(1).uniform(-1, 1, (20, 15, 2))
    path, _ = env.run(lambda t: actions[t], 20)
    env.reset(options={"parameters": other})
    again, _ = env.run(lambda t: actions[t][order], 20)
    assert np.allclose(again, path[:, order])


def test_a_recording_replays_from_its_file(tmp_path):
    settings = {"sharpness": 1.5}
    recording = Recording("flock", 4, (10, 12), 2, steps=100, process_noise=0.01, settings=settings)
    record(recording, tmp_path / "flock.h5")
    with Dataset.open(tmp_path / "flock.h5") as data:
        assert {episode.parameters["sharpness"] for episode in data} == {1.5}
        assert max(position_errors(data).values()) < 1e-6  # observations are kept in single precision


def test_groups_start_apart_and_connected_and_stay_apart():
    env = drawn(objects=20)
    links = np.array(env.parameters.links)
    leaders = np.flatnonzero(env.actuated)[:GROUPS]
    groups = draw_groups(20, links, leaders, np.random.default_rng(0))
    assert (groups[leaders] == np.arange(GROUPS)).all()
    inside = groups[links[:, 0]] == groups[links[:, 1]]
    assert 0.2 < inside.mean() < 0.8
    for group in range(GROUPS):
        reached = groups == group
        near = env.graph.relations() >= 0
        seen = np.arange(20) == leaders[group]
        for _ in range(20):
            seen = (near @ seen) & reached
        assert (seen == reached).all()
    observations, _ = env.run(env.excitation(np.random.default_rng(0), 100), 100)
    assert (observations.std(axis=1) > 0.5).all()
    assert np.abs(observations).max() < 5


def test_a_quarter_is_steered_on_a_sparse_graph():
    for n in (10, 20, 30):
        env = drawn(objects=n)
        assert env.actuated.sum() == -(-n // 4)
        assert 3 < (env.graph.num_edges - n) / n < 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sharpness": -1}, "sharpness is -1.0, expected between 0 and 100"),
        ({"sharpness": np.inf}, "sharpness is inf"),
        ({"sharpness": np.nan}, "sharpness is nan"),
        ({"steered": [False] * 15}, "names no agent"),
        ({"start": [[0.0, 0.0]]}, "start has 1 positions for 15 agents"),
        ({"start": [[0.0, np.nan]] * 15}, "not a finite number"),
        ({"links": [[0, 15]]}, "numbered from 0"),
        ({"links": [[0, 1], [1, 0]]}, "comes twice"),
        ({"links": [[0, 1]]}, "do not join all"),
    ],
)
def test_parameters_that_cannot_be_are_told(changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(drawn().parameters, **changes)


def test_a_sharpness_out_of_range_is_told_before_anything_is_drawn():
    with pytest.raises(InputError, match="sharpness is 101, expected between 0 and 100"):
        Flock(sharpness=101)
