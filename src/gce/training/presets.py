"""Model configurations for data: read off the data where it tells, by world where experiments did."""

from __future__ import annotations

from typing import Any

import numpy as np

from gce.errors import InputError
from gce.model.config import ModelConfig
from gce.training.preparation import find_kinematics
from gce.trajectory import Dataset

# A decoder finds observations from features that say where things are; rollouts stay among them, as in the paper.
DECODED = {"conservative": False, "implicit": False, "drag": False, "reproject": False}

# Nothing of the features of a network is learned, and what is learned of its reach fits into single steps.
NETWORK = {"form": "local", "potential": "constant", "features": 0, "linear_features": 0, "ridge": 1e-6}
NETWORK_TRAINING: dict[str, Any] = {
    "iterations": 220,
    "horizon": 16,
    "learning_rate": 0.15,
    "free_running": False,
    "systems": 2,
    "fit_episodes": 8,
    "fit_steps": 20,
    "rollouts": 2,
    "noise_share": 0.0,
}

STRUCTURE = ("points", "late_action", "fresh_start")
"""What a file's metadata may say about a world's structure, under `structure`."""


def training_for(world: str | None, network: bool = False) -> dict[str, Any]:
    """How to train on data of a world: iterations, the longest horizon, and fields of `TrainingConfig`."""
    if network:
        return dict(NETWORK_TRAINING)
    return {"iterations": 4000, "horizon": 48, **_preset(world, "training")}


def _preset(world: str | None, part: str) -> dict[str, Any]:
    """What the recipe of a world says of a model or its training; nothing where there is no such world."""
    from gce.envs import WORLDS

    return dict(getattr(WORLDS[world].recipe, part)) if world in WORLDS else {}


def config_for(data: Dataset, **overrides: Any) -> ModelConfig:
    """The configuration of a model for a data set.

    Sizes, kinematics and whether episodes open at rest are read off the data; points in the plane, late actions and
    fresh starts come from its metadata (`structure`), the rest from the world's preset.
    """
    first = data[0]
    dt = float(data.metadata.get("dt") or 1.0)
    structure = data.metadata.get("structure", {})
    for name in structure:
        if name not in STRUCTURE:
            raise InputError(f"the metadata's structure says {name!r}; it may say {', '.join(STRUCTURE)}")
    kinematics = find_kinematics(data, dt)
    late = bool(structure.get("late_action", False))
    graphs = [data.group(int(g)).graph for g in np.unique(data.groups)]
    found: dict[str, Any] = {
        "num_observations": first.observations.shape[2],
        "num_actions": first.actions.shape[2],
        "num_exogenous": 0 if first.exogenous is None else first.exogenous.shape[2],
        "num_relations": 1 + max(int(g.edge_type.max()) for g in graphs),
        "num_node_types": 1 + max(int(g.node_type.max()) for g in graphs),
        "num_node_attributes": first.graph.node_attributes.shape[1],
        "num_edge_attributes": first.graph.edge_attributes.shape[1],
        "world": data.world,
        "dt": dt,
        "kinematics": kinematics,
        "points": tuple(tuple(point) for point in structure.get("points", ())),
        "fresh_start": bool(structure.get("fresh_start", False)),
        "rest_start": _opens_at_rest(data, kinematics),
        "late_action": late,
        "previous_action": late,
    }
    preset = _preset(data.world, "model")
    if overrides.get("decoder", "selection") != "selection":
        preset = {**preset, **DECODED}
    if overrides.get("network", False):
        preset = {**preset, **NETWORK}
    if overrides.get("memory", 0):
        preset = {**preset, "node_constants": 0.0}
    return ModelConfig(**{**found, **preset, **overrides})


def _opens_at_rest(data: Dataset, kinematics: tuple[tuple[int, int], ...], episodes: int = 20) -> bool:
    velocities = [v for _, v in kinematics]
    return bool(velocities) and all(
        not data[k].observations[0][:, velocities].any() for k in range(min(episodes, len(data)))
    )
