"""Train the models of the tables, one after the other, each for its recipe's CPU time of one core.

    python -m gce.reproduce.train --data DATA

Step size and horizon follow the time spent, and a training that was stopped goes on. A model that is there is not
trained again. DATA holds WORLD.h5, recorded where it is missing. CPU time, because a busy machine gives a process less
of a second.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gce.errors import InputError
from gce.progress import counted, progress, run_module
from gce.reproduce.methods import OWN
from gce.reproduce.recipes import OURS, RECIPES, ModelRecipe, recipe_named

if TYPE_CHECKING:
    from gce.training.loop import Progress
    from gce.trajectory import Dataset

ENDLESS = 10**6
"""Iterations of a training that time ends."""
VALIDATED = (0.25, 0.5, 0.75)
"""The shares of its time after which a model is validated, beside the end, unless its recipe says otherwise."""


@dataclass
class TrainModels:
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

    def _make(self, recipe: ModelRecipe) -> dict[str, Any]:
        """Train in the work folder; the finished model is moved to its place."""
        from gce.baselines import save
        from gce.model.files import save_model
        from gce.trajectory import Dataset

        work, minutes = self.work / recipe.folder, self.minutes or recipe.minutes
        work.mkdir(parents=True, exist_ok=True)
        start, before = self._start(recipe)
        with (
            Dataset.open(_recorded(recipe.world, self.data)) as data,
            progress(f"training {recipe.folder}", round(60 * minutes), "CPU seconds") as done,
        ):
            reached = counted(done)

            def tell(now: Progress) -> None:
                reached(int(now.spent))
                if now.validation is not None:
                    told = f"{recipe.folder} {now.iteration}: validation {now.validation:.4f}"
                    print(told, file=sys.stderr, flush=True)

            model, found = _train(recipe, data, minutes, work, tell, start)
            about = {
                "recipe": recipe.folder,
                "cpu_minutes_asked": minutes + before.get("cpu_minutes_asked", 0.0),
                "iterations": found.get("iterations", 0) + before.get("iterations", 0),
                "data": data.metadata.get("recording", {}),
                "cpu_seconds": round(found.get("cpu_seconds", 0.0) + before.get("cpu_seconds", 0.0)),
                "validation_nrmse": found.get("validation_nrmse"),
            }
        finished, place = work / "model", self.out / recipe.folder
        (save_model if recipe.method in OWN else save)(model, finished, about)
        place.mkdir(parents=True, exist_ok=True)
        for file in finished.iterdir():
            os.replace(file, place / file.name)
        shutil.rmtree(work)
        return about

    def _start(self, recipe: ModelRecipe) -> tuple[Any, dict[str, Any]]:
        """The model that a training begins from, and what is known of it; None and nothing where there is none."""
        if recipe.start is None:
            return None, {}
        from gce.baselines import load
        from gce.baselines.folder import about

        folder = self.out / recipe.world / recipe.start
        return load(folder), about(folder)


def _train(
    recipe: ModelRecipe, data: Dataset, minutes: float, folder: Path, tell: Callable[[Progress], None], start: Any
) -> tuple[Any, dict[str, Any]]:
    """(model, what is known of its training)."""
    plan = {"minutes": minutes, "iterations": ENDLESS, "parts": VALIDATED, **recipe.schedule}
    if recipe.method in OWN:
        from gce.training.learning import train

        how: dict[str, Any] = {"method": "structured", "training": plan}
        if recipe.method != OURS:
            how = {"method": recipe.method, "minutes": minutes, "training": recipe.schedule}
        done = train(data, folder=folder, tell=tell, model=recipe.model, **how)
        return done.model, {name: getattr(done, name) for name in ("iterations", "cpu_seconds", "validation_nrmse")}
    from gce.baselines import train as train_baseline
    from gce.baselines.folder import about

    model = train_baseline(
        recipe.method,
        data,
        folder=folder,
        validation_systems=recipe.validation_systems,
        tell=tell,
        model=recipe.model,
        schedule=plan,
        start=start,
    )
    return model, about(folder)


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


if __name__ == "__main__":
    run_module(TrainModels)
