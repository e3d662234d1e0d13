"""Training a baseline on a data set. A method that is not trained only takes its units from the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from gce.baselines.base import Baseline, adapt, configure
from gce.baselines.folder import baseline_named, save
from gce.baselines.trainable import Schedule, Trainable, draw_batch
from gce.training.batches import Recorded, digest
from gce.training.learning import equal_systems, split_for_training
from gce.training.loop import Progress, Training, place_for, prediction_error
from gce.trajectory import Dataset, Episode

UNIT_SYSTEMS = 100
VALIDATION_SYSTEMS = 6
"""Fewer than for our own model: some methods take seconds to adapt."""


def train(
    name: str,
    data: Dataset,
    *,
    folder: Path | str | None = None,
    validation: float = 0.05,
    validation_systems: int = VALIDATION_SYSTEMS,
    seconds: float = math.inf,
    tell: Callable[[Progress], None] = lambda progress: None,
    model: dict[str, Any] | None = None,
    schedule: dict[str, Any] | None = None,
    start: Baseline | None = None,
) -> Baseline:
    """Train a baseline.

    folder: for the model, its log and a checkpoint, from which the same call goes on; by default nothing is kept.
    validation: share of the systems kept to choose the best model by. validation_systems: how many of these are used.
    seconds: stop when so many were spent.
    tell: hears of every iteration.
    model, schedule: fields of the method's configuration and of `Schedule` to change.
    start: a trained model of the same configuration to begin from, its units included.
    """
    kind = baseline_named(name)
    plan = dataclasses.replace(getattr(kind, "schedule", Schedule()), **(schedule or {}))
    torch.manual_seed(plan.seed)
    baseline = kind(configure(kind.config_class, data, **(model or {})))
    kept, rest = split_for_training(data, validation, plan.seed)
    baseline.set_units(rest, plan.seed)
    about: dict[str, Any] = {"seed": plan.seed, "data": data.metadata.get("recording", {})}
    if isinstance(baseline, Trainable):
        systems = systems_of(baseline, rest, plan)
        if start is not None:
            baseline.load_state_dict(start.state_dict())
        with place_for(folder) as place:
            run = training_of(baseline, systems, kept[:validation_systems], plan, place)
            run.resume()
            best = run.run(tell, seconds=seconds)
        about |= {"seconds": round(run.seconds, 1), "iterations": run.iteration, "validation_nrmse": best}
    if folder is not None:
        save(baseline, folder, about)
    return baseline.eval()


def training_of(
    model: Trainable,
    systems: Sequence[Recorded],
    validation: Sequence[Sequence[Episode]],
    plan: Schedule,
    folder: Path,
) -> Training:
    """The training of a baseline on some systems; it is judged by others, or by other episodes."""
    return Training(
        model,
        lambda horizon, rng, generator: model.loss(draw_batch(systems, plan.draw, horizon, rng), generator),
        lambda: validation_error(model, validation),
        plan,
        folder,
        {"baseline": model.name, **dataclasses.asdict(model.sizes)},
        digest(systems, validation),
    )


def validation_error(model: Baseline, systems: Sequence[Sequence[Episode]]) -> float:
    """Mean NRMSE of predicting the first episode of each system after adapting to the others."""
    unit = model.observation_std.double().numpy()
    return prediction_error(lambda episodes: adapt(model, episodes), unit, systems)


def systems_of(model: Trainable, data: Dataset, plan: Schedule) -> list[Recorded]:
    """The systems to train on, of equal length where the method fits operators on some episodes; sets their units."""
    wanted = max(*plan.horizons, plan.draw.fit_steps)
    found = [model.recorded(some) for some in equal_systems(data, wanted, cut=not model.sizes.previous_action)]
    model.set_inputs(found[:UNIT_SYSTEMS])
    return found
