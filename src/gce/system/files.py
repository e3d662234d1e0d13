"""Adapted systems on disk: their model, and beside it tensors (safetensors) and a description (JSON)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gce
from gce.errors import InputError, warn
from gce.files import border, is_checked
from gce.graphs.graph import Graph
from gce.model.files import LARGEST, digest_of, load_model, read_pair, save_model, write_pair
from gce.system.evidence import Starts
from gce.system.system import System, class_of
from gce.system.uncertainty import Range, Spread
from gce.trajectory.episode import check_graph

SYSTEM, VERSIONS = "gce-system", (1,)
GRAPH = "graph_"
"""Before the names of a graph's arrays among the tensors."""


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
    if system.reach is not None:
        tensors["reach"] = torch.as_tensor(np.stack([system.reach.low, system.reach.high]))
    tensors |= {f"{GRAPH}{name}": torch.as_tensor(value) for name, value in system.graph.arrays().items()}
    text = {
        "format": SYSTEM,
        "format_version": VERSIONS[0],
        "version": gce.__version__,
        "episodes": starts.count,
        "noise": starts.noise,
        **told,
        "warnings": list(system.warnings),
        "about": about or {},
    }
    text["model"] = save_model(system.model, folder)
    write_pair(Path(folder), "system", tensors, text)


def load_system(folder: Path | str) -> System:
    model = load_model(folder)
    tensors, text = read_pair(Path(folder), "system", SYSTEM, VERSIONS)
    if is_checked() and text.get("model") not in (None, digest_of(Path(folder))):
        raise InputError(f"{folder}/system.json was written with another model than model.json; restore all files")
    with border(f"{folder}/system.safetensors", "a system of its model", "it does not hold a system; adapt again"):
        check_rows(text)
        arrays: dict[str, Any] = {
            name.removeprefix(GRAPH): value.numpy() for name, value in tensors.items() if name.startswith(GRAPH)
        }
        total, squares, smoothed = (tensors[f"starts_{name}"].numpy() for name in ("total", "squares", "smoothed"))
        starts = Starts(int(text["episodes"]), total, squares, smoothed, float(text["noise"]))
        spread = Spread(tensors["spread_squares"].numpy(), tensors["spread_counts"].numpy())
        graph = Graph(**arrays)
        check_graph(model.config, graph, "its graph")
        nodes, d, rows = graph.num_nodes, model.config.num_observations, len(spread.counts)
        for name, wide in (
            ("spread_squares", (rows, d)),
            ("spread_counts", (rows,)),
            ("starts_total", (nodes, d)),
            ("starts_squares", (nodes, d)),
            ("starts_smoothed", (nodes, d)),
            ("reach", (2, d + model.config.num_inputs)),
        ):
            if name in tensors and tuple(tensors[name].shape) != wide:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {wide}")
        if not bool((tensors["spread_counts"] > 0).all() and (tensors["spread_squares"] >= 0).all()):
            raise ValueError("its left-out errors are not positive")
        system = class_of(model).restored(model, graph, tensors, text, starts, spread)
        reach = Range(*tensors["reach"].double().numpy()) if "reach" in tensors else None
        system = replace(system, reach=reach, warnings=tuple(map(str, text.get("warnings", []))))
    for sentence in system.warnings:
        warn(sentence)
    return system


def check_rows(text: dict[str, Any]) -> None:
    """The numbers beside the tensors."""
    for name, low in (("rows", 1), ("episodes", 1), ("noise", 0), ("noise_correlation", -1), ("ridge", 0)):
        value, optional = text.get(name), name in ("noise_correlation", "ridge")
        if not (value is None and optional) and not (isinstance(value, int | float) and low <= value < LARGEST):
            raise InputError(f"system.json does not hold a system: {name} is {value!r}; adapt again")


def about_system(folder: Path | str) -> dict[str, Any]:
    """What was kept with a saved system: names, bounds of its actions, where it comes from."""
    about: dict[str, Any] = read_pair(Path(folder), "system", SYSTEM, VERSIONS)[1].get("about", {})
    return about
