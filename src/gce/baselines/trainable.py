"""Baselines that are trained, and how those without a closed-form fit adapt: by gradient descent on the episodes."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.base import Adapted, Baseline
from gce.baselines.windows import Batch, Draw, Recorded, draw_batch
from gce.graphs.graph import Graph
from gce.trajectory import Episode


@dataclass(frozen=True)
class Schedule:
    """How to train. horizons: steps of a window, growing; each for an equal share of the iterations.

    learning_rate: the largest; it falls along a cosine to 2%.
    """

    iterations: int = 4000
    seed: int = 0
    learning_rate: float = 3e-3
    horizons: tuple[int, ...] = (1,)
    draw: Draw = field(default_factory=Draw)
    clip: float = 1.0
    validate_every: int = 250
    checkpoint_every: int = 50


@dataclass(frozen=True)
class FineTuning:
    """The budget of adaptation by gradient descent, the same for every method that needs it.

    edges: of all windows of a step, at most, so that a step on a large graph takes no longer.
    """

    steps: int = 100
    learning_rate: float = 3e-4
    windows: int = 8
    edges: int = 8192
    horizon: int = 16
    check_every: int = 20


class Trainable(Baseline):
    """A baseline with a loss."""

    schedule: ClassVar[Schedule]
    """What a training of some 15 minutes on one core prefers."""

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]: ...

    @torch.no_grad()
    def set_inputs(self, systems: Sequence[Recorded]) -> None:
        """Learn the units of what the method sees from states, where it has any beside the observation's."""


class FineTuned(Trainable):
    """A baseline that adapts by going on with its training on the episodes of a system.

    Of the models on the way, the untuned one included, the one is kept that predicts these episodes best from their
    starts: windows are shorter than episodes, and a path that leaves the known states can run away after them.
    """

    tuning: ClassVar[FineTuning] = FineTuning()

    @abstractmethod
    def adapted(self, graph: Graph) -> Adapted:
        """As it is, in double precision."""

    def fit(self, episodes: Sequence[Episode]) -> Adapted:
        plan, tuned = self.tuning, copy.deepcopy(self)
        system, graph = Recorded(tuned, episodes), episodes[0].graph
        rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
        optimiser = torch.optim.Adam(tuned.parameters(), lr=plan.learning_rate)
        draw = Draw(systems=1, windows=min(plan.windows, max(1, plan.edges // max(1, graph.num_edges))))
        best = copy.deepcopy(tuned).double().adapted(graph)
        least = best.miss(system.states, system.inputs)
        for k in range(plan.steps):
            loss = tuned.loss(draw_batch([system], draw, plan.horizon, rng), generator)
            optimiser.zero_grad()
            loss.backward()
            size = torch.nn.utils.clip_grad_norm_(tuned.parameters(), self.schedule.clip)
            if torch.isfinite(size):
                optimiser.step()
            if (k + 1) % plan.check_every == 0:
                found = copy.deepcopy(tuned).double().adapted(graph)
                error = found.miss(system.states, system.inputs)
                if error < least:
                    best, least = found, error
        return best
