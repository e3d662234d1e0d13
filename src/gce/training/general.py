"""Training of the general method: rollouts under V alone first, then under V and the shift of each system as well.

    loss = mean over K steps of |(q_t - true_t) / step|^2 + c |theta|^2

theta: a few numbers a system, trained with the network. In the last part of the training some episodes of a system
give its shift in closed form, through which the gradient flows, and others are predicted; a share of the systems goes
without it, so that V alone stays a model. Mean Gram matrices and latents are kept for new systems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gce.cluster.ranks import ALONE, Ranks, Share, ranks
from gce.features.general import LATENTS
from gce.graphs.topology import Topology
from gce.model.hierarchy import Hierarchy, learner
from gce.model.model import Model, nodes_first
from gce.operators.hierarchy import shift
from gce.training.batches import Recorded, TrainingConfig, digest
from gce.training.learning import validation_error
from gce.training.loop import Training
from gce.training.soap import Soap
from gce.trajectory import Episode

LARGEST_MISS = 20.0
ROWS = 160
"""Nodes of all windows of an iteration, and a third of the rows that shifts are fitted to."""
DRAWN = 1e-3
"""The weight of |theta|^2."""
FORGET, WATCHED = 0.01, 0.1
"""The share of the mean Gram matrix that an iteration renews, and of iterations that do so before there are shifts."""


class Learning(nn.Module):
    """What is trained: a model, the latents of the systems, and how strongly shifts are drawn to zero."""

    def __init__(self, model: Model, systems: int, seed: int) -> None:
        super().__init__()
        self.model = model
        generator = torch.Generator().manual_seed(seed)
        self.theta = nn.Parameter(0.1 * torch.randn(systems, learner(model).config.latent, generator=generator))
        self.log_kappa = nn.Parameter(torch.tensor(-1.0))
        self.seen: Tensor
        self.register_buffer("seen", torch.tensor(0.0))

    @torch.no_grad()
    def remember(self, grams: Sequence[Tensor], share: Share) -> None:
        """The mean Gram matrix follows those of some systems, of all ranks."""
        self.seen += 1
        gram = learner(self.model).gram
        mean = share.ranks.total(share.part * torch.stack(list(grams)).mean(0))
        gram.lerp_(mean.to(gram.dtype), max(FORGET, 1 / float(self.seen)))

    @torch.no_grad()
    def keep(self) -> None:
        """Some of the latents go into the model."""
        some = np.linspace(0, len(self.theta) - 1, LATENTS).round()
        learner(self.model).latents.copy_(self.theta[torch.as_tensor(some).long()])


def training_of_general(
    model: Model,
    systems: Sequence[Recorded],
    validation: Sequence[Sequence[Episode]],
    config: TrainingConfig,
    folder: Path,
) -> Training:
    """The training of a model of the general method."""
    learning = Learning(model, len(systems), config.seed).to(model.device)
    # Nodes teach alike: graphs with many need fewer windows and rows.
    most = ROWS / (config.systems * np.mean([one.graph.num_nodes for one in systems]))
    windows, fit_steps = (
        int(np.clip(np.rint(k * most), 2, of)) for k, of in ((1, config.rollouts), (3, config.fit_steps))
    )
    config = replace(config, rollouts=windows, fit_steps=fit_steps)

    def loss(horizon: int, rng: np.random.Generator, generator: torch.Generator) -> Tensor:
        return loss_of(learning, systems, config, horizon, rng, generator, ranks())

    def error() -> float:
        learning.keep()
        return validation_error(model, validation)

    about, data = model.config.described(), digest(systems, validation)
    return Training(learning, loss, error, config, folder, about, data, Soap)


def loss_of(
    learning: Learning,
    systems: Sequence[Recorded],
    config: TrainingConfig,
    horizon: int,
    rng: np.random.Generator,
    generator: torch.Generator,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Of some systems: the last horizon of a training is the one with shifts. A rank's part: parts add up."""
    model, features = learning.model, learner(learning.model)
    looped = horizon >= config.horizons[-1]
    watched = looped or rng.random() < WATCHED
    names = rng.choice(len(systems), min(config.systems, len(systems)), replace=False)
    chosen = [systems[k] for k in names]
    turn = turn_at_random(model, rng)
    rolled, fitted = [], []
    steps = min(horizon, *(one.steps for one in chosen))
    for one in chosen:
        order = rng.permutation(len(one))
        used = int(rng.integers(1, min(config.fit_episodes, len(one) - 1) + 1)) if watched else 0
        some = one.cut(rng.permutation(order[used:]), config.rollouts, steps, config.fresh_share, rng)
        rolled.append(turn(*some[:2]))
        if watched:
            fitted.append(turn(*one.cut(order[:used], config.fit_steps, 1, 0.0, rng)[:2]))
    nodes, mine = [one.graph.num_nodes for one in chosen], ranks.share(len(chosen))
    share = Share(ranks, (mine.stop - mine.start) / len(nodes), 0, sum(nodes[: mine.start]), sum(nodes))
    alone = (rng.random(len(nodes)) < config.plain)[mine]
    names, chosen, rolled, fitted = names[mine], chosen[mine], rolled[mine], fitted[mine]
    topology = Topology.of([one.graph for one in chosen])
    wires, sizes = features.wires(topology), torch.tensor(topology.splits)
    theta = learning.theta[torch.as_tensor(names)]
    latent = theta.repeat_interleave(sizes, 0)[:, None]
    M: Tensor | list[Tensor] = features.V
    if watched:
        x, after, inputs = (
            torch.cat([nodes_first(part) for part in parts])
            for parts in (
                [s[:, 0] for s, _ in fitted],
                [s[:, 1] for s, _ in fitted],
                [a[:, 0] for _, a in fitted],
            )
        )
        with torch.set_grad_enabled(looped):
            with_shift = shifted(learning, x, after, inputs, latent, topology, alone, share)
        M = with_shift if looped else M
    x = torch.cat([s.movedim(2, 0) for s, _ in rolled])  # [nodes, windows, steps + 1, c]
    inputs = torch.cat([a.movedim(2, 0) for _, a in rolled])
    under = Hierarchy(model, topology, wires, M, latent)
    motion, d = features.motion, model.config.num_observations
    q = features.inward(x)
    noise = config.noise * share.normal(q[:, :, 0, :d].shape, generator).to(q.device)
    now = torch.cat([motion.kept_to(q[:, :, 0, :d] + noise), q[:, :, 0, d:]], -1)
    total: Tensor | float = DRAWN * share.part * theta.square().mean()
    for t in range(steps):
        now = under.move(now, inputs[:, :, t])
        off = ((now - q[:, :, t + 1])[..., :d] / motion.step).clamp(-LARGEST_MISS, LARGEST_MISS)
        total = total + off.square().mean() * (len(off) / share.whole) / steps
    assert isinstance(total, Tensor)
    return total


def turn_at_random(model: Model, rng: np.random.Generator) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What turns states and inputs of a system as a whole, where turns leave the dynamics alone and nodes have no frame
    of their own."""
    motion, c = learner(model).motion, model.config
    if not motion.planes or motion.frame is not None or c.num_exogenous:
        return lambda x, inputs: (x, inputs)
    plane, angle = motion.planes[rng.integers(len(motion.planes))], float(rng.uniform(-np.pi, np.pi))
    vectors = learner(model).config.structure.get("action_vectors", ())
    a, b = ([vector[k] for vector in vectors] for k in plane)
    cos, sin, unit = np.cos(angle), np.sin(angle), model.action_std

    def acted(values: Tensor) -> Tensor:
        out = values * unit
        out[..., a], out[..., b] = cos * out[..., a] - sin * out[..., b], sin * out[..., a] + cos * out[..., b]
        return out / unit

    def turned(x: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        d, parts = c.num_observations, []
        for k in range(c.history):
            q = motion.inward(x[..., k * d : (k + 1) * d])
            parts.append(motion.outward(motion.turned(q, plane, angle)))
        earlier = x[..., c.history * d :]
        return torch.cat([*parts, acted(earlier) if c.previous_action else earlier], -1), acted(inputs)

    return turned


def shifted(
    learning: Learning,
    x: Tensor,
    after: Tensor,
    inputs: Tensor,
    latent: Tensor,
    topology: Topology,
    plain: np.ndarray,
    share: Share,
) -> list[Tensor]:
    """V + C of each system, V alone where `plain`; the mean Gram matrix follows."""
    features, d = learner(learning.model), learning.model.config.num_observations
    q, later = features.inward(x), features.inward(after)
    H = features.hidden(q, inputs, latent, features.wires(topology))
    Y, V = features.motion.targets(q[..., :d], later[..., :d]), features.V
    kappa, found, grams = learning.log_kappa.exp().double() + 1e-3, [], []
    for h, y, alone in zip(H.split(topology.splits), Y.split(topology.splits), plain, strict=True):
        h, left = h.flatten(0, 1).double(), (y - h @ V).flatten(0, 1).double()
        gram = h.T @ h / len(h)
        grams.append(gram.detach())
        found.append(V if alone else V + shift(gram, h.T @ left / len(h), features.gram, kappa).to(V.dtype))
    learning.remember(grams, share)
    return found
