"""What is read off a data set before training, or said by its world: the model's configuration, units and the like."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gce.errors import InputError, warn
from gce.features import KINDS
from gce.features.published import PRESETS, Published, left_text
from gce.model.config import FLAT, SHARED, ModelConfig, check_asked, configured, kind_asked_for
from gce.model.model import Model, Units
from gce.names import check_method, some
from gce.training.batches import SystemData
from gce.trajectory import Dataset, Normalisation
from gce.trajectory.structure import check_said, find_kinematics, find_structure

HELD_BELOW = 0.05
UNIT_EPISODES = 200
"""How many episodes the units are taken from."""


def training_for(world: str | None, model: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How to train on data of a world: iterations, the longest horizon, and fields of `TrainingConfig`.

    model: settings of the model that are asked for; a kind of features may want a training of its own.
    """
    kind = kind_asked_for(model or {})
    return {"iterations": 4000, "horizon": 48, **(kind.training_settings or _preset(world, "training"))}


def settings_of(
    method: str, preset: str, world: str | None, model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of a model, how to train it) of a method; model: what is asked for beside it."""
    check_asked(model)
    return SETTINGS[check_method(method)](preset, world, model)


def _structured(preset: str, world: str | None, model: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    method = kind_asked_for(model).method
    if method != "structured":
        raise InputError(f"kind={model['kind']!r} is of the method {method}, asked for as structured; name the method")
    return dict(model), training_for(world, model)


def _published(preset: str, world: str | None, model: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if preset not in PRESETS:
        raise InputError(f"there is no preset {preset!r} of the published method; there are {', '.join(PRESETS)}")
    asked = model.get("kind", Published.name)
    if asked != Published.name:
        raise left_text(f"kind={asked!r}", "features come from message passing ('Mapping to RKHSs')")
    of_model, of_training = PRESETS[preset]
    of_world = _preset(world, "published") if preset == "tuned" else {}
    training = {**of_training, **of_world.get("training", {})}
    return {**of_model, **of_world.get("model", {}), **model, "kind": Published.name}, training


MINUTES = 3.0
"""Of CPU time, that the general method trains for unless told otherwise."""
UNENDING = 1_000_000
"""Iterations of a training that time ends."""
GENERAL: dict[str, Any] = {
    "iterations": UNENDING,
    "horizon": 10,
    "growth": (2, 2, 2, 5, 5, 5, 10, 10, 10),
    "minutes": MINUTES,
    "learning_rate": 3e-3,
    "rollouts": 8,
    "fit_episodes": 4,
    "fit_steps": 24,
    "noise": 0.003,
    "fresh_share": 0.1,
}
"""How the general method trains; growth: steps predicted before the longest, which are those under shifts."""


def _general(preset: str, world: str | None, model: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    asked = model.get("kind", "general")
    if asked != "general":
        raise InputError(f"kind={asked!r} is of another method than general; name the method, or leave the kind out")
    return {**model, "kind": "general"}, dict(GENERAL)


SETTINGS = {"structured": _structured, "published": _published, "general": _general}
"""By method, from a preset, a world and what is asked for: settings of the model, and how to train it."""


def usual_method(world: str | None) -> str:
    """What data are trained by unless a method is named: worlds have features made for them."""
    from gce.envs import WORLDS

    return "structured" if world in WORLDS else "general"


def by_time(usual: dict[str, Any], iterations: int | None, minutes: float | None) -> dict[str, Any]:
    """How to train, with the time it may take: as asked, or as usual where no iterations are asked for either."""
    if minutes is not None and not 0 < minutes < float("inf"):
        raise InputError(f"minutes is {minutes}, expected a time above zero such as 3")
    if iterations is not None and minutes is not None:
        raise InputError(
            f"iterations={iterations} and minutes={minutes:g} both say how long to train; give one of them"
        )
    if iterations is not None:
        return {name: value for name, value in usual.items() if name != "minutes"} | {"iterations": iterations}
    return usual if minutes is None else {**usual, "minutes": minutes, "iterations": UNENDING}


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
    structure = check_said(data.metadata.get("structure", {}))
    kinematics = find_kinematics(data, dt)
    late = bool(structure.get("late_action", False))
    graphs = [data.group(int(g)).graph for g in np.unique(data.groups)]
    settings: dict[str, Any] = {
        "num_observations": first.observations.shape[2],
        "num_actions": first.actions.shape[2],
        "num_exogenous": 0 if first.exogenous is None else first.exogenous.shape[2],
        "num_relations": 1 + max(int(g.edge_type.max()) for g in graphs),
        "num_node_types": 1 + max(int(g.node_type.max()) for g in graphs),
        "num_hyperedge_types": max(0 if (h := g.hyperedges) is None else 1 + int(h[2].max(initial=-1)) for g in graphs),
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
    if not kind_asked_for(overrides).structured:
        preset = {}
        shown = find_structure(data)
        settings |= {"structure": shown.described(), "history": shown.history}
        settings |= {"late_action": shown.late_action, "previous_action": shown.late_action}
    return configured(with_preset(settings, preset, overrides))


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


def prepare(config: ModelConfig, data: Dataset, seed: int = 0) -> Model:
    """An untrained model in the units of a data set."""
    torch.manual_seed(seed)
    model = Model(config)
    if config.num_hyperedge_types and config.hyperedges and not (model.features.hyper or model.form.hyper):
        warn(
            f"the {model.method} method leaves the hyperedges of the data out; method='structured' with the form "
            "hom_mean_hyper learns from them"
        )
    part = take_units(model, data, seed)
    with torch.no_grad():
        model.observation_mean[[velocity for _, velocity in config.kinematics]] = 0
        steps = np.concatenate([np.diff(e.observations, axis=0).reshape(-1, config.num_observations) for e in part])
        model.features.measure(
            model.observation_mean, model.observation_std, model.tensor(steps.std(0)), model.action_std
        )
        model.features.inputs.unit_mean.copy_(model.observation_mean)
        model.features.inputs.unit_std.copy_(model.observation_std)
        systems = [SystemData(model, [part[k]]) for k in range(min(len(part), 100))]
        model.features.prepare((system.states[0, ::4].transpose(0, 1), system.topology) for system in systems)
        inputs, n = model.features.inputs, config.num_node_attributes
        model.potential.measure(inputs.attribute_mean[:n], inputs.attribute_std[:n])
        model.held[:, : len(model.free)] = _held(model, systems)
        _tell_still(model, data)
        if model.features.acting is not None:
            model.features.acting.copy_(_acting(model, systems))
    return model


@torch.no_grad()
def take_units(model: Units, data: Dataset, seed: int) -> Dataset:
    """Learn the units from some episodes of a data set; gives these."""
    part = data.select(np.sort(np.random.default_rng([seed, 1]).permutation(len(data))[:UNIT_EPISODES]))
    units = Normalisation.of(part)
    model.observation_mean.copy_(torch.as_tensor(units.observation_mean))
    model.observation_std.copy_(torch.as_tensor(units.observation_std))
    model.action_std.copy_(torch.as_tensor(units.action_std))
    if k := data.metadata.get("structure", {}).get("edge_actions", 0):  # in one unit, whichever edge they act on
        model.action_std[-k:] = model.action_std[-k:].square().mean().sqrt()
    if e := len(model.exogenous_std):
        rows = [episode.exogenous.reshape(-1, e) for episode in part if episode.exogenous is not None]
        std = torch.as_tensor(np.concatenate(rows).std(0))
        model.exogenous_std.copy_(torch.where(std > 0, std, 1.0))
    return part


def _acting(model: Model, systems: Sequence[SystemData]) -> Tensor:
    """Which inputs are ever other than zero at nodes of a type."""
    c = model.config
    sizes = torch.zeros(c.num_node_types, c.num_inputs)
    for system in systems:
        sizes.index_add_(0, system.topology.node_type, (system.inputs != 0).float().sum((0, 1)))
    return sizes > 0


def _tell_still(model: Model, data: Dataset) -> None:
    """Names the coordinates that move at no node, which models leave out; refuses data in which nothing moves."""
    still = [k for k, std in enumerate(model.observation_std.tolist()) if std == 1.0]  # as `Normalisation` leaves them
    names = data.metadata.get("observation_names") or []
    named = some([names[k] if k < len(names) else f"observation_{k}" for k in still])
    if still and len(still) == model.config.num_observations:
        raise InputError(
            f"nothing moves in the data: {named} never change, or by too little to count; record motion, or give tiny "
            "numbers in other units"
        )
    if still:
        warn(f"{named} never move, or by too little to count, and are left out; give tiny numbers in other units")


def _held(model: Model, systems: Sequence[SystemData]) -> Tensor:
    """Which free coordinates stay where they start at nodes of a type, within 5% of their unit, root mean square.

    A velocity stays where its position does.
    """
    c = model.config
    position = {v: p for p, v in c.kinematics}
    watched = [position.get(k, k) for k in model.free]
    squares, counts = torch.zeros(c.num_node_types, len(watched)), torch.zeros(c.num_node_types, 1)
    for system in systems:
        moved = (system.states[0] - system.states[0, :1])[..., watched].square().mean(0)
        squares.index_add_(0, system.topology.node_type, moved)
        counts.index_add_(0, system.topology.node_type, torch.ones(len(moved), 1))
    return ((squares / counts.clamp_min(1)).sqrt() < HELD_BELOW) & (counts > 0)
