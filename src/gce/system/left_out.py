"""What adapts a model of the general method to a system: latents, a shift, a dense part, each as strong as rollouts of
left-out episodes say.

theta minimises rollouts of H steps under V, drawn to the latents of training with mean mu and covariance P,

    min over theta of  sum r(theta)^2 / s^2 + (theta - mu)' P^-1 (theta - mu),    s^2 the mean of r^2

by Gauss-Newton steps, whose derivatives are differences of rollouts, from the best of the latents of training. Then
kappa and lambda (`gce.operators.hierarchy`) are chosen one after the other: operators of one half of the episodes (of
the only episode) predict the other half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.model.hierarchy import Hierarchy, learner
from gce.model.model import Model
from gce.operators.hierarchy import HierarchySums, Neighbourhoods, Strengths
from gce.system.evidence import Starts, normalised
from gce.system.uncertainty import LARGEST_ERROR, Spread
from gce.trajectory import Episode, check_one_system

SHIFTS = (1e-3, 1e-2, 0.1, 0.3, 1.0, 10.0, math.inf)
"""kappa tried, as shares of the rows it stands beside."""
DENSE = (1e-4, 1e-3, 1e-2, 0.1, 1.0, math.inf)
"""lambda tried, as shares of the steps."""
WORTH = 0.97
"""A part is taken where it leaves less than this share of the error without it."""
AHEAD = 60
"""Steps of the rollouts that strengths are chosen by."""
WINDOW, WINDOWS, TURNS, NUDGE = 8, 32, 6, 0.05
"""Steps and most windows that theta is fitted to, Gauss-Newton steps, and the differences of theta, in its spread."""
NODES = 1600
"""Nodes rolled out at once."""
LARGEST_MISS = 20.0

Recorded = tuple[Float[Tensor, "steps_plus_1 nodes c"], Float[Tensor, "steps nodes a"]]
"""Normalised states and inputs of an episode."""


def recorded(model: Model, episode: Episode, all_: Sequence[Episode], graph: Graph | None = None) -> Recorded:
    check_one_system(model.config, [episode], all_[0].graph if graph is None else graph)
    topology = Topology.of(episode.graph, model.device)
    inputs = model.inputs(episode.actions, episode.exogenous, episode.num_nodes)
    seen = model.merge(model.tensor(normalised(model, episode.observations)), topology)
    return model.states(seen, inputs[..., : model.config.num_actions]), inputs


def starts_of(model: Model, episode: Episode) -> Starts:
    """First observations are taken as they are."""
    first = normalised(model, episode.observations[0])
    return Starts(1, first, np.square(first), first.copy(), 0.0)


Stretch = tuple[int, int, int]
"""An episode's number, the first step and the number of steps."""


class Fit:
    """What adapting works on: the recordings of one system."""

    def __init__(self, model: Model, graph: Graph, episodes: Sequence[Recorded]) -> None:
        self.model, self.episodes, self.features = model, episodes, learner(model)
        self.topology = Topology.of(graph, model.device)
        self.wires = self.features.wires(self.topology)
        c = model.config
        self.near = Neighbourhoods.of(self.topology, self.features.config.hops, c.num_state + c.num_inputs)
        self.V = self.features.V.detach()

    def under(
        self, M: Tensor, W: Tensor | None, latent: Tensor | Sequence[float], precision: torch.dtype | None = None
    ) -> Hierarchy:
        to = precision or self.model.dtype
        theta = torch.as_tensor(latent, dtype=to, device=self.model.device)
        return Hierarchy(
            self.model, self.topology, self.wires, M.to(to), theta, None if W is None else W.to(to), self.near
        )

    @property
    def paths(self) -> list[tuple[np.ndarray, Tensor]]:
        """Normalised observations and inputs."""
        d = self.model.config.num_observations
        return [(x[..., :d].double().cpu().numpy(), a) for x, a in self.episodes]

    def cut(self, stretches: Sequence[Stretch]) -> tuple[Tensor, Tensor]:
        """States [steps + 1, nodes, stretches, c] and inputs [steps, nodes, stretches, a], as long as the shortest."""
        steps = min(length for *_, length in stretches)
        x = torch.stack([self.episodes[e][0][t : t + steps + 1] for e, t, _ in stretches], 2)
        return x, torch.stack([self.episodes[e][1][t : t + steps] for e, t, _ in stretches], 2)

    # ---- latent numbers ----

    @torch.no_grad()
    def latent(self) -> Float[Tensor, " l"]:
        """theta, by Gauss-Newton."""
        known, size = self.features.latents, self.features.config.latent
        if not size:
            return known[0]
        mean, n = known.mean(0), self.topology.num_nodes
        P = torch.cov(known.T).reshape(size, size) + 1e-4 * torch.eye(size)
        steps = min(WINDOW, min(len(a) for _, a in self.episodes))
        places = [(e, t, steps) for e, (_, a) in enumerate(self.episodes) for t in range(0, len(a) - steps + 1, steps)]
        count = max(4, min(WINDOWS, NODES // ((size + 1) * n) + 1, len(places)))
        windows = [places[k] for k in np.unique(np.linspace(0, len(places) - 1, count).astype(int))]
        x, inputs = self.cut(windows)
        some = max(1, len(windows) // 4)

        def missed(latents: Tensor, used: int) -> Tensor:
            """Residuals [latents, ...] of the windows under V."""
            b = len(latents)
            chosen = torch.linspace(0, len(windows) - 1, used).long()
            start, true = x[0][:, chosen].repeat(1, b, 1), x[1:][:, :, chosen].repeat(1, 1, b, 1)
            theta = latents.repeat_interleave(used, 0)
            q = self.under(self.V, None, theta).rollout(start, inputs[:, :, chosen].repeat(1, 1, b, 1))
            d, motion = self.model.config.num_observations, self.features.motion
            off = (motion.inward(q[..., :d]) - motion.inward(true[..., :d])) / motion.step
            off = off.clamp(-LARGEST_MISS, LARGEST_MISS)
            return off.unflatten(2, (b, used)).movedim(2, 0).flatten(1)

        def loss(latents: Tensor, r: Tensor, noise: Tensor) -> Tensor:
            apart = latents - mean
            return weight * r.square().mean(1) / noise + (apart @ torch.linalg.inv(P) * apart).sum(1)

        weight = len(windows) * n  # how many residuals count as independent
        tried = torch.cat([mean[None], known])
        theta = tried[missed(tried, some).square().mean(1).argmin()]
        nudges = NUDGE * P.diagonal().sqrt()
        for _ in range(TURNS):
            r = missed(torch.cat([theta[None], theta + torch.diag(nudges)]), len(windows))
            noise = r[0].square().mean().clamp_min(1e-8)
            J = (r[1:] - r[0]) / nudges[:, None]
            curvature = weight * (J @ J.T) / r.shape[1] / noise + torch.linalg.inv(P)
            slope = weight * (J @ r[0]) / r.shape[1] / noise + torch.linalg.solve(P, theta - mean)
            step = -torch.linalg.solve(curvature, slope)
            tried = theta + torch.tensor([0.0, 0.1, 0.3, 1.0])[:, None] * step
            best = int(loss(tried, missed(tried, len(windows)), noise).argmin())
            theta = tried[best]
            if best == 0 or bool((step.abs() < 0.02 * P.diagonal().sqrt()).all()):
                break
        return theta

    # ---- sums ----

    @torch.no_grad()
    def sums(self, latent: Tensor, stretches: Sequence[Stretch]) -> HierarchySums:
        """Of all steps of some stretches."""
        motion, d, found = self.features.motion, self.model.config.num_observations, []
        x = torch.cat([self.episodes[e][0][t : t + length] for e, t, length in stretches])
        after = torch.cat([self.episodes[e][0][t + 1 : t + length + 1] for e, t, length in stretches])
        inputs = torch.cat([self.episodes[e][1][t : t + length] for e, t, length in stretches])
        together = max(1, 4 * NODES // self.topology.num_nodes)
        for rows in torch.arange(len(x)).split(together):
            q, later = (self.features.inward(part[rows].transpose(0, 1)) for part in (x, after))
            a = inputs[rows].transpose(0, 1)
            H = self.features.hidden(q, a, latent, self.wires)
            Y = motion.targets(q[..., :d], later[..., :d])
            found.append(HierarchySums.of(H, Y, self.near.rows(torch.cat([q, a], -1)), latent))
        return reduce(add, found)

    def halves(self, latent: Tensor) -> tuple[HierarchySums, HierarchySums]:
        return self.sums(latent, self._half(0)), self.sums(latent, self._half(1))

    def _half(self, k: int) -> list[Stretch]:
        """Every other episode; of a single one its first or its second half."""
        lengths = [len(inputs) for _, inputs in self.episodes]
        if len(lengths) > 1:
            return [(e, 0, length) for e, length in enumerate(lengths) if e % 2 == k]
        middle = (lengths[0] + 1) // 2
        return [(0, 0, middle), (0, middle if lengths[0] > 1 else 0, max(1, lengths[0] - middle))][k : k + 1]

    # ---- strengths ----

    def strengths(self, latent: Tensor, halves: tuple[HierarchySums, HierarchySums]) -> Strengths:
        """kappa, then lambda, by rollouts of the half that operators were not fitted to."""
        gram, rows = self.features.gram, [half.rows for half in halves]
        theta = tuple(latent.tolist())

        def chosen(
            candidates: Sequence[float], parts: Callable[[HierarchySums, float], tuple[Tensor, Tensor | None]]
        ) -> int:
            found = np.zeros(len(candidates))
            for k, half in enumerate(halves):
                made = [parts(half, share) for share in candidates]
                found += self._scores([M for M, _ in made], [W for _, W in made], latent, 1 - k)
            best = int(found.argmin())
            return best if found[best] < WORTH * found[-1] else len(candidates) - 1

        kappa = SHIFTS[chosen(SHIFTS, lambda half, share: (half.shifted(self.V, gram, share * half.rows), None))]

        def both(half: HierarchySums, share: float) -> tuple[Tensor, Tensor | None]:
            M = half.shifted(self.V, gram, kappa * half.rows)
            return M, half.dense(M, share * half.rows / self.topology.num_nodes)

        lam = DENSE[chosen(DENSE, both)]
        mean = float(np.mean(rows))
        return Strengths(kappa * mean, lam * mean / self.topology.num_nodes, theta)

    @torch.no_grad()
    def _scores(
        self, Ms: Sequence[Tensor], Ws: Sequence[Tensor | None], latent: Tensor, half: int
    ) -> Float[np.ndarray, " candidates"]:
        """Mean NRMSE of rollouts over a half, under each of some operators."""
        count = int(np.clip(NODES // (len(Ms) * self.topology.num_nodes), 2, 8))
        places: list[Stretch] = []
        for e, t, length in self._half(half):
            long = min(AHEAD, length)
            places += [(e, t, long)] + ([(e, t + length - long, long)] if length > long else [])
        places = [places[k] for k in np.unique(np.linspace(0, len(places) - 1, min(count, len(places))).astype(int))]
        x, inputs = self.cut(places)
        c, b = len(Ms), len(places)
        W = None
        if any(one is not None for one in Ws):
            zero = torch.zeros_like(next(one for one in Ws if one is not None))
            W = torch.stack([zero if one is None else one for one in Ws]).repeat_interleave(b, 0)
        under = self.under(torch.stack(list(Ms)).repeat_interleave(b, 0), W, latent)
        path = under.rollout(x[0].repeat(1, c, 1), inputs.repeat(1, 1, c, 1))
        d = self.model.config.num_observations
        off = (path - x[1:].repeat(1, 1, c, 1))[..., :d].square().mean((1, 3)).sqrt().clamp(max=10)
        scores: np.ndarray = off.mean(0).reshape(c, b).mean(1).double().numpy()
        return scores

    # ---- how far predictions are off ----

    def spread(self, halves: tuple[HierarchySums, HierarchySums], strengths: Strengths) -> Spread:
        """Of predicting some episodes of each half, whole, by the other."""
        spread, some = Spread.nothing(self.model.config.num_observations), 4
        for k, half in enumerate(halves):
            M = half.shifted(self.V, self.features.gram, strengths.shift)
            under = self.under(M, half.dense(M, strengths.dense), strengths.latent)
            numbers = [e for e, *_ in self._half(1 - k)][:some]
            spread = spread + self.errors([(e, 0, len(self.episodes[e][1])) for e in numbers], under)
        return Spread(spread.squares / 2, spread.counts / 2) if len(self.episodes) == 1 else spread

    @torch.no_grad()
    def errors(self, stretches: Sequence[Stretch], under: Hierarchy) -> Spread:
        """Squared errors of rollouts along stretches."""
        d = self.model.config.num_observations
        spread = Spread.nothing(d)
        for stretch in stretches:
            x, inputs = self.cut([stretch])
            off = torch.cat([x[:1], under.rollout(x[0], inputs)]) - x
            wrong = off[:, :, 0, :d].double().abs().nan_to_num(LARGEST_ERROR).clamp(max=LARGEST_ERROR).cpu().numpy()
            spread = spread + Spread(np.square(wrong).mean(axis=1), np.ones(len(wrong)))
        return spread
