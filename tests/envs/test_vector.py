"""Several worlds at once, as Gymnasium's vector environments."""

import gymnasium as gym
import numpy as np
import pytest

import gce.envs
from gce.envs import WORLDS, PaddedEnv

NAMES = [world.__name__ for world in WORLDS.values()]


def mixed(name, count=3):
    return gym.make_vec(f"gce/Padded{name}-v0", num_envs=count, vectorization_mode="sync", objects=(4, 6))


@pytest.mark.parametrize("name", NAMES)
def test_systems_of_different_sizes_run_side_by_side(name):
    envs = mixed(name)
    observation, _ = envs.reset(seed=1)
    assert envs.observation_space.contains(observation)
    assert observation["nodes"].shape[:2] == (3, 6)
    assert len({int(count) for count in observation["mask"].sum(axis=1)}) > 1
    envs.action_space.seed(0)
    for _ in range(3):
        observation, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
    assert reward.shape == (3,)
    assert np.isfinite(observation["nodes"]).all()
    assert not observation["nodes"][observation["mask"] == 0].any()
    assert not (terminated | truncated).any()
    envs.close()


def test_each_does_what_it_does_alone():
    envs = mixed("Rope")
    observation, _ = envs.reset(seed=[3, 4, 5])
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (4, *envs.action_space.shape))
    for action in actions:
        observation, *_ = envs.step(action)
    for k in range(3):
        alone = PaddedEnv(gce.envs.Rope(objects=(4, 6)), 6)
        alone.reset(seed=3 + k)
        for action in actions:
            seen, *_ = alone.step(action[k])
        for name, value in seen.items():
            assert np.array_equal(observation[name][k], value)


def test_an_episode_that_is_over_begins_anew():
    short = gym.vector.SyncVectorEnv([lambda: gym.wrappers.TimeLimit(gym.make("gce/PaddedRope-v0"), 2)] * 2)
    first, _ = short.reset(seed=0)
    still = np.zeros(short.action_space.shape)
    assert not short.step(still)[3].any()
    assert short.step(still)[3].all()
    again, *_ = short.step(still)
    assert short.observation_space.contains(again)
    assert not np.array_equal(first["nodes"], again["nodes"])


def test_one_padded_world_by_name():
    env = gym.make("gce/PaddedPowerGrid-v0", objects=5, max_objects=8, topology="ring")
    observation, _ = env.reset(seed=0)
    assert observation["nodes"].shape == (8, 2)
    assert observation["mask"].sum() == 5
    assert isinstance(env.unwrapped, gce.envs.PowerGrid)
