"""Graphs of interacting objects: nodes and edges with types, random topologies, and tied coordinates.

An edge runs from a sender j to a receiver i and says that j's state acts on i's next state. Every node is a
neighbour of itself (the paper's inclusive neighbourhood E(i)), so each has exactly one self-edge, with a type
like any other edge. `edge_index` is laid out as in PyTorch Geometric: row 0 the senders, row 1 the receivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import sparse

from gce.errors import InputError, integers, table
from gce.files import check_cap
from gce.graphs.families import erdos_renyi, is_connected, lattice, ring
from gce.graphs.hyperedges import check, memberships
from gce.names import Shown

if TYPE_CHECKING:
    import networkx
    from torch_geometric.data import Data

KINDS = ("edge_type", "node_type", "tied")
PYG = {"x": "node_attributes", "edge_attr": "edge_attributes", **{name: name for name in KINDS}}
"""What PyTorch Geometric's `Data` calls the arrays of a graph beside edge_index."""


SHAPES = (
    ("edge_index", 2, "iu"),
    ("edge_type", 1, "iu"),
    ("node_type", 1, "iu"),
    ("node_attributes", 2, "fiu"),
    ("edge_attributes", 2, "fiu"),
    ("tied", 2, "iu"),
    ("hyperedges", 2, "iu"),
)
"""The arrays of a graph, their dimensions and kinds of values."""

__all__ = ["Graph", "erdos_renyi", "is_connected", "lattice", "ring"]


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Shown):
    """Typed nodes, directed typed edges, and which coordinates of different nodes are one.

    Build one with `from_edges` and its kin, which add what is missing; the constructor takes finished arrays and
    only checks them.

    tied: an id for every coordinate of every node. Coordinates with the same id are the same physical quantity
        (two boxes that share a corner share its position); `merge` makes them equal. None: nothing is tied.
    hyperedges: relations among three nodes or more: the number of a hyperedge, a node of it, its type, a column for
        each node of each. None: there are none.
    """

    edge_index: Int[np.ndarray, "2 edges"]
    edge_type: Int[np.ndarray, " edges"]
    node_type: Int[np.ndarray, " nodes"]
    node_attributes: Float[np.ndarray, "nodes node_features"]
    edge_attributes: Float[np.ndarray, "edges edge_features"]
    tied: Int[np.ndarray, "nodes coordinates"] | None = None
    hyperedges: Int[np.ndarray, "3 members"] | None = None

    def __post_init__(self) -> None:
        for field, ndim, kinds in SHAPES:
            value = getattr(self, field)
            if value is not None and (np.ndim(value) != ndim or value.dtype.kind not in kinds):
                told = "whole numbers" if kinds == "iu" else "numbers"
                raise InputError(
                    f"{field} has shape {np.shape(value)} of {getattr(value, 'dtype', type(value).__name__)} values, "
                    f"expected {told} of {ndim} dimensions"
                )
        nodes, edges = len(self.node_type), self.edge_index.shape[1]
        if nodes == 0:
            raise InputError("a graph needs at least one node, got none")
        for name, rows, expected in (
            ("edge_type", len(self.edge_type), edges),
            ("edge_attributes", len(self.edge_attributes), edges),
            ("node_attributes", len(self.node_attributes), nodes),
            ("tied", nodes if self.tied is None else len(self.tied), nodes),
        ):
            if rows != expected:
                raise InputError(f"{name} has {rows} rows, expected {expected}: one for each node or edge")
        _check_numbering(self.edge_index, nodes)
        if self.hyperedges is not None:
            check(self.hyperedges, nodes)
        for name, types in (("edge_type", self.edge_type), ("node_type", self.node_type)):
            if types.size and types.min() < 0:
                raise InputError(f"{name} has the value {types.min()}; types are numbered from 0")
            check_cap(int(types.max(initial=0)), 10_000, f"the largest {name}")
        for name, values in (("node_attributes", self.node_attributes), ("edge_attributes", self.edge_attributes)):
            if not np.isfinite(values).all():
                row, column = np.argwhere(~np.isfinite(values))[0]
                raise InputError(f"{name} has {values[row, column]} in row {row}, column {column}; give finite numbers")
        keys = self.receivers * nodes + self.senders
        if len(np.unique(keys)) != edges:
            repeated = _first_repeat(keys)
            raise InputError(
                f"the edge from node {repeated % nodes} to node {repeated // nodes} is given twice; "
                "give each pair of nodes one edge in each direction"
            )
        selves = np.count_nonzero(self.senders == self.receivers)
        if selves != nodes:
            raise InputError(
                f"{nodes - selves} of {nodes} nodes have no self-edge, but every node is a neighbour of itself; "
                "Graph.from_edges adds the missing ones"
            )

    # ---- shape ----

    @property
    def num_nodes(self) -> int:
        return len(self.node_type)

    @property
    def num_edges(self) -> int:
        return len(self.edge_type)

    @property
    def senders(self) -> Int[np.ndarray, " edges"]:
        return self.edge_index[0]

    @property
    def receivers(self) -> Int[np.ndarray, " edges"]:
        return self.edge_index[1]

    def facts(self) -> dict[str, Any]:
        kinds = {"node_types": 1 + int(self.node_type.max()), "edge_types": 1 + int(self.edge_type.max())}
        more = {} if self.hyperedges is None else {"hyperedges": len(np.unique(self.hyperedges[0]))}
        return {"nodes": self.num_nodes, "edges": self.num_edges, **more, **kinds}

    def neighbours(self, node: int) -> Int[np.ndarray, " neighbours"]:
        """E(i): the senders of a node's incoming edges, itself included."""
        return np.sort(self.senders[self.receivers == node])

    def equals(self, other: Graph) -> bool:
        """Same nodes, same edges in the same order, same attributes and ties."""
        mine, theirs = self.arrays(), other.arrays()
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[k], theirs[k]) for k in mine)

    def arrays(self) -> dict[str, np.ndarray]:
        """All there are, by name: `Graph(**arrays)` is the same graph."""
        return {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)}

    # ---- tied coordinates ----

    @cached_property
    def _merging(self) -> sparse.csr_array | None:
        """The matrix that replaces every coordinate by the mean of those it is tied to."""
        if self.tied is None:
            return None
        _, ids, counts = np.unique(self.tied, return_inverse=True, return_counts=True)
        ids = ids.reshape(-1)
        member = sparse.csr_array((np.ones(ids.size), (np.arange(ids.size), ids)))
        return (member / counts @ member.T).tocsr()

    def merge(
        self, values: Float[np.ndarray, "*batch nodes coordinates"]
    ) -> Float[np.ndarray, "*batch nodes coordinates"]:
        """Replace tied coordinates by their mean."""
        if self._merging is None:
            return values
        flat = values.reshape(-1, self._merging.shape[0])
        return (self._merging @ flat.T).T.reshape(values.shape).astype(values.dtype, copy=False)

    # ---- relabelling ----

    def permute(self, order: Sequence[int] | Int[np.ndarray, " nodes"]) -> Graph:
        """The same graph with node `order[k]` called k."""
        order = np.asarray(order)
        if not np.array_equal(np.sort(order), np.arange(self.num_nodes)):
            raise InputError(
                f"order must hold each of the numbers 0 to {self.num_nodes - 1} once, got {order.tolist()}"
            )
        new_name = np.argsort(order)
        edges = new_name[self.edge_index]
        by_receiver = np.lexsort((edges[0], edges[1]))
        return Graph(
            edge_index=edges[:, by_receiver],
            edge_type=self.edge_type[by_receiver],
            node_type=self.node_type[order],
            node_attributes=self.node_attributes[order],
            edge_attributes=self.edge_attributes[by_receiver],
            tied=None if self.tied is None else self.tied[order],
            hyperedges=None if (h := self.hyperedges) is None else np.stack([h[0], new_name[h[1]], h[2]]),
        )

    # ---- from and to other descriptions ----

    @classmethod
    def from_edges(
        cls,
        num_nodes: int,
        edges: ArrayLike,
        *,
        edge_type: ArrayLike | None = None,
        node_type: ArrayLike | None = None,
        node_attributes: ArrayLike | None = None,
        edge_attributes: ArrayLike | None = None,
        self_type: ArrayLike | None = None,
        undirected: bool = False,
        tied: ArrayLike | None = None,
        hyperedges: Sequence[Sequence[int]] | None = None,
        hyperedge_type: ArrayLike | None = None,
    ) -> Graph:
        """From (sender, receiver) pairs, sorted by receiver; missing self-edges are added.

        self_type: the type of the added self-edges, one for all or one a node; by default the first unused type.
        undirected: every pair is an edge in both directions.
        hyperedges: the nodes of each, three or more; hyperedge_type: one each, by default 0.
        """
        if num_nodes < 1:
            raise InputError(f"a graph needs at least one node, got num_nodes = {num_nodes}")
        pairs = integers("edges", edges).reshape(-1, 2)
        _check_numbering(pairs.T, num_nodes)
        kinds = np.zeros(len(pairs), np.int64) if edge_type is None else integers("edge_type", edge_type)
        given = _table("edge_attributes", edge_attributes, len(pairs))
        if len(kinds) != len(pairs):
            raise InputError(f"edge_type has {len(kinds)} entries for {len(pairs)} edges; give one each")
        if undirected:
            there = pairs[:, 0] != pairs[:, 1]
            pairs = np.concatenate([pairs, pairs[there, ::-1]])
            kinds, given = np.concatenate([kinds, kinds[there]]), np.concatenate([given, given[there]])

        lonely = np.setdiff1d(np.arange(num_nodes), pairs[pairs[:, 0] == pairs[:, 1], 0])
        if self_type is None:
            self_type = kinds.max() + 1 if kinds.size else 0
        self_kinds = np.broadcast_to(integers("self_type", self_type), (num_nodes,))[lonely]
        pairs = np.concatenate([pairs, np.stack([lonely, lonely], axis=1)])
        kinds = np.concatenate([kinds, self_kinds])
        given = np.concatenate([given, np.zeros((len(lonely), given.shape[1]))])

        order = np.lexsort((pairs[:, 0], pairs[:, 1]))
        return cls(
            edge_index=np.ascontiguousarray(pairs[order].T),
            edge_type=kinds[order],
            node_type=np.zeros(num_nodes, np.int64) if node_type is None else integers("node_type", node_type),
            node_attributes=_table("node_attributes", node_attributes, num_nodes),
            edge_attributes=given[order],
            tied=None if tied is None else integers("tied", tied),
            hyperedges=None if hyperedges is None else memberships(hyperedges, hyperedge_type),
        )

    @classmethod
    def from_adjacency(cls, adjacency: Any, **options: Any) -> Graph:
        """From a square matrix, dense or sparse: entry (i, j) not zero is an edge from sender j to receiver i."""
        matrix = sparse.coo_array(adjacency)
        if matrix.shape[0] != matrix.shape[1]:
            rows, columns = matrix.shape
            raise InputError(f"an adjacency matrix is square, got {rows} x {columns}; give a row and a column a node")
        there = matrix.data != 0
        return cls.from_edges(matrix.shape[0], np.stack([matrix.col[there], matrix.row[there]], axis=1), **options)

    @classmethod
    def from_relations(cls, relations: Int[np.ndarray, "nodes nodes"], **options: Any) -> Graph:
        """From the matrix of relation types, entry (receiver, sender); -1 where there is no relation."""
        receivers, senders = np.nonzero(np.asarray(relations) >= 0)
        kinds = np.asarray(relations)[receivers, senders]
        return cls.from_edges(len(relations), np.stack([senders, receivers], axis=1), edge_type=kinds, **options)

    def relations(self, size: int | None = None) -> Int[np.ndarray, "size size"]:
        """The matrix of relation types, entry (receiver, sender); -1 where there is no relation, or no node.

        size: its rows, by default one a node.
        """
        size = self.num_nodes if size is None else size
        matrix = np.full((size, size), -1, np.int64)
        matrix[self.receivers, self.senders] = self.edge_type
        return matrix

    @classmethod
    def from_networkx(cls, graph: networkx.Graph, **options: Any) -> Graph:
        """From a networkx graph whose nodes are 0..N-1, with optional `type` and `attributes` on nodes and edges.

        An undirected graph's edges run in both directions.
        """
        n = graph.number_of_nodes()
        if set(graph.nodes) != set(range(n)):
            raise InputError(
                "nodes must be called 0 to N-1; networkx.convert_node_labels_to_integers(graph) renames them"
            )
        pairs = list(graph.edges(data=True))
        options = {"undirected": not graph.is_directed()} | options
        if any("type" in data for *_, data in pairs):
            options["edge_type"] = [data.get("type", 0) for *_, data in pairs]
        if any("attributes" in data for *_, data in pairs):
            options["edge_attributes"] = [data["attributes"] for *_, data in pairs]
        for key, option in (("type", "node_type"), ("attributes", "node_attributes")):
            if any(key in graph.nodes[i] for i in range(n)):
                options[option] = [graph.nodes[i][key] for i in range(n)]
        return cls.from_edges(n, [(i, j) for i, j, _ in pairs], **options)

    def to_networkx(self) -> networkx.DiGraph:
        """A directed networkx graph with `type` and `attributes` on nodes and edges, self-edges included."""
        import networkx

        graph = networkx.DiGraph()
        for i in range(self.num_nodes):
            graph.add_node(i, type=int(self.node_type[i]), attributes=self.node_attributes[i].tolist())
        for e in range(self.num_edges):
            graph.add_edge(
                int(self.senders[e]),
                int(self.receivers[e]),
                type=int(self.edge_type[e]),
                attributes=self.edge_attributes[e].tolist(),
            )
        return graph

    @classmethod
    def from_pyg(cls, data: Data, **options: Any) -> Graph:
        """From a PyTorch Geometric `Data`: x (node attributes), edge_index, edge_attr, edge_type, node_type, tied."""
        for key, name in PYG.items():
            value = getattr(data, key, None)
            if value is not None:
                options.setdefault(name, value.numpy())
        edge_index = data.edge_index
        if edge_index is None or data.num_nodes is None:
            raise InputError("the PyTorch Geometric data has no edge_index or number of nodes; set both")
        return cls.from_edges(data.num_nodes, edge_index.numpy().T, **options)

    def to_pyg(self) -> Data:
        """A PyTorch Geometric `Data` with x (node attributes), edge_index, edge_attr, edge_type, node_type, tied."""
        import torch
        from torch_geometric.data import Data

        tensors = {
            key: torch.as_tensor(value) for key, name in PYG.items() if (value := getattr(self, name)) is not None
        }
        return Data(edge_index=torch.as_tensor(self.edge_index), num_nodes=self.num_nodes, **tensors)


def edge_places(senders: Int[np.ndarray, " edges"], receivers: Int[np.ndarray, " edges"]) -> Int[np.ndarray, "2 edges"]:
    """The place of each edge among those into its receiver, by the number of the sender, and that of its way back.

    Edges of a node to itself have none, -1; nor has a way back that is not there.
    """
    n = 1 + max(senders.max(initial=0), receivers.max(initial=0))
    known = np.sort((receivers * n + senders)[senders != receivers])

    def place(s: np.ndarray, r: np.ndarray) -> np.ndarray:
        at = np.searchsorted(known, r * n + s)
        there = np.isin(r * n + s, known)
        return np.where(there, at - np.searchsorted(known, r * n), -1)

    return np.stack([place(senders, receivers), place(receivers, senders)])


# ---- checks ----


def _check_numbering(edge_index: np.ndarray, nodes: int) -> None:
    if edge_index.size and (edge_index.min() < 0 or edge_index.max() >= nodes):
        wrong = edge_index[(edge_index < 0) | (edge_index >= nodes)][0]
        raise InputError(f"edge_index has node {wrong} but there are {nodes} nodes; nodes are numbered from 0")


def _first_repeat(keys: np.ndarray) -> int:
    ordered = np.sort(keys)
    return int(ordered[np.flatnonzero(np.diff(ordered) == 0)[0]])


def _table(name: str, values: ArrayLike | None, rows: int) -> np.ndarray:
    """A float table with a row for each node or edge; None has no columns."""
    if values is None:
        return np.zeros((rows, 0))
    array = table(name, values, finite=None)  # what is not finite is told by its place
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or len(array) != rows:
        raise InputError(f"{name} has shape {array.shape}, expected ({rows}, columns)")
    return array
