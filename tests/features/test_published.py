"""The paper's features: what they hold, what they refuse, and plans in their space."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

import gce
from gce.control.graph_path import LinearPath
from gce.dynamics import embedded
from gce.dynamics.embedded import EmbeddedDynamics
from gce.envs import WORLDS
from gce.model.files import about_model
from gce.model.step import Stepper, path_of
from gce.system.weights import weights_told
from gce.training.preparation import config_for, prepare, settings_of


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("published") / "rope.h5"
    gce.record(gce.Recording("rope", 36, (5, 7), 6, seed=3, steps=30), file)
    with gce.Dataset.open(file) as data:
        yield data


@pytest.fixture(scope="module")
def trained(recorded):
    return gce.train(recorded, method="published", iterations=12, horizon=4).model


@pytest.fixture(scope="module")
def system(recorded, trained):
    return gce.adapt(trained, [recorded[k] for k in range(1, 6)])


def dynamics_of(system, frozen):
    controls = np.zeros((system.graph.num_nodes, 1), bool)
    controls[0] = True
    return EmbeddedDynamics(system, controls, frozen=frozen)


def test_the_observation_is_not_among_the_features(trained):
    features = trained.features
    assert features.regressed_state == [] and features.num_targets == features.num_phi == 32
    assert not trained.config.own_block and not trained.config.reproject and trained.config.kinematics == ()
    assert not any(parameter.requires_grad for parameter in trained.potential.parameters())
    assert float(trained.potential.value) == pytest.approx(2.0)


def test_features_are_bounded(recorded, system):
    far = 100 * torch.randn(system.graph.num_nodes, 4)
    phi = system.model.features.phi(far, system.topology)
    assert float(phi.abs().max()) <= system.model.features.config.bound + 1e-5


@pytest.mark.parametrize("potential", ["gaussian", "attention"])
def test_a_plan_s_dynamics_are_the_model_s_rollout(recorded, system, potential):
    if potential != "gaussian":
        untrained = prepare(config_for(recorded, kind="published", potential=potential), recorded).eval()
        system = gce.adapt(untrained, [recorded[k] for k in range(1, 6)])
    episode, model = recorded[0], system.model
    state = system.state(episode.observations[0], opening=True)
    inputs = model.tensor(episode.actions[:8]) / model.action_std
    with torch.no_grad():
        psi = model.features(state, system.topology)
        _, path = path_of(Stepper(model, [system.operator], system.topology), psi, inputs)
    dynamics = dynamics_of(system, frozen=False)
    found = dynamics.rollout(dynamics.reduced(state), inputs[:, 0].double().numpy())
    expected = path[..., -model.features.num_phi :].flatten(1).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_frozen_weights_make_one_linear_system(recorded, system, monkeypatch):
    dynamics = dynamics_of(system, frozen=True)
    x0 = dynamics.reduced(system.state(recorded[0].observations[0], opening=True))
    u = np.random.default_rng(0).normal(size=(7, 1))
    dense = dynamics.path(x0, np.empty((0, len(x0))), u)
    assert isinstance(dense, LinearPath)
    monkeypatch.setattr(embedded, "DENSE", 1)
    sparse = dynamics.path(x0, np.empty((0, len(x0))), u)
    np.testing.assert_allclose(dense.forward(u), sparse.forward(u), rtol=1e-8, atol=1e-10)


def test_plans_are_made_in_features(recorded, system):
    episode = recorded[0]
    _, low, high = gce.control_limits(recorded)
    n = system.graph.num_nodes
    goal = episode.observations[10].astype(float)
    problem = gce.Problem(10, goal, low[:n], high[:n], on="features")
    plan = gce.Controller(system, problem, weights="frozen").plan(episode.observations[0], opening=True)
    assert plan.status.ok and plan.actions.shape == (10, n, 1) and plan.observations.shape == (11, n, 4)
    assert (np.abs(plan.actions[:, 1:]) == 0).all() and (plan.actions <= high[:n] + 1e-9).all()
    with pytest.raises(gce.InputError, match="plans in feature space"):
        gce.Controller(system, dataclasses.replace(problem, on="observations"))


@pytest.mark.parametrize("option", ["own_block", "reproject", "previous_action", "fresh_start"])
def test_what_leaves_the_paper_s_text_is_refused(recorded, option):
    with pytest.raises(gce.InputError, match=f"{option}=True leaves the paper's text"):
        config_for(recorded, kind="published", **{option: True})


def test_what_no_potential_has_is_not_learned(recorded):
    with pytest.raises(gce.InputError, match="'identity' has no hyper-parameter that training could change"):
        gce.train(recorded, method="published", model={"potential": "identity", "potential_learned": True})


def test_unknown_methods_and_presets_are_told(recorded):
    with pytest.raises(gce.InputError, match="there is no method 'printed'; the methods are published, structured"):
        gce.train(recorded, method="printed")
    with pytest.raises(gce.InputError, match="there is no preset 'exact'"):
        gce.train(recorded, method="published", preset="exact")


def test_one_map_may_serve_for_both(recorded):
    shared = prepare(config_for(recorded, kind="published", shared_map=True), recorded).features
    apart = prepare(config_for(recorded, kind="published"), recorded).features
    assert shared.future is None and apart.future is not None


def test_a_published_model_is_saved_and_loaded(tmp_path, recorded, trained, system):
    gce.save_model(trained, tmp_path / "model")
    again = gce.adapt(gce.load_model(tmp_path / "model"), [recorded[k] for k in range(1, 6)])
    episode = recorded[0]
    paths = [s.predict(episode.observations[0], episode.actions) for s in (system, again)]
    np.testing.assert_array_equal(*paths)


def test_errors_under_other_weights_are_numbers(recorded, system, monkeypatch):
    far = np.full((recorded[0].length + 1, system.graph.num_nodes, 4), np.nan)
    monkeypatch.setattr(gce.System, "predict", lambda *args, **kept: far)
    told = weights_told(system, recorded[0], [recorded[k] for k in range(1, 6)], np.ones(4))
    assert told["nrmse_uniform"] == told["nrmse_identity"] == 100


def test_no_more_steps_are_predicted_than_asked_for(recorded, tmp_path):
    gce.train(recorded, method="published", iterations=1, horizon=6, folder=tmp_path)
    with safe_open(tmp_path / "checkpoint.safetensors", "pt") as kept:
        assert json.loads(kept.metadata()["note"])["training"]["horizons"] == [4, 6, 6, 6, 6, 6, 6]


def test_the_tuned_preset_changes_nothing_that_it_may_not():
    may = {"rounds", "node_width", "edge_width", "bound", "scale", "heard", "q1", "q2", "q_terminal"}
    may |= {"shared_map", "actions"}  # text and pseudo code differ in both
    may_train = {"iterations", "horizon", "horizons", "learning_rate", "schedule", "forward", "relative"}
    may_train |= {
        "fresh_share",
        "fit_fresh_share",
        "fit_episodes",
    }  # how windows are drawn and what operators are fitted on is not said
    for world in (None, *WORLDS):
        literal, school = settings_of("published", "literal", world, {})
        tuned, training = settings_of("published", "tuned", world, {})
        assert {name for name in tuned if tuned[name] != literal.get(name)} <= may
        assert {name for name in {*training, *school} if training.get(name) != school.get(name)} <= may_train
        assert training["systems"] * training["rollouts"] == school["systems"] * school["rollouts"] == 8
    assert school["learning_rate"] == 1e-4 and school["schedule"] == "paper" and school["horizons"] == (16,)


@pytest.mark.parametrize("world", WORLDS)
def test_a_published_model_ships_for_every_world(world):
    folder = gce.shipped(world, method="published")
    model = gce.load_model(folder)
    assert model.method == "published" and model.config.world == world
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1_000_000
    assert about_model(folder)["weights"].keys() == {"self", "effective_neighbours", "nrmse_identity", "nrmse_uniform"}
