"""Baselines that are trained: what on, and how those without a closed-form fit adapt, by going on with it."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.base import Adapted, Baseline, Selecting, adapt
from gce.cluster.ranks import ALONE, Ranks, ranks
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.training.batches import Recorded, digest
from gce.training.learning import Systems, equal_systems, prediction_error
from gce.training.loop import LoopConfig, Training, descend
from gce.trajectory import Dataset, Episode

FRESH_SHARE = 0.2
"""Of windows that open their episode."""
UNIT_SYSTEMS = 100
SLOPES = 2_000_000
"""Derivatives of a path, times the edges that each goes through, beyond which fewer rows are linearised."""


@dataclass(frozen=True)
class Draw:
    """How much an iteration draws: windows of some systems, and stretches of other episodes to fit operators on.

    fit_episodes: 0 for methods that fit nothing in training.
    """

    systems: int = 4
    windows: int = 4
    fit_episodes: int = 0
    fit_steps: int = 12


@dataclass(frozen=True)
class Schedule(LoopConfig):
    """How to train. horizons: steps of a window, growing; each for an equal share of the iterations."""

    draw: Draw = field(default_factory=Draw)


@dataclass(frozen=True)
class Windows:
    """Stretches of episodes, nodes of all systems side by side."""

    states: Float[Tensor, "windows steps_plus_1 nodes c"]
    inputs: Float[Tensor, "windows steps nodes i"]


@dataclass(frozen=True)
class WindowBatch:
    """Windows to predict, and windows of other episodes of the same systems to fit on, where they are asked for."""

    topology: Topology
    windows: Windows
    fit: Windows | None


def draw_batch(
    systems: Sequence[Recorded], draw: Draw, horizon: int, rng: np.random.Generator, ranks: Ranks = ALONE
) -> WindowBatch:
    """Windows at random; of a rank, those of its share of the systems."""
    chosen = [systems[k] for k in rng.integers(0, len(systems), draw.systems)]
    longest = min(system.steps for system in chosen)
    windows, fits = [], []
    for system in chosen:
        order = rng.permutation(len(system))
        kept = min(draw.fit_episodes, len(system) - 1)
        windows.append(system.cut(order[kept:], draw.windows, min(horizon, longest), FRESH_SHARE, rng))
        if kept:
            steps = min(draw.fit_steps, longest)
            fits.append(system.cut(order[:kept], draw.fit_episodes, steps, FRESH_SHARE, rng))
    mine = ranks.share(len(chosen))
    topology = Topology.of([system.graph for system in chosen[mine]])
    return WindowBatch(topology, _join(windows[mine]), _join(fits[mine]) if fits else None)


def _join(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Windows:
    states, inputs, _ = zip(*parts, strict=True)
    return Windows(torch.cat(states, dim=2), torch.cat(inputs, dim=2))


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
    def loss(self, batch: WindowBatch, generator: torch.Generator) -> Float[Tensor, ""]: ...

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
        system, graph = Recorded.of(tuned, episodes), episodes[0].graph
        rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
        optimiser = torch.optim.Adam(tuned.parameters(), lr=plan.learning_rate)
        draw = Draw(systems=1, windows=min(plan.windows, max(1, plan.edges // max(1, graph.num_edges))))
        best = copy.deepcopy(tuned).double().adapted(graph)
        least = best.miss(system.states, system.inputs)
        for k in range(plan.steps):
            loss = tuned.loss(draw_batch([system], draw, plan.horizon, rng), generator)
            descend(optimiser, loss, list(tuned.parameters()), self.schedule.clip)
            if (k + 1) % plan.check_every == 0:
                adapted = copy.deepcopy(tuned).double().adapted(graph)
                error = adapted.miss(system.states, system.inputs)
                if error < least:
                    best, least = adapted, error
        return best


class Advancing(FineTuned):
    """A baseline that gives the next state from the state."""

    @abstractmethod
    def advance(
        self, state: Float[Tensor, "*batch nodes c"], inputs: Float[Tensor, "*batch nodes i"], topology: Topology
    ) -> Float[Tensor, "*batch nodes c"]: ...

    def adapted(self, graph: Graph) -> Advanced:
        return Advanced(self, graph)


class Advanced(Selecting):
    """x is the state itself, which the model advances."""

    model: Advancing

    def encode(self, state: Float[Tensor, "*batch nodes c"]) -> Float[Tensor, "*batch s"]:
        return state.flatten(-2)

    def step(self, x: Float[Tensor, "*batch s"], inputs: Float[Tensor, "*batch nodes i"]) -> Float[Tensor, "*batch s"]:
        state = x.unflatten(-1, (self.graph.num_nodes, -1))
        return self.model.advance(state, inputs, self.topology).flatten(-2)

    def slopes(
        self, x: Float[Tensor, "M s"], inputs: Float[Tensor, "M nodes i"]
    ) -> tuple[Float[Tensor, "M s s"], Float[Tensor, "M s n"]]:
        """On a large graph, where a row takes ten seconds, at some rows of the path, each for those nearest to it."""
        many = max(1, SLOPES // (x.shape[-1] * max(1, self.graph.num_edges)))
        if many >= len(x):
            return super().slopes(x, inputs)
        at = torch.linspace(0, len(x) - 1, many + 2)[1:-1].round().long()
        by_x, by_u = super().slopes(x[at], inputs[at])
        nearest = (torch.arange(len(x))[:, None] - at).abs().argmin(1)
        return by_x[nearest], by_u[nearest]


def training_of(
    model: Trainable, systems: Sequence[Recorded], validation: Systems, plan: Schedule, folder: Path
) -> Training:
    """The training of a baseline on some systems; it is judged by others, or by other episodes."""

    here = ranks()
    mine = here.share(plan.draw.systems)

    def loss(horizon: int, rng: np.random.Generator, generator: torch.Generator) -> Tensor:
        batch = draw_batch(systems, plan.draw, horizon, rng, here)
        generator.manual_seed(generator.initial_seed() + here.rank)  # noise of its own
        return model.loss(batch, generator) * ((mine.stop - mine.start) / plan.draw.systems)

    about, data = {"baseline": model.name, **asdict(model.config)}, digest(systems, validation)
    error = partial(prediction_error, partial(adapt, model), model, validation)
    return Training(model, loss, error, plan, folder, about, data)


def systems_of(model: Trainable, data: Dataset, plan: Schedule) -> list[Recorded]:
    """The systems to train on, of equal length where the method fits operators on some episodes; sets their units."""
    wanted = max(*plan.horizons, plan.draw.fit_steps)
    systems = equal_systems(data, wanted, not model.config.previous_action, partial(Recorded.of, model))
    model.set_inputs(systems[:UNIT_SYSTEMS])
    return systems
