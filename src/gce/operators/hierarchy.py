"""Operators of one system beside one of all, in closed form: a shift that its nodes share, a dense part of each node.

    y_i = V h_i + C' h_i + W_i' z_i,    z_i: states and inputs of the nodes within k hops of i, and 1

    C   = (H'H + kappa G0)^-1 H'(Y - H V)                    G0 the mean of H'H / rows in training, kappa in rows
    W_i = (Z_i'Z_i + lambda I)^-1 Z_i'(Y_i - H_i (V + C))    lambda in steps

Both follow from sums that add up over episodes. Infinite strengths stand for a part left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gce.graphs.topology import Topology
from gce.operators.additive import SHARED, Additive

JITTER = 1e-6
WIDEST = 200
"""Regressors of a node's dense part beyond which it reaches one hop less."""


@dataclass(frozen=True)
class Strengths:
    """kappa of the shift in rows, lambda of the dense part in steps, and the latent numbers of the system."""

    shift: float
    dense: float
    latent: tuple[float, ...]


@dataclass(frozen=True)
class HierarchySums(Additive):
    """Of rows h and y of all nodes together, and of z of each node; double precision."""

    rows: float
    HH: Float[Tensor, "D D"]
    HY: Float[Tensor, "D m"]
    YY: Float[Tensor, "m m"]
    ZZ: Float[Tensor, "nodes z z"]
    ZY: Float[Tensor, "nodes z m"]
    ZH: Float[Tensor, "nodes z D"]
    latent: Float[Tensor, " l"] = field(metadata=SHARED)
    """Of which the features are."""

    @classmethod
    def of(
        cls, H: Float[Tensor, "nodes rows D"], Y: Float[Tensor, "nodes rows m"], Z: Tensor, latent: Tensor
    ) -> HierarchySums:
        h, y, ZT = H.double().flatten(0, 1), Y.double().flatten(0, 1), Z.double().mT
        return cls(len(h), h.T @ h, h.T @ y, y.T @ y, ZT @ Z.double(), ZT @ Y.double(), ZT @ H.double(), latent)

    def shifted(self, V: Float[Tensor, "D m"], gram: Float[Tensor, "D D"], kappa: float) -> Float[Tensor, "D m"]:
        """V + C."""
        return V.double() + shift(self.HH, self.HY - self.HH @ V.double(), gram, kappa)

    def dense(self, M: Float[Tensor, "D m"], strength: float) -> Float[Tensor, "nodes z m"] | None:
        """W beside V + C = M; None where it is left out."""
        if math.isinf(strength):
            return None
        eye = torch.eye(self.ZZ.shape[-1], dtype=torch.float64, device=self.ZZ.device)
        return torch.linalg.solve(self.ZZ + strength * eye, self.ZY - self.ZH @ M)

    def residual(self, M: Float[Tensor, "D m"], W: Float[Tensor, "nodes z m"] | None) -> Float[Tensor, "m m"]:
        """The mean square of what both leave of y."""
        left = self.YY - M.T @ self.HY - self.HY.T @ M + M.T @ self.HH @ M
        if W is not None:
            mixed = (W.mT @ (self.ZY - self.ZH @ M)).sum(0)
            left = left - mixed - mixed.T + (W.mT @ self.ZZ @ W).sum(0)
        return left / self.rows


def shift(HH: Tensor, HR: Tensor, gram: Tensor, kappa: float | Tensor) -> Float[Tensor, "D m"]:
    """C from the sums of h'h and of h' (y - V h)."""
    if not isinstance(kappa, Tensor) and math.isinf(kappa):
        return torch.zeros_like(HR)
    G0 = gram.double()
    G0 = G0 + JITTER * G0.diagonal().mean() * torch.eye(len(G0), dtype=G0.dtype, device=G0.device)
    return torch.linalg.solve(HH + kappa * G0, HR)


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Which nodes are within k hops of each, itself among them: [nodes, most], filled up with a node that is not."""

    near: Int[Tensor, "nodes most"]

    @classmethod
    def of(cls, topology: Topology, hops: int, columns: int) -> Neighbourhoods:
        """columns: of z a node; fewer hops where z would be too wide."""
        n = topology.num_nodes
        step = np.eye(n, dtype=bool)
        step[topology.receivers.cpu().numpy(), topology.senders.cpu().numpy()] = True
        reached, within = step, np.eye(n, dtype=bool)
        for _ in range(hops):
            if int(reached.sum(1).max()) * columns > WIDEST:
                break
            within, reached = reached, reached @ step
        near = np.full((n, int(within.sum(1).max())), n)
        for i, row in enumerate(within):
            near[i, : row.sum()] = np.flatnonzero(row)
        return cls(torch.as_tensor(near, device=topology.receivers.device))

    def rows(self, values: Float[Tensor, "nodes batch c"]) -> Float[Tensor, "nodes batch z"]:
        """z of states and inputs."""
        padded = torch.cat([values, torch.zeros_like(values[:1])])[self.near]  # [nodes, most, batch, c]
        z = padded.transpose(1, 2).flatten(2)
        return torch.cat([z, torch.ones_like(z[..., :1])], -1)
