"""Random power grids for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gce.envs.grid import GridParameters, PowerGrid

QUIET: dict[str, Any] = {"noise_std": 0.0, "common_noise_std": 0.0, "start_std": 0.0}


def drawn(seed: int, nodes: int, topology: str = "erdos_renyi", **changes: Any) -> GridParameters:
    parameters = PowerGrid(topology=topology).draw_parameters(np.random.default_rng(seed), nodes)
    return dataclasses.replace(parameters, **changes)


def generators(count: int, first: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng(first + k) for k in range(count)]


def rms(voltages: np.ndarray) -> float:
    return float(np.sqrt(np.mean((voltages - 1) ** 2)))
