import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.graphs.topology import Topology
from gce.model.files import load_model, save_model
from gce.model.step import Stepper
from gce.planning.controller import dynamics_of
from gce.system.stability import certificate
from gce.system.system import adapt
from gce.training.batches import SystemData, TrainingConfig, draw_batch, loss_of
from small import close, recorded, system_episodes, untrained

WORLDS = ["rope", "soft", "grid"]
QUICK = TrainingConfig(systems=2, fit_episodes=3, fit_steps=6, rollouts=2, noise_share=0.0)


def decoding(world: str, **overrides):
    return untrained(world, decoder="message_passing", **overrides)


def first_states(model, world: str):
    system = SystemData(model, system_episodes(world))
    return system.states[0, :5], system.graph


@pytest.mark.parametrize("world", WORLDS)
def test_the_operator_does_not_see_the_observation(world):
    model = decoding(world)
    x, graph = first_states(model, world)
    topology = Topology.of(graph)
    psi = model.features(x, topology)
    other = psi.clone()
    other[..., : model.config.num_state] = 0
    inputs = torch.zeros(len(x), graph.num_nodes, model.config.num_inputs)
    assert torch.equal(model.regressors(psi, inputs, topology), model.regressors(other, inputs, topology))
    assert model.features.num_targets == model.features.num_phi


@pytest.mark.parametrize("world", WORLDS)
def test_relabelling_nodes_permutes_what_is_decoded(world):
    model = decoding(world).double()
    x, graph = first_states(model, world)
    x, order = x.double(), np.random.default_rng(0).permutation(graph.num_nodes)
    there, here = Topology.of(graph), Topology.of(graph.permute(order))
    decoded = model.decoded(model.features(x, there), there)
    assert close(model.decoded(model.features(x[:, order], here), here), decoded[:, order], 1e-10)


def test_coinciding_corners_are_merged_after_decoding():
    model = decoding("soft")
    x, graph = first_states(model, "soft")
    topology = Topology.of(graph)
    o = model.denormalise(model.decoded(model.features(x, topology), topology)).detach().numpy()
    assert np.allclose(graph.merge(o), o, atol=1e-5)


@pytest.mark.parametrize("reproject", [False, True])
@pytest.mark.parametrize("world", WORLDS)
def test_a_short_training_lowers_the_loss(world, reproject):
    model, data = decoding(world, reproject=reproject).train(), recorded(world)
    systems = [SystemData(model, [data[int(k)] for k in data.group(int(g)).episodes]) for g in np.unique(data.groups)]
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        batch = draw_batch(systems, QUICK, 4, np.random.default_rng(0))
        loss = loss_of(model, batch, QUICK, torch.Generator().manual_seed(0))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.features.decoder.parameters())


@pytest.mark.parametrize("reproject", [False, True])
def test_a_rollout_stays_among_features_unless_they_are_taken_anew(reproject):
    model = decoding("grid", reproject=reproject)
    system = adapt(model, system_episodes("grid"))
    x, graph = first_states(model, "grid")
    topology, psi = system.topology, model.features(x, system.topology)
    inputs = torch.zeros(len(x), graph.num_nodes, model.config.num_inputs)
    state, following = Stepper(model, [system.operator], topology)(psi, inputs)
    n = model.config.num_state
    predicted = Stepper(model, [system.operator], topology, reproject=False)(psi, inputs)[1][..., n:]
    assert close(state, model.decoded(torch.cat([state, predicted], dim=-1), topology))
    anew = model.features.phi(state, topology)
    assert close(following[..., n:], anew if reproject else predicted)
    assert not close(anew, predicted, 1e-3)


@pytest.mark.parametrize("world", WORLDS)
def test_a_saved_model_predicts_the_same_bits(world, tmp_path):
    model = decoding(world)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    first, *others = system_episodes(world)
    start = first.observations[0].astype(float)
    paths = [adapt(m, others).predict(start, first.actions, exogenous=first.exogenous) for m in (model, again)]
    assert np.array_equal(*paths)
    assert np.isfinite(paths[0]).all()


@pytest.mark.parametrize("world", WORLDS)
def test_a_prediction_may_begin_in_the_middle_of_an_episode(world):
    model, (*episodes, last) = decoding(world), system_episodes(world)
    system = adapt(model, episodes, measure=False)
    before = (last.observations[2].astype(float), last.actions[2].astype(float))
    path = system.predict(last.observations[3].astype(float), last.actions[3:6], opening=False, before=before)
    assert path.shape == last.observations[3:7].shape and np.isfinite(path).all()


def test_by_default_there_is_no_decoder():
    model = untrained("rope")
    assert model.features.decoder_on(Topology.of(system_episodes("rope")[0].graph)) is None
    assert not any("decoder" in name for name in model.state_dict())


def test_what_does_not_go_together_is_told():
    with pytest.raises(InputError, match="do not say where things are"):
        untrained("rope", conservative=True, decoder="message_passing")
    with pytest.raises(InputError, match="there is no decoder 'none'; the decoders are selection, message_passing"):
        untrained("rope", decoder="none")
    first, *others = system_episodes("rope")
    system = adapt(decoding("rope"), others)
    with pytest.raises(InputError, match="use `intervals`"):
        system.covariance(first.observations[0].astype(float), first.actions)
    with pytest.raises(InputError, match="this one decodes it"):
        certificate(system.model, system.operator)
    with pytest.raises(InputError, match="features hold the observation"):
        dynamics_of(system, np.ones((system.graph.num_nodes, 1), dtype=bool))
