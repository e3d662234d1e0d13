"""The baselines by name, and a baseline on disk: one safetensors file and one JSON file, which cannot run code."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import Tensor

import gce
from gce.baselines.base import Baseline
from gce.baselines.cko import Cko
from gce.baselines.graph_ode import GraphOde
from gce.baselines.kpm import Kpm
from gce.baselines.pcc import Pcc
from gce.baselines.vae import Vae
from gce.errors import InputError
from gce.model.files import read_pair, write_pair

NAME, FORMAT, VERSION = "baseline", "gce-baseline", 1

BASELINES: dict[str, type[Baseline]] = {kind.name: kind for kind in (Kpm, Cko, Vae, Pcc, GraphOde)}


def baseline_named(name: str) -> type[Baseline]:
    if name not in BASELINES:
        raise InputError(f"there is no baseline {name!r}; the baselines are {', '.join(BASELINES)}")
    return BASELINES[name]


def save(model: Baseline, folder: Path | str, about: dict[str, Any] | None = None) -> None:
    """about: where the model comes from, JSON values."""
    text = {
        "format": FORMAT,
        "format_version": VERSION,
        "version": gce.__version__,
        "baseline": model.name,
        "about": about or {},
        "config": dataclasses.asdict(model.sizes),
    }
    write_pair(Path(folder), NAME, dict(model.state_dict()), text)


def load(folder: Path | str) -> Baseline:
    tensors, text = _pair(folder)
    try:
        kind = baseline_named(text["baseline"])
        model = kind(kind.config_class(**{name: _tuples(value) for name, value in text["config"].items()}))
        model.load_state_dict(tensors)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _unreadable(folder, error) from None
    return model.eval()


def kind_of(folder: Path | str) -> type[Baseline]:
    """Which baseline a folder holds."""
    try:
        return baseline_named(_pair(folder)[1]["baseline"])
    except KeyError as error:
        raise _unreadable(folder, error) from None


def about(folder: Path | str) -> dict[str, Any]:
    """Where a saved baseline comes from."""
    found: dict[str, Any] = _pair(folder)[1]["about"]
    return found


def _pair(folder: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        return read_pair(Path(folder), NAME, FORMAT, (VERSION,))
    except InputError as error:
        raise _unreadable(folder, str(error).rsplit(";", 1)[0]) from None


def _unreadable(folder: Path | str, error: object) -> InputError:
    return InputError(f"{folder} does not hold a baseline: {error}; restore the files or train it again")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
