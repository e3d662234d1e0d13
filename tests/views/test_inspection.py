"""Weights along paths, spectra, and fits by number of episodes."""

import warnings

import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.metrics import nrmse
from gce.model.step import Stepper
from gce.potentials import gibbs_weights
from gce.system.stability import blocks
from gce.system.system import adapt
from gce.system.weights import weights_along
from gce.views.report.details import fit_by_episodes, operator_spectrum, step_spectrum
from small import close, system_episodes, untrained


@pytest.fixture(scope="module")
def adapted():
    episodes = system_episodes()
    return adapt(untrained(), episodes[1:], measure=False), episodes


def test_weights_into_a_node_add_up_to_one_and_are_those_of_each_state(adapted):
    system, (episode, *_) = adapted
    weights = weights_along(system, episode.observations.astype(float), episode.actions)
    assert weights.shape == (episode.length + 1, system.graph.num_edges)
    for k, row in enumerate(weights):
        assert np.allclose(np.bincount(system.graph.receivers, row), 1, atol=1e-5), k
    with torch.no_grad():
        # As recorded: what is held trembles, and only a state to go on from is at rest there.
        x = system.model.normalise(torch.as_tensor(episode.observations[7]))
        psi = system.model.features(x, system.topology)
        one = gibbs_weights(system.model.potential, psi[:, system.model.config.num_state :], system.topology)
    assert close(weights[7], one.double())
    assert np.ptp(weights, axis=0).max() > 1e-4  # they move with the system


def test_a_form_without_weights_has_none(adapted):
    _, episodes = adapted
    system = adapt(untrained(form="dense"), episodes[1:], measure=False)
    assert weights_along(system, episodes[0].observations.astype(float), episodes[0].actions).shape[1] == 0
    assert len(operator_spectrum(system, np.zeros(0))) == 0


def test_the_operators_spectrum_is_that_of_the_whole_matrix(adapted):
    system, (episode, *_) = adapted
    weights = weights_along(system, episode.observations[:1].astype(float), episode.actions[:0])[0]
    n = system.graph.num_nodes
    alpha = np.zeros((n, n))
    alpha[system.graph.receivers, system.graph.senders] = weights
    S, M = (block.numpy() for block in blocks(system.model, system.operator))
    whole = np.linalg.eigvals(np.kron(np.eye(n), S) + np.kron(alpha, M))
    found = operator_spectrum(system, weights)
    assert len(found) == len(whole)
    assert abs(found.sum() - whole.sum()) < 1e-6 * len(whole)
    assert abs(np.abs(found).max() - np.abs(whole).max()) < 1e-6


def test_the_steps_spectrum_is_that_of_finite_differences(adapted):
    system, (episode, *_) = adapted
    observation = episode.observations[5].astype(float)
    state = system.state(observation, False)
    step = Stepper(system.model.double(), [system.operator], system.topology)

    def following(x):
        features = system.model.features(x.reshape(state.shape), system.topology)
        with torch.no_grad():
            return step(features, features.new_zeros(len(state), 1))[0].flatten()

    try:
        x, h = state.double().flatten(), 1e-6
        with torch.no_grad():
            A = torch.stack([(following(x + h * e) - following(x - h * e)) / (2 * h) for e in torch.eye(len(x))], 1)
    finally:
        system.model.float()
    radius = np.abs(np.linalg.eigvals(A.numpy())).max()
    assert abs(np.abs(step_spectrum(system, observation)).max() - radius) < 1e-3 * radius


def test_the_step_by_hand_has_the_spectrum_of_its_derivative(adapted):
    system, (episode, *_) = adapted
    state = system.state(episode.observations[3].astype(float), opening=False)
    with torch.no_grad():
        A = system.linearise(state[None], state.new_zeros(1, len(state), system.model.config.num_inputs))[0][0]
    found = step_spectrum(system, episode.observations[3].astype(float))
    assert np.allclose(np.sort_complex(found), np.sort_complex(np.linalg.eigvals(A.double().numpy())), atol=1e-4)


@pytest.mark.parametrize("world", ["swim", "grid"])
def test_bodies_and_networks_can_be_looked_into(world):
    episodes = system_episodes(world)
    model = untrained(world)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few episodes leave much to the ridge
        system = adapt(model, episodes[1:], measure=False)
    first = episodes[0].observations.astype(float)
    weights = weights_along(system, first, episodes[0].actions)
    assert (len(operator_spectrum(system, weights[0])) > 0) == model.features.linear
    assert np.isfinite(step_spectrum(system, first[0])).all()
    if not model.features.linear:
        with pytest.raises(InputError, match="only corrects"):
            blocks(model, system.operator)


def test_spectra_of_large_systems_are_left_out(adapted, monkeypatch):
    system, (episode, *_) = adapted
    monkeypatch.setattr("gce.views.report.details.LARGEST", 4)
    monkeypatch.setattr("gce.views.report.details.LARGEST_STATE", 16)
    assert len(operator_spectrum(system, np.zeros(system.graph.num_edges))) == 0
    assert len(step_spectrum(system, episode.observations[0].astype(float))) == 0


def test_the_last_fit_is_that_of_adapting_to_all_episodes(adapted):
    system, (episode, *others) = adapted
    observations, unit = episode.observations.astype(float), system.model.observation_std.double().numpy()
    counts, errors = fit_by_episodes(system, others, observations, episode.actions, unit)
    assert counts.tolist() == [1, 2, 3]
    expected = nrmse(system.predict(observations[0], episode.actions)[1:], observations[1:], unit)
    assert close(errors[-1][:4], expected[:4])  # untrained, the path explodes later
    assert not np.allclose(errors[0], errors[-1])
