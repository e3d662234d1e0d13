"""Data sets on disk: HDF5 with the flat arrays of `Flattener`, JSON metadata, and a checksum of every array.

A file is written to a temporary name beside its own and renamed when complete, so a reader never sees half of it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gce.errors import InputError
from gce.trajectory.problems import (
    BUFFER_BYTES,
    CHECKSUM,
    FORMAT,
    VERSION,
    Flattener,
    as_bytes,
    checksum,
    content_problems,
    structure_problems,
)

CHUNK_BYTES = 1 << 17
SLACK_BYTES = 1 << 20
"""Room kept for HDF5's own books beside the rows."""


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
            raise InputError(f"cannot write {self.path}: {_reason(error)}; give another place") from None
        super().__init__(self._keep)
        self._dtype, self._bytes = np.dtype(dtype), 0
        self._waiting: dict[str, list[np.ndarray]] = {}
        self._checksums: dict[str, int] = {}
        self._file.attrs["format"] = FORMAT
        self._file.attrs["format_version"] = VERSION
        self._file.attrs["metadata"] = json.dumps(metadata, sort_keys=True)

    def finish(self) -> None:
        """Write what is left, and give the file its name."""
        tables = self.tables()
        self._flush(also=sum(len(repr(v.tolist())) + 4096 for v in tables.values()))
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
    problem = next(structure_problems(file), None)
    if problem is not None:
        file.close()
        raise InputError(f"{path}: {problem}; `gce data check {path}` lists everything that is wrong")
    return file


def read_metadata(file: h5py.File) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(str(file.attrs["metadata"]))
    return metadata


def check_file(path: Path | str, progress: Callable[[int], None] = lambda size: None) -> list[str]:
    """Everything that is wrong with a data set file, as sentences; none for a good one. progress: bytes just read."""
    try:
        file = open_file(path)
    except InputError as error:
        with contextlib.suppress(OSError), h5py.File(path, "r") as broken:
            return [f"{path}: {problem}" for problem in structure_problems(broken)]
        return [str(error)]
    with file:
        return [f"{path}: {problem}" for problem in content_problems(file, progress)]


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
