"""What `gce control FILE` goes through: files of the package, crossings between numpy and torch, encodings of episodes.

    python -m bench.counts [--where]

prints, for Rope and Soft, how many of the package's files execute a line of their own functions, how many
calls turn numpy arrays into tensors or back, and how often each episode is encoded for adapting. --where says where.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SOURCE = str(Path(__file__).parents[1] / "src" / "gce") + os.sep
FUNCTION = 0x1
"""CO_OPTIMIZED: the code of a function, not of a module or class."""
ADAPTED = 8
"""Episodes adapted to, of nine recorded."""
WORLDS = {"rope": (7, 100), "soft": (7, 100)}
"""Objects and steps of the recorded system."""


@contextlib.contextmanager
def files_executed() -> Iterator[set[str]]:
    """The package's files of which a function is called within."""
    found: set[str] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code: CodeType = frame.f_code
        if event == "call" and code.co_flags & FUNCTION and code.co_filename.startswith(SOURCE):
            inside = (
                code.co_name.startswith("<") and frame.f_back is not None and frame.f_back.f_code.co_name == "<module>"
            )
            if not inside:
                found.add(code.co_filename.removeprefix(SOURCE))

    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)


@contextlib.contextmanager
def crossings() -> Iterator[Counter[str]]:
    """Calls that turn arrays into tensors or tensors into arrays, by where they are called from."""
    import numpy as np
    import torch

    found: Counter[str] = Counter()

    def counted(function: Callable[..., Any], counts: Callable[[Any], bool]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            if counts(first):
                frame = sys._getframe(1)
                found[f"{frame.f_code.co_filename.removeprefix(SOURCE)}:{frame.f_lineno}"] += 1
            return function(first, *rest, **named)

        return call

    def is_array(value: Any) -> bool:
        return isinstance(value, np.ndarray | np.generic)

    patched = [
        (torch, "as_tensor", is_array),
        (torch, "tensor", is_array),
        (torch, "from_numpy", is_array),
        (torch.Tensor, "numpy", lambda value: True),
        (torch.Tensor, "__array__", lambda value: True),
    ]
    before = [getattr(owner, name) for owner, name, _ in patched]
    for (owner, name, counts), function in zip(patched, before, strict=True):
        setattr(owner, name, counted(function, counts))
    try:
        yield found
    finally:
        for (owner, name, _), function in zip(patched, before, strict=True):
            setattr(owner, name, function)


@contextlib.contextmanager
def encodings() -> Iterator[list[int]]:
    """One entry for each time an episode is encoded for adapting."""
    from gce.system import evidence

    before, calls = evidence._seen, []

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return before(*arguments)

    evidence._seen = counted
    try:
        yield calls
    finally:
        evidence._seen = before


def run(world: str, objects: int, steps: int, folder: Path) -> dict[str, Any]:
    file = folder / f"{world}.h5"
    command = ["data", world, "--objects", str(objects), "--episodes", "9"]
    _quietly([*command, "--group-size", "9", "--steps", str(steps), "--out", str(file)])
    with files_executed() as files:
        _quietly(["control", str(file), "--json"])
    with crossings() as crossed, encodings() as encoded:
        _quietly(["control", str(file), "--json"])
    return {
        "files": len(files),
        "crossings": sum(crossed.values()),
        "encodings_of_an_episode": len(encoded) / ADAPTED,
        "names": sorted(files),
        "where": crossed.most_common(40),
    }


def _quietly(arguments: list[str]) -> None:
    from gce.cli import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(arguments)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for name, sizes in WORLDS.items():
            counts = run(name, *sizes, Path(place))
            print(f"{name}: {json.dumps({key: counts[key] for key in counts if key not in ('names', 'where')})}")
            if "--where" in sys.argv:
                print(json.dumps({key: counts[key] for key in ("names", "where")}, indent=1))
