"""Kernels that are compiled where numba is installed (the extra `fast`); numpy does the same without.

What was compiled is kept beside the source under a digest of all kernels' text, numba's and numpy's version, so that
code that was changed is compiled anew. A first compilation is said, and `gce warm` does it ahead.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gce.errors import warn

PIP = "pip install -e '.[fast]'"
KERNELS: list[Any] = []
_told: set[str] = set()


@cache
def available() -> bool:
    """Whether kernels may be used: numba is there, and GCE_FAST is not 0."""
    return os.environ.get("GCE_FAST", "1") != "0" and find_spec("numba") is not None


def kernel(function: Callable[..., Any]) -> Any:
    """The function, compiled when it is first called; as it is where numba is missing."""
    function = inspect.unwrap(function)  # checks of shapes, where tests put any
    if not available():
        return function
    import numba

    made = numba.njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True)(function)
    _keyed(made)
    KERNELS.append(made)
    return made


@cache
def _digest() -> str:
    import numba

    files = sorted(Path(__file__).parent.glob("*compiled.py"))
    text = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(text + f"{numba.__version__} {np.__version__}".encode()).hexdigest()


def _keyed(made: Any) -> None:
    """Numba knows a file by its date alone; without its inner parts as they are known here nothing is kept."""
    from numba.core.caching import IndexDataCacheFile, NullCache

    try:
        kept = made._cache
        kept._cache_file = IndexDataCacheFile(kept._cache_path, kept._impl.filename_base, _digest())
    except AttributeError:
        made._cache = NullCache()


def compiled_before(made: Any) -> bool:
    """Whether a kernel need not be compiled any more."""
    try:
        return bool(made.signatures or made._cache._cache_file._load_index())
    except (AttributeError, OSError):
        return False


def say_compiling(*made: Any) -> None:
    """That a first use takes a while, once."""
    if not all(compiled_before(one) for one in made) and "compiling" not in _told:
        _told.add("compiling")
        print("gce: compiling kernels, once; `gce warm` does it ahead", file=sys.stderr, flush=True)


def say_missing() -> None:
    """Where speed is asked for without what it needs, once."""
    if find_spec("numba") is None and "missing" not in _told:
        _told.add("missing")
        warn(f"numba is not installed, so plans take two to four times as long; {PIP} installs it")
