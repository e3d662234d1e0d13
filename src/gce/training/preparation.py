"""What is read off a data set before training: kinematics, units, and coordinates that never move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gce.model.config import ModelConfig
from gce.model.model import Model
from gce.training.batches import SystemData
from gce.trajectory import Dataset, Normalisation

KINEMATIC_TOLERANCE = 1e-3
HELD_BELOW = 0.05


def find_kinematics(data: Dataset, dt: float, episodes: int = 20) -> tuple[tuple[int, int], ...]:
    """Pairs (position, velocity) of coordinates with v_t = (p_t - p_{t-1}) / dt throughout the first episodes."""
    sample = [data[k].observations.astype(np.float64) for k in range(min(episodes, len(data)))]
    d = sample[0].shape[-1]
    pairs = []
    for velocity in range(d):
        v = np.concatenate([o[1:, :, velocity].ravel() for o in sample])
        if v.std() == 0:
            continue
        for position in range(d):
            difference = np.concatenate([np.diff(o[..., position], axis=0).ravel() for o in sample]) / dt
            # Single precision leaves a rounding of positions, magnified by 1/dt.
            rounding = 4e-7 * max(np.abs(o[..., position]).max() for o in sample) / dt
            if position != velocity and np.abs(difference - v).max() < KINEMATIC_TOLERANCE * v.std() + rounding:
                pairs.append((position, velocity))
                break
    return tuple(sorted(pairs))


def prepare(config: ModelConfig, data: Dataset, seed: int = 0, sample: int = 200) -> Model:
    """An untrained model in the units of a data set."""
    torch.manual_seed(seed)
    model = Model(config)
    chosen = np.random.default_rng([seed, 1]).permutation(len(data))[:sample]
    part = data.select(np.sort(chosen))
    units = Normalisation.of(part)
    with torch.no_grad():
        mean = torch.as_tensor(units.observation_mean, dtype=torch.float32)
        for _, velocity in config.kinematics:
            mean[velocity] = 0
        model.observation_mean.copy_(mean)
        model.observation_std.copy_(torch.as_tensor(units.observation_std, dtype=torch.float32))
        model.action_std.copy_(torch.as_tensor(units.action_std, dtype=torch.float32))
        if config.num_exogenous:
            rows = np.concatenate(
                [e.exogenous.reshape(-1, config.num_exogenous) for e in part if e.exogenous is not None]
            )
            std = torch.as_tensor(rows.std(0), dtype=torch.float32)
            model.exogenous_std.copy_(torch.where(std > 0, std, 1.0))
        model.features.inputs.unit_mean.copy_(model.observation_mean)
        model.features.inputs.unit_std.copy_(model.observation_std)
        systems = [SystemData(model, [part[k]]) for k in range(min(len(part), 100))]
        model.features.prepare((system.states[0, ::4].transpose(0, 1), system.topology) for system in systems)
        model.held[:, : len(model.free)] = _held(model, systems)
    return model


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
