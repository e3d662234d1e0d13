"""Sums of rows by segment, y_s = the sum of the rows of segment s.

`index_add` pays for every row, which is little where rows are wide (a batch of states) and much where they are many
and narrow (one state of a large graph). There, without gradients, torch's `embedding_bag` does the same sums: on 10,000
nodes, 49,600 edges and 40 columns in 0.6 ms instead of 1.7 (one core).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

MANY_ROWS = 1000


@dataclass(frozen=True, eq=False)
class Segments:
    """of_row: the segment of each row; order: the rows sorted by segment; offsets: where each segment begins in it."""

    of_row: Int[Tensor, " rows"]
    order: Int[Tensor, " rows"]
    offsets: Int[Tensor, " segments"]

    @classmethod
    def of(cls, of_row: Int[Tensor, " rows"], count: int) -> Segments:
        sizes = torch.bincount(of_row, minlength=count)
        return cls(of_row, torch.argsort(of_row, stable=True), torch.cumsum(sizes, 0) - sizes)

    def sum(self, rows: Float[Tensor, "rows ..."]) -> Float[Tensor, "segments ..."]:
        if len(rows) < MANY_ROWS or torch.is_grad_enabled():
            return rows.new_zeros((len(self.offsets), *rows.shape[1:])).index_add(0, self.of_row, rows)
        return _Sum.apply(rows, self.order, self.offsets)

    def weighted_sum(
        self, weights: Float[Tensor, "rows ..."], values: Float[Tensor, "n *batch d"], source: Int[Tensor, " rows"]
    ) -> Float[Tensor, "segments *batch d"]:
        """y_s = the sum over the rows r of segment s of weights_r values_source(r)."""
        alone = weights.numel() == len(weights)  # one state: its rows need not be gathered first
        if len(weights) < MANY_ROWS or torch.is_grad_enabled() or not alone:
            return self.sum(weights.unsqueeze(-1) * values.index_select(0, source))
        found = _WeightedSum.apply(weights.flatten(), values.flatten(1), source, self.order, self.offsets)
        return found.reshape(len(self.offsets), *values.shape[1:])


class _Sum(torch.autograd.Function):
    """`embedding_bag` has no forward derivative of its own; a sum is its own."""

    @staticmethod
    def forward(rows: Tensor, order: Tensor, offsets: Tensor) -> Tensor:
        flat = rows.reshape(len(rows), -1)
        return embedding_bag(order, flat, offsets, mode="sum").reshape(len(offsets), *rows.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _Sum.apply(tangent, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], rows: Tensor, order: Tensor, offsets: Tensor) -> Any:
        # The order is the same for all; what is mapped over becomes columns.
        return _Sum.apply(rows.movedim(in_dims[0] or 0, -1), order, offsets), -1


class _WeightedSum(torch.autograd.Function):
    """Linear in the weights and in the values."""

    @staticmethod
    def forward(weights: Tensor, values: Tensor, source: Tensor, order: Tensor, offsets: Tensor) -> Tensor:
        picked, scale = source.index_select(0, order), weights.index_select(0, order)
        return embedding_bag(picked, values, offsets, mode="sum", per_sample_weights=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, weights_tangent: Tensor, values_tangent: Tensor, *_: Any) -> Tensor:
        weights, values, *fixed = ctx.saved_tensors
        return _WeightedSum.apply(weights_tangent, values, *fixed) + _WeightedSum.apply(weights, values_tangent, *fixed)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], weights: Tensor, values: Tensor, *fixed: Tensor) -> Any:
        source, order, offsets = fixed
        weights = weights.unsqueeze(-1) if in_dims[0] is None else weights.movedim(in_dims[0], -1)
        values = values.unsqueeze(-1) if in_dims[1] is None else values.movedim(in_dims[1], -1)
        return _Sum.apply(weights.unsqueeze(1) * values.index_select(0, source), order, offsets), -1
