"""Cells: the runs an experiment is made of, each kept on disk under a key of all that decides it.

    key = digest(experiment and its version, settings, seed, recordings it reads, conditions)

A cell that is there under its key is not computed again, so work goes on after a stop and may be divided over machines;
one of another version, another model or other data has another key. What fails is a result too: a sentence instead of
figures, counted where the table is made. Files are replaced at once, so a stop at any moment leaves whole cells only.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gce.errors import InputError


@dataclass(frozen=True)
class Cell:
    """settings: JSON values, what a table's row and column are of. version: of the experiment.

    conditions: JSON values that decide the run too (`versions.conditions`). files: recordings, whose bytes count.
    """

    experiment: str
    settings: dict[str, Any]
    seed: int
    version: int = 1
    conditions: dict[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    @cached_property
    def key(self) -> str:
        parts = {
            **self.conditions,
            "experiment": [self.experiment, self.version],
            "settings": self.settings,
            "seed": self.seed,
            "files": [digest(file) for file in self.files],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


@cache
def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Shard:
    """Part index of count, from 0."""

    index: int = 0
    count: int = 1

    @classmethod
    def of(cls, text: str) -> Shard:
        """From i/n, i from 1 to n."""
        index, _, count = text.partition("/")
        if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
            raise InputError(f"--shard is {text!r}, expected i/n with i from 1 to n, such as 1/4")
        return cls(int(index) - 1, int(count))

    def part(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        return cells[self.index :: self.count]


@dataclass(frozen=True)
class Store:
    """A folder of computed cells."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        return self.folder / cell.experiment / f"{cell.key}.json"

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """What is kept of a cell; nothing where the file is not whole."""
        try:
            found: dict[str, Any] = json.loads(self.path(cell).read_text())
        except (OSError, ValueError):
            return None
        return found

    def take(self, cells: Sequence[Cell], records: Sequence[dict[str, Any]]) -> None:
        """Keep what some records say of cells that are not here."""
        known = {record["key"]: record for record in records if "key" in record}
        for cell in cells:
            if cell.key in known and not self.path(cell).exists():
                self.keep(cell, known[cell.key])

    def keep(self, cell: Cell, record: dict[str, Any]) -> None:
        write_file(self.path(cell), json.dumps(record))


def write_file(path: Path, text: str, option: str = "--results") -> None:
    """At once: a stop leaves the old file or the new one. option: of the command, that names another place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; give another place with {option}") from None


Compute = Callable[[Cell], dict[str, Any]]


def compute(cell: Cell, run: Compute) -> dict[str, Any]:
    """The record of a cell: its figures, or the sentence it failed with."""
    clock = time.process_time()
    record: dict[str, Any] = {"settings": cell.settings, "seed": cell.seed, "key": cell.key}
    try:
        record["figures"] = run(cell)
    except (InputError, ArithmeticError, LookupError, RuntimeError, ValueError) as error:
        # numpy's and PyTorch's errors of singular or overflowing systems are among these.
        record["failure"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    record["cpu_seconds"] = round(time.process_time() - clock, 3)
    return record


@dataclass
class Queue:
    """What is missing of some cells, computed and kept one by one."""

    store: Store
    shard: Shard = field(default_factory=Shard)
    deadline: float = float("inf")
    """Of `time.monotonic`: no cell is begun after it."""

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in self.shard.part(cells) if self.store.find(cell) is None]

    def run(self, cells: Sequence[Cell], run: Compute, jobs: int, done: Callable[[int], None]) -> None:
        """In so many processes of one thread each, or here for one; cells begin in their order."""
        if jobs == 1 or not cells:
            for cell in cells:
                done(self._run_one(cell, run))
            return
        left = iter(cells)
        with ProcessPoolExecutor(
            jobs, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            begun = {pool.submit(self._run_one, cell, run) for cell in islice(left, jobs)}
            while begun:
                ended, begun = wait(begun, return_when=FIRST_COMPLETED)
                for future in ended:
                    done(future.result())
                begun |= {pool.submit(self._run_one, cell, run) for cell in islice(left, len(ended))}

    def _run_one(self, cell: Cell, run: Compute) -> int:
        """How many cells were computed."""
        if time.monotonic() > self.deadline:
            return 0
        self.store.keep(cell, compute(cell, run))
        return 1
