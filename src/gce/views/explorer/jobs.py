"""Work that takes a while, done beside the server one piece at a time, and looked at while it goes on."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from gce.errors import InputError


class Stopped(Exception):
    """The job was asked to stop."""


class Job:
    """One piece of work. It tells how far it is, and adds items that are looked at before it is done."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.Lock()
        self._state, self._words = "working", "starting"
        self._share: float | None = None
        self._items: list[dict[str, Any]] = []
        self._result: Any = None
        self._begun = time.monotonic()
        self._stop = threading.Event()

    # ---- the work's side ----

    def tell(self, words: str, share: float | None) -> None:
        """What is being done, and the share of all that is done, if known; here a job that should stop does so."""
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._words, self._share = words, share

    def add(self, item: dict[str, Any]) -> None:
        with self._lock:
            self._items.append(item)

    def run(self, work: Callable[[Job], Any]) -> None:
        """Do the work; whatever goes wrong becomes a sentence."""
        state, result = "done", None
        try:
            result = work(self)
        except Stopped:
            state, result = "stopped", "stopped"
        except InputError as error:
            state, result = "failed", str(error)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            state = "failed"
            result = f"something went wrong inside ({type(error).__name__}: {error}); the terminal says more"
        with self._lock:
            self._state, self._result = state, result

    # ---- the looker's side ----

    def stop(self) -> None:
        self._stop.set()

    def look(self, since: int) -> dict[str, Any]:
        """All there is to know, with the items from number `since` on."""
        with self._lock:
            return {
                "job": self.number,
                "state": self._state,
                "words": self._words,
                "share": self._share,
                "seconds": round(time.monotonic() - self._begun, 1),
                "items": self._items[since:],
                "result": self._result,
            }

    @property
    def working(self) -> bool:
        return self._state == "working"


class Bench:
    """Where jobs are done, one at a time, each in a thread of its own; the last one can be looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Job | None = None

    def start(self, work: Callable[[Job], Any]) -> Job:
        with self._lock:
            if self._last is not None and self._last.working:
                raise InputError("still at work on the last request; wait, or stop it first")
            job = self._last = Job(0 if self._last is None else self._last.number + 1)
        threading.Thread(target=job.run, args=(work,), daemon=True, name=f"job {job.number}").start()
        return job

    def job(self, number: int) -> Job:
        if self._last is None or self._last.number != number:
            raise InputError(f"there is no job {number}; the page was perhaps opened twice, load it again")
        return self._last
