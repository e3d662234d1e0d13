"""Progress of long jobs on standard error: a bar with time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_SECONDS = 10.0


@contextmanager
def progress(description: str, total: int, unit: str = "episodes") -> Iterator[Callable[[int], None]]:
    """Gives a function to call with the number of units done since the last call."""
    if not sys.stderr.isatty():
        yield _Lines(description, total, unit)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def planning(description: str) -> Iterator[Callable[[int, float], None]]:
    """Progress of one plan in percent; gives what a `Controller` tells its turns to."""
    with progress(description, 100, "percent") as done:
        told = 0

        def tell(turn: int, share: float) -> None:
            nonlocal told
            done(int(100 * share) - told)
            told = int(100 * share)

        yield tell
        done(100 - told)


class _Lines:
    def __init__(self, description: str, total: int, unit: str) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._done = 0
        self._start = self._last = time.monotonic()

    def __call__(self, done: int) -> None:
        self._done += done
        now = time.monotonic()
        if now - self._last < LINE_SECONDS and self._done < self._total:
            return
        self._last = now
        left = (now - self._start) / max(self._done, 1) * (self._total - self._done)
        print(f"{self._description}: {self._done}/{self._total} {self._unit}, {left:.0f} s left", file=sys.stderr)
