"""Hyperedges as tensors: sums over their nodes, over the hyperedges of a node, and Gibbs weights of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Hyperedges:
    """Of each membership its hyperedge, its node and its type; how many nodes there are."""

    number: Int[Tensor, " members"]
    node: Int[Tensor, " members"]
    kind: Int[Tensor, " members"]
    nodes: int

    @classmethod
    def of(cls, hyperedges: Int[np.ndarray, "3 members"], nodes: int, device: torch.device | str) -> Hyperedges:
        number, node, kind = torch.as_tensor(hyperedges, dtype=torch.int64, device=device)
        return cls(number, node, kind, nodes)

    @classmethod
    def union(cls, parts: Sequence[Hyperedges | None], sizes: Sequence[int]) -> Hyperedges | None:
        """Of several graphs joined, with so many nodes each; None where none has any."""
        number, node, kind, start, count = [], [], [], 0, 0
        for part, size in zip(parts, sizes, strict=True):
            if part is not None:
                number.append(part.number + count)
                node.append(part.node + start)
                kind.append(part.kind)
                count += part.count
            start += size
        return cls(torch.cat(number), torch.cat(node), torch.cat(kind), start) if number else None

    @cached_property
    def count(self) -> int:
        return int(self.number.max()) + 1 if len(self.number) else 0

    @cached_property
    def others(self) -> Int[Tensor, " members"]:
        """How many nodes a hyperedge joins beside this one."""
        return (torch.bincount(self.number, minlength=self.count) - 1)[self.number]

    def at(self, values: Float[Tensor, "nodes ..."]) -> Float[Tensor, "members ..."]:
        """Each membership's node's row."""
        return values.index_select(0, self.node)

    def into(self, values: Float[Tensor, "members ..."]) -> Float[Tensor, "nodes ..."]:
        """The sum of each node's memberships."""
        return values.new_zeros((self.nodes, *values.shape[1:])).index_add(0, self.node, values)

    def of_others(self, values: Float[Tensor, "nodes ..."]) -> Float[Tensor, "members ..."]:
        """The sum over the other nodes of each membership's hyperedge."""
        rows = self.at(values)
        total = rows.new_zeros((self.count, *rows.shape[1:])).index_add(0, self.number, rows)
        return total.index_select(0, self.number) - rows

    def softmax(self, scores: Float[Tensor, "members ..."]) -> Float[Tensor, "members ..."]:
        """exp(score), normalised over the hyperedges of each node; zero where all scores are minus infinity."""
        index = self.node.reshape(-1, *[1] * (scores.ndim - 1)).expand_as(scores)
        known = torch.finfo(scores.dtype)
        lowest = scores.new_full((self.nodes, *scores.shape[1:]), known.min)
        largest = lowest.scatter_reduce(0, index, scores.detach(), "amax")
        weights = torch.exp(scores - self.at(largest))
        return weights / self.at(self.into(weights)).clamp_min(known.tiny)

    def pairs_of_others(self, values: Float[Tensor, "nodes ..."]) -> Float[Tensor, "members ..."]:
        """The mean, over pairs of other nodes of each membership's hyperedge, of the products of their rows."""
        k = self.others.to(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
        return (self.of_others(values).square() - self.of_others(values.square())) / (k * (k - 1))


def gibbs_weights(
    score: Callable[[Tensor, Tensor], Tensor], features: Float[Tensor, "nodes *batch d"], hyperedges: Hyperedges
) -> Float[Tensor, "members ..."]:
    """The weight of each of a node's hyperedges, by the potential of the node and the mean of its other nodes."""
    k = hyperedges.others.to(features.dtype).reshape(-1, *[1] * (features.ndim - 1))
    return hyperedges.softmax(score(hyperedges.at(features), hyperedges.of_others(features) / k))
