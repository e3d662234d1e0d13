"""How episodes of any length and size lie in flat arrays: rows and pointers.

Episode e's observations are the rows `observation_pointer[e]` to `[e+1]` of `observations`, ordered by step and then
by node; actions and exogenous inputs likewise with `action_pointer`. Group g (one physical system) has the graph
whose nodes are the rows `node_pointer[g]` to `[g+1]` and whose edges are `edge_pointer[g]` to `[g+1]`; nodes are
numbered from 0 within the group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory.episode import check_arrays
from gce.trajectory.limits import Limits

FORMAT = "gce-trajectories"
VERSION = 1

ROWS = {
    "episodes/observations": "one row a step and node: coordinates",
    "episodes/actions": "one row a step and node: action coordinates",
    "groups/node_type": "whole number, one a node",
    "groups/node_attributes": "one row a node",
    "groups/edges": "one row an edge: sender, receiver",
    "groups/edge_type": "whole number, one an edge",
    "groups/edge_attributes": "one row an edge",
}
OPTIONAL_ROWS = {
    "episodes/exogenous": "one row a step and node: known inputs",
    "groups/tied": "one row a node: an id for every coordinate; equal ids are one quantity",
    "groups/action_low": "one row a node: the lowest action, -inf without bound",
    "groups/action_high": "one row a node: the highest action, inf without bound",
}
TABLES = {
    "episodes/observation_pointer": "first row of each episode, and the end",
    "episodes/action_pointer": "first row of each episode, and the end",
    "episodes/group": "the group of each episode",
    "episodes/seed": "the simulator's seed of each episode, -1 where there is none",
    "groups/node_pointer": "first node of each group, and the end",
    "groups/edge_pointer": "first edge of each group, and the end",
    "groups/parameters": "JSON text, one a group: the physical parameters",
}

NO_SEED = -1


Sink = Callable[[str, np.ndarray], None]
"""Takes rows of a named array, in order: into memory or into a file."""


class Flattener:
    """Takes groups and episodes one by one and sends their rows to a sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._graphs: list[Graph] = []
        self._parameters: list[str] = []
        self._pointers = {name: [0] for name in TABLES if name.endswith("pointer")}
        self._groups: list[int] = []
        self._seeds: list[int] = []
        self._columns: dict[str, int | None] = {}

    @property
    def num_episodes(self) -> int:
        return len(self._groups)

    def add_group(self, graph: Graph, parameters: dict[str, Any], limits: Limits | None = None) -> int:
        """A physical system; returns its number, for `add_episode`."""
        try:
            text = json.dumps(parameters, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"the parameters of group {len(self._graphs)} are not JSON values: {error}") from None
        self._append("groups/node_type", graph.node_type)
        self._append("groups/node_attributes", graph.node_attributes)
        self._append("groups/edges", np.ascontiguousarray(graph.edge_index.T))
        self._append("groups/edge_type", graph.edge_type)
        self._append("groups/edge_attributes", graph.edge_attributes)
        self._append("groups/tied", graph.tied)
        self._append("groups/action_low", None if limits is None else limits.low)
        self._append("groups/action_high", None if limits is None else limits.high)
        self._advance("groups/node_pointer", graph.num_nodes)
        self._advance("groups/edge_pointer", graph.num_edges)
        self._graphs.append(graph)
        self._parameters.append(text)
        return len(self._graphs) - 1

    def add_episode(
        self,
        group: int,
        observations: np.ndarray,
        actions: np.ndarray,
        exogenous: np.ndarray | None = None,
        seed: int | None = None,
    ) -> None:
        """An episode of a group that was added before."""
        if not 0 <= group < len(self._graphs):
            raise InputError(
                f"episode {self.num_episodes} is of group {group}, but there are {len(self._graphs)} groups"
            )
        graph = self._graphs[group]
        check_arrays(graph, observations, actions, exogenous, where=f"episode {self.num_episodes}: ")
        for name, values in (("observations", observations), ("actions", actions), ("exogenous", exogenous)):
            self._append(f"episodes/{name}", None if values is None else np.concatenate(values))
        self._advance("episodes/observation_pointer", observations.shape[0] * graph.num_nodes)
        self._advance("episodes/action_pointer", actions.shape[0] * graph.num_nodes)
        self._groups.append(group)
        self._seeds.append(NO_SEED if seed is None else seed)

    def tables(self) -> dict[str, np.ndarray]:
        """The small arrays that find the rows again."""
        if not self._groups:
            raise InputError("there is no episode to keep; a data set has at least one")
        return {
            **{name: np.array(values, np.int64) for name, values in self._pointers.items()},
            "episodes/group": np.array(self._groups, np.int64),
            "episodes/seed": np.array(self._seeds, np.int64),
            "groups/parameters": np.array(self._parameters, dtype=object),
        }

    def _append(self, name: str, rows: np.ndarray | None) -> None:
        """All episodes and groups have the same columns, or all have none (optional arrays)."""
        columns = None if rows is None else rows.shape[1] if rows.ndim == 2 else 1
        expected = self._columns.setdefault(name, columns)
        if columns != expected:
            what = name.split("/")[1]
            raise InputError(
                f"episode {self.num_episodes}: {what} has {_count(columns)}, the ones before have {_count(expected)}; "
                "all episodes of a data set have the same coordinates"
            )
        if rows is not None:
            self._sink(name, rows)

    def _advance(self, name: str, rows: int) -> None:
        self._pointers[name].append(self._pointers[name][-1] + rows)


def _count(columns: int | None) -> str:
    return "no rows" if columns is None else f"{columns} columns"
