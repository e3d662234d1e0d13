"""The baselines by name: trained on a data set, and kept on disk.

A folder holds one safetensors file and one JSON file, which cannot run code.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gce
from gce.baselines.base import Baseline, configure
from gce.baselines.cko import Cko
from gce.baselines.dmdc import Dmdc
from gce.baselines.gns import Gns
from gce.baselines.graph_ode import GraphOde
from gce.baselines.kpm import Kpm
from gce.baselines.pcc import Pcc
from gce.baselines.trainable import Schedule, Trainable, systems_of, training_of
from gce.baselines.vae import Vae
from gce.cluster.ranks import ranks
from gce.errors import InputError
from gce.files import border
from gce.model.files import check_sizes, read_pair, write_pair
from gce.training.learning import split_for_training
from gce.training.loop import Progress, place_for
from gce.trajectory import Dataset

NAME, FORMAT, VERSION = "baseline", "gce-baseline", 1
RESTORE = "restore the files or train it again"
VALIDATION_SYSTEMS = 6
"""Fewer than for our own model: some methods take seconds to adapt."""

BASELINES: dict[str, type[Baseline]] = {kind.name: kind for kind in (Kpm, Cko, Vae, Pcc, GraphOde, Dmdc, Gns)}


def baseline_named(name: str) -> type[Baseline]:
    if name not in BASELINES:
        raise InputError(f"there is no baseline {name!r}; the baselines are {', '.join(BASELINES)}")
    return BASELINES[name]


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
        about |= {"iterations": run.iteration, "cpu_seconds": run.spent, "validation_nrmse": best}
    if folder is not None and ranks().first:
        save(baseline, folder, about)
    return baseline.eval()


def save(model: Baseline, folder: Path | str, about: dict[str, Any] | None = None) -> None:
    """about: where the model comes from, JSON values."""
    text = {
        "format": FORMAT,
        "format_version": VERSION,
        "version": gce.__version__,
        "baseline": model.name,
        "about": about or {},
        "config": dataclasses.asdict(model.config),
    }
    write_pair(Path(folder), NAME, dict(model.state_dict()), text)


def load(folder: Path | str) -> Baseline:
    tensors, text = _pair(folder)
    with border(folder, "the folder of a baseline", RESTORE):
        check_sizes(text["config"], tensors)
        kind = baseline_named(text["baseline"])
        model = kind(kind.config_class(**{name: _tuples(value) for name, value in text["config"].items()}))
        model.load_state_dict(tensors)
        return model.eval()


def kind_of(folder: Path | str) -> type[Baseline]:
    """Which baseline a folder holds."""
    with border(folder, "the folder of a baseline", RESTORE):
        return baseline_named(_pair(folder)[1]["baseline"])


def about(folder: Path | str) -> dict[str, Any]:
    """Where a saved baseline comes from."""
    known: dict[str, Any] = _pair(folder)[1]["about"]
    return known


def _pair(folder: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with border(folder, "the folder of a baseline", RESTORE):
        return read_pair(Path(folder), NAME, FORMAT, (VERSION,))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
