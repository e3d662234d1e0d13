"""Models and systems on disk: a folder with tensors (safetensors) and a description (JSON), which cannot run code."""

from __future__ import annotations

import dataclasses
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import gce
from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.model.config import ModelConfig
from gce.model.model import Model
from gce.operators.regression import FieldSums, NodeSums, Sums
from gce.operators.ridge import Moments
from gce.operators.whitening import Colour
from gce.system.evidence import Evidence, Starts
from gce.system.system import System, fitted
from gce.system.uncertainty import Spread

MODEL, SYSTEM = "gce-model", "gce-system"
VERSION = 1
GRAPH = ("edge_index", "edge_type", "node_type", "node_attributes", "edge_attributes", "tied")


def save_model(model: Model, folder: Path | str, about: dict[str, Any] | None = None) -> None:
    """Write model.safetensors and model.json. about: where the model comes from, JSON values."""
    text = {"format": MODEL, "format_version": VERSION, "version": gce.__version__, "about": about or {}}
    _write(Path(folder), "model", dict(model.state_dict()), {**text, "config": dataclasses.asdict(model.config)})


def load_model(folder: Path | str) -> Model:
    tensors, text = _read(Path(folder), "model", MODEL)
    try:
        config = ModelConfig(**{name: _tuples(value) for name, value in text["config"].items()})
        model = Model(config)
    except InputError as error:
        raise InputError(f"{folder}/model.json cannot be used: {error}") from None
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder}/model.json does not describe a model: {error}; restore or train it again") from None
    expected = model.state_dict()
    wrong = sorted(expected.keys() ^ tensors.keys()) or [
        name for name, value in expected.items() if value.shape != tensors[name].shape
    ]
    if wrong:
        raise InputError(f"{folder}/model.safetensors does not fit model.json (look at {wrong[0]}); restore both files")
    model.load_state_dict(tensors)
    return model.eval()


def about_model(folder: Path | str) -> dict[str, Any]:
    """Where a saved model comes from."""
    about: dict[str, Any] = _read(Path(folder), "model", MODEL)[1].get("about", {})
    return about


def shipped(world: str) -> Path:
    """The folder of the model that comes with the package for a world."""
    folder = Path(str(resources.files("gce"))) / "shipped" / world
    if not (folder / "model.json").is_file():
        known = sorted(p.parent.name for p in folder.parent.glob("*/model.json"))
        raise InputError(
            f"no model of {world!r} comes with the package, only of {', '.join(known) or 'no world'}; name one"
        )
    return folder


def save_system(system: System, folder: Path | str, about: dict[str, Any] | None = None) -> None:
    """Write a system: its model, its graph and the sums its operator follows from. about: where it is from, as JSON."""
    sums, starts = system.evidence.sums, system.evidence.starts
    tensors = {
        "gram": sums.moments.gram,
        "cross": sums.moments.cross,
        "square": sums.moments.square,
        "spread_squares": torch.as_tensor(system.spread.squares),
        "spread_counts": torch.as_tensor(system.spread.counts),
        "starts_total": torch.as_tensor(starts.total),
        "starts_squares": torch.as_tensor(starts.squares),
        "starts_smoothed": torch.as_tensor(starts.smoothed),
    }
    if sums.fields is not None:
        tensors |= {f"fields_{name}": value for name, value in vars(sums.fields).items()}
    if sums.nodes is not None:
        tensors |= {f"nodes_{name}": value for name, value in vars(sums.nodes).items()}
    colour = system.evidence.colour
    if colour is not None:
        tensors["noise_size"] = colour.size
    for name in GRAPH:
        value = getattr(system.graph, name)
        if value is not None:
            tensors[f"graph_{name}"] = torch.as_tensor(value)
    text = {
        "format": SYSTEM,
        "format_version": VERSION,
        "version": gce.__version__,
        "rows": sums.moments.rows,
        "episodes": starts.count,
        "noise": starts.noise,
        "noise_correlation": None if colour is None else colour.correlation,
        "ridge": system.ridge,
        "about": about or {},
    }
    save_model(system.model, folder)
    _write(Path(folder), "system", tensors, text)


def load_system(folder: Path | str) -> System:
    model = load_model(folder)
    tensors, text = _read(Path(folder), "system", SYSTEM)
    try:
        arrays: dict[str, Any] = {
            name: tensors[f"graph_{name}"].numpy() for name in GRAPH if f"graph_{name}" in tensors
        }
        moments = Moments(tensors["gram"], tensors["cross"], tensors["square"], int(text["rows"]))
        fields = None
        if "fields_gram" in tensors:
            names = ("gram", "cross", "square", "mixed")
            fields = FieldSums(*(tensors[f"fields_{name}"] for name in names))
        nodes = None
        if "nodes_X" in tensors:
            nodes = NodeSums(*(tensors[f"nodes_{name}"] for name in ("X", "Y", "node_type")))
        total, squares, smoothed = (tensors[f"starts_{name}"].numpy() for name in ("total", "squares", "smoothed"))
        starts = Starts(int(text["episodes"]), total, squares, smoothed, float(text["noise"]))
        spread = Spread(tensors["spread_squares"].numpy(), tensors["spread_counts"].numpy())
        colour = None
        if "noise_size" in tensors:
            colour = Colour(float(text["noise_correlation"]), tensors["noise_size"])
        evidence = Evidence(Sums(moments, fields, nodes), starts, colour)
        return fitted(model, Graph(**arrays), evidence, spread, text["ridge"])
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder}/system.safetensors does not hold a system: {error}; adapt again") from None


def about_system(folder: Path | str) -> dict[str, Any]:
    """What was kept with a saved system: names, bounds of its actions, where it comes from."""
    about: dict[str, Any] = _read(Path(folder), "system", SYSTEM)[1].get("about", {})
    return about


# ---- inside ----


def _write(folder: Path, name: str, tensors: dict[str, Tensor], text: dict[str, Any]) -> None:
    """Both files under temporary names first, so that a stop in between leaves the old ones."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = [folder / f".{name}.{os.getpid()}.{kind}" for kind in ("safetensors", "json")]
        contiguous = {key: value.detach().contiguous() for key, value in tensors.items()}
        save_file(contiguous, temporary[0])
        temporary[1].write_text(json.dumps(text, indent=2) + "\n")
        temporary[0].chmod(temporary[1].stat().st_mode)  # safetensors writes for its owner only
        for path, kind in zip(temporary, ("safetensors", "json"), strict=True):
            os.replace(path, folder / f"{name}.{kind}")
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"cannot write {folder}: {getattr(error, 'strerror', None) or error}; give another folder"
        ) from None


def _read(folder: Path, name: str, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    for ending in ("json", "safetensors"):
        if not (folder / f"{name}.{ending}").is_file():
            raise InputError(f"{folder} has no {name}.{ending}; it is not the folder of a saved {name}")
    try:
        text = json.loads((folder / f"{name}.json").read_text())
    except ValueError as error:
        raise InputError(f"{folder}/{name}.json is not JSON: {error}; restore the file") from None
    if not isinstance(text, dict) or text.get("format") != kind or text.get("format_version") != VERSION:
        raise InputError(f"{folder}/{name}.json is not a {kind} of version {VERSION}; make it again with this gce")
    try:
        tensors = load_file(folder / f"{name}.safetensors")
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{folder}/{name}.safetensors is truncated or damaged: {error}; restore the file") from None
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(
                f"{folder}/{name}.safetensors holds numbers in {key} that are not finite; restore the file"
            )
    return tensors, text


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
