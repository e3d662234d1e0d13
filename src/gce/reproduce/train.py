"""Train the models of the tables, one after the other, each for its recipe's CPU time of one core.

    python -m gce.reproduce.train --data DATA

How many iterations fit into the time is measured first, so that the step size and the horizon follow their whole
schedule; what was found is kept, and a training that was stopped goes on. A model that is there is not trained again.
DATA holds WORLD.h5, recorded where it is missing. CPU time, because a busy machine gives a process less of a second.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gce.errors import InputError
from gce.files import read_json, write_text
from gce.progress import counted, progress, run_module
from gce.reproduce.recipes import OURS, RECIPES, Recipe, recipe_named

VALIDATION_SHARE = 0.25
"""Of the time, at most, that goes into choosing the best model."""
VALIDATIONS = 4
TRIALS = 3
"""Iterations timed at each horizon."""


@dataclass
class Train:
    """Train the tables' models that are not there yet."""

    data: Path
    """The folder with WORLD.h5 of each world; recorded where missing."""
    out: Path = Path("results/models")
    """The folder of the models."""
    work: Path = Path("results/.training")
    """The folder of unfinished trainings."""
    minutes: float | None = None
    """CPU time of one core for each model, in place of its recipe's (15 for most)."""
    only: tuple[str, ...] = ()
    """Only these models, as WORLD/NAME."""

    def run(self) -> None:
        import torch

        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise InputError(f"--minutes is {self.minutes}, expected more than 0")
        torch.set_num_threads(1)
        for recipe in [recipe_named(name) for name in self.only] or RECIPES:
            if any((self.out / recipe.folder).glob("*.safetensors")):
                continue
            began = time.monotonic()
            found = self._make(recipe)
            told = {**found, "wall_seconds": round(time.monotonic() - began)}
            print(f"{recipe.folder}: {json.dumps(told)}", file=sys.stderr, flush=True)

    def _make(self, recipe: Recipe) -> dict[str, Any]:
        """Train in the work folder; the finished model is moved to its place."""
        from gce.trajectory import Dataset

        work, minutes = self.work / recipe.folder, self.minutes or recipe.minutes
        work.mkdir(parents=True, exist_ok=True)
        with Dataset.open(_recorded(recipe.world, self.data)) as data:
            plan: dict[str, Any] = {"iterations": 0}
            if _horizons(recipe):
                plan = _kept(work / "plan.json", lambda: _measure(recipe, data, 60 * minutes))
            start, before = self._start(recipe)
            clock = _Clock(work / "cpu.json", before.get("cpu_seconds", 0.0))
            about = {
                "recipe": recipe.folder,
                "cpu_minutes_asked": minutes + before.get("cpu_minutes_asked", 0.0),
                "iterations": plan["iterations"] + before.get("iterations", 0),
                "data": data.metadata.get("recording", {}),
            }
            finished = work / "model"
            _fit(recipe, data, plan, work, clock, finished, about, start)
        place = self.out / recipe.folder
        place.mkdir(parents=True, exist_ok=True)
        for file in finished.iterdir():
            os.replace(file, place / file.name)
        shutil.rmtree(work)
        return {**about, "cpu_seconds": round(clock.seconds)}

    def _start(self, recipe: Recipe) -> tuple[Any, dict[str, Any]]:
        """The model that a training begins from, and what is known of it; None and nothing where there is none."""
        if recipe.start is None:
            return None, {}
        from gce.baselines import load
        from gce.baselines.folder import about

        folder = self.out / recipe.world / recipe.start
        return load(folder), about(folder)


class _Clock:
    """CPU seconds of a training over all its stretches. before: those of the model that it began from."""

    def __init__(self, file: Path, before: float) -> None:
        self._file = file
        self._before: float = read_json(file)["seconds"] if file.exists() else before
        self._start = time.process_time()

    @property
    def seconds(self) -> float:
        return self._before + time.process_time() - self._start

    def keep(self) -> None:
        write_text(self._file, json.dumps({"seconds": self.seconds}))


def _measure(recipe: Recipe, data: Any, seconds: float) -> dict[str, Any]:
    """How many iterations, and how far apart validations, fit into the CPU time."""
    ticks: list[float] = []
    stages = _horizons(recipe)
    changes = {"iterations": TRIALS * len(stages), "validate_every": 10**9}
    _train(recipe, data, changes, None, lambda now: ticks.append(time.process_time()))
    steps = [later - earlier for earlier, later in zip(ticks[:-1], ticks[1:], strict=True)]
    *plain, last = steps
    iteration = sum(plain) / len(plain)
    validation = max(last - iteration, 0.0)
    count = int(min(VALIDATIONS, max(1.0, VALIDATION_SHARE * seconds / max(validation, 1e-9))))
    iterations = max(len(stages), int((seconds - count * validation) / iteration))
    return {
        "iterations": iterations,
        "validate_every": -(-iterations // count),
        "iteration_seconds": iteration,
        "validation_seconds": validation,
    }


def _fit(
    recipe: Recipe,
    data: Any,
    plan: dict[str, Any],
    work: Path,
    clock: _Clock,
    out: Path,
    about: dict[str, Any],
    start: Any,
) -> None:
    from gce.baselines import save
    from gce.model.files import save_model

    changes: dict[str, Any] = {name: plan[name] for name in ("iterations", "validate_every") if name in plan}

    def tell(now: Any) -> None:
        reached(now.iteration)
        if now.validation is not None or now.iteration % 25 == 0:
            clock.keep()
        if now.validation is not None:
            print(f"{recipe.folder} {now.iteration}: validation {now.validation:.4f}", file=sys.stderr, flush=True)

    with progress(f"training {recipe.folder}", plan["iterations"], "iterations") as done:
        reached = counted(done)
        model, error = _train(recipe, data, changes, work, tell, start)
    clock.keep()
    about |= {"cpu_seconds": round(clock.seconds), "validation_nrmse": error}
    (save_model if recipe.method == OURS else save)(model, out, about)


def _train(
    recipe: Recipe, data: Any, changes: dict[str, Any], folder: Path | None, tell: Any, start: Any = None
) -> tuple[Any, Any]:
    """(model, validation error or None)."""
    if recipe.method == OURS:
        from gce.training.learning import train

        rest = {name: value for name, value in changes.items() if name != "iterations"}
        trained = train(
            data, iterations=changes["iterations"], folder=folder, tell=tell, model=recipe.model, training=rest
        )
        return trained.model, trained.validation_nrmse
    from gce.baselines import train as train_baseline
    from gce.baselines.folder import about

    schedule = {**recipe.schedule, **changes}
    model = train_baseline(
        recipe.method,
        data,
        folder=folder,
        validation_systems=recipe.validation_systems,
        tell=tell,
        model=recipe.model,
        schedule=schedule,
        start=start,
    )
    return model, None if folder is None else about(folder).get("validation_nrmse")


def _horizons(recipe: Recipe) -> tuple[int, ...]:
    """The stages of a training; none where a method is not trained."""
    from gce.baselines import BASELINES
    from gce.baselines.trainable import Trainable
    from gce.training.learning import GROWTH

    if recipe.method == OURS:
        return (*GROWTH, 0)
    kind = BASELINES[recipe.method]
    if "horizons" in recipe.schedule:
        return tuple(recipe.schedule["horizons"])
    return kind.schedule.horizons if issubclass(kind, Trainable) else ()


def _recorded(world: str, folder: Path) -> Path:
    from gce.envs import world_named
    from gce.envs.recording import Recording, record

    file = folder / f"{world}.h5"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        kind = world_named(world)
        recording = Recording(world, **{"objects": kind.object_range, "seed": 1, **kind.recipe.recording})
        with progress(f"recording {file}", recording.episodes) as done:
            record(recording, file, progress=done)
    return file


def _kept(file: Path, make: Any) -> dict[str, Any]:
    if not file.exists():
        write_text(file, json.dumps(make(), indent=2) + "\n")
    found: dict[str, Any] = read_json(file)
    return found


if __name__ == "__main__":
    run_module(Train)
