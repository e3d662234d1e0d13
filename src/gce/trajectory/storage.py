"""Data sets on disk: HDF5 with the flat arrays of `layout`, JSON metadata, and a checksum of every array.

A file is written to a temporary name beside its own and renamed when complete, so a reader never sees half of it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from gce.errors import InputError
from gce.trajectory.layout import FORMAT, OPTIONAL_ROWS, ROWS, TABLES, VERSION, Flattener

CHUNK_BYTES = 1 << 17
BUFFER_BYTES = 1 << 22
SLACK_BYTES = 1 << 20
"""Room kept for HDF5's own books beside the rows."""
CHECKSUM = "crc32"
"""Attribute of every array: zlib's CRC-32 of its bytes in C order, little endian (of the joined UTF-8 for text)."""


class Writer(Flattener):
    """Writes a data set file episode by episode, in constant memory; nothing is at `path` before `finish`.

    metadata: JSON values kept with the file: world, dt, seed, names of coordinates and whatever else explains it.
    dtype: how observations, actions and exogenous inputs are stored.
    """

    def __init__(self, path: Path | str, metadata: dict[str, Any], dtype: Any = np.float32) -> None:
        self.path = Path(path)
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        if not self.path.parent.is_dir():
            raise InputError(f"{self.path.parent} is not a folder; make it first or give another place for the file")
        try:
            self._file = h5py.File(self._temporary, "w")
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {_reason(error)}") from None
        self._rows = _FileRows(self._file, np.dtype(dtype))
        super().__init__(self._rows.append)
        self._file.attrs["format"] = FORMAT
        self._file.attrs["format_version"] = VERSION
        self._file.attrs["metadata"] = json.dumps(metadata, sort_keys=True)

    def finish(self) -> None:
        """Write what is left, and give the file its name."""
        tables = self.tables()
        self._rows.flush(also=sum(len(repr(v.tolist())) + 4096 for v in tables.values()))
        for name, values in tables.items():
            text = values.dtype == object
            array = self._file.create_dataset(name, data=values, dtype=h5py.string_dtype() if text else values.dtype)
            array.attrs[CHECKSUM] = checksum(values)
        self._file.close()
        os.replace(self._temporary, self.path)

    def abandon(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(Exception):  # on a full disk even closing fails; the file goes all the same
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        except BaseException as failure:
            kind, error = type(failure), failure
            raise
        finally:
            if kind is not None:
                self.abandon()
                if isinstance(error, OSError | RuntimeError) and not isinstance(error, InputError):
                    raise InputError(f"cannot write {self.path}: {_reason(error)}; nothing was kept") from None


class _FileRows:
    """Collects rows and appends them to HDF5 arrays in large pieces."""

    def __init__(self, file: h5py.File, dtype: np.dtype[Any]) -> None:
        self._file, self._dtype = file, dtype
        self._waiting: dict[str, list[np.ndarray]] = {}
        self._bytes = 0
        self._checksums: dict[str, int] = {}

    def append(self, name: str, rows: np.ndarray) -> None:
        floating = np.issubdtype(rows.dtype, np.floating)
        rows = rows.astype(self._dtype if name.startswith("episodes/") else np.float64 if floating else np.int64)
        self._checksums[name] = zlib.crc32(_bytes(rows), self._checksums.get(name, 0))
        self._waiting.setdefault(name, []).append(rows)
        self._bytes += rows.nbytes
        if self._bytes > BUFFER_BYTES:
            self.flush()

    def flush(self, also: int = 0) -> None:
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


def open_file(path: Path | str) -> h5py.File:
    """Open a data set file for reading, refusing anything else with a sentence."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file; `gce data --help` lists the ways to make one")
    try:
        file = h5py.File(path, "r")
    except OSError:
        kind = "is truncated or damaged" if _opens_like_hdf5(path) else "is not an HDF5 file"
        raise InputError(f"{path} {kind}, expected a {FORMAT} file; record or import it again") from None
    problem = next(_structure_problems(file), None)
    if problem is not None:
        file.close()
        raise InputError(f"{path}: {problem}; `gce data check {path}` lists everything that is wrong")
    return file


def read_metadata(file: h5py.File) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(str(file.attrs["metadata"]))
    return metadata


def check_file(path: Path | str) -> list[str]:
    """Everything that is wrong with a data set file, as sentences; none for a good one."""
    try:
        file = open_file(path)
    except InputError as error:
        path = Path(path)
        if not path.is_file() or not h5py.is_hdf5(path):
            return [str(error)]
        try:
            with h5py.File(path, "r") as broken:
                return [f"{path}: {problem}" for problem in _structure_problems(broken)]
        except OSError:
            return [str(error)]
    with file:
        return [f"{path}: {problem}" for problem in _content_problems(file)]


def checksum(values: np.ndarray) -> int:
    """CRC-32 of an array as it is stored."""
    if values.dtype == object:
        return zlib.crc32("".join(v.decode() if isinstance(v, bytes) else str(v) for v in values).encode())
    return zlib.crc32(_bytes(values))


# ---- what can be wrong ----


def _structure_problems(file: h5py.File) -> Iterator[str]:
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
        "groups/node_pointer": ("groups/node_type", "groups/node_attributes", "groups/tied"),
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


def _content_problems(file: h5py.File) -> Iterator[str]:
    """Checksums, numbers that are not finite, edges to nowhere, parameters that are not JSON: reads everything."""
    for name in (*ROWS, *OPTIONAL_ROWS, *TABLES):
        if name not in file:
            continue
        array, kept = file[name], file[name].attrs.get(CHECKSUM)
        found = 0
        step = max(1, BUFFER_BYTES // max(1, array.dtype.itemsize * int(np.prod(array.shape[1:]))))
        for start in range(0, len(array), step):
            piece = array[start : start + step]
            found = zlib.crc32(_bytes(piece), found) if array.dtype != object else checksum(array[:])
            if np.issubdtype(piece.dtype, np.floating) and not np.isfinite(piece).all():
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


def _bytes(values: np.ndarray) -> memoryview | bytes:
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).tobytes()


def _opens_like_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def _reason(error: BaseException) -> str:
    """The system's own words, where h5py hides them in a long message."""
    code = getattr(error, "errno", None)
    if code is None:
        for known in (errno.ENOSPC, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EDQUOT):
            if os.strerror(known).lower() in str(error).lower():
                code = known
    return os.strerror(code) if code else str(error).split("\n")[0]
