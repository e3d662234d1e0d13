"""Model configurations for data: read off the data where it tells, by world where experiments did."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gce.errors import InputError
from gce.features import KINDS
from gce.model.config import FLAT, SHARED, ModelConfig, configured, kind_asked_for
from gce.training.preparation import find_kinematics
from gce.trajectory import Dataset

STRUCTURE = ("points", "late_action", "fresh_start")
"""What a file's metadata may say about a world's structure, under `structure`."""


def training_for(world: str | None, model: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How to train on data of a world: iterations, the longest horizon, and fields of `TrainingConfig`.

    model: settings of the model that are asked for; a kind of features may want a training of its own.
    """
    kind = kind_asked_for(model or {})
    return {"iterations": 4000, "horizon": 48, **(kind.training_settings or _preset(world, "training"))}


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
    return configured(with_preset(found, _preset(data.world, "model"), overrides))


def with_preset(found: Mapping[str, Any], preset: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings: as found in the data, then as a world prefers, then as a kind of features wants, then as asked.

    Another kind than the world's takes of the world's preset what it knows.
    """
    usual = kind_asked_for({})
    kind = kind_asked_for(asked)
    kind = kind_asked_for({**preset, **asked}) if kind is usual else kind
    switches = {name for other in KINDS.values() for name in other.formerly}
    known = {*SHARED, *FLAT, *(field.name for field in dataclasses.fields(kind.Config))}
    kept = {name: value for name, value in preset.items() if name in known}
    rest = {name: value for name, value in asked.items() if name not in switches}
    return {**found, **kept, **kind.settings_for(asked), **rest, "kind": kind.name}


def _opens_at_rest(data: Dataset, kinematics: tuple[tuple[int, int], ...], episodes: int = 20) -> bool:
    velocities = [v for _, v in kinematics]
    return bool(velocities) and all(
        not data[k].observations[0][:, velocities].any() for k in range(min(episodes, len(data)))
    )
