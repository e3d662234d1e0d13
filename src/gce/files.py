"""Files: written whole or not at all, and read across one border.

Writing: beside its place under a lock, synced, renamed, its folder synced. A lock is one of the operating system
(flock), so a dead process holds none; who has it removes what killed runs left.

Reading: sizes are compared with caps before anything is allocated, and whatever goes wrong becomes one sentence. The
caps grow by the factor in the environment variable GCE_CAPS. Within `unchecked()` digests are not compared.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gce.errors import InputError

if TYPE_CHECKING:
    import numpy as np

try:
    import fcntl
except ImportError:  # no locks, then
    fcntl = None  # type: ignore[assignment]

CAPS = "GCE_CAPS"
TEXT_BYTES = 50_000_000
"""Of JSON, TOML and CSV."""
ARRAY_BYTES = 400_000_000
"""Of what an archive or a file of tensors holds."""
PACKED = 200
"""How many times larger a compressed array may be than it is stored, beyond `SMALL_BYTES`."""
SMALL_BYTES = 50_000_000
DEPTH, LARGEST_WHOLE = 60, 2**63
WAIT = 10.0
"""Seconds to wait for another process that writes the same file."""

# ---- the border ----


@contextmanager
def border(what: object, expected: str, advice: str = "restore the file or make it again") -> Iterator[None]:
    """What goes wrong within is the file's fault, and told so: what it is, what was expected, what to do."""
    try:
        yield
    except InputError as error:
        if str(what) in str(error):
            raise
        raise InputError(f"{what}: {error}") from None
    except NameError:  # our own
        raise
    except MemoryError:
        raise InputError(f"{what} needs more memory than there is; {advice}") from None
    except Exception as error:  # of any parser: what is read within is of others
        if isinstance(error, OSError) and error.strerror and error.filename is not None:
            raise InputError(f"cannot read {what}: {error.strerror}; expected {expected}") from None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{what} is not {expected}: {reason[:200]}; {advice}") from None


def check_cap(found: float, most: float, what: str) -> None:
    """Refuse what is larger than anyone needs as a rule, before it is allocated."""
    try:
        factor = float(os.environ.get(CAPS, "1"))
    except ValueError:
        raise InputError(f"{CAPS} is {os.environ[CAPS]!r}, expected a factor of the caps such as 10") from None
    if not found <= most * factor:
        raise InputError(
            f"{what}: {found:.6g}, more than {most * factor:.6g}; if that is meant, set {CAPS}={10 * factor:g} in the "
            "environment"
        )


def check_packed(declared: int, stored: int, what: str) -> None:
    """Refuse an array that says it is far larger than what is stored of it."""
    if declared > SMALL_BYTES and declared > PACKED * stored:
        check_cap(declared, max(SMALL_BYTES, PACKED * stored), f"bytes of {what}, {stored} stored")


def read_bytes(path: Path, most: float = TEXT_BYTES) -> bytes:
    """All of a plain file: neither a folder, nor a pipe that never ends."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file; name one")
    check_cap(path.stat().st_size, most, f"bytes of {path}")
    return path.read_bytes()


def read_json(path: Path, advice: str = "restore the file or make it again", constants: bool = False) -> Any:
    """constants: whether NaN and infinity are let in."""
    with border(path, "JSON", advice):
        return parsed_json(read_bytes(path).decode(), constants)


def parsed_json(text: str | bytes, constants: bool = False) -> Any:
    """JSON values, neither deep nor of endless digits; an error of any kind is a ValueError."""
    try:
        return _plain(json.loads(text, parse_constant=None if constants else _no_constant))
    except RecursionError:
        raise ValueError(f"nested deeper than {DEPTH}") from None


def read_toml(path: Path) -> dict[str, Any]:
    import tomllib

    with border(path, "a TOML file", "correct it; it holds lines such as action_bounds = [0, 1]"):
        found: dict[str, Any] = _plain(tomllib.loads(read_bytes(path).decode()))
        return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, expected finite numbers")


def _plain(value: Any) -> Any:
    level = [value]
    for _ in range(DEPTH):
        if any(isinstance(part, int) and abs(part) >= LARGEST_WHOLE for part in level):
            raise ValueError("it holds a whole number of more than 64 bits")
        level = [
            part
            for one in level
            if isinstance(one, dict | list)
            for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return value
    raise ValueError(f"nested deeper than {DEPTH}")


def finite(value: Any) -> Any:
    """A JSON value; JSON has no word for what is not finite: null."""
    if isinstance(value, dict):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def guarded(cell: str) -> str:
    """A word for a table, which a spreadsheet would otherwise run; `unguarded` takes the mark away again."""
    try:
        float(cell)
    except ValueError:
        return "'" + cell if cell.startswith(FORMULA) else cell
    return cell


def unguarded(cell: str) -> str:
    return cell[1:] if cell.startswith(tuple("'" + first for first in FORMULA)) else cell


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive; none of objects, and none larger than it is stored."""
    import zipfile

    with border(path, "an npz file of plain arrays", "write it with numpy.savez"):
        if not path.is_file():
            raise InputError(f"{path} is not a file; name npz files")
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            check_cap(len(members), 1000, "arrays of an archive")
            check_cap(sum(member.file_size for member in members), ARRAY_BYTES, "bytes of all arrays")
            found = {}
            for member in members:
                check_packed(member.file_size, member.compress_size, member.filename)
                with archive.open(member) as file:
                    found[member.filename.removesuffix(".npy")] = _array(file, member.file_size)
            return found


def read_npy(path: Path) -> np.ndarray:
    with border(path, "an array (.npy)", "write it with numpy.save"):
        content = read_bytes(path, ARRAY_BYTES)
        return _array(io.BytesIO(content), len(content))


def _array(file: Any, size: int) -> np.ndarray:
    import numpy as np
    from numpy.lib import format as layout

    version = layout.read_magic(file)
    header = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}
    if version not in header:
        raise ValueError(f"an array of format version {version}")
    shape, fortran, dtype = header[version](file)
    if dtype.kind not in "biufcSU" or any(not 0 <= n < LARGEST_WHOLE for n in shape):
        raise ValueError(f"an array of {dtype} and shape {shape}")
    left = size - file.tell()
    if dtype.itemsize * math.prod(shape) != left:
        raise ValueError(f"an array of shape {shape} and {dtype} in {left} bytes")
    content = file.read()
    if len(content) != left:
        raise ValueError(f"{len(content)} of {left} bytes")
    values = np.frombuffer(content, dtype) if dtype.itemsize else np.zeros(math.prod(shape), dtype)
    return values.reshape(shape, order="F" if fortran else "C").copy()


# ---- digests ----

_CHECKED: ContextVar[bool] = ContextVar("checked", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Within, files are used though their digests say that they were changed."""
    token = _CHECKED.set(False)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def is_checked() -> bool:
    return _CHECKED.get()


def sha256(content: bytes | memoryview | dict[str, Any]) -> str:
    """Of bytes, or of JSON values whatever their order."""
    if isinstance(content, dict):
        content = json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def renamed_digest(text: dict[str, Any], name: str) -> bool:
    """Whether a digest is there, but not under its name: a changed byte of a key must not make a file pass as old."""
    digests = (value.get("tensors") if isinstance(value, dict) else value for key, value in text.items() if key != name)
    return name not in text and any(
        isinstance(d, str) and len(d) == 64 and not d.strip("0123456789abcdef") for d in digests
    )


# ---- writing ----

_HELD: set[str] = set()


@contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Within, no other process writes `path`; what killed ones left of it is gone. Refused where one does."""
    key = os.path.abspath(path)
    if fcntl is None or key in _HELD:
        yield
        return
    lock, until, opened = path.with_name(f".{path.name}.lock"), time.monotonic() + wait, None
    try:
        while (opened := _take(lock)) is None:
            if time.monotonic() >= until:
                raise InputError(f"another process writes {path}; wait until it has ended, or give another place")
            time.sleep(0.02)
        _HELD.add(key)
        for stray in path.parent.glob(f".{_escaped(path.name)}.*.tmp"):
            shutil.rmtree(stray, ignore_errors=True) if stray.is_dir() else stray.unlink(missing_ok=True)
        yield
    finally:
        if opened is not None:
            _HELD.discard(key)
            lock.unlink(missing_ok=True)
            os.close(opened)


def _take(lock: Path) -> int | None:
    """A lock's file, open; None where another process holds it."""
    opened = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            if os.fstat(opened).st_ino == os.stat(lock).st_ino:  # not one that its holder has just removed
                return opened
    except BlockingIOError:
        pass
    except OSError:  # a file system without locks
        return opened
    os.close(opened)
    return None


def _escaped(name: str) -> str:
    import glob

    return glob.escape(name)


@contextmanager
def written(path: Path, advice: str = "give another place") -> Iterator[Path]:
    """A place to write a file to; it gets to `path` when it is complete, and is gone where something fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writable(path, advice), locked(path, WAIT):
        try:
            yield temporary
            synced(temporary)
            os.replace(temporary, path)
            synced(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def written_together(folder: Path, advice: str = "give another folder") -> Iterator[Path]:
    """A folder to write files to; they get to `folder` when all are complete, and none does where one fails."""
    made, temporary = not folder.exists(), folder / f".gce.{os.getpid()}.tmp"
    with writable(folder, advice):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / "gce", WAIT):
                try:
                    temporary.mkdir()
                    yield temporary
                    files = sorted(temporary.iterdir())
                    for file in files:
                        synced(file)
                    for file in files:
                        os.replace(file, folder / file.name)
                    synced(folder)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
        finally:
            if made and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def write_text(path: Path, text: str, advice: str = "give another place") -> None:
    with writable(path, advice):
        path.parent.mkdir(parents=True, exist_ok=True)
    with written(path, advice) as temporary:
        temporary.write_text(text, encoding="utf-8")


def synced(path: Path) -> None:
    """On the disk, and not only on its way there; where the system can do that."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError:
        if not path.is_dir():  # some file systems cannot
            raise
    finally:
        os.close(opened)


@contextmanager
def writable(path: Path, advice: str = "give another place") -> Iterator[None]:
    """Errors of the disk within are told as of writing `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; {advice}") from None


def checksum(values: Any) -> int:
    """CRC-32 of an array as it is stored."""
    return zlib.crc32(as_bytes(values))


def as_bytes(values: Any) -> memoryview | bytes:
    """An array as its checksum sees it: C order, little endian (of the joined UTF-8 for text)."""
    import numpy as np

    if values.dtype.kind in "OS":
        return "".join(v.decode() if isinstance(v, bytes) else str(v) for v in values).encode()
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data
