import numpy as np
import pytest
import torch

from gce.graphs.topology import Topology
from gce.training.batches import SystemData
from small import close, recorded, untrained

WORLDS = ["rope", "soft", "grid"]


def states(world: str, model, group: int = 0):
    """Some states of one system, and its graph."""
    data = recorded(world)
    system = SystemData(model, [data[int(data.group(group).episodes[0])]])
    return system.states[0, 1:6], system.graph


@pytest.mark.parametrize("conservative", [True, False])
@pytest.mark.parametrize("world", WORLDS)
def test_relabelling_nodes_permutes_features(world, conservative):
    model = untrained(world, conservative=conservative)
    x, graph = states(world, model)
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    renamed = model.features.phi(x[:, order], Topology.of(graph.permute(order)))
    assert close(renamed, model.features.phi(x, Topology.of(graph))[:, order])


@pytest.mark.parametrize("conservative", [True, False])
@pytest.mark.parametrize("world", WORLDS)
def test_a_union_of_graphs_is_encoded_one_by_one(world, conservative):
    model = untrained(world, conservative=conservative)
    (x, graph), (y, other) = states(world, model, 0), states(world, model, 1)
    union = model.features.phi(torch.cat([x, y], dim=1), Topology.of([graph, other]))
    each = torch.cat([model.features.phi(x, Topology.of(graph)), model.features.phi(y, Topology.of(other))], dim=1)
    assert close(union, each)


@pytest.mark.parametrize("world", WORLDS)
def test_conservative_features_add_up_to_zero(world):
    model = untrained(world, conservative=True).double()
    x, graph = states(world, model)
    phi = model.features.phi(x.double(), Topology.of(graph))
    assert phi.abs().max() > 1e-3
    assert phi.sum(1).abs().max() < 1e-12 * phi.abs().max() * graph.num_nodes


def test_bounded_features_are_bounded():
    model = untrained("rope", conservative=False)
    x, graph = states("rope", model)
    phi = model.features.phi(1e6 * x, Topology.of(graph))
    assert phi[..., : model.config.features.num_features].abs().max() <= model.config.features.bound


def test_what_one_edge_adds_to_a_conservative_feature_is_bounded():
    model = untrained("rope", conservative=True)
    x, graph = states("rope", model)
    topology = Topology.of(graph)
    ends = torch.bincount(topology.receivers) + torch.bincount(topology.senders) - 2
    phi = model.features.phi(1e6 * x, topology)
    assert bool(
        (
            phi[..., : model.config.features.num_features].abs() <= (ends * model.config.features.bound)[:, None] + 1e-4
        ).all()
    )


@pytest.mark.parametrize("world", ["rope", "soft"])
def test_moving_the_whole_system_changes_no_feature(world):
    model = untrained(world).double()
    x, graph = states(world, model)
    x = x.double()
    moved = x.clone()
    for px, py, *_ in model.config.points:
        moved[..., px] += 3.0 / model.observation_std[px]
        moved[..., py] -= 1.5 / model.observation_std[py]
    topology = Topology.of(graph)
    assert close(model.features.phi(moved, topology), model.features.phi(x, topology), 1e-9)


def test_a_moved_neighbour_changes_features():
    model = untrained("rope")
    x, graph = states("rope", model)
    moved = x.clone()
    moved[:, 1, 0] += 0.1
    topology = Topology.of(graph)
    assert not close(model.features.phi(moved, topology), model.features.phi(x, topology), 1e-2)


@pytest.mark.parametrize("world", WORLDS)
def test_units_make_differences_of_order_one(world):
    model = untrained(world)
    x, graph = states(world, model)
    own, edge = model.features.inputs.on(Topology.of(graph))(x.transpose(0, 1))
    assert own.shape[-1] == model.features.inputs.num_own
    assert edge.shape[-1] == model.features.inputs.num_edge
    for values in (own, edge):
        assert bool(torch.isfinite(values).all())
        assert values.abs().mean() < 3
