"""Operators of single pairs: what the input of each node j does to each node i (paper, C_{O^i|A^j}).

    y_i = C' x_i + sum over j of B_ij' a_j

All nodes share C, and every pair (i, j) has an operator of its own. As columns of one regression these would be nodes^2
times as many; yet at all nodes i the inputs are the same numbers, A [rows, K]. So each node's B_i is eliminated by one
small matrix A'A [K, K] (Frisch and Waugh 1933, Lovell 1963): with S = A'A / r + ridge, r rows of all nodes,

    gram X'X - r sum over i of (A'X_i / r)' S^-1 (A'X_i / r),    B_i = S^-1 (A'Y_i - A'X_i C) / r

and the same of X'Y and Y'Y. Where inputs reach neighbours only, S of a node is of those that reach it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gce.operators.additive import SHARED, Additive, cholesky


@dataclass(frozen=True, eq=False)
class Pairs:
    """B of the inputs `columns` (node times inputs plus input) on each node."""

    operators: Float[Tensor, "nodes K m"]
    columns: Int[Tensor, " K"]

    def push(self, inputs: Float[Tensor, "nodes rows a"], targets: int | None = None) -> Float[Tensor, "nodes rows m"]:
        """sum over j of B_ij' a_j; of the first targets."""
        A = inputs.transpose(0, 1).flatten(1)[:, self.columns]
        return A @ self.operators[..., :targets].to(A.dtype)


@dataclass(frozen=True)
class PairSums(Additive):
    """A'A over the rows of one node, and A'X, A'Y of each; A are the inputs `columns` of all nodes.

    near: which of them reach a node; None for all.
    """

    gram: Float[Tensor, "K K"]
    X: Float[Tensor, "nodes K D"]
    Y: Float[Tensor, "nodes K m"]
    columns: Int[Tensor, " K"] = field(metadata=SHARED)
    num_inputs: int = field(metadata=SHARED)
    near: Bool[Tensor, "nodes K"] | None = field(default=None, metadata=SHARED)

    @classmethod
    def of(
        cls,
        inputs: Float[Tensor, "nodes rows a"],
        X: Float[Tensor, "nodes rows D"],
        Y: Float[Tensor, "nodes rows m"],
        node_type: Int[Tensor, " nodes"],
        acting: Bool[Tensor, "types a"] | None = None,
        near: Bool[Tensor, "nodes nodes"] | None = None,
    ) -> PairSums:
        """acting: which inputs nodes of a type may have; near: [i, j] where those of j reach i; all by default."""
        nodes, _, a = inputs.shape
        columns = torch.arange(nodes * a, device=inputs.device)
        columns = columns if acting is None else columns[acting[node_type].flatten()]
        A = inputs.transpose(0, 1).flatten(1)[:, columns]
        return cls(A.T @ A, A.T @ X, A.T @ Y, columns, a, None if near is None else near[:, columns // a])

    def solved(self, rows: float, ridge: float, joint: bool) -> Solved:
        """S^-1 A'X / r and S^-1 A'Y / r of each node; rows: of all nodes.

        joint: together with the history; otherwise each sender alone, on the mean over the rows of one node.
        """
        nodes, sender = len(self.X), self.columns // self.num_inputs
        r = rows if joint else rows // nodes
        both = torch.cat([self.X, self.Y], dim=-1) / r
        system = self.gram / r + ridge * torch.eye(len(self.gram), dtype=both.dtype, device=both.device)
        if not joint:
            system = system * (sender.unsqueeze(0) == sender.unsqueeze(1))
        if self.near is None:
            flat = both.transpose(0, 1).flatten(1)
            solution = torch.cholesky_solve(flat, cholesky(system)).unflatten(1, (nodes, -1)).transpose(0, 1)
        else:
            both = both * self.near.unsqueeze(-1)
            alone = torch.diag_embed((~self.near).to(both.dtype))
            own = system * (self.near.unsqueeze(-1) & self.near.unsqueeze(-2)) + alone
            solution = torch.cholesky_solve(both, cholesky(own))
        return Solved(both, solution, r, self.X.shape[-1], self.columns, joint)


@dataclass(frozen=True, eq=False)
class Solved:
    """both: [A'X, A'Y] / r of each node; found: S^-1 of it; width: how many columns are of X."""

    both: Float[Tensor, "nodes K D_plus_m"]
    found: Float[Tensor, "nodes K D_plus_m"]
    rows: float
    width: int
    columns: Int[Tensor, " K"]
    joint: bool

    def explained(self, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of X'X, X'Y and Y'Y that inputs explain."""
        square = self.rows * self.both.flatten(0, 1).T @ self.found.flatten(0, 1)
        return square[:width, :width], square[:width, width:], square[width:, width:]

    def operators(self, C: Float[Tensor, "D m"]) -> Pairs:
        """B of each pair, where C is that of the history."""
        of_Y = self.found[..., self.width :]
        return Pairs(of_Y - self.found[..., : self.width] @ C if self.joint else of_Y, self.columns)
