"""What can be wrong with a data set file, as sentences.

How episodes of any length and size lie in flat arrays: rows and pointers.

Episode e's observations are the rows `observation_pointer[e]` to `[e+1]` of `observations`, ordered by step and then
by node; actions and exogenous inputs likewise with `action_pointer`. Group g (one physical system) has the graph
whose nodes are the rows `node_pointer[g]` to `[g+1]` and whose edges are `edge_pointer[g]` to `[g+1]`; nodes are
numbered from 0 within the group.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory.episode import Limits, check_arrays

Array = np.ndarray

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


Sink = Callable[[str, Array], None]
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
        self, group: int, observations: Array, actions: Array, exogenous: Array | None = None, seed: int | None = None
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

    def tables(self) -> dict[str, Array]:
        """The small arrays that find the rows again."""
        if not self._groups:
            raise InputError("there is no episode to keep; a data set has at least one")
        return {
            **{name: np.array(values, np.int64) for name, values in self._pointers.items()},
            "episodes/group": np.array(self._groups, np.int64),
            "episodes/seed": np.array(self._seeds, np.int64),
            "groups/parameters": np.array(self._parameters, dtype=object),
        }

    def _append(self, name: str, rows: Array | None) -> None:
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


BUFFER_BYTES = 1 << 22
CHECKSUM = "crc32"
"""Attribute of every array: zlib's CRC-32 of its bytes in C order, little endian (of the joined UTF-8 for text)."""
BOUNDS = ("groups/action_low", "groups/action_high")


def structure_problems(file: h5py.File) -> Iterator[str]:
    """Wrong format, missing arrays, pointers that do not fit: found without reading the rows."""
    if file.attrs.get("format") != FORMAT:
        yield f"its attribute 'format' is {file.attrs.get('format')!r}, expected {FORMAT!r}; another program's file?"
        return
    version = file.attrs.get("format_version")
    if version != VERSION:
        yield f"its format version is {version}, this program reads version {VERSION}"
        return
    try:
        if not isinstance(json.loads(str(file.attrs["metadata"])), dict):
            raise ValueError
    except (KeyError, ValueError):
        yield "its attribute 'metadata' is not a JSON object"
    missing = [name for name in (*ROWS, *TABLES) if not isinstance(file.get(name), h5py.Dataset)]
    for name in missing:
        yield f"the array {name} is missing"
    if missing:
        return
    yield from _shape_problems(file)


def _shape_problems(file: h5py.File) -> Iterator[str]:
    two = {name for name in (*ROWS, *OPTIONAL_ROWS) if name not in ("groups/node_type", "groups/edge_type")}
    for name in (*ROWS, *OPTIONAL_ROWS, *TABLES):
        if name in file and file[name].ndim != (2 if name in two else 1):
            yield f"the array {name} has {file[name].ndim} dimensions, expected {2 if name in two else 1}"
            return
    ends = {
        "episodes/observation_pointer": ("episodes/observations",),
        "episodes/action_pointer": ("episodes/actions", "episodes/exogenous"),
        "groups/node_pointer": ("groups/node_type", "groups/node_attributes", "groups/tied", *BOUNDS),
        "groups/edge_pointer": ("groups/edges", "groups/edge_type", "groups/edge_attributes"),
    }
    for pointer_name, arrays in ends.items():
        pointer = file[pointer_name][:]
        count = len(file["episodes/group"]) if pointer_name.startswith("episodes") else len(file["groups/parameters"])
        if len(pointer) != count + 1 or count == 0:
            what = pointer_name.split("/")[0]
            yield f"{pointer_name} has {len(pointer)} entries for {count} {what}, expected one more"
            return
        if pointer[0] != 0 or (np.diff(pointer) <= 0).any():
            yield f"{pointer_name} must start at 0 and grow with every entry"
            return
        for name in arrays:
            if name in file and len(file[name]) != pointer[-1]:
                yield f"{name} has {len(file[name])} rows, {pointer_name} ends at {pointer[-1]}"
                return
    shapes = [file[name].shape[1:] if name in file else None for name in BOUNDS]
    if shapes != [None, None] and shapes != [file["episodes/actions"].shape[1:]] * 2:
        yield f"{BOUNDS[0]} and {BOUNDS[1]} must both be there, with as many columns as episodes/actions"
        return
    groups = file["episodes/group"][:]
    if groups.min() < 0 or groups.max() >= len(file["groups/parameters"]):
        wrong = int(np.flatnonzero((groups < 0) | (groups >= len(file["groups/parameters"])))[0])
        yield f"episode {wrong} is of group {groups[wrong]}, but there are {len(file['groups/parameters'])} groups"
        return
    nodes = np.diff(file["groups/node_pointer"][:])[groups]
    rows, action_rows = np.diff(file["episodes/observation_pointer"][:]), np.diff(file["episodes/action_pointer"][:])
    for e in np.flatnonzero((rows - action_rows != nodes) | (action_rows % nodes != 0)):
        yield (
            f"episode {e} of {nodes[e]} nodes has {rows[e]} rows of observations and {action_rows[e]} of actions; "
            "expected nodes x (T+1) and nodes x T"
        )


def content_problems(file: h5py.File, progress: Callable[[int], None] = lambda size: None) -> Iterator[str]:
    """Checksums, numbers that are not finite, edges to nowhere, parameters that are not JSON: reads everything."""
    for name in (*ROWS, *OPTIONAL_ROWS, *TABLES):
        if name not in file:
            continue
        array, kept = file[name], file[name].attrs.get(CHECKSUM)
        found = 0
        step = max(1, BUFFER_BYTES // max(1, array.dtype.itemsize * int(np.prod(array.shape[1:]))))
        for start in range(0, len(array), step):
            piece = array[start : start + step]
            progress(piece.nbytes)
            found = zlib.crc32(as_bytes(piece), found) if array.dtype != object else checksum(array[:])
            if name not in BOUNDS and np.issubdtype(piece.dtype, np.floating) and not np.isfinite(piece).all():
                row, column = np.argwhere(~np.isfinite(piece))[0]
                yield _nowhere(file, name, start + int(row), int(column), float(piece[row, column]))
                break
        else:
            if kept is not None and int(kept) != found:
                yield f"the checksum of {name} does not fit its content: the file was changed or damaged after writing"
    nodes = np.diff(file["groups/node_pointer"][:])
    edges, pointer = file["groups/edges"][:], file["groups/edge_pointer"][:]
    limit = np.repeat(nodes, np.diff(pointer))
    for row in np.flatnonzero((edges < 0).any(axis=1) | (edges.max(axis=1) >= limit))[:10]:
        group = int(np.searchsorted(pointer, row, side="right")) - 1
        yield (
            f"groups/edges row {row} joins {edges[row, 0]} to {edges[row, 1]}, but group {group} has nodes 0 to "
            f"{nodes[group] - 1}"
        )
    if BOUNDS[0] in file:
        low, high = (file[name][:] for name in BOUNDS)
        for row in np.flatnonzero(~(low <= high).all(axis=1))[:10]:
            yield f"{BOUNDS[0]} row {row} is {low[row].tolist()}, above {BOUNDS[1]}, which is {high[row].tolist()}"
    for group, text in enumerate(file["groups/parameters"][:]):
        try:
            json.loads(text)
        except ValueError:
            yield f"groups/parameters of group {group} is not JSON"


def _nowhere(file: h5py.File, name: str, row: int, column: int, value: float) -> str:
    """Name the place of a number that is not finite."""
    place = f"row {row}, column {column}"
    if name.startswith("episodes/"):
        pointer_name = "observation_pointer" if name == "episodes/observations" else "action_pointer"
        pointer = file[f"episodes/{pointer_name}"][:]
        episode = int(np.searchsorted(pointer, row, side="right")) - 1
        group = file["episodes/group"][episode]
        nodes = int(np.diff(file["groups/node_pointer"][:])[group])
        step, node = divmod(row - int(pointer[episode]), nodes)
        place = f"episode {episode}, step {step}, node {node}, coordinate {column} (row {row})"
    return f"{name} holds {value} at {place}; expected finite numbers"


def checksum(values: Array) -> int:
    """CRC-32 of an array as it is stored."""
    if values.dtype == object:
        return zlib.crc32("".join(v.decode() if isinstance(v, bytes) else str(v) for v in values).encode())
    return zlib.crc32(as_bytes(values))


def as_bytes(values: Array) -> memoryview | bytes:
    """An array as its checksum sees it: C order, little endian."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).tobytes()
