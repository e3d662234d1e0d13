import networkx
import numpy as np
import pytest

from gce.errors import InputError
from gce.graphs.graph import Graph, erdos_renyi, is_connected, lattice, ring


def typed_graph() -> Graph:
    return Graph.from_edges(
        4,
        [(0, 1), (1, 0), (2, 3), (3, 3)],
        edge_type=[0, 1, 2, 5],
        node_type=[0, 1, 1, 0],
        node_attributes=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]],
        edge_attributes=[0.1, 0.2, 0.3, 0.4],
        self_type=[6, 6, 7, 8],
    )


def test_every_node_is_its_own_neighbour_and_given_self_edges_keep_their_type():
    graph = typed_graph()
    assert [graph.neighbours(i).tolist() for i in range(4)] == [[0, 1], [0, 1], [2], [2, 3]]
    relations = graph.relations()
    assert np.diag(relations).tolist() == [6, 6, 7, 5]
    assert relations[1, 0] == 0
    assert relations[0, 1] == 1


def test_edges_are_sorted_by_receiver_with_their_attributes():
    graph = typed_graph()
    assert (np.diff(graph.receivers) >= 0).all()
    edge = np.flatnonzero((graph.senders == 2) & (graph.receivers == 3))[0]
    assert graph.edge_attributes[edge, 0] == 0.3


@pytest.mark.parametrize("way", ["networkx", "pyg", "relations"])
def test_there_and_back_gives_the_same_graph(way):
    graph = typed_graph()
    if way == "networkx":
        back = Graph.from_networkx(graph.to_networkx())
    elif way == "pyg":
        back = Graph.from_pyg(graph.to_pyg())
    else:
        back = Graph.from_relations(
            graph.relations(),
            node_type=graph.node_type,
            node_attributes=graph.node_attributes,
            edge_attributes=graph.edge_attributes,
        )
    assert graph.equals(back)


def test_tied_coordinates_survive_pyg():
    graph = Graph.from_edges(2, [(0, 1)], tied=[[0, 1], [1, 2]])
    assert graph.equals(Graph.from_pyg(graph.to_pyg()))


def test_adjacency_entry_is_receiver_sender():
    matrix = np.zeros((3, 3))
    matrix[2, 0] = 1
    graph = Graph.from_adjacency(matrix)
    assert graph.neighbours(2).tolist() == [0, 2]
    assert graph.neighbours(0).tolist() == [0]


def test_undirected_networkx_runs_both_ways():
    graph = Graph.from_networkx(networkx.path_graph(3))
    assert graph.neighbours(1).tolist() == [0, 1, 2]


def test_permuting_there_and_back_changes_nothing():
    graph, order = typed_graph(), np.array([2, 0, 3, 1])
    assert not graph.equals(graph.permute(order))
    assert graph.equals(graph.permute(order).permute(np.argsort(order)))


def test_permuted_relations_are_the_permuted_matrix():
    graph, order = typed_graph(), np.array([2, 0, 3, 1])
    assert np.array_equal(graph.permute(order).relations(), graph.relations()[np.ix_(order, order)])


def test_merge_averages_tied_coordinates_and_is_a_projection():
    graph = Graph.from_edges(2, [(0, 1)], tied=[[0, 1], [1, 2]])
    values = np.arange(8.0).reshape(2, 2, 2)
    merged = graph.merge(values)
    assert merged[0].tolist() == [[0.0, 1.5], [1.5, 3.0]]
    assert np.array_equal(graph.merge(merged), merged)


def test_generators():
    assert len(ring(5)) == 5
    assert len(lattice(3, 4)) == 3 * 3 + 2 * 4
    assert len(networkx.Graph(ring(7).tolist()).edges) == 7
    edges = erdos_renyi(60, 0.15, np.random.default_rng(0))
    assert is_connected(60, edges)
    assert abs(len(edges) / (60 * 59 / 2) - 0.15) < 0.03
    assert np.array_equal(edges, erdos_renyi(60, 0.15, np.random.default_rng(0)))
    assert not is_connected(4, np.array([[0, 1], [2, 3]]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Graph.from_edges(10, [(0, 12)]), "node 12 but there are 10 nodes; nodes are numbered from 0"),
        (lambda: Graph.from_edges(0, []), "at least one node"),
        (lambda: Graph.from_edges(3, [(0, 1), (0, 1)]), "from node 0 to node 1 is given twice"),
        (lambda: Graph.from_edges(3, [(0, 1)], edge_type=[1, 2]), "2 entries for 1 edges"),
        (lambda: Graph.from_edges(3, [(0, 1)], edge_type=[-1]), "types are numbered from 0"),
        (lambda: Graph.from_edges(2, [(0, 1)], node_attributes=[[np.nan], [1.0]]), "nan in row 0, column 0"),
        (lambda: Graph.from_edges(2, [(0.5, 1)]), "expected whole numbers"),
        (lambda: Graph.from_adjacency(np.ones((2, 3))), "square"),
        (lambda: Graph.from_networkx(networkx.Graph([("a", "b")])), "convert_node_labels_to_integers"),
        (lambda: erdos_renyi(50, 0.001, np.random.default_rng(0), attempts=3), "no connected graph in 3 draws"),
        (lambda: ring(2), "at least 3 nodes"),
    ],
)
def test_bad_input_is_told(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_missing_self_edge_is_told():
    with pytest.raises(InputError, match="no self-edge"):
        Graph(
            edge_index=np.array([[0], [1]]),
            edge_type=np.zeros(1, np.int64),
            node_type=np.zeros(2, np.int64),
            node_attributes=np.zeros((2, 0)),
            edge_attributes=np.zeros((1, 0)),
        )
