"""Vector features of stiffly coupled points."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.envs.recording import Recording, record
from gce.graphs.topology import Topology
from gce.model.step import Stepper
from gce.system.stability import blocks, certificate
from gce.system.system import adapt
from gce.training.preparation import config_for, prepare
from gce.trajectory import Dataset
from small import system_episodes, untrained


@pytest.fixture(scope="module", params=["soft", "swim"])
def model_and_data(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("boxes") / "x.h5"
    record(Recording(world=request.param, episodes=18, objects=(5, 5), group_size=6, seed=2, steps=40), file)
    data = Dataset.open(file)
    config = config_for(data, features=4, linear_features=2, node_width=8, edge_width=8)
    return prepare(config, data), data


def fields(model, data, turned=0.0):
    """The channels of an episode's states, all points turned by an angle about the origin."""
    episode = data[0]
    topology = Topology.of(episode.graph)
    points = episode.observations.astype(float).reshape(len(episode.observations), -1, 8, 2)
    c, s = np.cos(turned), np.sin(turned)
    observations = (points @ np.array([[c, s], [-s, c]])).reshape(episode.observations.shape)
    o = model.normalise(torch.as_tensor(observations, dtype=torch.float32))
    x = model.states(o, torch.as_tensor(episode.actions, dtype=torch.float32) / model.action_std)
    features = model.features
    Z = features.channels(x[5:12], topology, features.held_points(topology))[..., features._speed_order, :]
    speeds = model.observation_std[model.free]
    return (Z * speeds[:, None]).double(), topology


def test_pushes_along_pairs_conserve_momentum(model_and_data):
    """Summed over points by their masses, every channel of a free body but the medium's is zero."""
    model, data = model_and_data
    if model.held.any():
        pytest.skip("a body held to the ground passes its momentum on")
    Z, topology = fields(model, data)
    # Each body appears once a node that has it, which weighs corners by the number of points that coincide.
    momentum = Z.unflatten(-2, (-1, 2)).sum((1, 2))
    along_pairs = model.features.channels.num_channels // 2 - model.config.num_node_types
    per_head = momentum.unflatten(-1, (2, -1))[..., :along_pairs]
    assert per_head.abs().max() < 1e-3 * Z.abs().max()


def test_the_channels_turn_with_the_body(model_and_data):
    model, data = model_and_data
    straight, _ = fields(model, data)
    turned, _ = fields(model, data, turned=0.7)
    c, s = np.cos(0.7), np.sin(0.7)
    back = torch.einsum("...xk,xy->...yk", turned.unflatten(-2, (-1, 2)), torch.tensor([[c, -s], [s, c]]))
    assert torch.allclose(back, straight.unflatten(-2, (-1, 2)), atol=2e-3 * float(straight.detach().abs().max()))


def test_adapting_one_by_one_equals_adapting_at_once_and_channels_explain_more(model_and_data):
    model, data = model_and_data
    episodes = [data[k] for k in data.group(0).episodes]
    at_once = adapt(model, episodes[:3])
    grown = adapt(model, episodes[:1]).update(episodes[1]).update(episodes[2])
    assert torch.allclose(at_once.operator.channels, grown.operator.channels, rtol=1e-6, atol=1e-9)
    left = torch.diagonal(at_once.operator.residual)[: len(model.free)]
    sums = at_once.evidence.sums
    square = sums.fields.square / sums.moments.rows
    moving = square > 1e-6
    assert (left[moving] > 0).all()
    assert (left[moving] < square[moving]).all()


def test_pushes_are_found_behind_what_they_do(model_and_data):
    """They do the same again, whichever of the pushes that do it are found; and they move no free body as a whole."""
    model, data = model_and_data
    _, topology = fields(model, data)
    o = model.normalise(torch.as_tensor(data[0].observations))
    x = model.states(o, torch.as_tensor(data[0].actions) / model.action_std)[5:12].double()
    held = model.features.held_points(topology)
    pushes = torch.randn(*x.shape[:-1], 6, generator=torch.Generator().manual_seed(0)).double()
    changes = model.features.channels.pushed(pushes, x, topology, held)
    found = model.features.channels.behind(changes.unsqueeze(-1), x, topology, held).squeeze(-1)
    again = model.features.channels.pushed(found, x, topology, held)
    assert (again - changes).norm() < 0.05 * changes.norm()
    assert found.norm() <= pushes.norm()
    if not model.held.any():
        speeds = [c for point in model.config.points for c in point[2:]]
        momentum = (changes * model.observation_std[speeds]).unflatten(-1, (-1, 2)).sum((1, 2))
        assert momentum.abs().max() < 1e-6 * changes.abs().max()


def test_predictions_turn_with_the_body(model_and_data):
    """A system adapted to turned episodes predicts the turned path: features and pushes do not see the direction."""
    model, data = model_and_data
    if model.held.any():
        pytest.skip("ground holds one coordinate system")
    episodes = [data[k] for k in data.group(0).episodes]
    c, s = np.cos(0.7), np.sin(0.7)

    def turned(values):
        points = values.astype(float).reshape(*values.shape[:-1], 8, 2)
        return (points @ np.array([[c, s], [-s, c]])).reshape(values.shape)

    straight = adapt(model, episodes[:3])
    other = adapt(model, [replace(e, observations=turned(e.observations)) for e in episodes[:3]])
    start, actions = episodes[4].observations[0].astype(float), episodes[4].actions[:20]
    left, right = turned(straight.predict(start, actions)), other.predict(turned(start), actions)
    assert np.abs(left - right).max() < 0.05 * np.abs(left - left[0]).max()


def test_combining_first_is_the_same_and_a_union_is_its_graphs(model_and_data):
    model, data = model_and_data
    graphs = [data[k].graph for k in (0, 6, 12)]
    held = [model.features.held_points(Topology.of(graph)) for graph in graphs]
    states = []
    for k in (0, 6, 12):
        o = model.normalise(torch.as_tensor(data[k].observations))
        a = torch.as_tensor(data[k].actions) / model.action_std
        states.append(model.states(o, a)[3:9])
    coefficients = torch.randn(3, model.features.channels.num_channels, generator=torch.Generator().manual_seed(0))
    union, x = Topology.of(graphs), torch.cat(states, dim=1)
    together = model.features.channels.combined(x, union, torch.cat(held), coefficients)
    alone = torch.cat(
        [
            model.features.channels(y, Topology.of(graph), h) @ c
            for y, graph, h, c in zip(states, graphs, held, coefficients, strict=True)
        ],
        dim=1,
    )
    assert torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * float(alone.detach().abs().max()))


def test_a_system_linearises_along_its_path(model_and_data):
    model, data = model_and_data
    system = adapt(model, [data[0], data[1]])
    o = model.normalise(torch.as_tensor(data[2].observations))
    a = torch.as_tensor(data[2].actions) / model.action_std
    x = model.states(o, a)
    A, B, c = system.linearise(x[4:6], a[4:6])
    step = Stepper(model, [system.operator], system.topology)
    after, _ = step(model.features(x[4], system.topology), a[4], torch.zeros(1, 1))
    assert torch.allclose(A[0] @ x[4].flatten() + B[0] @ a[4].flatten() + c[0], after.flatten(), atol=1e-3)


@pytest.mark.parametrize("form", ["hom", "dense"])
def test_other_forms_work_beside_the_channels(model_and_data, form):
    model, data = model_and_data
    episodes = [data[k] for k in data.group(0).episodes]
    system = adapt(model.with_form(form), episodes[:2])
    predicted = system.predict(episodes[3].observations[0].astype(float), episodes[3].actions[:5])
    assert np.isfinite(predicted).all()


def test_the_certificate_bounds_every_graph(tmp_path):
    record(Recording(world="rope", episodes=6, objects=(5, 5), group_size=6, seed=2, steps=40), tmp_path / "x.h5")
    with Dataset.open(tmp_path / "x.h5") as data:
        model = prepare(config_for(data, features=4, linear_features=2, node_width=8, edge_width=8), data)
        system = adapt(model, list(data))
    S, M = blocks(model, system.operator)
    found = certificate(model, system.operator)
    rng = np.random.default_rng(0)
    for nodes in (2, 5):
        weights = torch.as_tensor(rng.dirichlet(np.ones(nodes), nodes))
        whole = torch.kron(torch.eye(nodes, dtype=torch.float64), S) + torch.kron(weights, M)
        assert float(torch.linalg.eigvals(whole).abs().max()) <= found.radius + 1e-6


def test_fitted_couplings_resist(model_and_data):
    """For any eigenvalue of the couplings: stretch and rate pull back, a medium slows down."""
    model, data = model_and_data
    layer = model.features.channels
    channels = adapt(model, [data[k] for k in range(6)], measure=False).operator.channels.unflatten(0, (2, -1))
    kinds, signals = layer.num_kinds, layer.num_signals * layer.num_kinds
    assert (channels[:, kinds : 3 * kinds] > 0).any()  # in one head a push may well stand, if the other outweighs it
    for eigenvalue in (0.0, 0.3, 1.0, 10.0, 1e6):
        heads = 1 / (1 + layer.log_coupling[:, :1].exp() * eigenvalue)
        felt = (heads * channels).sum(0)
        scale = (heads * channels.abs()).sum(0).clamp_min(1e-9)
        assert (felt[kinds : 3 * kinds] <= 1e-6 * scale[kinds : 3 * kinds]).all()
        assert (felt[signals:] >= -1e-6 * scale[signals:]).all()


def test_a_held_corner_stays_for_all_boxes_that_share_it():
    model, episode = (
        untrained("soft", implicit=True, previous_action=True, late_action=True),
        system_episodes("soft")[0],
    )
    topology = Topology.of(episode.graph)
    held, moving = model.features.held_points(topology), model.features.moving(topology)
    own = model.held[topology.node_type][:, model.features._speeds].reshape(topology.num_nodes, -1, 2).all(-1)
    assert own.sum() < held.sum()  # of the ground box, and of its neighbours
    ids = topology.tied[:, [point[0] for point in model.config.points]]
    assert set(ids[held].tolist()) == set(ids[own].tolist())
    assert torch.equal(moving[:, model.features._speeds].reshape(topology.num_nodes, -1, 2).any(-1), ~held)
    system = adapt(model, system_episodes("soft"), measure=False)
    path = torch.as_tensor(system.predict(episode.observations[0], episode.actions))
    places = path[..., [c for point in model.config.points for c in point[:2]]].unflatten(-1, (-1, 2))
    assert (places[:, held] - places[0, held]).abs().max() < 1e-5
    assert (places - places[0]).abs().max() > 0.01
