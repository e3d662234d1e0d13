"""Rows of recordings for regressions: a node at a step each, its neighbours, and errors on episodes left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gce.trajectory.dataset import Dataset

Array = np.ndarray

EPISODES, ROWS = 60, 12_000
"""How many episodes are looked at, and how many rows of them."""
LATER = 20
GAIN = 0.03
"""The share of the error on episodes left out that what is added must take away to matter."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of some episodes: a node at a step each, with what its neighbours are.

    past: the step before now; later: LATER steps after it, or the last.
    near, past_near: differences to the neighbours, [edge rows, d], now and in the past.
    row: the row that an edge row is of; kind: its relation.
    system, part: the system of a row, and which of two halves of the episodes it is of.
    """

    now: Float[Array, "R d"]
    after: Float[Array, "R d"]
    later: Float[Array, "R d"]
    past: Float[Array, "R d"]
    action: Float[Array, "R a"]
    before: Float[Array, "R a"]
    node_type: Int[Array, " R"]
    system: Int[Array, " R"]
    part: Int[Array, " R"]
    near: Float[Array, "E d"]
    past_near: Float[Array, "E d"]
    row: Int[Array, " E"]
    kind: Int[Array, " E"]

    @classmethod
    def of(cls, data: Dataset, joined: bool = True) -> Rows:
        """joined: whether neighbours are the nodes that edges join, or all that none does."""
        chosen = np.unique(np.linspace(0, len(data) - 1, EPISODES).round().astype(int))
        nodes = sum(data[int(k)].num_nodes * data[int(k)].length for k in chosen)
        stride, found, start = -(-nodes // ROWS), [], 0
        for place, k in enumerate(chosen):
            e = data[int(k)]
            steps = np.arange(min(1, e.length - 1), e.length, stride)
            o, a, graph, n = e.observations.astype(np.float64), e.actions.astype(np.float64), e.graph, e.num_nodes
            some = graph.edge_index[0] != graph.edge_index[1]
            (s, r), kind = graph.edge_index[:, some], graph.edge_type[some]
            if not joined:
                apart = ~np.eye(n, dtype=bool)
                apart[s, r] = False
                (s, r), kind = np.nonzero(apart), np.zeros(apart.sum(), int)
            part = np.full(len(steps), place % 2) if len(chosen) > 1 else (steps >= e.length // 2).astype(int)
            was = np.maximum(steps - 1, 0)
            near, past_near = (o[at][:, s] - o[at][:, r] for at in (steps, was))
            found.append(
                (
                    o[steps].reshape(-1, o.shape[2]),
                    o[steps + 1].reshape(-1, o.shape[2]),
                    o[np.minimum(steps + LATER, e.length)].reshape(-1, o.shape[2]),
                    o[was].reshape(-1, o.shape[2]),
                    a[steps].reshape(len(steps) * n, a.shape[2]),
                    a[was].reshape(len(steps) * n, a.shape[2]),
                    np.tile(graph.node_type, len(steps)),
                    np.full(len(steps) * n, int(data.groups[k])),
                    np.repeat(part, n),
                    near.reshape(-1, o.shape[2]),
                    past_near.reshape(-1, o.shape[2]),
                    (start + np.arange(len(steps))[:, None] * n + r).ravel(),
                    np.tile(kind, len(steps)),
                )
            )
            start += len(steps) * n
        return cls(*(np.concatenate(column) for column in zip(*found, strict=True)))

    @property
    def enough(self) -> bool:
        return len(self.now) >= 200 and len(set(self.part)) == 2

    def by_type(self, columns: Float[Array, "R k"]) -> Float[Array, "R k_types"]:
        """The columns once for each type of node."""
        kinds = np.unique(self.node_type) if len(np.unique(self.node_type)) <= 8 else np.array([-1])
        return np.concatenate([columns * ((self.node_type == k) | (k < 0))[:, None] for k in kinds], axis=1)

    def summed(self, values: Float[Array, "E k"]) -> Float[Array, "R k_relations"]:
        """Sums of edge rows by receiver, once for each relation where there are few."""
        kinds, place = np.unique(self.kind, return_inverse=True)
        if len(kinds) * values.shape[1] > 100:
            kinds, place = kinds[:1], np.zeros_like(place)
        total = np.zeros((len(self.now), max(1, len(kinds)), values.shape[1]))
        np.add.at(total, (self.row.astype(np.int64), place), values)
        return total.reshape(len(self.now), -1)


def left_out(X: Array, Y: Array, part: Array) -> Array:
    """Squared error of each column of Y on rows that the regression was not fitted to, over the column's own."""
    X, wrong = X / np.maximum(X.std(0), 1e-12 + 1e-6 * np.abs(X).max(0)), 0.0
    for half in (0, 1):
        fit, rest = part == half, part != half
        centre, level = X[fit].mean(0), Y[fit].mean(0)
        Z, W = X[fit] - centre, Y[fit] - level
        gram = Z.T @ Z / len(Z) + 1e-6 * np.eye(Z.shape[1])
        guessed = level + (X[rest] - centre) @ np.linalg.solve(gram, Z.T @ W / len(Z))
        wrong = wrong + np.square(Y[rest] - guessed).sum(0)
    return np.asarray(wrong / np.maximum(np.square(Y - Y.mean(0)).sum(0), 1e-300))


def better(more: Array, fewer: Array, share: float = GAIN) -> bool:
    """Whether more regressors leave less of any column's error; what is explained to rounding counts as explained."""
    return bool((more < (1 - share) * fewer - 1e-6).any())
