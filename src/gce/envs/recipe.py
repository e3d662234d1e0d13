"""What experiments chose for a world: numbers alone, which models, planners and tables look up in `World.recipe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Protocol:
    """How a world is controlled unless asked otherwise.

    horizon, feedback: steps of a run and between its plans. state_cost, terminal_cost: of observations; action_cost: of
    actions; change_cost: of leaving the plan made one step before, less by the factor k for one made k steps before;
    rate: how much an action may change in a step, in its own unit. Chosen on systems recorded for validation.
    tolerance: when a plan has settled (`Controller`).
    unit, action_unit: what costs are in; None for the mean of the world's units, and for the action's unit.
    positions_only: whether velocities cost nothing.
    """

    horizon: int
    feedback: int
    state_cost: float
    terminal_cost: float
    action_cost: float
    tolerance: float = 1e-4
    change_cost: float = 0.0
    rate: float = np.inf
    unit: float | None = None
    action_unit: float | None = None
    positions_only: bool = False


@dataclass(frozen=True)
class Pictures:
    """Of a controlled system with so many objects; None for no picture.

    columns: pictures a row, None for one row. chart: a word for the file and the label of the first coordinate, where
    its course is drawn too.
    """

    objects: int | None = None
    columns: int | None = None
    chart: tuple[str, str] | None = None


@dataclass(frozen=True)
class Recipe:
    """A world's sizes, protocol and presets, beside what its class says of itself (`object_range`: sizes trained on).

    unseen: sizes that no model was trained on, for tests. offered: sizes in the explorer, planned within a minute or
    so; None for those trained on. pictures: among the tables.
    model, training: fields of `ModelConfig` and `TrainingConfig`, iterations and horizon that validation preferred.
    recording: fields of `Recording` for the tables' models, of systems of the sizes trained on.
    baselines: by method, what is changed in its model, schedule and number of validation systems.
    counts: by kind of method (runs, costly, latent, slow), the field of a preset that counts its runs here, if another.
    longer_trained: whether its table has models of longer training too.
    repeats: how far a run computed again may differ, relative to a figure's size; more where the world is chaotic.
    """

    protocol: Protocol
    unseen: tuple[int, int]
    offered: tuple[int, int] | None = None
    pictures: Pictures = Pictures()
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    recording: Mapping[str, Any] = field(default_factory=lambda: {"episodes": 6000, "group_size": 12})
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    longer_trained: bool = False
    repeats: float = 1e-5
