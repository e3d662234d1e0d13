import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from gce.batches import SystemData
from gce.errors import InputError
from gce.graph import Graph, ring
from gce.preparation import prepare
from gce.presets import config_for
from gce.system import adapt
from gce.trajectory import Dataset, Episode
from small import TINY, close, recorded, system_episodes, untrained


def start(episode: Episode) -> np.ndarray:
    return episode.observations[0].astype(float)


# ---- adaptation ----


@pytest.mark.parametrize("world", ["rope"])
def test_the_order_of_episodes_does_not_matter(world):
    model, episodes = untrained(world), system_episodes(world)
    forth, back = adapt(model, episodes), adapt(model, episodes[::-1])
    assert close(back.operator.coefficients, forth.operator.coefficients, 1e-10)


@pytest.mark.parametrize("world", ["rope"])
def test_updates_one_by_one_equal_adapting_at_once(world):
    model, (first, *others, last) = untrained(world), system_episodes(world)
    system = adapt(model, [first])
    for episode in others:
        system = system.update(episode)
    at_once = adapt(model, [first, *others])
    assert close(system.operator.coefficients, at_once.operator.coefficients, 1e-12)
    assert system.operator.rows == at_once.operator.rows
    grown, whole = (s.predict(start(last), last.actions[:10]) for s in (system, at_once))
    assert np.allclose(grown, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("world", "form"), [("rope", "hom_mean"), ("soft", "hom_mean"), ("grid", "dense")])
def test_relabelling_nodes_permutes_predictions(world, form):
    model, (*episodes, last) = untrained(world, form=form), system_episodes(world)
    order = np.random.default_rng(1).permutation(last.num_nodes)
    graph = last.graph.permute(order)
    renamed = [
        replace(e, graph=graph, observations=e.observations[:, order], actions=e.actions[:, order])
        for e in [*episodes, last]
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here, there = adapt(model, renamed[:-1]), adapt(model, episodes)
    predicted = here.predict(start(renamed[-1]), renamed[-1].actions[:4])
    assert close(predicted, there.predict(start(last), last.actions[:4])[:, order], 1e-3)


def test_fewer_samples_than_regressors_leave_the_rest_to_the_ridge():
    model, (first, second, *_) = untrained("rope", form="dense"), system_episodes("rope")
    with pytest.warns(UserWarning, match="20 samples for .* regressors: the ridge decides"):
        system = adapt(model, [first])
    assert np.isfinite(system.predict(start(second), second.actions[:5])).all()


def test_enough_samples_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapt(untrained("rope"), system_episodes("rope"))


@pytest.mark.parametrize("world", ["rope", "soft"])
def test_the_condition_says_how_well_posed_the_fit_is(world):
    assert 1 < adapt(untrained(world), system_episodes(world)).operator.condition < 1e9


# ---- prediction ----


@pytest.mark.parametrize("world", ["rope", "grid"])
def test_a_prediction_opens_with_the_observation(world):
    model, (*episodes, last) = untrained(world), system_episodes(world)
    predicted = adapt(model, episodes).predict(start(last), last.actions[:3])
    assert np.array_equal(predicted[0], start(last))
    assert predicted.shape == (4, *start(last).shape)


@pytest.mark.parametrize(("world", "reproject"), [("rope", True), ("grid", False), ("soft", True)])
def test_a_rollout_holds_the_states_and_features_of_the_prediction(world, reproject):
    model, (*episodes, last) = untrained(world), system_episodes(world)
    system = adapt(model, episodes, measure=False)
    path = system.rollout(start(last), last.actions[:6], reproject=reproject)
    x, d = path.states, model.config.num_observations
    predicted = system.predict(start(last), last.actions[:6], reproject=reproject)
    assert np.allclose(model.denormalise(x[1:, :, :d]).double().numpy(), predicted[1:], rtol=1e-6)
    assert torch.equal(path.features[..., : x.shape[-1]], x)
    with torch.no_grad():
        anew = model.features(x, system.topology)
    assert close(path.features[0], anew[0])
    assert close(path.features, anew) == reproject
    assert close(path.inputs * model.action_std, torch.as_tensor(last.actions[:6], dtype=torch.float32), 1e-6)


def test_the_linearisation_of_a_rollout_follows_it():
    model, (*episodes, last) = untrained("rope"), system_episodes("rope")
    system = adapt(model, episodes, measure=False)
    path = system.rollout(start(last), last.actions[:3])
    A, B, c = system.linearise(path.states[:-1], path.inputs, opening=True)
    x, a = path.states.flatten(1), path.inputs.flatten(1)
    after = torch.einsum("tij,tj->ti", A, x[:-1]) + torch.einsum("tij,tj->ti", B, a) + c
    assert close(after, x[1:], 1e-5)


@pytest.mark.parametrize("world", ["rope", "soft"])
def test_a_prediction_can_be_gone_on_with(world):
    model, (*episodes, last) = untrained(world), system_episodes(world)
    system = adapt(model, episodes)
    whole = system.predict(start(last), last.actions[:6])
    rest = system.predict(whole[3], last.actions[3:6], opening=False, before=(whole[2], last.actions[2].astype(float)))
    assert close(rest, whole[3:], 1e-4)


def test_predicted_positions_and_velocities_agree():
    model, (*episodes, last) = untrained("rope"), system_episodes("rope")
    predicted = adapt(model, episodes).predict(start(last), last.actions[:10])
    for position, velocity in model.config.kinematics:
        moved = np.diff(predicted[..., position], axis=0) / model.config.dt
        assert np.allclose(moved, predicted[1:, :, velocity], atol=1e-4)


def test_the_mass_on_the_rail_keeps_its_height():
    model, (*episodes, last) = untrained("rope"), system_episodes("rope")
    held = model.held[:, : len(model.free)].nonzero().tolist()
    assert held == [[0, model.free.index(3)]]
    predicted = adapt(model, episodes).predict(start(last), last.actions[:10])
    assert np.allclose(predicted[:, 0, 1], start(last)[0, 1], atol=1e-6)
    assert not predicted[:, 0, 3].any()


@pytest.mark.parametrize("world", ["swim"])
def test_predicted_corners_stay_tied(world):
    model, (*episodes, last) = untrained(world), system_episodes(world)
    predicted = adapt(model, episodes).predict(start(last), last.actions[:5])
    assert np.allclose(last.graph.merge(predicted), predicted, atol=1e-5)


# ---- linearisation ----


@pytest.mark.parametrize(("world", "opening"), [("rope", False), ("rope", True), ("soft", False), ("grid", True)])
def test_the_linearisation_is_the_derivative_and_touches_the_path(world, opening):
    model, episodes = untrained(world), system_episodes(world)
    system = adapt(model, episodes[:2])
    data = SystemData(model, episodes[:1])
    x, a = data.states[0, :2].double(), data.inputs[0, :2].double()
    model.double()
    A, B, c = system.linearise(x, a, opening)
    nodes, topology, step = system.graph.num_nodes, system.topology, model.stepper([system.operator], system.topology)

    def following(x: torch.Tensor, a: torch.Tensor, t: int) -> torch.Tensor:
        fresh = torch.full((nodes, 1), float(opening and t == 0))
        with torch.no_grad():
            return step(model.features(x.reshape(nodes, -1), topology), a.reshape(nodes, -1), fresh)[0].flatten()

    generator, small = torch.Generator().manual_seed(0), 1e-7
    for t in range(2):
        point, action = x[t].flatten(), a[t].flatten()
        assert close(A[t] @ point + B[t] @ action + c[t], following(point, action, t), 1e-12)
        dx = torch.randn(point.shape, generator=generator, dtype=torch.float64)
        da = torch.randn(action.shape, generator=generator, dtype=torch.float64)
        plus = following(point + small * dx, action + small * da, t)
        minus = following(point - small * dx, action - small * da, t)
        assert close(A[t] @ dx + B[t] @ da, (plus - minus) / (2 * small), 1e-6)


# ---- a linear stochastic system ----

NOISE = 0.05
NODES = 8
P, Q = np.array([[0.7, 0.2], [-0.2, 0.7]]), np.array([[0.1, 0.0], [0.05, 0.1]])
PUSH = np.array([[0.3, 0.5]])


def linear_episodes(count: int, seed: int, exogenous: bool = False, steps: int = 5) -> list[Episode]:
    """x_i' = P x_i + Q (sum of both neighbours) + B a_i + E e_i + noise on a ring."""
    rng = np.random.default_rng(seed)
    graph = Graph.from_edges(NODES, ring(NODES), undirected=True)
    made = []
    for _ in range(count):
        actions, known = rng.normal(size=(steps, NODES, 1)), rng.normal(size=(steps, NODES, 1))
        x = [rng.normal(size=(NODES, 2))]
        for t in range(steps):
            mean = linear_step(x[-1], actions[t], known[t] if exogenous else None)
            x.append(mean + NOISE * rng.normal(size=mean.shape))
        made.append(Episode(graph, np.stack(x), actions, known if exogenous else None))
    return made


def linear_step(x: np.ndarray, a: np.ndarray, e: np.ndarray | None = None) -> np.ndarray:
    neighbours = np.roll(x, 1, axis=0) + np.roll(x, -1, axis=0)
    return x @ P.T + neighbours @ Q.T + a @ PUSH + (0 if e is None else e @ np.array([[0.4, 0.0]]))


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
        width = model.config.num_state + model.config.num_phi
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


# ---- noise ----


def test_a_noisy_start_is_drawn_to_the_starts_seen():
    """Ropes of one system start alike, so a noisy first observation is nearer the truth after adaptation."""
    model, (*episodes, last) = untrained("rope"), system_episodes("rope")
    rng, unit = np.random.default_rng(0), 0.1 * model.observation_std.numpy()
    noisy = [replace(e, observations=e.observations + unit * rng.normal(size=e.observations.shape)) for e in episodes]
    system = adapt(model, noisy)
    seen = start(last) + unit * rng.normal(size=start(last).shape)
    truth = model.normalise(torch.as_tensor(start(last))).numpy()
    raw = model.normalise(torch.as_tensor(seen)).numpy()
    assert np.abs(system.evidence.starts.posterior(raw) - truth).mean() < 0.7 * np.abs(raw - truth).mean()


def test_without_noise_the_start_is_taken_as_it_is():
    raw = np.random.default_rng(0).normal(size=(NODES, 2))
    data = Dataset.from_episodes(linear_episodes(12, 0), [0] * 12)
    system = adapt(prepare(config_for(data, **TINY), data), list(data))
    assert np.array_equal(system.evidence.starts.posterior(raw), raw)


# ---- refusals ----


def test_what_does_not_fit_is_told():
    model, episodes = untrained("rope"), system_episodes("rope")
    system, first = adapt(model, episodes), episodes[0]
    with pytest.raises(InputError, match="there is no episode to adapt to"):
        adapt(model, [])
    other = next(e for e in recorded("rope") if not e.graph.equals(first.graph))
    with pytest.raises(InputError, match="episode 1 is of another graph than episode 0"):
        adapt(model, [first, other])
    with pytest.raises(InputError, match="of another graph"):
        system.update(other)
    with pytest.raises(InputError, match="has 2 coordinates, the model was made for 4"):
        adapt(model, [replace(first, observations=first.observations[..., :2])])
    with pytest.raises(InputError, match="has relation type 9, the model knows 0 to 7; train it on such data"):
        adapt(model, [replace(first, graph=replace(first.graph, edge_type=first.graph.edge_type + 2))])
    with pytest.raises(InputError, match="the observation has shape"):
        system.predict(start(first)[:, :3], first.actions)
    with pytest.raises(InputError, match="not finite"):
        system.predict(np.full_like(start(first), np.nan), first.actions)
    with pytest.raises(InputError, match="the actions have shape"):
        system.predict(start(first), first.actions[..., [0, 0]])
    with pytest.raises(InputError, match="there are no actions"):
        system.predict(start(first), first.actions[:0])
    with pytest.raises(InputError, match="level is 1"):
        system.intervals(first.observations, 1.0)
    with pytest.raises(InputError, match="lead to numbers that are not finite"):
        adapt(model, [replace(first, observations=first.observations.astype(float) * 1e200)])


def test_missing_exogenous_inputs_are_told():
    seen = linear_episodes(12, 0, exogenous=True)
    data = Dataset.from_episodes(seen, [0] * 12)
    system = adapt(prepare(config_for(data, **TINY), data), seen)
    with pytest.raises(InputError, match="the model needs 1 exogenous inputs a node at every step"):
        system.predict(seen[0].observations[0], seen[0].actions)
