"""Adapted systems on disk: their model, and beside it tensors (safetensors) and a description (JSON)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import gce
from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.model.files import load_model, read_pair, save_model, write_pair
from gce.system.evidence import Starts
from gce.system.system import System, class_of
from gce.system.uncertainty import Spread

SYSTEM, VERSIONS = "gce-system", (1,)
GRAPH = ("edge_index", "edge_type", "node_type", "node_attributes", "edge_attributes", "tied")


def save_system(system: System, folder: Path | str, about: dict[str, Any] | None = None) -> None:
    """Write a system: its model, its graph and the sums its operator follows from. about: where it is from, as JSON."""
    starts = system.evidence.starts
    tensors, told = system.kept()
    tensors |= {
        "spread_squares": torch.as_tensor(system.spread.squares),
        "spread_counts": torch.as_tensor(system.spread.counts),
        "starts_total": torch.as_tensor(starts.total),
        "starts_squares": torch.as_tensor(starts.squares),
        "starts_smoothed": torch.as_tensor(starts.smoothed),
    }
    for name in GRAPH:
        value = getattr(system.graph, name)
        if value is not None:
            tensors[f"graph_{name}"] = torch.as_tensor(value)
    text = {
        "format": SYSTEM,
        "format_version": VERSIONS[0],
        "version": gce.__version__,
        "episodes": starts.count,
        "noise": starts.noise,
        **told,
        "about": about or {},
    }
    save_model(system.model, folder)
    write_pair(Path(folder), "system", tensors, text)


def load_system(folder: Path | str) -> System:
    model = load_model(folder)
    tensors, text = read_pair(Path(folder), "system", SYSTEM, VERSIONS)
    try:
        arrays: dict[str, Any] = {
            name: tensors[f"graph_{name}"].numpy() for name in GRAPH if f"graph_{name}" in tensors
        }
        total, squares, smoothed = (tensors[f"starts_{name}"].numpy() for name in ("total", "squares", "smoothed"))
        starts = Starts(int(text["episodes"]), total, squares, smoothed, float(text["noise"]))
        spread = Spread(tensors["spread_squares"].numpy(), tensors["spread_counts"].numpy())
        return class_of(model).restored(model, Graph(**arrays), tensors, text, starts, spread)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder}/system.safetensors does not hold a system: {error}; adapt again") from None


def about_system(folder: Path | str) -> dict[str, Any]:
    """What was kept with a saved system: names, bounds of its actions, where it comes from."""
    about: dict[str, Any] = read_pair(Path(folder), "system", SYSTEM, VERSIONS)[1].get("about", {})
    return about
