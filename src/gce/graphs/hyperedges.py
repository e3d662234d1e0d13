"""Hyperedges: relations among three or more nodes, as arrays.

An array of memberships has three rows, and a column for each node of each hyperedge: the hyperedge's number, the node,
and the type of the hyperedge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int

from gce.errors import InputError, integers, listed
from gce.files import check_cap

FEWEST = 3


def memberships(groups: Any, types: Any = None) -> Int[np.ndarray, "3 members"] | None:
    """From the nodes of each hyperedge, and the type of each, by default 0; None where there are none."""
    groups = [] if groups is None else listed("hyperedges", groups, "the nodes of each")
    if not groups:
        return None
    kinds = np.zeros(len(groups), np.int64) if types is None else integers("hyperedge_type", types)
    if kinds.shape != (len(groups),):
        raise InputError(f"hyperedge_type has shape {kinds.shape} for {len(groups)} hyperedges; give one each")
    nodes = [integers(f"hyperedge {k}", listed(f"hyperedge {k}", one, "nodes")) for k, one in enumerate(groups)]
    if any(one.ndim != 1 for one in nodes):
        raise InputError("a hyperedge holds lists, expected the numbers of its nodes")
    columns = [np.stack([np.full(len(one), k), one, np.full(len(one), kinds[k])]) for k, one in enumerate(nodes)]
    return np.concatenate(columns, axis=1).astype(np.int64)


def check(hyperedges: Int[np.ndarray, "3 members"], nodes: int) -> None:
    """That hyperedges join three nodes or more, each once, and have one type."""
    number, node, kind = hyperedges
    if number.size == 0:
        return
    wrong = (node < 0) | (node >= nodes)
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"hyperedge {number[k]} has node {node[k]} but there are {nodes} nodes; nodes are numbered from 0"
        )
    if number.min() < 0 or kind.min() < 0:
        raise InputError("hyperedges and their types are numbered from 0, one of them is negative")
    check_cap(int(kind.max()), 10_000, "the largest type of a hyperedge")
    check_cap(int(number.max()), number.size, "the number of a hyperedge")
    sizes = np.bincount(number)
    if sizes.min() < FEWEST:
        k = int(sizes.argmin())
        raise InputError(f"hyperedge {k} joins {sizes[k]} nodes, expected at least {FEWEST}; two nodes are an edge")
    same, counts = np.unique(number * nodes + node, return_counts=True)
    if counts.max() > 1:
        k, twice = divmod(int(same[counts.argmax()]), nodes)
        raise InputError(f"hyperedge {k} has node {twice} twice; name each of its nodes once")
    first = np.zeros(len(sizes), np.int64)
    first[number] = kind
    if (first[number] != kind).any():
        raise InputError(f"hyperedge {number[first[number] != kind][0]} has two types; give it one")
