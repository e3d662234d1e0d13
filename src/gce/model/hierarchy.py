"""Steps and rollouts under an operator of all systems, a shift of one and a dense part of each node.

    q' = motion(q, h(q, a, theta) M + z(q, a) W),    M = V + C

One operator for all rows, one for each graph of a union, or one for each part of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from gce.features.general import General, Wires
from gce.graphs.topology import Topology
from gce.model.model import Model
from gce.operators.hierarchy import Neighbourhoods

FARTHEST = 1e4


def learner(model: Model) -> General:
    """The features of a model of the general method."""
    return cast(General, model.features)


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """M: [D, m], [batch, D, m], or a list with one for each graph. W: None, [nodes, z, m], or [batch, nodes, z, m].

    latent: [l], or anything that broadcasts over nodes and batch. States are normalised outside, in the units of motion
    within a rollout.
    """

    model: Model
    topology: Topology
    wires: Wires
    M: Tensor | Sequence[Tensor]
    latent: Tensor
    W: Tensor | None = None
    near: Neighbourhoods | None = None

    def targets(self, q: Float[Tensor, "nodes batch c"], inputs: Float[Tensor, "nodes batch a"]) -> Tensor:
        """y, nodes first."""
        h = learner(self.model).hidden(q, inputs, self.latent, self.wires)
        if not isinstance(self.M, Tensor):
            parts = h.split(self.topology.splits)
            return torch.cat([part @ M for part, M in zip(parts, self.M, strict=True)])
        y = h @ self.M if self.M.ndim == 2 else torch.einsum("nbd,bdm->nbm", h, self.M)
        if self.W is None or self.near is None:
            return y
        z = self.near.rows(torch.cat([q, inputs], -1))
        return y + (z @ self.W if self.W.ndim == 3 else torch.einsum("nbz,bnzm->nbm", z, self.W))

    def move(
        self, q: Float[Tensor, "nodes batch c"], inputs: Float[Tensor, "nodes batch a"], error: Tensor | None = None
    ) -> Tensor:
        """The next state in the units of motion; error: added to y."""
        c, motion = self.model.config, learner(self.model).motion
        y = self.targets(q, inputs)
        o = motion.advance(q[..., : c.num_observations], y if error is None else y + error)
        if self.topology.tied is not None:
            o = motion.inward(self.model.merge(motion.outward(o).movedim(0, -2), self.topology).movedim(-2, 0))
        parts = [o, *([q[..., : c.num_observations]] if c.history == 2 else [])]
        return torch.cat([*parts, *([inputs[..., : c.num_actions]] if c.previous_action else [])], -1)

    def rollout(
        self, x: Float[Tensor, "nodes batch c"], inputs: Float[Tensor, "steps nodes batch a"]
    ) -> Float[Tensor, "steps nodes batch c"]:
        """Normalised states after each step; numbers far out are cut."""
        q, path = learner(self.model).inward(x), []
        for a in inputs:
            q = self.move(q, a).nan_to_num(FARTHEST).clamp(-FARTHEST, FARTHEST)
            path.append(q)
        return self.outward(torch.stack(path))

    def step(
        self, x: Float[Tensor, "nodes batch c"], inputs: Float[Tensor, "nodes batch a"], error: Tensor | None = None
    ) -> Tensor:
        """The next state, normalised."""
        return self.outward(self.move(learner(self.model).inward(x), inputs, error))

    def outward(self, q: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        d, history = self.model.config.num_observations, self.model.config.history
        seen = [learner(self.model).motion.outward(q[..., k * d : (k + 1) * d]) for k in range(history)]
        return torch.cat([*seen, q[..., history * d :]], -1)
