"""Data sets on disk: HDF5 with flat arrays, JSON metadata, and a checksum of every array.

Episodes of any length and size lie in rows, found by pointers. Episode e's observations are the rows
`observation_pointer[e]` to `[e+1]` of `observations`, ordered by step and then by node; actions and exogenous inputs
likewise with `action_pointer`. Group g (one physical system) has the graph whose nodes are the rows `node_pointer[g]`
to `[g+1]` and whose edges are `edge_pointer[g]` to `[g+1]`; nodes are numbered from 0 within the group.

A file is written to a temporary name beside its own and renamed when complete, so a reader never sees half of it; what
is read passes `gce.trajectory.reading`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gce.errors import InputError
from gce.files import as_bytes, checksum, written
from gce.graphs.graph import Graph
from gce.trajectory.episode import Episode, Limits, check_arrays

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
HYPEREDGES = "groups/hyperedges"
OPTIONAL_ROWS = {
    HYPEREDGES: "one row a node of a hyperedge: group, hyperedge, node, type",
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

OF_NODES, OF_EDGES = ("node_type", "node_attributes", "tied"), ("edge_type", "edge_attributes")
"""Arrays of a graph, beside its edges."""
BOUNDS = ("groups/action_low", "groups/action_high")
NO_SEED = -1
BUFFER_BYTES = 1 << 22
CHECKSUM = "crc32"
"""Attribute of every array: zlib's CRC-32 of its bytes in C order, little endian (of the joined UTF-8 for text)."""
METADATA_CHECKSUM = "metadata_crc32"
CHUNK_BYTES = 1 << 17
SLACK_BYTES = 1 << 20
"""Room kept for HDF5's own books beside the rows."""

LIBRARY = ("v110", "v110")
"""HDF5's layout from 1.10 on: its own books carry checksums. Texts of one length need no other, old books."""

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
        rows = {"edges": np.ascontiguousarray(graph.edge_index.T), **vars(graph)}
        for name in ("node_type", "node_attributes", "edges", *OF_EDGES, "tied"):
            self._append(f"groups/{name}", rows[name])
        if graph.hyperedges is not None:
            of_group = np.full_like(graph.hyperedges[:1], len(self._graphs))
            self._append(HYPEREDGES, np.concatenate([of_group, graph.hyperedges]).T)
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

    def add_all(self, episodes: Iterable[Episode], groups: Sequence[int] | None) -> None:
        """Episodes and the systems they are of, by number; None: each is of its own."""
        numbers: dict[int, int] = {}
        for k, episode in enumerate(episodes):
            if groups is not None and k >= len(groups):
                raise InputError(
                    f"there are more episodes than the {len(groups)} entries of groups; give one an episode"
                )
            group = k if groups is None else groups[k]
            if group not in numbers:
                numbers[group] = self.add_group(episode.graph, episode.parameters, episode.limits)
            self.add_episode(numbers[group], episode.observations, episode.actions, episode.exogenous, episode.seed)

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


class Writer(Flattener):
    """Writes a data set file episode by episode, in constant memory; nothing is at `path` before `finish`.

    metadata: JSON values kept with the file: world, dt, seed, names of coordinates and whatever else explains it.
    dtype: how observations, actions and exogenous inputs are stored.
    """

    def __init__(self, path: Path | str, metadata: dict[str, Any], dtype: Any = np.float32) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise InputError(f"{self.path.parent} is not a folder; make it first or give another place for the file")
        self._place = ExitStack()
        self._temporary = self._place.enter_context(written(self.path))
        try:
            self._file = h5py.File(self._temporary, "w", libver=LIBRARY)
        except OSError as error:
            self._leave()
            raise InputError(f"cannot write {self.path}: {_reason(error)}; give another place") from None
        super().__init__(self._keep)
        self._dtype, self._bytes = np.dtype(dtype), 0
        self._waiting: dict[str, list[np.ndarray]] = {}
        self._checksums: dict[str, int] = {}
        self._file.attrs["format_version"] = VERSION
        text = json.dumps(metadata, sort_keys=True)
        for name, value in (("format", FORMAT), ("metadata", text)):
            self._file.attrs.create(name, np.bytes_(value))
        self._file.attrs[METADATA_CHECKSUM] = zlib.crc32(text.encode())

    def finish(self) -> None:
        """Write what is left, and give the file its name."""
        tables = self.tables()
        self._flush(also=sum(len(repr(v.tolist())) + 4096 for v in tables.values()))
        for name, values in tables.items():
            stored = values
            if values.dtype == object and len(values) * max(map(len, values)) < 4 * sum(map(len, values)) + SLACK_BYTES:
                stored = values.astype(bytes)
            array = self._file.create_dataset(
                name, data=stored, dtype=h5py.string_dtype() if stored.dtype == object else stored.dtype
            )
            array.attrs[CHECKSUM] = checksum(values)
        self._file.close()
        self._place.close()

    def abandon(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(Exception):  # on a full disk even closing fails; the file goes all the same
            self._file.close()
        self._leave()

    def _leave(self) -> None:
        self._place.__exit__(InputError, InputError("left"), None)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                self.finish()
                return
        except BaseException as failure:
            error = failure
        self.abandon()
        if isinstance(error, OSError | RuntimeError):
            raise InputError(f"cannot write {self.path}: {_reason(error)}; nothing was kept") from None
        raise error

    # ---- rows ----

    def _keep(self, name: str, rows: np.ndarray) -> None:
        """Rows wait until there are enough of them to be appended in large pieces."""
        floating = np.issubdtype(rows.dtype, np.floating)
        rows = rows.astype(self._dtype if name.startswith("episodes/") else np.float64 if floating else np.int64)
        self._checksums[name] = zlib.crc32(as_bytes(rows), self._checksums.get(name, 0))
        self._waiting.setdefault(name, []).append(rows)
        self._bytes += rows.nbytes
        if self._bytes > BUFFER_BYTES:
            self._flush()

    def _flush(self, also: int = 0) -> None:
        """Write what waits, having made sure that there is room for it and for `also` more bytes."""
        self._reserve(self._bytes + also)
        for name, pieces in self._waiting.items():
            if not pieces:
                continue
            rows = np.concatenate(pieces)
            if name not in self._file:
                tail = rows.shape[1:]
                row_bytes = max(1, rows.itemsize * int(np.prod(tail)))
                self._file.create_dataset(
                    name,
                    shape=(0, *tail),
                    maxshape=(None, *(n or None for n in tail)),  # HDF5 wants room for a chunk, even with no columns
                    dtype=rows.dtype,
                    chunks=(max(1, CHUNK_BYTES // row_bytes), *(max(1, n) for n in tail)),
                )
            array = self._file[name]
            array.resize(len(array) + len(rows), axis=0)
            if rows.size:
                array[-len(rows) :] = rows
            array.attrs[CHECKSUM] = self._checksums[name]
            pieces.clear()
        self._bytes = 0

    def _reserve(self, size: int) -> None:
        """Fail here, cleanly, where the disk is full: HDF5 itself can neither go on nor close a file it cannot write.

        What was reserved and not used is cut off when the file is closed.
        """
        if not hasattr(os, "posix_fallocate"):
            return
        path = self._file.filename
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), os.path.getsize(path), size + SLACK_BYTES)


def _reason(error: BaseException) -> str:
    """The system's own words, where h5py hides them in a long message."""
    code = getattr(error, "errno", None)
    if code is None:
        for known in (errno.ENOSPC, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EDQUOT):
            if os.strerror(known).lower() in str(error).lower():
                code = known
    return os.strerror(code) if code else str(error).split("\n")[0]
