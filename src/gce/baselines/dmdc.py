"""DMDc: dynamic mode decomposition with control (Proctor, Brunton, Kutz 2016), one linear map for a whole system.

With x the normalised observations of all nodes side by side, those of the step before beside them for a history of two,

    x_{t+1} - x_t = W' [x_t, x_{t-1}, u_t, 1],   W minimises mean |.|^2 + ridge |W|^2 in regressors of unit variance.

Nothing is trained. Ridge and history are those whose rollouts predict left-out episodes best, each half of the episodes
by the other; of a single episode, its halves. Before an episode's start the observation is taken to have been the same.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.base import FAR, Baseline, Selecting
from gce.baselines.koopman import LinearAdapted
from gce.features.base import StateShape
from gce.graphs.graph import Graph
from gce.trajectory import Episode

JUDGED = 8
"""Rollouts that judge a fold, at most."""


@dataclass(frozen=True)
class DmdcConfig(StateShape):
    """What ridge and history are chosen from."""

    ridges: tuple[float, ...] = tuple(10.0**k for k in range(-8, 1))
    histories: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Stretch:
    """x of every step [T+1, nodes, w] and inputs [T, nodes, i]."""

    x: Tensor
    inputs: Tensor

    def cut(self, start: int, end: int) -> Stretch:
        return Stretch(self.x[start : end + 1], self.inputs[start:end])


class Dmdc(Baseline):
    name, config_class = "dmdc", DmdcConfig
    config: DmdcConfig

    def lagged(
        self, states: Float[Tensor, "*batch steps nodes c"], history: int
    ) -> Float[Tensor, "*batch steps nodes w"]:
        """[now, the step before, ..., the previous action] of each node; what was before the start is like it."""
        d, parts = self.config.num_observations, [states[..., : self.config.num_observations]]
        for _ in range(history - 1):
            last = parts[-1]
            parts.append(torch.cat([last[..., :1, :, :], last[..., :-1, :, :]], dim=-3))
        return torch.cat([*parts, states[..., d:]], dim=-1)

    @torch.no_grad()
    def fit(self, episodes: Sequence[Episode]) -> DmdcAdapted:
        model, c = copy.deepcopy(self).double(), self.config
        pairs = [model.recorded(episode) for episode in episodes]
        seen = {h: [Stretch(model.lagged(states, h), inputs) for states, inputs in pairs] for h in c.histories}
        errors = {h: self._left_out(stretches) for h, stretches in seen.items()}
        history = min(c.histories, key=lambda h: float(errors[h].min()))
        ridge = c.ridges[int(errors[history].argmin())]
        return DmdcAdapted(model, episodes[0].graph, self._fitted(seen[history], (ridge,))[0], history, ridge)

    def _left_out(self, stretches: list[Stretch]) -> Float[Tensor, " ridges"]:
        """The error of rollouts of what was not fitted on."""
        halves = [stretches[::2], stretches[1::2]]
        if len(stretches) == 1:
            (one,) = stretches
            steps = len(one.inputs)
            halves = [[one.cut(start, end)] for start, end in pairwise((0, steps // 2, steps)) if end > start]
        errors = torch.zeros(len(self.config.ridges), dtype=torch.float64)
        for fitted, left in zip(halves, reversed(halves), strict=True):
            W = self._fitted(fitted, self.config.ridges)
            for one in left[:JUDGED]:
                errors += self._missed(one, W)
        return errors

    def _fitted(self, stretches: list[Stretch], ridges: Sequence[float]) -> Float[Tensor, "ridges D q"]:
        """W for each ridge, by one decomposition."""
        X = torch.cat([_row(s.x[:-1], s.inputs) for s in stretches])
        d = self.config.num_observations
        Y = torch.cat([(s.x[1:, :, :d] - s.x[:-1, :, :d]).flatten(1) for s in stretches])
        unit = X.std(0, correction=0)
        used = unit > 1e-9
        mean, level = X.mean(0), Y.mean(0)
        Z = ((X - mean) / unit)[:, used]
        values, vectors = torch.linalg.eigh(Z.T @ Z / len(Z))
        along = vectors.T @ (Z.T @ (Y - level) / len(Z))
        shrunk = along / (values.clamp_min(0) + torch.tensor(ridges, dtype=torch.float64)[:, None])[..., None]
        W = X.new_zeros(len(ridges), X.shape[1], Y.shape[1])
        W[:, used] = vectors @ shrunk / unit[used, None]
        W[:, -1] = level - mean @ W
        return W

    def _missed(self, one: Stretch, W: Float[Tensor, "ridges D q"]) -> Float[Tensor, " ridges"]:
        """Root mean square error of a rollout, mean over its steps."""
        d, carried = self.config.num_observations, self.config.previous_action * self.config.num_actions
        x, total = one.x[0].expand(len(W), -1, -1), W.new_zeros(len(W))
        for inputs, true in zip(one.inputs, one.x[1:], strict=True):
            pushed = inputs.expand(len(W), -1, -1)
            step = torch.einsum("rD,rDq->rq", _row(x, pushed), W).unflatten(-1, (-1, d))
            now = (x[..., :d] + step).nan_to_num().clamp(-1e6, 1e6)
            x = torch.cat([now, x[..., : true.shape[-1] - d - carried], pushed[..., :carried]], dim=-1)
            total += (now - true[:, :d]).square().mean((-1, -2)).sqrt().clamp(max=FAR)
        return total / len(one.inputs)


def _row(x: Float[Tensor, "*batch nodes w"], inputs: Float[Tensor, "*batch nodes i"]) -> Float[Tensor, "*batch D"]:
    return torch.cat([x.flatten(-2), inputs.flatten(-2), x.new_ones(*x.shape[:-2], 1)], dim=-1)


class DmdcAdapted(Selecting, LinearAdapted):
    """x' = A x + B u + c; x holds each node's observation, its past ones and its previous action."""

    model: Dmdc

    def __init__(self, model: Dmdc, graph: Graph, W: Float[Tensor, "D q"], history: int, ridge: float) -> None:
        c, N = model.config, graph.num_nodes
        d, width = c.num_observations, c.num_observations * history + c.previous_action * c.num_actions
        size = N * width
        A, B, constant = W.new_zeros(N, width, size), W.new_zeros(N, width, N * c.num_inputs), W.new_zeros(N, width)
        by_x, by_u, level = W.T.unflatten(0, (N, d)).split([size, N * c.num_inputs, 1], dim=-1)
        A[:, :d], B[:, :d], constant[:, :d] = by_x, by_u, level.squeeze(-1)
        eye, pushed = torch.eye(size).double().view(N, width, size), torch.eye(N * c.num_inputs).double()
        A[:, :d] += eye[:, :d]
        A[:, d : d * history] = eye[:, : d * (history - 1)]
        if c.previous_action:
            B[:, d * history :] = pushed.view(N, c.num_inputs, -1)[:, : c.num_actions]
        super().__init__(model, graph, A.flatten(0, 1), B.flatten(0, 1), constant.flatten())
        self.history, self.ridge = history, ridge

    def encode(self, state: Float[Tensor, "*batch nodes c"]) -> Float[Tensor, "*batch s"]:
        return self.model.lagged(state.unsqueeze(-3), self.history).squeeze(-3).flatten(-2)
