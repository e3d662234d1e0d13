"""The baselines by name, and a baseline on disk: one safetensors file and one JSON file, which cannot run code."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import gce
from gce.baselines.base import Baseline
from gce.baselines.cko import Cko
from gce.baselines.graph_ode import GraphOde
from gce.baselines.kpm import Kpm
from gce.baselines.pcc import Pcc
from gce.baselines.vae import Vae
from gce.errors import InputError

TENSORS, TEXT = "baseline.safetensors", "baseline.json"
FORMAT, VERSION = "gce-baseline", 1

BASELINES: dict[str, type[Baseline]] = {kind.name: kind for kind in (Kpm, Cko, Vae, Pcc, GraphOde)}


def baseline_named(name: str) -> type[Baseline]:
    if name not in BASELINES:
        raise InputError(f"there is no baseline {name!r}; the baselines are {', '.join(BASELINES)}")
    return BASELINES[name]


def save(model: Baseline, folder: Path | str, about: dict[str, Any] | None = None) -> None:
    """about: where the model comes from, JSON values."""
    folder = Path(folder)
    text = {
        "format": FORMAT,
        "format_version": VERSION,
        "version": gce.__version__,
        "baseline": model.name,
        "about": about or {},
        "config": dataclasses.asdict(model.sizes),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
        save_file(tensors, folder / f".{TENSORS}.tmp")
        (folder / f".{TEXT}.tmp").write_text(json.dumps(text, indent=2) + "\n")
        for name in (TENSORS, TEXT):
            os.replace(folder / f".{name}.tmp", folder / name)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}; give another folder") from None


def load(folder: Path | str) -> Baseline:
    folder = Path(folder)
    text = _text(folder)
    try:
        kind = baseline_named(text["baseline"])
        config = kind.config_class(**{name: _tuples(value) for name, value in text["config"].items()})
        model = kind(config)
        model.load_state_dict(load_file(folder / TENSORS))
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise _unreadable(folder, error) from None
    return model.eval()


def kind_of(folder: Path | str) -> type[Baseline]:
    """Which baseline a folder holds."""
    folder = Path(folder)
    try:
        return baseline_named(_text(folder)["baseline"])
    except KeyError as error:
        raise _unreadable(folder, error) from None


def _text(folder: Path) -> dict[str, Any]:
    for name in (TENSORS, TEXT):
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name}; it is not the folder of a saved baseline")
    try:
        text: dict[str, Any] = json.loads((folder / TEXT).read_text())
        if (text["format"], text["format_version"]) != (FORMAT, VERSION):
            raise ValueError(f"{TEXT} is not a {FORMAT} of version {VERSION}")
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(folder, error) from None
    return text


def _unreadable(folder: Path, error: Exception) -> InputError:
    return InputError(f"{folder} does not hold a baseline: {error}; restore the files or train it again")


def about(folder: Path | str) -> dict[str, Any]:
    """Where a saved baseline comes from."""
    found: dict[str, Any] = json.loads((Path(folder) / TEXT).read_text())["about"]
    return found


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
