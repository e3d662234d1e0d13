"""What an experiment is: cells to compute, how to compute one, and what to make of the records."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gce.envs import world_named
from gce.errors import InputError
from gce.reproduce.cells import Cell
from gce.reproduce.methods import LATENT, SLOW, Method, method
from gce.reproduce.statistics import Record


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
    """Where things are. models: WORLD/NAME of each trained model; recorded: systems recorded by others."""

    models: Path
    results: Path
    recorded: Path | None = None
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
    try:
        found: list[Record] = json.loads(file.read_text())["runs"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file} is not a result of gce reproduce; remove it and run it again") from None
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
