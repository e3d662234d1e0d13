import numpy as np
import pytest
import torch

from gce.graphs.graph import Graph, ring
from gce.graphs.topology import Topology


def random_graph(nodes: int, seed: int, tied: bool = False) -> Graph:
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(nodes) for j in range(nodes) if i != j and rng.random() < 0.4]
    ties = rng.integers(0, nodes, (nodes, 3)) if tied else None
    return Graph.from_edges(nodes, pairs, edge_type=rng.integers(0, 2, len(pairs)), self_type=2, tied=ties)


def test_merging_equals_the_graphs():
    graph = random_graph(6, 0, tied=True)
    values = np.random.default_rng(1).normal(size=(2, 6, 3))
    merged = Topology.of(graph).merge(torch.as_tensor(values).transpose(0, 1)).transpose(0, 1).numpy()
    assert np.allclose(merged, graph.merge(values), atol=1e-14)


@pytest.mark.parametrize("tied", [(True, True), (True, False), (False, True), (False, False)])
def test_merging_a_union_merges_each_graph(tied):
    graphs = [random_graph(4, 0, tied[0]), random_graph(5, 1, tied[1])]
    values = torch.randn(9, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    each = [Topology.of(g).merge(v) for g, v in zip(graphs, values.split([4, 5]), strict=True)]
    assert torch.allclose(Topology.of(graphs).merge(values), torch.cat(each), atol=1e-14)


def test_slots_number_the_edges_into_each_node():
    topology = Topology.of(random_graph(7, 2))
    for node in range(7):
        into = topology.slots[topology.receivers == node]
        assert sorted(into.tolist()) == list(range(len(into)))
    assert topology.max_degree == torch.bincount(topology.receivers).max()


def test_sums_equal_the_adjacency_matrix():
    graph = random_graph(6, 3)
    topology = Topology.of(graph)
    values = torch.randn(6, 2, 4, dtype=torch.float64)
    adjacency = torch.as_tensor(graph.relations() >= 0).double()
    assert torch.allclose(topology.sum(topology.sent(values)), torch.tensordot(adjacency, values, 1))
    assert torch.allclose(topology.sum(topology.received(values)), adjacency.sum(1)[:, None, None] * values)


def test_products_with_matrices_are_gathers_and_sums(monkeypatch):
    """On small graphs and on large ones, the same."""
    found = []
    for small in (0, 10**6):
        monkeypatch.setattr("gce.graphs.topology.SMALL", small)
        topology = Topology.of([random_graph(5, 4), random_graph(4, 5)])
        assert (topology._incidence is None) == (small == 0)
        generator = torch.Generator().manual_seed(0)
        nodes = torch.randn(9, 3, 2, dtype=torch.float64, generator=generator)
        pair = torch.randn(2, 9, 3, 2, dtype=torch.float64, generator=generator)
        edges = torch.randn(topology.num_edges, 3, dtype=torch.float64, generator=generator)
        gathers = (topology.sent(nodes), topology.received(nodes), topology.difference(nodes), topology.both_ends(pair))
        found.append([*gathers, topology.sum(edges), topology.net(edges), topology.softmax(edges)])
    assert all(torch.allclose(*both, atol=1e-14) for both in zip(*found, strict=True))
    by_index = found[0]
    assert torch.equal(by_index[2], by_index[0] - by_index[1])
    assert torch.equal(by_index[3], pair[0][topology.receivers] + pair[1][topology.senders])


def test_net_flows_add_up_to_zero():
    topology = Topology.of([random_graph(5, 4), random_graph(4, 5)])
    messages = torch.randn(topology.num_edges, 3, 2, dtype=torch.float64)
    for part in topology.net(messages).split(topology.splits):
        assert torch.allclose(part.sum(0), torch.zeros(3, 2, dtype=torch.float64), atol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e30])
def test_softmax_adds_up_to_one_at_any_scale(scale):
    topology = Topology.of(random_graph(6, 6))
    scores = scale * torch.randn(topology.num_edges, 3, generator=torch.Generator().manual_seed(0))
    weights = topology.softmax(scores)
    totals = topology.sum(weights)
    assert torch.allclose(totals, torch.ones_like(totals), atol=1e-6)
    assert torch.allclose(topology.softmax(scores + 7 * scale), weights, atol=1e-5)


def test_softmax_has_the_gradient_of_torch():
    topology = Topology.of(Graph.from_edges(3, [(1, 0), (2, 0)]))
    scores = torch.randn(topology.num_edges, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(topology.softmax, scores)
    into_first = topology.receivers == 0
    assert torch.allclose(topology.softmax(scores)[into_first], torch.softmax(scores[into_first], 0))


def test_a_union_keeps_its_graphs_apart():
    graphs = [Graph.from_edges(n, ring(n), undirected=True) for n in (3, 5)]
    union = Topology.of(graphs)
    assert union.splits == (3, 5)
    assert union.num_edges == sum(g.num_edges for g in graphs)
    assert torch.equal(union.senders < 3, union.receivers < 3)
