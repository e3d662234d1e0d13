"""One set of checks over every registered world."""

import dataclasses
import json
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from gce.envs import WORLDS, PaddedEnv
from gce.errors import InputError

NAMES = {
    "rope": "gce/Rope-v0",
    "soft": "gce/Soft-v0",
    "swim": "gce/Swim-v0",
    "grid": "gce/PowerGrid-v0",
    "flock": "gce/Flock-v0",
}

pytestmark = pytest.mark.parametrize("world", WORLDS)


def make(world, objects=None):
    env = WORLDS[world]() if objects is None else WORLDS[world](objects=objects)
    env.reset(seed=1)
    return env


def test_passes_gymnasiums_own_checker(world):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(NAMES[world]).unwrapped)


def test_padded_passes_too_and_has_one_size(world):
    inner = WORLDS[world](objects=(6, 9))
    env = PaddedEnv(inner, max_objects=12)
    seen = set()
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        assert observation in env.observation_space
        n = int(observation["mask"].sum())
        seen.add(n)
        env.action_space.seed(seed)
        after, *_ = env.step(env.action_space.sample())
        assert after in env.observation_space
        assert not after["nodes"][n:].any()
        assert (after["relations"][:n, :n] == inner.graph.relations()).all()
    assert len(seen) > 1
    with pytest.raises(InputError, match="more than max_objects"):
        PaddedEnv(WORLDS[world](objects=9), max_objects=8)


def test_seeds_decide_everything(world):
    def path(seed):
        env = WORLDS[world]()
        env.reset(seed=seed, options={"observation_noise": 0.1, "process_noise": 0.1})
        return env.run(env.excitation(np.random.default_rng(seed), 20), 20)[0]

    assert np.array_equal(path(3), path(3))
    assert not np.array_equal(path(3), path(4))


def test_stepping_and_running_agree(world):
    env = make(world)
    parameters = env.parameters
    env.reset(seed=5, options={"parameters": parameters, "process_noise": 0.05})
    observations, actions = env.run(env.excitation(np.random.default_rng(0), 15), 15)
    first, _ = env.reset(seed=5, options={"parameters": parameters, "process_noise": 0.05})
    assert np.array_equal(first.nodes, observations[0])
    for t in range(15):
        instance, *_ = env.step(actions[t])
        assert np.array_equal(instance.nodes, observations[t + 1])


def test_parameters_survive_json(world):
    env = make(world)
    text = json.dumps(dataclasses.asdict(env.parameters))
    again = WORLDS[world]()
    again.reset(seed=9, options={"parameters": json.loads(text)})
    assert again.parameters == env.parameters
    assert again.graph.equals(env.graph)


def test_a_controller_learns_what_it_needs(world):
    env = make(world)
    n = env.graph.num_nodes
    low, high = env.action_bounds
    assert low.shape == high.shape == (n, len(env.action_names))
    assert env.actuated.shape == (n,)
    assert env.actuated.any()
    assert (high[~env.actuated] == 0).all()
    assert (high[env.actuated] == env.action_limit).all()
    assert env.positions.sum() == len(env.position_names)
    assert env.graph.edge_type.max() < env.num_relations
    observation = env.observe()
    assert np.allclose(env.graph.merge(observation), observation)


def test_excitation_acts_only_where_the_world_is_actuated(world):
    env = make(world)
    _, actions = env.run(env.excitation(np.random.default_rng(0), 30), 30)
    assert not actions[:, ~env.actuated].any()
    assert (np.abs(actions[:, env.actuated]).max(axis=0) > 0).all()
    assert np.array_equal(actions, actions.astype(np.float32))


def test_actions_of_unactuated_nodes_are_ignored(world):
    env = make(world)
    if env.actuated.all():
        pytest.skip("all nodes of this system are actuated")
    noise = np.where(env.actuated[:, None], 0.0, np.full(env.action_space.shape, 0.5))
    quiet = env.step(np.zeros_like(noise))[0].nodes
    env.reset(seed=1)
    assert np.array_equal(env.step(noise)[0].nodes, quiet)


def test_noise_has_the_size_asked_for(world):
    env = make(world)
    parameters = env.parameters
    clean = env.reset(seed=0, options={"parameters": parameters})[0].nodes
    scaled = []
    for seed in range(60):
        noisy = env.reset(seed=seed, options={"parameters": parameters, "observation_noise": 0.1})[0].nodes
        start = clean if world != "grid" else env._observation()
        scaled.append((noisy - start) / env.observation_std)
    assert np.std(scaled) == pytest.approx(0.1, rel=0.05)


def test_process_noise_moves_the_state_and_not_only_the_view(world):
    env = make(world)
    parameters = env.parameters
    still = np.zeros(env.action_space.shape)

    def end(noise):
        env.reset(seed=2, options={"parameters": parameters, "process_noise": noise})
        return env.run(lambda t: still, 10)[0][-1]

    assert 0 < np.abs(end(0.01) - end(0.0)).max() < np.abs(end(0.1) - end(0.0)).max()


def test_reward_is_minus_the_stage_cost_to_the_goal(world):
    env = make(world)
    parameters, start = env.parameters, env.observe()
    goal = start + 0.5 * env.observation_std
    env.reset(seed=1, options={"parameters": parameters, "goal": goal})
    action = 0.3 * env.action_bounds[1]
    _, reward, terminated, truncated, _ = env.step(action)
    assert reward == -env.stage_cost(env.observe(), goal, action) < 0
    assert not terminated
    assert not truncated


def test_the_cost_of_a_run_is_that_of_its_steps(world):
    env = make(world)
    goal = env.observe() + 0.5 * env.observation_std
    observations, actions = env.run(env.excitation(np.random.default_rng(0), 6), 6)
    stages = [env.stage_cost(o, goal, a) for o, a in zip(observations[1:], actions, strict=True)]
    assert env.run_cost(observations[1:], actions, goal) == pytest.approx(sum(stages))
    assert env.run_cost(np.stack([goal] * 6), 0 * actions, goal) == 0


def test_the_picture_shows_goal_and_action(world):
    env = WORLDS[world](render_mode="rgb_array")
    env.reset(seed=1)
    parameters, start = env.parameters, env.observe()
    plain = env.render()
    assert plain.dtype == np.uint8
    assert plain.shape[0] % 2 == plain.shape[1] % 2 == 0
    env.reset(seed=1, options={"parameters": parameters, "goal": start + 0.4 * env.positions})
    assert (env.render() != plain).any()
    action = env.action_bounds[1]
    assert (env.draw(start, action, env.goal) != env.draw(start, -action, env.goal)).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "has no reset option 'colour'"),
        ({"parameters": {"colour": 1}}, "has no parameter 'colour'"),
        ({"objects": 0}, "objects is 0"),
        ({"observation_noise": -1}, "observation_noise is -1"),
        ({"goal": np.zeros((2, 99))}, "goal must be finite numbers of shape"),
    ],
)
def test_bad_options_are_told(world, options, message):
    with pytest.raises(InputError, match=message):
        WORLDS[world]().reset(seed=0, options=options)


def test_bad_actions_are_told(world):
    env = make(world)
    with pytest.raises(InputError, match="the action has shape"):
        env.step(np.zeros(3))
    with pytest.raises(InputError, match="not a finite number"):
        env.step(np.full(env.action_space.shape, np.nan))


def test_bad_sizes_and_modes_are_told(world):
    with pytest.raises(InputError, match="objects must be"):
        WORLDS[world](objects=0)
    with pytest.raises(InputError, match="objects must be"):
        WORLDS[world](objects=(5, 3))
    with pytest.raises(InputError, match="render_mode"):
        WORLDS[world](render_mode="human")
