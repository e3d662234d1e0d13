import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.model.step import Stepper
from gce.system.system import adapt
from gce.training.batches import SystemData
from gce.training.preparation import config_for, prepare
from gce.trajectory import Dataset, Episode
from linear import NODES, linear_episodes
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
        adapt(untrained("rope"), system_episodes("rope"), measure=False)  # what errs may warn, and does untrained


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


@pytest.mark.parametrize("world", ["rope", "soft"])
def test_what_is_held_does_not_drift_from_where_it_trembles(world):
    """Pins give way a little: in the middle of an episode what they hold has a velocity, which must not last."""
    model, (*episodes, last) = untrained(world), system_episodes(world)
    system = adapt(model, episodes, measure=False)
    middle = last.observations[5].astype(float)
    velocities = [v for _, v in model.config.kinematics]
    held = model.features.moving(system.topology)[:, [model.free.index(v) for v in velocities]].numpy() == 0
    assert held.any() and not held.all()
    middle[:, velocities] += np.where(held, 0.3, 0.0)
    before = (last.observations[4].astype(float), last.actions[4].astype(float))
    path = system.predict(middle, last.actions[5:10], opening=False, before=before)
    still = np.zeros_like(middle, dtype=bool)
    still[:, [p for p, _ in model.config.kinematics]] = held
    assert np.abs((path[1:] - middle)[:, still]).max() < 1e-5
    assert np.abs((path[1:] - middle)[:, ~still]).max() > 1e-3


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
    nodes, topology, step = system.graph.num_nodes, system.topology, Stepper(model, [system.operator], system.topology)

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
    with pytest.raises(InputError, match="expected finite numbers"):
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
