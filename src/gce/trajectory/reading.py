"""Data set files read: the border that all of it passes.

A file reads itself alone: links, external storage, virtual data sets and unusual filters are refused on every component
of a path. Types, shapes and sizes are compared before anything is allocated, and an array's checksum is verified before
the first of its rows is given, piece by piece.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gce.errors import InputError, warn
from gce.files import as_bytes, border, check_cap, check_packed, checksum, is_checked, parsed_json
from gce.trajectory.storage import (
    BOUNDS,
    CHECKSUM,
    FORMAT,
    HYPEREDGES,
    METADATA_CHECKSUM,
    OPTIONAL_ROWS,
    ROWS,
    TABLES,
    VERSION,
)

Array = np.ndarray

NAMES = (*ROWS, *OPTIONAL_ROWS, *TABLES)
TEXTS = "groups/parameters"
FLAT = {"groups/node_type", "groups/edge_type"}
WHOLE = FLAT | {"groups/edges", "groups/tied", HYPEREDGES} | (TABLES.keys() - {TEXTS})
KINDS = {**dict.fromkeys(NAMES, "fiu"), **dict.fromkeys(WHOLE, "iu"), TEXTS: "OS"}
KINDS |= dict.fromkeys(("episodes/observations", "episodes/actions", "episodes/exogenous"), "f")
WORDS = {"fiu": "numbers", "iu": "whole numbers", "f": "floating-point numbers", "OS": "text"}
FILTERS = {1, 2, 3, 4, 5, 6, 32000}
"""HDF5's own, and that of h5py; others are found by loading a library."""
CHUNK, PIECE = 100_000_000, 1 << 19
SMALL = 50_000_000
"""Bytes of an array that is kept in memory once it was verified."""
SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TRIED: set[tuple[str, int, int, int]] = set()
EXPECTED = f"a whole {FORMAT} file"


class Stored:
    """An array of a file. Its checksum is verified before the first of its rows is given.

    A small one is then kept as it was verified, so that it is read once.
    """

    def __init__(self, array: h5py.Dataset, path: Path, check: bool) -> None:
        self.array, self.path, self._unverified = array, path, check and CHECKSUM in array.attrs
        self.dtype, self.shape, self.ndim = array.dtype, array.shape, array.ndim
        self._kept: Array | None = None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Array:
        with border(self.path, EXPECTED):
            if self._unverified:
                self._verify()
            if self._kept is not None:
                return np.array(self._kept[rows])
            if self.array.dtype.kind == "O":
                return np.concatenate([np.zeros(0, object), *texts(self.array)])[rows]
            return np.asarray(self.array[rows])

    def _verify(self) -> None:
        small = self.dtype.kind != "O" and self.dtype.itemsize * math.prod(self.shape) <= SMALL
        found, kept = 0, self.array[()] if small else None
        for piece in pieces(self.array) if kept is None else [kept]:
            found = zlib.crc32(as_bytes(piece), found)
        if found != self.array.attrs[CHECKSUM]:
            raise InputError(
                f"the checksum of {self.array.name.strip('/')} does not fit its content: the file was changed or "
                "damaged after writing; restore it, or add --unchecked where you know why"
            )
        self._unverified, self._kept = False, kept

    def close(self) -> None:
        if self.array:
            self.array.file.close()


def pieces(array: h5py.Dataset) -> Iterator[Array]:
    """All rows of an array, some at a time."""
    if array.dtype.kind == "O":
        yield from texts(array)
        return
    step = max(1, PIECE // max(1, array.dtype.itemsize * int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def texts(array: h5py.Dataset) -> Iterator[Array]:
    """Rows of text; together they are no longer than their file, however often it says one of them."""
    size, read = array.file.id.get_filesize(), 0
    step = int(max(1, min(1000, 100_000_000 // size)))
    for start in range(0, len(array), step):
        rows = array[start : start + step]
        read += sum(len(row) for row in rows)
        if read > size:
            raise ValueError(f"{array.name} holds more text than the file is long")
        yield rows


def open_file(path: Path | str) -> dict[str, Stored]:
    """The arrays of a data set file, unread; anything else is refused with a sentence."""
    path = Path(path)
    file = opened(path)
    try:
        with border(path, EXPECTED):
            problem = next(structure_problems(file), None)
            if problem is not None:
                raise InputError(f"{path}: {problem}; `gce data check {path}` lists everything that is wrong")
            found = {name: Stored(file[name], path, is_checked()) for name in NAMES if name in file}
            missing = [name for name in found if CHECKSUM not in file[name].attrs]
            if is_checked() and missing:
                warn(f"{path} has no checksum of {missing[0]}; whether it was changed cannot be seen")
            return found
    except BaseException:
        file.close()
        raise


def opened(path: Path) -> h5py.File:
    if not path.is_file():
        raise InputError(f"{path} is not a file; `gce data --help` lists the ways to make one")
    with path.open("rb") as begin:
        first = begin.read(9)
    if first[:8] != SIGNATURE or first[8:] < b"\2":
        _tried(path)
    try:
        file = h5py.File(path, "r")
        if _loose(file):
            _tried(path)
        return file
    except InputError:
        raise
    except Exception:
        with path.open("rb") as file:
            whole = file.read(8) == SIGNATURE
        kind = "is truncated or damaged" if whole else "is not an HDF5 file"
        raise InputError(f"{path} {kind}, expected a {FORMAT} file; record or import it again") from None


TRIAL = """
import resource, sys
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import h5py
seconds, most = int(sys.argv[2]), used() + 200_000
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9))
def read(name, item):
    dict(item.attrs)
    if isinstance(item, h5py.Dataset):
        item.chunks and item.id.get_num_chunks()
        item.dtype.kind == "O" and item.size < 10**6 and item[()]
try:
    with h5py.File(sys.argv[1], "r") as file:
        read("", file)
        file.visititems(read)
except Exception:
    pass
sys.exit(3 * (used() > most))
"""


def _loose(place: Any) -> bool:
    """Whether texts of a group or an array are in books without checksums."""
    texts = any(place.attrs.get_id(name).dtype.kind == "O" for name in place.attrs)
    return texts or (isinstance(place, h5py.Dataset) and place.dtype.kind == "O")


def _tried(path: Path) -> None:
    """HDF5 never ends with some damaged files, or grows: where its own books carry no checksums, another process of
    limited time and memory reads them first.
    """
    found = path.stat()
    key = (str(path.absolute()), found.st_ino, found.st_size, found.st_mtime_ns)
    if key in _TRIED or not sys.executable or sys.platform == "win32":
        return
    asked = [sys.executable, "-I", "-c", TRIAL, str(path), str(3 + found.st_size // 10**9)]
    ended = subprocess.run(asked, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, check=False)
    if ended.returncode < 0 or ended.returncode == 3:
        raise InputError(f"{path} is damaged: HDF5 crashes or never ends with it; record or import it again")
    _TRIED.add(key)


def read_metadata(file: h5py.File) -> dict[str, Any]:
    """The JSON object that a file says of itself; none where it was changed."""
    text = file.attrs["metadata"]
    if not isinstance(text, str | bytes):
        raise InputError("its attribute 'metadata' is not text")
    kept = file.attrs.get(METADATA_CHECKSUM)
    if is_checked() and kept is not None and kept != checksum(np.array([text], object)):
        raise InputError("the checksum of its metadata does not fit: the file was changed or damaged after writing")
    found = parsed_json(text)
    if not isinstance(found, dict):
        raise InputError("its attribute 'metadata' is not a JSON object")
    for name, value in found.items():
        if value is not None and name in METADATA and not METADATA[name](value):
            raise InputError(f"its metadata says {name} {str(value)[:40]!r}, which it cannot be; see docs/format.md")
    return found


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str | int) for name in value)


METADATA: dict[str, Callable[[Any], bool]] = {
    "world": lambda value: isinstance(value, str),
    "dt": lambda value: isinstance(value, int | float) and 0 < value < np.inf,
    "recording": lambda value: isinstance(value, dict) and isinstance(value.get("settings", {}), dict),
    "structure": lambda value: isinstance(value, dict),
    "shard": lambda value: isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value),
    **dict.fromkeys(("observation_names", "action_names", "exogenous_names"), _names),
}
"""What is read of the metadata, and whether a value of it can be."""


def structure_problems(file: h5py.File) -> Iterator[str]:
    """Wrong format, missing arrays, pointers that do not fit: found without reading the rows."""
    found = file.attrs.get("format")
    found = found.decode(errors="replace") if isinstance(found, bytes) else found
    if not isinstance(found, str) or found != FORMAT:
        yield f"its attribute 'format' is {found!r}, expected {FORMAT!r}; another program's file?"
        return
    version = file.attrs.get("format_version")
    if not np.isscalar(version) or version != VERSION:
        yield f"its format version is {version}, this program reads version {VERSION}"
        return
    try:
        read_metadata(file)
    except (InputError, KeyError) as error:
        yield str(error) if isinstance(error, InputError) else "its attribute 'metadata' is missing"
    except ValueError as error:
        yield f"its attribute 'metadata' is not a JSON object: {error}"
    problems = [problem for name in NAMES if (problem := _array_problem(file, name)) is not None]
    yield from problems
    if not problems:
        yield from _shape_problems(file)


def _array_problem(file: h5py.File, name: str) -> str | None:
    """What is wrong with one array, found without reading any of it."""
    place: Any = file
    for part in name.split("/"):
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if link is not None and not isinstance(link, h5py.HardLink):
            return f"the array {name} is a link to elsewhere; a data set file holds its arrays itself"
        place = None if link is None else place[part]
    if not isinstance(place, h5py.Dataset):
        return None if name in OPTIONAL_ROWS and place is None else f"the array {name} is missing"
    if place.is_virtual or place.external:
        return f"the array {name} is stored in another file; a data set file holds its arrays itself"
    if _loose(place):
        _tried(Path(file.filename))
    ndim = 1 if name in TABLES or name in FLAT else 2
    if place.shape is None or place.ndim != ndim:
        return f"the array {name} has {0 if place.shape is None else place.ndim} dimensions, expected {ndim}"
    if place.dtype.kind not in KINDS[name] or place.dtype.itemsize > 8 and name != TEXTS:
        return f"the array {name} holds {place.dtype} values, expected {WORDS[KINDS[name]]}"
    if name == TEXTS and place.dtype.kind == "O" and h5py.check_string_dtype(place.dtype) is None:
        return f"the array {name} holds {place.dtype} values, expected text"
    plan = place.id.get_create_plist()
    others = {plan.get_filter(k)[0] for k in range(plan.get_nfilters())} - FILTERS
    if others:
        return f"the array {name} is packed by filter {min(others)}, which is not HDF5's own"
    if not isinstance(place.attrs.get(CHECKSUM, 0), int | np.integer):
        return f"the checksum of {name} is not a whole number"
    declared, stored = place.size * place.dtype.itemsize, place.id.get_storage_size()
    check_packed(declared, stored, f"the array {name}")
    if place.chunks is not None:
        check_cap(int(np.prod(place.chunks, dtype=object)) * place.dtype.itemsize, CHUNK, f"bytes of a chunk of {name}")
    check_cap(int(np.prod(place.shape[1:], dtype=object)), 100_000, f"columns of the array {name}")
    return None


def _shape_problems(file: h5py.File) -> Iterator[str]:
    ends = {
        "episodes/observation_pointer": ("episodes/observations",),
        "episodes/action_pointer": ("episodes/actions", "episodes/exogenous"),
        "groups/node_pointer": ("groups/node_type", "groups/node_attributes", "groups/tied", *BOUNDS),
        "groups/edge_pointer": ("groups/edges", "groups/edge_type", "groups/edge_attributes"),
    }
    for pointer_name, arrays in ends.items():
        pointer = file[pointer_name][:].astype(np.int64)
        count = len(file["episodes/group"]) if pointer_name.startswith("episodes") else len(file["groups/parameters"])
        if len(pointer) != count + 1 or count == 0:
            what = pointer_name.split("/")[0]
            yield f"{pointer_name} has {len(pointer)} entries for {count} {what}, expected one more"
            return
        if pointer[0] != 0 or (pointer[1:] <= pointer[:-1]).any():
            yield f"{pointer_name} must start at 0 and grow with every entry"
            return
        for name in arrays:
            if name in file and len(file[name]) != pointer[-1]:
                yield f"{name} has {len(file[name])} rows, {pointer_name} ends at {pointer[-1]}"
                return
    if file["groups/edges"].shape[1] != 2:
        yield f"groups/edges has {file['groups/edges'].shape[1]} columns, expected 2: sender, receiver"
        return
    if HYPEREDGES in file:
        rows, count = file[HYPEREDGES], len(file["groups/parameters"])
        if rows.shape[1] != 4:
            yield f"{HYPEREDGES} has {rows.shape[1]} columns, expected 4: group, hyperedge, node, type"
            return
        of_group = rows[:, 0]
        if (np.diff(of_group) < 0).any() or (of_group < 0).any() or (of_group >= count).any():
            yield f"{HYPEREDGES} must be ordered by group, and there are {count} groups"
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
