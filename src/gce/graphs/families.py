"""Families of graphs by their undirected edges: rings, lattices, random ones."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from gce.errors import InputError


def ring(num_nodes: int) -> Int[np.ndarray, "edges 2"]:
    """The undirected edges of a cycle."""
    if num_nodes < 3:
        raise InputError(f"a ring needs at least 3 nodes, got {num_nodes}")
    nodes = np.arange(num_nodes)
    return np.stack([nodes, (nodes + 1) % num_nodes], axis=1)


def lattice(rows: int, columns: int) -> Int[np.ndarray, "edges 2"]:
    """The undirected edges of a 2D grid; node (r, c) is r * columns + c."""
    if rows < 1 or columns < 1:
        raise InputError(f"a 2D grid needs at least one row and column, got {rows} x {columns}")
    nodes = np.arange(rows * columns).reshape(rows, columns)
    across = np.stack([nodes[:, :-1], nodes[:, 1:]], axis=-1).reshape(-1, 2)
    down = np.stack([nodes[:-1], nodes[1:]], axis=-1).reshape(-1, 2)
    return np.concatenate([across, down])


def erdos_renyi(
    num_nodes: int, probability: float, rng: np.random.Generator, attempts: int = 1000
) -> Int[np.ndarray, "edges 2"]:
    """The undirected edges of a connected Erdos-Renyi graph, drawn again until it is connected."""
    if num_nodes < 1 or not 0 < probability <= 1:
        raise InputError(
            f"an Erdos-Renyi graph needs a node and a probability in (0, 1], got {num_nodes} and {probability}"
        )
    first, second = np.triu_indices(num_nodes, 1)
    for _ in range(attempts):
        kept = rng.random(len(first)) < probability
        edges = np.stack([first[kept], second[kept]], axis=1)
        if is_connected(num_nodes, edges):
            return edges
    raise InputError(
        f"no connected graph in {attempts} draws of {num_nodes} nodes with edge probability {probability}; "
        f"probabilities above ln(n)/n = {np.log(num_nodes) / num_nodes:.3f} are mostly connected"
    )


def is_connected(num_nodes: int, edges: Int[np.ndarray, "edges 2"]) -> bool:
    """Whether every node reaches every other along undirected edges."""
    links = sparse.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(num_nodes, num_nodes))
    return bool(connected_components(links, directed=False, return_labels=False) == 1)
