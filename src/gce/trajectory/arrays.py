"""A data set from plain arrays: what is missing is filled in, what does not fit is explained."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gce.errors import InputError, listed, real, said_of, table
from gce.graphs.graph import Graph, edge_places
from gce.graphs.hyperedges import memberships
from gce.trajectory.episode import Episode, Limits, check_arrays


def episodes_from_arrays(
    observations: Any,
    actions: Any,
    exogenous: Any,
    groups: Sequence[Hashable] | None,
    undirected: bool,
    systems: dict[str, tuple[Any, int]],
    edge_actions: Any = None,
) -> tuple[list[Episode], list[int]]:
    """Episodes and the number of the system of each; see `Dataset.from_arrays`.

    systems: what describes one, by name: a value for all or a list with one an episode, and how many axes that has;
        hyperedges come with their types.
    """
    seen = _episodes("observations", observations, ("T+1", "nodes", "coordinates"))
    count = len(seen)
    shapes = [(len(o) - 1, o.shape[1], 0) for o in seen]
    acted = [np.zeros(shape) for shape in shapes]
    if actions is not None:
        acted = _episodes("actions", actions, ("T", "nodes", "action coordinates"), count)
    known = _episodes("exogenous", exogenous, ("T", "nodes", "inputs"), count) if exogenous is not None else None
    hyperedges, types = systems["hyperedges"][0]
    systems = systems | {"hyperedges": (_each_hyperedges(hyperedges, types, count), 2)}
    per_episode = {name: _each(name, value, rank, count) for name, (value, rank) in systems.items()}
    indices = per_episode["edge_index"]
    numbers = _groups(groups, count, all(i is indices[0] or np.array_equal(i, indices[0]) for i in indices))
    described = list(zip(*per_episode.values(), strict=True))
    firsts = [numbers.index(g) for g in range(max(numbers) + 1)]
    graphs = _graphs([described[k][:6] for k in firsts], [seen[k].shape[1] for k in firsts], firsts, undirected)

    on_edges = [np.zeros((len(a), a.shape[1], 0)) for a in acted]
    if edge_actions is not None:
        on_edges = _by_receiver(edge_actions, acted, indices, graphs, numbers)
    limits, parameters = [], []
    for g, k in enumerate(firsts):
        *_, names, acts, low, high = described[k]
        parameters.append({} if names is None else {"nodes": _node_names(names, seen[k].shape[1], f"episode {k}: ")})
        members = [e for e in range(count) if numbers[e] == g]
        for e in members:
            _check_same(per_episode, firsts[g], e)
            check_arrays(graphs[g], seen[e], acted[e], known[e] if known else None, where=f"episode {e}: ")
        bounds = None if low is None else (low, high)
        with said_of(f"episode {k}"):
            of_nodes = Limits.filled([acted[e] for e in members], acts, bounds)
        for e in members:
            of_nodes.check(acted[e], where=f"episode {e}: ")
            acted[e] = np.concatenate([acted[e], on_edges[e]], axis=2)
        of_edges = Limits.filled([on_edges[e] for e in members])
        sides = ((of_nodes.low, of_edges.low), (of_nodes.high, of_edges.high))
        limits.append(Limits(*(np.concatenate(side, axis=1) for side in sides)))
    episodes = [
        Episode(graphs[g], seen[e], acted[e], known[e] if known else None, parameters[g], limits=limits[g])
        for e, g in enumerate(numbers)
    ]
    return episodes, numbers


def _by_receiver(
    given: Any, acted: list[np.ndarray], indices: list[Any], graphs: list[Graph], numbers: list[int]
) -> list[np.ndarray]:
    """Actions on edges [T, E, 1] as columns of their receivers, [T, nodes, places] (`edge_places`)."""
    found, most = [], 0
    for e, u in enumerate(_episodes("edge_actions", given, ("T", "edges", "1"), len(acted))):
        index, graph = np.asarray(indices[e]), graphs[numbers[e]]
        if u.shape != (len(acted[e]), index.shape[1], 1):
            raise InputError(
                f"episode {e}: edge_actions has shape {u.shape}, expected ({len(acted[e])}, {index.shape[1]}, 1): "
                "[T, E, 1], one number an edge of edge_index"
            )
        if not np.isfinite(u).all() or u[:, index[0] == index[1]].any():
            raise InputError(f"episode {e}: edge_actions must be finite, and 0 on edges of a node to itself")
        place = edge_places(graph.senders, graph.receivers)[0]
        there = dict(zip(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True), place, strict=True))
        at = np.array([there[s, r] for s, r in index.T.tolist()], int)
        columns = np.zeros((*acted[e].shape[:2], 1 + max(0, at.max(initial=0))))
        columns[:, index[1, at >= 0], at[at >= 0]] = u[:, at >= 0, 0]
        most = max(most, 1 + int(np.flatnonzero(columns.any((0, 1))).max(initial=0)))
        found.append(columns)
    return [np.pad(c, ((0, 0), (0, 0), (0, max(0, most - c.shape[2]))))[..., :most] for c in found]


def _each_hyperedges(hyperedges: Any, types: Any, count: int) -> list[np.ndarray] | None:
    """The memberships in each episode, from hyperedges of all or of each; None where there are none."""
    given = [] if hyperedges is None else listed("hyperedges", hyperedges, "the nodes of each")
    first = next((some for one in given if (some := listed("a hyperedge", one, "nodes"))), None)
    if first is None:
        return None
    every = _rank(first[0]) == 0
    groups = [given] * count if every else given
    kinds = [types] * count if every or types is None else listed("hyperedge_type", types, "those of each episode")
    if not len(groups) == len(kinds) == count:
        raise InputError(
            f"hyperedges are of {len(groups)} episodes, observations of {count}; give them for all or each"
        )
    found = [memberships(g, t) for g, t in zip(groups, kinds, strict=True)]
    return [np.zeros((3, 0), np.int64) if one is None else one for one in found]


def number_relations(
    edges: Sequence[np.ndarray], edge_types: Sequence[np.ndarray] | None, node_types: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(types of the edges, types of missing self-edges) of each graph, numbered alike in all of them.

    Relations nobody named are told apart by the types of sender and receiver; self-edges nobody named by the type of
    their node, after all others.
    """
    if edge_types is not None:
        after = 1 + max((int(t.max()) for t in edge_types if t.size), default=-1)
        return list(edge_types), [after + n for n in node_types]
    kinds = 1 + max(int(n.max()) for n in node_types)
    pairs = [n[sender] * kinds + n[receiver] for (sender, receiver), n in zip(edges, node_types, strict=True)]
    present = np.unique(np.concatenate([p[e[0] != e[1]] for p, e in zip(pairs, edges, strict=True)]))
    types = [
        np.where(e[0] == e[1], len(present) + n[e[0]], np.searchsorted(present, p))
        for e, n, p in zip(edges, node_types, pairs, strict=True)
    ]
    return types, [len(present) + n for n in node_types]


def describe(dt: float, structure: dict[str, Any] | None, names: dict[str, Any], episode: Episode) -> dict[str, Any]:
    """The metadata of data of no known world."""
    if isinstance(dt, bool) or not isinstance(dt, int | float) or not 0 < dt < np.inf:
        raise InputError(f"dt is {dt!r}, expected the seconds a step takes, such as 0.02")
    columns = {"observation_names": episode.observations.shape[2], "action_names": episode.actions.shape[2]}
    given = {key: listed(key, value, "names") for key, value in names.items() if value is not None}
    for key, value in given.items():
        if len(value) != columns[key]:
            raise InputError(f"{key} has {len(value)} entries for {columns[key]} columns; give one each")
    return {"world": None, "dt": real("dt", dt), **given, **({} if structure is None else {"structure": structure})}


def _graphs(described: list[Any], sizes: list[int], firsts: list[int], undirected: bool) -> list[Graph]:
    """The graph of every system, with relation types that mean the same in all of them."""
    edges, edge_types, node_types, tables = [], [], [], []
    for (index, edge_type, node_type, edge_table, _, _), nodes, k in zip(described, sizes, firsts, strict=True):
        where = f"episode {k}: "
        index = _edge_index(index, nodes, where)
        twice = np.flatnonzero(index[0] != index[1]) if undirected else np.zeros(0, np.int64)
        rows = np.concatenate([np.arange(index.shape[1]), twice])  # of an edge and, if undirected, of its way back
        edges.append(np.concatenate([index, index[::-1, twice]], axis=1))
        given = _whole("edge_type", edge_type, index.shape[1], "an edge", where)
        edge_types.append(None if given is None else given[rows])
        given = _whole("node_type", node_type, nodes, "a node", where)
        node_types.append(np.zeros(nodes, np.int64) if given is None else given)
        if edge_table is not None:
            edge_table = table(f"{where}edge_attributes", edge_table)
            rows_given = len(edge_table) if edge_table.ndim else "no"
            if rows_given != index.shape[1]:
                raise InputError(
                    f"{where}edge_attributes has {rows_given} rows for {index.shape[1]} edges; give one an edge"
                )
            edge_table = edge_table[rows]
        tables.append(edge_table)
    named = [t for t in edge_types if t is not None]
    if named and len(named) < len(edge_types):
        raise InputError("edge_type is given for some systems and None for others; give it for all or for none")
    relations, self_types = number_relations(edges, named or None, node_types)
    graphs = []
    for g, k in enumerate(firsts):
        with said_of(f"episode {k}"):
            graph = Graph.from_edges(
                sizes[g],
                edges[g].T,
                edge_type=relations[g],
                node_type=node_types[g],
                edge_attributes=tables[g],
                node_attributes=described[g][4],
                self_type=self_types[g],
            )
            members = described[g][5]
            graphs.append(graph if members is None or not members.size else replace(graph, hyperedges=members))
    return graphs


def _node_names(names: Any, nodes: int, where: str) -> list[str]:
    """One name a node, each its own."""
    named = [str(name) for name in listed(f"{where}node_names", names, "names")]
    if len(named) != nodes or len(set(named)) != nodes:
        raise InputError(f"{where}node_names are {named[:8]} for {nodes} nodes; give every node a name of its own")
    return named


def _whole(name: str, values: Any, count: int, what: str, where: str) -> np.ndarray | None:
    """Types: whole numbers from 0, one each."""
    if values is None:
        return None
    table(f"{where}{name}", values)
    types = np.asarray(values)
    if types.shape != (count,):
        raise InputError(f"{where}{name} has shape {types.shape}, expected ({count},): one type {what}")
    if not np.issubdtype(types.dtype, np.integer) or (types.size and types.min() < 0):
        raise InputError(f"{where}{name} holds {types.tolist()[:5]}..., expected whole numbers from 0")
    return types.astype(np.int64)


def _episodes(name: str, values: Any, axes: tuple[str, str, str], count: int | None = None) -> list[np.ndarray]:
    """A list of arrays with three axes each; a bare array is explained."""
    expected = f"a list with one array [{', '.join(axes)}] an episode"
    if isinstance(values, np.ndarray) and values.dtype != object:
        advice = {
            3: f"if this is one episode, pass [{name}]",
            4: f"if its first axis counts episodes, pass list({name})",
        }.get(values.ndim, f"{axes[1]} and {axes[2]} are axes of their own, also where there is only one")
        raise InputError(f"{name} is one array of shape {values.shape}, expected {expected}; {advice}")
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise InputError(f"{name} is a {type(values).__name__}, expected {expected}")
    if len(values) == 0:
        raise InputError(f"{name} is empty, expected {expected}")
    if count is not None and len(values) != count:
        raise InputError(f"{name} are of {len(values)} episodes, observations of {count}; give one array an episode")
    arrays = []
    for k, value in enumerate(values):
        floating = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)  # NaN is told by its place
        array = value if floating else table(f"episode {k}: {name}", value)
        if array.ndim != 3:
            raise InputError(
                f"episode {k}: {name} have shape {array.shape}, expected [{', '.join(axes)}]; "
                f"{axes[1]} and {axes[2]} are axes of their own, also where there is only one"
            )
        arrays.append(array)
    return arrays


def _each(name: str, value: Any, rank: int, count: int) -> list[Any]:
    """One value for all episodes, or a list with one for each: its entries then have `rank` axes."""
    if not isinstance(value, list | tuple) or not value or any(_rank(v) != rank for v in value):
        return [value] * count
    if len(value) != count:
        raise InputError(f"{name} is a list of {len(value)} arrays for {count} episodes; give one for all or one each")
    return list(value)


def _rank(value: Any) -> int:
    try:
        return np.ndim(value)
    except ValueError:  # lists of different lengths
        return -1


def _groups(groups: Sequence[Hashable] | None, count: int, one_graph: bool) -> list[int]:
    """Systems numbered in the order in which they appear."""
    if groups is None:
        if not one_graph:
            raise InputError(
                "edge_index differs between episodes, but groups does not say which of them are of one system; pass "
                "groups with the name or number of each episode's system"
            )
        return [0] * count
    if len(listed("groups", groups, "names or numbers")) != count:
        raise InputError(f"groups has {len(groups)} entries for {count} episodes; give one an episode")
    try:
        order = list(dict.fromkeys(groups))
    except TypeError:
        raise InputError("groups holds what is neither a name nor a number; give one an episode") from None
    return [order.index(g) for g in groups]


def _edge_index(index: Any, nodes: int, where: str) -> np.ndarray:
    if index is None:
        raise InputError(f"{where}edge_index is missing; np.zeros((2, 0), int) is that of nodes without neighbours")
    try:
        edges = np.asarray(index)
    except ValueError:
        raise InputError(f"{where}edge_index is no array; give (2, edges): senders, receivers") from None
    if edges.size == 0:
        return np.zeros((2, 0), np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2:
        advice = "; transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise InputError(f"{where}edge_index has shape {edges.shape}, expected (2, edges): senders, receivers{advice}")
    if not np.issubdtype(edges.dtype, np.integer):
        raise InputError(f"{where}edge_index holds {edges.dtype} values, expected whole numbers of nodes")
    if edges.min() < 0 or edges.max() >= nodes:
        wrong = edges[(edges < 0) | (edges >= nodes)][0]
        raise InputError(f"{where}edge_index has node {wrong} but there are {nodes} nodes; nodes are numbered from 0")
    return edges.astype(np.int64)


def _check_same(per_episode: dict[str, list[Any]], first: int, other: int) -> None:
    for name, values in per_episode.items():
        if values[first] is not values[other] and not np.array_equal(values[first], values[other]):
            raise InputError(
                f"episodes {first} and {other} are of one system, but {name} differs between them; "
                "give systems that differ different entries of groups"
            )
