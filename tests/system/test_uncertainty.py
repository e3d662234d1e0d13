"""How far predictions are off: a linear system whose noise is known, spreads, covariances and intervals."""

from functools import cache

import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.system.system import adapt
from gce.training.preparation import config_for, prepare
from gce.trajectory import Dataset, Episode
from linear import NODES, NOISE, PUSH, P, Q, linear_episodes, linear_step
from small import TINY, close, system_episodes, untrained


def start(episode: Episode) -> np.ndarray:
    return episode.observations[0].astype(float)


# ---- a linear stochastic system ----


@pytest.mark.parametrize(("form", "exogenous"), [("hom_mean", True), ("hom", False), ("dense", False)])
def test_a_linear_stochastic_system_is_recovered(form, exogenous):
    seen, unseen = linear_episodes(36, 0, exogenous), linear_episodes(16, 1, exogenous)
    data = Dataset.from_episodes(seen, [0] * len(seen))
    config = config_for(data, **{**TINY, "form": form, "potential": "constant"})
    system = adapt(prepare(config, data).eval(), seen)
    wrong, inside = [], []
    for episode in unseen:
        predicted = system.predict(episode.observations[0], episode.actions, exogenous=episode.exogenous)
        known = None if episode.exogenous is None else episode.exogenous[0]
        wrong.append(predicted[1] - linear_step(episode.observations[0], episode.actions[0], known))
        low, high = system.intervals(predicted, 0.9)
        inside.append((low <= episode.observations)[1:] & (episode.observations <= high)[1:])
    rows, regressors = system.operator.rows, system.operator.coefficients.shape[-2]
    assert np.sqrt(np.mean(np.square(wrong))) < 2 * NOISE * np.sqrt(regressors / rows)  # twice the standard error
    assert 0.85 < np.mean(inside) < 0.95
    residual = torch.diagonal(system.operator.residual, dim1=-2, dim2=-1)[..., :2].mean()
    assert residual.sqrt() * system.model.observation_std.mean() == pytest.approx(NOISE, rel=0.15)


# ---- how far predictions are off ----


@cache
def linear_system(count: int, steps: int = 5, **overrides):
    seen = linear_episodes(count, 0, steps=steps)
    data = Dataset.from_episodes(seen, [0] * len(seen))
    return prepare(config_for(data, **{**TINY, "potential": "constant", **overrides}), data).eval(), seen


# Features that are not linear in the state have no linear dynamics of their own, so a linear rollout is a bit off.
@pytest.mark.parametrize(("reproject", "tolerance"), [(True, 0.07), (False, 0.16)])
def test_the_covariance_is_that_of_many_simulations(reproject, tolerance):
    model, seen = linear_system(100)
    system, (episode,) = adapt(model, seen, measure=False), linear_episodes(1, 5)
    rng = np.random.default_rng(0)
    x = np.repeat(episode.observations[:1], 20_000, axis=0)
    found = system.covariance(episode.observations[0], episode.actions, reproject=reproject)
    assert not found[0].any()
    for t, a in enumerate(episode.actions):
        neighbours = np.roll(x, 1, axis=1) + np.roll(x, -1, axis=1)
        x = x @ P.T + neighbours @ Q.T + a @ PUSH + NOISE * rng.normal(size=x.shape)
        true = np.cov(x.reshape(len(x), -1), rowvar=False)
        assert np.linalg.norm(found[t + 1] - true) < tolerance * np.linalg.norm(true)
    # Noise does not just add up: the steps in between matter.
    assert np.linalg.norm(found[-1] - len(episode.actions) * found[1]) > 0.3 * np.linalg.norm(found[-1])


def test_features_vary_as_the_states_they_hold():
    model, seen = linear_system(12)
    system, episode = adapt(model, seen, measure=False), seen[0]
    for reproject in (True, False):
        path = episode.observations[0], episode.actions[:3]
        states = system.covariance(*path, reproject=reproject)
        features = system.covariance(*path, reproject=reproject, features=True)
        width = model.config.num_state + model.features.num_phi
        places = np.arange(NODES * width).reshape(NODES, width)[:, :2].ravel()
        unit = np.tile(model.observation_std.double().numpy(), NODES)
        assert close(features[:, places][:, :, places] * unit[:, None] * unit, states, 1e-4)
        assert np.linalg.eigvalsh(features[-1]).min() > -1e-9


def test_a_known_kinematic_error_moves_positions_with_velocities():
    model, (*episodes, last) = untrained("rope"), system_episodes("rope")
    (first,) = adapt(model, episodes, measure=False).covariance(start(last), last.actions[:1])[1:]
    by_node = first.reshape(last.num_nodes, 4, last.num_nodes, 4)
    for node in range(1, last.num_nodes):
        own, dt = by_node[node, :, node], model.config.dt
        assert own[0, 0] == pytest.approx(dt**2 * own[2, 2], rel=1e-4)
        assert own[0, 2] == pytest.approx(dt * own[2, 2], rel=1e-4)
    assert not by_node[0, 3].any()  # the rail holds the first mass's height
    assert not by_node[0, 1].any()


def test_the_spread_is_that_of_episodes_left_out():
    model, episodes = untrained("rope"), [e.window(0, 5) for e in system_episodes("rope")]
    squares = []
    for k, episode in enumerate(episodes):
        others = adapt(model, episodes[:k] + episodes[k + 1 :], measure=False)
        wrong = others.predict(start(episode), episode.actions) - episode.observations
        squares.append(np.square(wrong / model.observation_std.numpy()).mean(1))
    expected = np.sqrt(np.mean(squares, axis=0))
    spread = adapt(model, episodes).spread
    assert np.allclose(spread.deviations(len(expected))[1:], expected[1:], rtol=1e-3)
    assert np.array_equal(spread.counts, np.full(len(expected), len(episodes)))
    assert np.array_equal(spread.deviations(200)[-1], spread.deviations(len(expected))[-1])


def test_an_update_adds_the_errors_made_before_it():
    model, (*episodes, last) = untrained("rope"), [e.window(0, 5) for e in system_episodes("rope")]
    system = adapt(model, episodes)
    wrong = system.predict(start(last), last.actions) - last.observations
    more = system.update(last).spread
    expected = system.spread.squares + np.square(wrong / model.observation_std.numpy()).mean(1)
    assert np.allclose(more.squares[1:], expected[1:], rtol=1e-3)
    assert np.array_equal(more.counts, system.spread.counts + 1)


def test_episodes_of_different_lengths_count_as_far_as_they_go():
    model, (first, second, *_) = untrained("rope"), system_episodes("rope")
    spread = adapt(model, [first, second.window(0, 8)]).spread
    assert spread.counts.tolist() == [2] * 9 + [1] * 12


def test_intervals_of_a_single_episode_are_wider_than_its_own_errors():
    model, seen = linear_system(1, steps=30)
    system, others = adapt(model, seen), linear_episodes(6, 3, steps=30)
    own = system.predict(seen[0].observations[0], seen[0].actions) - seen[0].observations
    assert system.spread.deviations(31).mean() > np.sqrt(np.square(own / model.observation_std.numpy()).mean())
    inside = []
    for episode in others:
        low, high = system.intervals(system.predict(episode.observations[0], episode.actions))
        inside.append((low <= episode.observations)[1:] & (episode.observations <= high)[1:])
    assert 0.8 < np.mean(inside) < 0.98


def test_an_episode_of_one_step_is_enough():
    model, (first, *_) = untrained("rope"), system_episodes("rope")
    with pytest.warns(UserWarning, match="the ridge decides"):
        system = adapt(model, [first.window(0, 1)])
    assert np.isfinite(system.intervals(system.predict(start(first), first.actions))).all()


def test_a_system_that_was_not_measured_has_no_intervals():
    model, episodes = untrained("rope"), system_episodes("rope")
    with pytest.raises(InputError, match="without measuring how far it is off; adapt with measure=True"):
        adapt(model, episodes, measure=False).intervals(episodes[0].observations)


def test_wider_levels_contain_narrower_ones():
    system = adapt(untrained("grid"), system_episodes("grid"))
    predicted = system.predict(start(system_episodes("grid")[0]), system_episodes("grid")[0].actions)
    (low, high), (lower, higher) = system.intervals(predicted, 0.5), system.intervals(predicted, 0.99)
    assert bool((lower <= low).all() and (low <= predicted).all() and (predicted <= high).all())
    assert bool((high <= higher).all())
