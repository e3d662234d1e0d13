"""What every command shares: how far a long job is, and failures as sentences and status 2, never a traceback."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from gce.errors import Doubt, InputError
from gce.names import PLUGINS, load_plugins

if TYPE_CHECKING:
    from concurrent.futures import Future

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
    """name: of the program; resumes: whether the command, given again, goes on where it was stopped.

    SIGTERM takes the way of Ctrl-C; warnings are told in a line each.
    """
    with _sigterm_as_interrupt(), warnings.catch_warnings():
        TOLD.clear()
        warnings.simplefilter("always", Doubt)
        warnings.showwarning = partial(_told, name)
        with _ended_in_words(name, resumes), _no_interrupt_lost():
            yield


@contextmanager
def _ended_in_words(name: str, resumes: bool) -> Iterator[None]:
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tells of it once more when it ends
        sys.exit(2)
    except MemoryError:
        print(f"{name}: there is not enough memory; work on less at once, or on a larger machine", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.strerror is None:
            raise
        print(f"{name}: {error.filename or 'a file'}: {error.strerror}; nothing half-written is left", file=sys.stderr)
        sys.exit(2)


TOLD: list[str] = []
"""The warnings of the present command, in order."""


def _told(name: str, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    if str(message) not in TOLD:
        print(f"{name}: warning: {message}", file=sys.stderr)
        TOLD.append(str(message))


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is not signal.SIG_DFL:
        yield  # somebody else decides what it means
        return
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _as_interrupt(number: int, frame: Any) -> None:
    """What Ctrl-C does here now; where that is ignored, or nobody's business, an interrupt."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


AGAIN = 0.02
"""Seconds after which an interrupt that was lost comes again."""


@contextmanager
def _no_interrupt_lost() -> Iterator[None]:
    """One that falls into a finaliser or a callback of a library, which Python would print and forget, comes again.

    A library may fail for want of what its callback should have done; that is the interrupt as well.
    """
    before, timers = sys.unraisablehook, list[threading.Timer]()

    def again(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        number = signal.SIGTERM if signal.getsignal(signal.SIGTERM) is _as_interrupt else signal.SIGINT
        timer = threading.Timer(AGAIN, _thread.interrupt_main, (number,))
        timer.daemon = True
        timer.start()
        timers.append(timer)

    if threading.current_thread() is threading.main_thread():
        sys.unraisablehook = again
    try:
        yield
    except Exception:
        if timers:
            raise KeyboardInterrupt from None
        raise
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()


# ---- processes beside this one ----


@contextmanager
def workers(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """So many processes of one thread each; gives what submits work to them.

    Signals are this process's affair: they reach no worker. An interrupt, or an error, ends all workers at once, and so
    does the end of this process, however it comes.
    """
    from concurrent.futures import ProcessPoolExecutor

    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin_worker, (tuple(PLUGINS),))

    def submit(*work: Any) -> Future[Any]:
        with held_back():
            return pool.submit(*work)

    try:
        yield submit
        pool.shutdown()
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        pool.shutdown(cancel_futures=True)
        raise


@contextmanager
def held_back() -> Iterator[None]:
    """Processes and threads that begin within get neither Ctrl-C nor SIGTERM."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(plugins: tuple[str, ...]) -> None:
    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="ends with its parent").start()
    os.environ["OMP_NUM_THREADS"] = "1"  # of PyTorch, where it is imported
    load_plugins(plugins)


def run_module(kind: Callable[..., Command], resumes: bool = True) -> object:
    """`python -m MODULE ...` for a module that holds one command."""
    import tyro

    command = tyro.cli(kind)
    with in_words("gce", resumes):
        return command.run()


def follower() -> str | None:
    """The rank of a process under torchrun that leaves writing and telling to rank 0."""
    rank = os.environ.get("RANK", "0") if "TORCHELASTIC_RUN_ID" in os.environ else "0"
    return None if rank == "0" else rank
