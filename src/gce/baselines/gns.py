"""GNS: a plain graph network of increments (Sanchez-Gonzalez et al. 2020), told nothing of geometry.

    h_i = f(o_i, a_i, type_i, attributes_i)
    h_i <- h_i + U(h_i, sum over j in E(i) of M(h_j, h_i, o_j - o_i, relation, attributes))       a few rounds
    o_i <- o_i + s * D(h_i)                                       s: standard deviation of one-step increments

Loss: the mean square of (o_t - recorded) / s over windows of growing length, begun with a little noise. It adapts by
gradient descent on the episodes of a system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.baselines.padded import mlp
from gce.baselines.trainable import Advancing, Draw, FineTuning, Schedule, WindowBatch
from gce.features.base import StateShape
from gce.graphs.topology import Topology
from gce.training.batches import Recorded


@dataclass(frozen=True)
class GnsConfig(StateShape):
    """noise: on the first state of a window, in standard deviations."""

    width: int = 64
    rounds: int = 2
    noise: float = 0.003


class Exchange(nn.Module):
    """One exchange of messages; the first layer of a message is a sum over its ends, so it is worked out by node."""

    def __init__(self, width: int, edge: int) -> None:
        super().__init__()
        self.sender, self.receiver = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(edge, width, bias=False)
        self.message = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.update = mlp(2 * width, width, width)

    def forward(self, h: Tensor, e: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        """h [nodes, ..., width], e [edges, ..., edge]."""
        messages = self.message(self.sender(h)[senders] + self.receiver(h)[receivers] + self.edge(e))
        received = torch.zeros_like(h).index_add(0, receivers, messages)
        return h + self.update(torch.cat([h, received], dim=-1))


class Gns(Advancing):
    name, config_class = "gns", GnsConfig
    config: GnsConfig
    schedule = Schedule(
        iterations=10_000,
        learning_rate=2e-3,
        horizons=(2, 2, 2, 5, 5, 5, 10, 10, 10, 10),
        validate_every=5000,
        draw=Draw(systems=1, windows=16),
    )
    tuning: ClassVar[FineTuning] = FineTuning(steps=200, horizon=10, check_every=40)

    unit: Tensor

    def __init__(self, config: GnsConfig) -> None:
        super().__init__(config)
        c = config
        self.register_buffer("unit", torch.ones(c.num_observations))
        seen = c.num_state + c.num_inputs + c.num_node_types + c.num_node_attributes
        between = c.num_observations + c.num_relations + c.num_edge_attributes
        self.encoder, self.decoder = mlp(seen, c.width, c.width), mlp(c.width, c.width, c.num_observations)
        self.rounds = nn.ModuleList([Exchange(c.width, between) for _ in range(c.rounds)])

    def set_inputs(self, systems: Sequence[Recorded]) -> None:
        steps = torch.cat([s.states[..., : self.config.num_observations].diff(dim=1).flatten(0, -2) for s in systems])
        self.unit.copy_(torch.where(steps.std(0) > 0, steps.std(0), 1.0))

    def advance(
        self, state: Float[Tensor, "*batch nodes c"], inputs: Float[Tensor, "*batch nodes i"], topology: Topology
    ) -> Float[Tensor, "*batch nodes c"]:
        """The next state."""
        c, t = self.config, topology
        d, joined = c.num_observations, t.senders != t.receivers
        senders, receivers = t.senders[joined], t.receivers[joined]
        x, u = state.movedim(-2, 0), inputs.movedim(-2, 0)  # nodes first

        def each(rows: Tensor) -> Tensor:
            """The same for everything in the batch."""
            return rows.to(x.dtype).view(len(rows), *[1] * (x.ndim - 2), rows.shape[1]).expand(-1, *x.shape[1:-1], -1)

        kinds = nn.functional.one_hot(t.node_type, c.num_node_types)
        relations = nn.functional.one_hot(t.edge_type[joined], c.num_relations)
        h = self.encoder(torch.cat([x, u, each(kinds), each(t.node_attributes)], dim=-1))
        apart = x[senders, ..., :d] - x[receivers, ..., :d]
        e = torch.cat([apart, each(relations), each(t.edge_attributes[joined])], dim=-1)
        for exchange in self.rounds:
            h = exchange(h, e, senders, receivers)
        moved = (x[..., :d] + self.unit * self.decoder(h)).movedim(0, -2)
        return torch.cat([self.merge(moved, topology), inputs[..., : c.num_state - d]], dim=-1)

    def loss(self, batch: WindowBatch, generator: torch.Generator) -> Float[Tensor, ""]:
        w, d = batch.windows, self.config.num_observations
        state, total = w.states[:, 0], w.states.new_zeros(())
        shaken = self.config.noise * torch.randn(state[..., :d].shape, generator=generator)
        state = torch.cat([state[..., :d] + shaken, state[..., d:]], dim=-1)
        for t in range(w.inputs.shape[1]):
            state = self.advance(state, w.inputs[:, t], batch.topology)
            total = total + ((state[..., :d] - w.states[:, t + 1, :, :d]) / self.unit).clamp(-20, 20).square().mean()
        return total / w.inputs.shape[1]
