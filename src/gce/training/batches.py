"""Systems as tensors, and what an iteration of training works on: stretches of some of them, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gce.graphs.topology import Topology
from gce.model.model import Model
from gce.system.evidence import model_inputs
from gce.training import checkpoint
from gce.training.config import TrainingConfig
from gce.trajectory import Episode


class SystemData:
    """The episodes of one system as tensors: states [episodes, T+1, nodes, c] and inputs [episodes, T, nodes, a].

    kind: the same for systems on equal graphs, which may be worked on as one batch.
    """

    def __init__(self, model: Model, episodes: Sequence[Episode]) -> None:
        self.graph = episodes[0].graph
        # Forms without shared operators have one for each node, and no batch of systems.
        self.kind = None if not (model.features.batched and model.form.shared) else checkpoint.fingerprint([self.graph])
        steps = min(episode.length for episode in episodes)
        seen = [torch.as_tensor(e.observations[: steps + 1], dtype=torch.float32) for e in episodes]
        self.inputs = torch.stack([model_inputs(model, e.actions, e.exogenous, e.graph)[:steps] for e in episodes])
        with torch.no_grad():
            actions = self.inputs[..., : model.config.num_actions]
            self.states = model.states(model.normalise(torch.stack(seen)), actions)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def steps(self) -> int:
        return self.inputs.shape[1]

    @cached_property
    def topology(self) -> Topology:
        return Topology.of(self.graph)


@dataclass(frozen=True)
class Batch:
    """Some systems joined: chunks to fit on and windows to predict, [systems, stretches, steps, nodes, ...].

    Systems on equal graphs share the topology; others are one system, on the union of their graphs.
    """

    topology: Topology
    fit_states: Tensor
    fit_inputs: Tensor
    fit_fresh: Tensor
    states: Tensor
    inputs: Tensor
    fresh: Tensor


def draw_batch(systems: Sequence[SystemData], config: TrainingConfig, horizon: int, rng: np.random.Generator) -> Batch:
    """Chunks and windows at random; episodes that are fitted on are not predicted."""
    chosen = [systems[k] for k in rng.integers(0, len(systems), config.systems)]
    alike = [system for system in systems if system.kind is not None and system.kind == chosen[0].kind]
    shared = len(alike) >= config.systems
    if shared:
        chosen = [alike[k] for k in rng.permutation(len(alike))[: config.systems]]
    pieces: dict[str, list[Tensor]] = {name: [] for name in ("fs", "fi", "ff", "s", "i", "f")}
    for system in chosen:
        order = rng.permutation(len(system))
        count = min(config.fit_episodes, len(system) - 1)
        fitted = order[:count][np.arange(config.fit_episodes) % count]
        predicted = order[count:][np.arange(config.rollouts) % (len(system) - count)]
        for names, episodes, steps in (
            (("fs", "fi", "ff"), fitted, config.fit_steps),
            (("s", "i", "f"), predicted, horizon),
        ):
            steps = min(steps, *(other.steps for other in chosen))
            starts = rng.integers(0, system.steps - steps + 1, len(episodes))
            starts[rng.random(len(episodes)) < config.fresh_share] = 0
            where = torch.as_tensor(starts)[:, None] + torch.arange(steps + 1)
            e = torch.as_tensor(episodes)[:, None]
            pieces[names[0]].append(system.states[e, where])
            pieces[names[1]].append(system.inputs[e, where[:, :-1]])
            nodes = system.graph.num_nodes
            pieces[names[2]].append((where[:, :-1] == 0).float()[..., None, None].expand(-1, -1, nodes, 1))
    joined = {name: torch.stack(parts) if shared else torch.cat(parts, dim=2)[None] for name, parts in pieces.items()}
    return Batch(
        chosen[0].topology if shared else Topology.of([system.graph for system in chosen]),
        *(joined[name] for name in ("fs", "fi", "ff", "s", "i", "f")),
    )
