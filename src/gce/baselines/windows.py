"""What a baseline is trained on: windows of some systems' episodes, joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.base import Baseline
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.trajectory import Episode


@dataclass(frozen=True)
class Draw:
    """How much an iteration draws: windows of some systems, and stretches of other episodes to fit operators on.

    fit_episodes: 0 for methods that fit nothing in training.
    """

    systems: int = 4
    windows: int = 4
    fit_episodes: int = 0
    fit_steps: int = 12


class Recorded:
    """The episodes of one system as tensors: states [episodes, T+1, nodes, c] and inputs [episodes, T, nodes, i]."""

    def __init__(self, model: Baseline, episodes: Sequence[Episode]) -> None:
        self.graph: Graph = episodes[0].graph
        steps = min(episode.length for episode in episodes)
        pairs = [model.states(episode) for episode in episodes]
        self.states = torch.stack([states[: steps + 1] for states, _ in pairs])
        self.inputs = torch.stack([inputs[:steps] for _, inputs in pairs])

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def steps(self) -> int:
        return self.inputs.shape[1]

    @cached_property
    def topology(self) -> Topology:
        return Topology.of(self.graph)


@dataclass(frozen=True)
class Windows:
    """Stretches of episodes, nodes of all systems side by side."""

    states: Float[Tensor, "windows steps_plus_1 nodes c"]
    inputs: Float[Tensor, "windows steps nodes i"]


@dataclass(frozen=True)
class Batch:
    """Windows to predict, and windows of other episodes of the same systems to fit on, where they are asked for."""

    topology: Topology
    windows: Windows
    fit: Windows | None


def draw_batch(systems: Sequence[Recorded], draw: Draw, horizon: int, rng: np.random.Generator) -> Batch:
    """At random; a fifth of the windows open their episode."""
    chosen = [systems[k] for k in rng.integers(0, len(systems), draw.systems)]
    horizon = min(horizon, *(system.steps for system in chosen))
    fit_steps = min(draw.fit_steps, *(system.steps for system in chosen))
    windows, fits = [], []
    for system in chosen:
        order = rng.permutation(len(system))
        kept = min(draw.fit_episodes, len(system) - 1)
        windows.append(_cut(system, _cycle(order[kept:], draw.windows), horizon, rng))
        if kept:
            fits.append(_cut(system, _cycle(order[:kept], draw.fit_episodes), fit_steps, rng))
    topology = Topology.of([system.graph for system in chosen])
    return Batch(topology, _join(windows), _join(fits) if fits else None)


def _cycle(episodes: np.ndarray, count: int) -> np.ndarray:
    return episodes[np.arange(count) % len(episodes)]


def _cut(system: Recorded, episodes: np.ndarray, steps: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    starts = rng.integers(0, system.steps - steps + 1, len(episodes))
    starts[rng.random(len(episodes)) < 0.2] = 0
    where = torch.as_tensor(starts)[:, None] + torch.arange(steps + 1)
    e = torch.as_tensor(episodes)[:, None]
    return system.states[e, where], system.inputs[e, where[:, :-1]]


def _join(parts: Sequence[tuple[Tensor, Tensor]]) -> Windows:
    states, inputs = zip(*parts, strict=True)
    return Windows(torch.cat(states, dim=2), torch.cat(inputs, dim=2))


def miss(
    predicted: Float[Tensor, "*batch nodes d"], true: Float[Tensor, "*batch nodes d"], topology: Topology
) -> Float[Tensor, ""]:
    """Root mean square error over the nodes and coordinates of a system, mean over systems and all else."""
    wrong = (predicted - true).square().clamp(max=1e4)
    by_system = torch.stack([w.mean((-1, -2)) for w in wrong.split(topology.splits, dim=-2)])
    return (by_system + 1e-6).sqrt().mean()
