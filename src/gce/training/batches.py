"""What an iteration of training works on, and what it minimises.

An iteration takes a few systems, fits their operators on chunks of some episodes (closed form), rolls out windows of
others, and follows the gradient of the prediction error through the rollout, the fit and the encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.cluster.ranks import ALONE, WHOLE, Ranks, Share
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.model.model import Model, Units, nodes_first
from gce.model.step import Stepper, features_along, rollout
from gce.operators import Operator
from gce.training.loop import LoopConfig
from gce.trajectory import Episode


@dataclass(frozen=True)
class TrainingConfig(LoopConfig):
    """How to train.

    systems, fit_episodes, fit_steps: what operators are fitted on; rollouts: windows a system to predict.
    free_running: whether windows are rolled out from their first state; otherwise every step is predicted from the true
        state before it, and judged by the effects that its operator should have had. Where what is left to learn is
        small beside noise that grows with time, single steps teach more.
    forward, relative: the weight of the forward loss in features, for models that roll out there, and whether it is
        in units of the features' spread; without it, features that shrink would lower it (paper, 'Loss functions').
    fresh_share: of chunks and windows that open an episode; fit_fresh_share: of chunks, where another.
    noise: largest observation noise added to some batches.
    plain: share of the systems that are predicted without a shift of their own, in the general method.
    """

    iterations: int = 3000
    systems: int = 4
    fit_episodes: int = 8
    fit_steps: int = 12
    rollouts: int = 4
    horizons: tuple[int, ...] = (4, 16, 16, 16, 32, 32, 32, 48)
    free_running: bool = True
    forward: float = 0.0
    relative: bool = True
    fresh_share: float = 0.2
    fit_fresh_share: float | None = None
    noise: float = 0.1
    noise_share: float = 0.3
    plain: float = 0.25


class Recorded:
    """The episodes of one system as tensors: states [episodes, T+1, nodes, c] and inputs [episodes, T, nodes, i].

    pairs: states and inputs of each episode. kind: the same for systems that may be worked on as one batch.
    """

    def __init__(self, graph: Graph, pairs: Sequence[tuple[Tensor, Tensor]], kind: str | None = None) -> None:
        self.graph, self.kind = graph, kind
        steps = min(len(inputs) for _, inputs in pairs)
        self.states = torch.stack([states[: steps + 1] for states, _ in pairs])
        self.inputs = torch.stack([inputs[:steps] for _, inputs in pairs])

    @classmethod
    def of(cls, units: Units, episodes: Sequence[Episode]) -> Recorded:
        return cls(episodes[0].graph, [units.recorded(episode) for episode in episodes])

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def steps(self) -> int:
        return self.inputs.shape[1]

    @cached_property
    def topology(self) -> Topology:
        return Topology.of(self.graph)

    def cut(
        self, episodes: np.ndarray, count: int, steps: int, fresh_share: float, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(states, inputs, which steps open an episode) of stretches at random, one after the other of the episodes."""
        starts = rng.integers(0, self.steps - steps + 1, count)
        starts[rng.random(count) < fresh_share] = 0
        where = torch.as_tensor(starts)[:, None] + torch.arange(steps + 1)
        e = torch.as_tensor(episodes[np.arange(count) % len(episodes)])[:, None]
        fresh = (where[:, :-1] == 0).float()[..., None, None].expand(-1, -1, self.graph.num_nodes, 1)
        return self.states[e, where], self.inputs[e, where[:, :-1]], fresh


class SystemData(Recorded):
    """As our models see a system; those on equal graphs are of one kind."""

    def __init__(self, model: Model, episodes: Sequence[Episode]) -> None:
        graph, pairs = episodes[0].graph, [model.recorded(episode) for episode in episodes]
        # Forms without shared operators have one for each node, and no batch of systems.
        alike = model.features.batched and model.form.shared
        super().__init__(graph, pairs, fingerprint([graph]) if alike else None)


def fingerprint(parts: Iterable[Graph | np.ndarray | None]) -> str:
    """A digest of graphs and arrays, in order."""
    digest = hashlib.sha256()
    for part in parts:
        for array in part.arrays().values() if isinstance(part, Graph) else [part]:
            if array is not None:
                digest.update(f"{array.dtype} {array.shape} ".encode())
                digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def digest(systems: Sequence[Recorded], validation: Sequence[Sequence[Episode]]) -> str:
    """Of all that is trained and validated on."""
    seen = [part for s in systems for part in (s.graph, s.states.cpu().numpy(), s.inputs.cpu().numpy())]
    kept = [p for es in validation for e in es for p in (e.graph, e.observations, e.actions, e.exogenous)]
    return fingerprint(seen + kept)


@dataclass(frozen=True)
class Batch:
    """Some systems joined: chunks to fit on and windows to predict, [systems, stretches, steps, nodes, ...].

    Systems on equal graphs share the topology; others are one system, on the union of their graphs. share: of a rank.
    """

    topology: Topology
    fit_states: Tensor
    fit_inputs: Tensor
    fit_fresh: Tensor
    states: Tensor
    inputs: Tensor
    fresh: Tensor
    share: Share = field(default=WHOLE, kw_only=True)


def draw_batch(
    systems: Sequence[Recorded],
    config: TrainingConfig,
    horizon: int,
    rng: np.random.Generator,
    ranks: Ranks = ALONE,
) -> Batch:
    """Chunks and windows at random; episodes that are fitted on are not predicted. All is drawn, and a share kept."""
    chosen = [systems[k] for k in rng.integers(0, len(systems), config.systems)]
    alike = [system for system in systems if system.kind is not None and system.kind == chosen[0].kind]
    shared = len(alike) >= config.systems
    if shared:
        chosen = [alike[k] for k in rng.permutation(len(alike))[: config.systems]]
    longest = min(system.steps for system in chosen)
    fit_steps, horizon = min(config.fit_steps, longest), min(horizon, longest)
    fit_fresh = config.fresh_share if config.fit_fresh_share is None else config.fit_fresh_share
    pieces = []
    for system in chosen:
        order = rng.permutation(len(system))
        count = min(config.fit_episodes, len(system) - 1)
        fitted = system.cut(order[:count], config.fit_episodes, fit_steps, fit_fresh, rng)
        pieces.append((*fitted, *system.cut(order[count:], config.rollouts, horizon, config.fresh_share, rng)))
    mine = ranks.share(len(chosen))
    columns = list(zip(*pieces[mine], strict=True))
    part = (mine.stop - mine.start) / len(chosen)
    if shared:
        share = Share(ranks, part, 0, mine.start, len(chosen))
        return Batch(chosen[0].topology, *(torch.stack(parts) for parts in columns), share=share)
    nodes = [system.graph.num_nodes for system in chosen]
    share = Share(ranks, part, -2, sum(nodes[: mine.start]), sum(nodes))
    union = Topology.of([system.graph for system in chosen[mine]])
    return Batch(union, *(torch.cat(parts, dim=2)[None] for parts in columns), share=share)


def loss_of(model: Model, batch: Batch, config: TrainingConfig, generator: torch.Generator) -> Tensor:
    """The prediction error of the windows, root mean square over nodes and coordinates, mean over steps and windows.

    Of a share of a batch, its part of that: parts add up.
    Without `free_running`, the share of their effects that single steps leave unexplained.
    Where a decoder finds the observation, what it loses of those fitted on is added.
    """
    topology, d = batch.topology, model.config.num_observations
    fit_states, start = batch.fit_states, batch.states[:, :, 0]
    if torch.rand((), generator=generator) < config.noise_share:
        level = config.noise * torch.rand((), generator=generator)
        # Adaptation smooths noise away for the most part, so the fit sees less of it than the first observation.
        fit_states = fit_states + 0.3 * level * _observation_noise(fit_states, d, generator, batch.share)
        start = start + level * _observation_noise(start, d, generator, batch.share)
    here, there = fit_states[:, :, :-1], fit_states[:, :, 1:]
    if model.num_needed(model.config.reproject) == model.features.num_effects:  # the next features need not be known
        psi = model.features(here, topology)
        Y = (there - here)[..., model.free]
    else:
        along = model.features(fit_states, topology)
        psi = along[:, :, :-1]
        Y = model.targets(here, there, along[:, :, 1:], topology)
    X = model.regressors(psi, batch.fit_inputs, topology, batch.fit_fresh)
    operators = model.fit_all(X, Y, here, topology)
    if not config.free_running:
        return batch.share.part * _unexplained(model, operators, batch)
    step, first = Stepper(model, operators, topology), model.features(start, topology)
    if config.forward:
        return batch.share.part * _in_features(model, step, first, batch, config)
    predicted = rollout(step, first, batch.inputs, batch.fresh)
    forward = miss(predicted[..., :d], batch.states[:, :, 1:, :, :d], topology)
    if model.features.selects or model.features.planned_in_features:
        return batch.share.part * forward
    lost = (model.decoded(psi, topology) - batch.fit_states[:, :, :-1, :, :d]).square()
    return batch.share.part * (forward + _root_mean_square(lost, topology))


def _in_features(model: Model, step: Stepper, first: Tensor, batch: Batch, config: TrainingConfig) -> Tensor:
    """The paper's losses: of predicted features, and of observations decoded from predicted features."""
    topology, d = batch.topology, model.config.num_observations
    psi, later = features_along(step, first, batch.inputs), batch.states[:, :, 1:]
    predicted, phi = model.decoded(psi, topology), model.features.future_phi(later, topology)
    gap = psi[..., model.config.num_state :] - phi
    if config.relative:
        gap = gap / batch.share.spread(phi.detach().flatten(0, -2)).clamp_min(1e-3)
    forward = _root_mean_square(gap.square().clamp(max=1e4), topology)
    return miss(predicted, later[..., :d], topology) + config.forward * forward


def _unexplained(model: Model, operators: Sequence[Operator], batch: Batch) -> Tensor:
    """The share of true effects, squared, that operators leave unexplained at single steps; mean over graphs."""
    topology, c = batch.topology, model.config.num_state
    here, there = batch.states[:, :, :-1], batch.states[:, :, 1:]
    step, rows = Stepper(model, operators, topology), nodes_first(model.features(here, topology))
    said = step.targets(rows[..., :c], rows[..., c:], step.drive(batch.inputs, batch.fresh))
    with torch.no_grad():
        true = nodes_first(model.features.effects(operators, here, there, topology))
    parts = zip(
        (said[..., : model.features.num_effects] - true).split(topology.splits),
        true.split(topology.splits),
        strict=True,
    )
    share = batch.share
    together = share.ranks.count > 1 and share.dim == 0  # of systems on equal graphs, all effects are the unit

    def unit(effect: Tensor) -> Tensor:
        return share.part * share.ranks.total(effect.square().sum()) if together else effect.square().sum()

    return torch.stack([miss.square().sum() / unit(effect) for miss, effect in parts]).mean()


def miss(
    predicted: Float[Tensor, "*batch nodes d"], true: Float[Tensor, "*batch nodes d"], topology: Topology
) -> Float[Tensor, ""]:
    """Root mean square error over the nodes and coordinates of a system, mean over systems and all else."""
    return _root_mean_square((predicted - true).square().clamp(max=1e4), topology)


def _root_mean_square(squares: Float[Tensor, "*batch nodes d"], topology: Topology) -> Tensor:
    """Over the nodes and coordinates of each graph; then the mean."""
    by_system = torch.stack([part.mean((-1, -2)) for part in squares.split(topology.splits, dim=-2)])
    return (by_system + 1e-6).sqrt().mean()


def _observation_noise(states: Tensor, coordinates: int, generator: torch.Generator, share: Share) -> Tensor:
    noise = torch.zeros_like(states)
    noise[..., :coordinates] = share.normal(noise[..., :coordinates].shape, generator)
    return noise
