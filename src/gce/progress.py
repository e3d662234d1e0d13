"""What every command shares: how far a long job is, and failures as sentences and status 2, never a traceback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, runtime_checkable

from gce.errors import InputError

LINE_SECONDS = 10.0


@contextmanager
def progress(description: str, total: int, unit: str = "episodes") -> Iterator[Callable[[int], None]]:
    """Gives a function to call with the number of units done since the last call; 0 shows that work goes on."""
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
        reached = counted(done)
        yield lambda turn, share: reached(int(100 * share))
        reached(100)


def counted(done: Callable[[int], None]) -> Callable[[int], None]:
    """For work that knows how much is done in all: tells `done` of what is new."""
    before = 0

    def reached(count: int) -> None:
        nonlocal before
        done(count - before)
        before = count

    return reached


class _Lines:
    """The time left follows from the units done since the first call, which may tell of what was there before."""

    def __init__(self, description: str, total: int, unit: str) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._done, self._last = 0, time.monotonic()
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int) -> None:
        self._done += done
        now = time.monotonic()
        if self._first is None and done:
            self._first = now, self._done
        ended = done > 0 and self._done >= self._total
        if now - self._last < LINE_SECONDS and not ended:
            return
        self._last = now
        told = f"{self._description}: {self._done}/{self._total} {self._unit}"
        print(f"{told}{self._left(now)}", file=sys.stderr, flush=True)

    def _left(self, now: float) -> str:
        if self._first is None or self._done <= self._first[1] or self._done >= self._total:
            return ""
        since, before = self._first
        seconds = (now - since) / (self._done - before) * (self._total - self._done)
        return f", {duration(seconds)} left"


def duration(seconds: float) -> str:
    """As a person says it: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@runtime_checkable
class Runs(Protocol):
    """A command: arguments as fields, and the work."""

    def run(self) -> object: ...


Command = TypeVar("Command", bound=Runs)


@contextmanager
def in_words(name: str, resumes: bool) -> Iterator[None]:
    """name: of the program; resumes: whether the command, given again, goes on where it was stopped."""
    try:
        yield
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        again = "goes on from here" if resumes else "begins anew"
        print(f"{name}: stopped; nothing half-written is left, and the same command {again}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(2)


def run_module(kind: Callable[..., Command], resumes: bool = True) -> object:
    """`python -m MODULE ...` for a module that holds one command."""
    import tyro

    command = tyro.cli(kind)
    with in_words("gce", resumes):
        return command.run()
