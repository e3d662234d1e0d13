"""What an experiment is: cells to compute, how to compute one, and what to make of the records.

Cells: the runs an experiment is made of, each kept on disk under a key of all that decides it.

    key = digest(experiment and its version, settings, seed, recordings it reads, conditions)

A cell that is there under its key is not computed again, so work goes on after a stop and may be divided over machines;
one of another version, another model or other data has another key. What fails is a result too: a sentence instead of
figures, counted where the table is made. Files are replaced at once, so a stop at any moment leaves whole cells only.
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, ClassVar

from gce.cluster.crew import crew
from gce.envs import world_named
from gce.errors import InputError
from gce.files import border, read_json, write_text
from gce.reproduce.methods import LATENT, SLOW, Method, method
from gce.reproduce.statistics import Record


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
class CellPart:
    """Part index of count, from 0."""

    index: int = 0
    count: int = 1

    @classmethod
    def of(cls, text: str) -> CellPart:
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
        if not self.path(cell).is_file():
            return None
        try:
            return whole_record(read_json(self.path(cell), constants=True), cell)
        except InputError:
            return None

    def take(self, cells: Sequence[Cell], records: Sequence[dict[str, Any]]) -> None:
        """Keep what some records say of cells that are not here."""
        known = {record["key"]: record for record in records if isinstance(record.get("key"), str)}
        for cell in cells:
            if whole_record(known.get(cell.key), cell) and not self.path(cell).exists():
                self.keep(cell, known[cell.key])

    def keep(self, cell: Cell, record: dict[str, Any]) -> None:
        write_file(self.path(cell), json.dumps(record))


def whole_record(record: Any, cell: Cell) -> dict[str, Any] | None:
    """A record that is of a cell: its key, settings and seed, and figures or why there are none."""
    if not isinstance(record, dict) or isinstance(record.get("figures"), dict) == isinstance(
        record.get("failure"), str
    ):
        return None
    same = {"key": cell.key, "settings": json.loads(json.dumps(cell.settings)), "seed": cell.seed}
    return record if all(record.get(name) == value for name, value in same.items()) else None


def write_file(path: Path, text: str, option: str = "--results") -> None:
    """At once: a stop leaves the old file or the new one. option: of the command, that names another place."""
    write_text(path, text, f"give another place with {option}")


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
    shard: CellPart = field(default_factory=CellPart)
    deadline: float = float("inf")
    """Of `time.monotonic`: no cell is begun after it."""

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in self.shard.part(cells) if self.store.find(cell) is None]

    def run(
        self, cells: Sequence[Cell], run: Compute, jobs: int, done: Callable[[int], None], on: str | None = None
    ) -> None:
        """Here for one job, or as `crew` says; cells begin in their order."""
        left = takewhile(lambda cell: time.monotonic() <= self.deadline, cells)
        if on is None and jobs == 1 or not cells:
            for cell in left:
                done(keep_one(self.store, cell, run))
            return
        with crew(jobs, on) as team:
            begun: set[Future[int]] = set()
            while True:
                some = islice(left, max(0, team.size() - len(begun)))
                begun |= {team.submit(keep_one, self.store, cell, run) for cell in some}
                if not begun:
                    return
                ended, begun = wait(begun, return_when=FIRST_COMPLETED)
                for future in ended:
                    done(future.result())


def keep_one(store: Store, cell: Cell, run: Compute) -> int:
    """How many cells were computed."""
    store.keep(cell, compute(cell, run))
    return 1


@dataclass(frozen=True)
class Preset:
    """How many runs a cell of a table has.

    costly: of CKO where a plan takes half a minute (its decoder is linearised at every step); latent: of VAE and PCC,
    whose plans need iLQR; slow, slow_boxes, slow_grid: of GraphODE, on Rope, on Soft and Swim (minutes), on the grid
    (many); tuning, slow_tuning: validation systems that weights are chosen on, and for GraphODE.
    """

    name: str
    runs: int
    costly: int
    latent: int
    slow: int
    slow_boxes: int
    grid: int
    slow_grid: int
    trajectories: int
    tuning: int
    slow_tuning: int

    def count(self, world: str, name: str) -> int:
        """Runs of a method in a world."""
        kind = "slow" if name in SLOW else "latent" if name in LATENT else "costly" if name == "cko" else "runs"
        count: int = getattr(self, world_named(world).recipe.counts.get(kind, kind))
        return count

    def tuned_on(self, name: str) -> int:
        return self.slow_tuning if name in SLOW else min(self.tuning, self.latent) if name in LATENT else self.tuning


QUICK = Preset(
    "quick", runs=4, costly=1, latent=1, slow=1, slow_boxes=0, grid=1, slow_grid=0, trajectories=2,
    tuning=2, slow_tuning=0,
)  # fmt: skip
EVENING = Preset(
    "evening", runs=48, costly=48, latent=20, slow=5, slow_boxes=5, grid=6, slow_grid=3, trajectories=20,
    tuning=6, slow_tuning=2,
)  # fmt: skip
PAPER = Preset(
    "paper", runs=200, costly=200, latent=20, slow=20, slow_boxes=20, grid=200, slow_grid=20, trajectories=20,
    tuning=8, slow_tuning=8,
)  # fmt: skip
PRESETS = {preset.name: preset for preset in (QUICK, EVENING, PAPER)}


@dataclass(frozen=True)
class Context:
    """Where things are.

    models: WORLD/NAME of each trained model; recorded: systems of our worlds recorded by others; data: recordings of
    systems of others (`foreign`), for which models are trained for so many CPU minutes each, of some methods alone.
    """

    models: Path
    results: Path
    recorded: Path | None = None
    data: Path | None = None
    train_minutes: float = 3.0
    methods: tuple[str, ...] = ()
    skipped: list[str] = field(default_factory=list)
    """Sentences: what is left out, and why."""

    def method(self, world: str, name: str) -> Method | None:
        """A method where its model is there; otherwise it is left out, and that is said."""
        found = method(self.models, world, name)
        if found.exists:
            return found
        self.leave_out(f"{found.label} has no trained model and is left out; python -m gce.reproduce.train makes one")
        return None

    def leave_out(self, sentence: str) -> None:
        if sentence not in self.skipped:
            self.skipped.append(sentence)

    def records(self, experiment: str) -> list[Record]:
        return records_in(self.results, experiment)


def records_in(results: Path, experiment: str) -> list[Record]:
    """What the results say of an experiment; nothing where it was not run."""
    file = results / f"{experiment}.json"
    if not file.is_file():
        return []
    with border(file, "a result of gce reproduce", "remove it and run it again"):
        found: list[Record] = read_json(file, constants=True)["runs"]
        if not all(isinstance(record, dict) and isinstance(record.get("settings"), dict) for record in found):
            raise ValueError("its runs are not what they should be")
        return found


class Experiment(ABC):
    """A table or a figure."""

    name: ClassVar[str]
    about: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised where the figures of its cells change though neither a world nor a method does."""

    @abstractmethod
    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        """By seed first, so that a stop leaves every row with nearly the same number of runs."""

    @abstractmethod
    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        """The figures of a cell, JSON values."""

    @abstractmethod
    def report(self, records: Sequence[Record], folder: Path) -> str:
        """Write figures to the folder and return the table as Markdown."""

    def columns(self, record: Record) -> dict[str, Any]:
        """The row of a record in the CSV file: numbers and words only."""
        flat = {**record["settings"], "seed": record["seed"], **record.get("figures", {})}
        kept = {name: value for name, value in flat.items() if not isinstance(value, list | dict)}
        return {**kept, "failure": record.get("failure", "")}
