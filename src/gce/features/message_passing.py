"""Message passing into feature space (paper, 'Mapping to RKHSs').

    psi_i = f_V(o_i, sum over j in E(i) of f_E(o_i, o_j, e_ij))

in `rounds` rounds. f_E is one hidden layer; its output layer is applied after the sum, which is the same and cheaper.
The features are bounded; a few linear ones stand beside them,

    sum over j in E(i) of G_r e_ij + H_r own_j,      r the relation of j to i

With `conservative`, all features are net flows: what a node gains, another loses (sum over nodes is zero), as forces
between bodies do; the operator then acts on phi alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.features.base import Encode, Features, FeaturesConfig, StateShape
from gce.features.hyperedges import HyperedgeMessages
from gce.features.inputs import InputLayer
from gce.graphs.topology import Topology

UNBOUNDED = 1e4
"""A bound within which features are linear."""


@dataclass(frozen=True)
class EncoderShape:
    """num_features bounded features, then num_linear linear ones; widths of the hidden layers of nodes and edges.

    shortcut: what is linear in the inputs is added to the bounded features, within their bound.
    """

    num_relations: int
    num_node_types: int
    num_features: int = 32
    num_linear: int = 8
    node_width: int = 64
    edge_width: int = 32
    rounds: int = 2
    conservative: bool = False
    shortcut: bool = False
    num_hyperedge_types: int = 0


class Encoder(nn.Module):
    """States [*batch, nodes, state] to phi [*batch, nodes, features + linear].

    bound: what a message (conservative) or a node (otherwise) adds to a feature lies within +-bound.
    """

    def __init__(self, inputs: InputLayer, shape: EncoderShape, bound: float = 5.0) -> None:
        super().__init__()
        self.inputs, self.shape, self.bound = inputs, shape, bound
        s, w, e = shape, shape.node_width, shape.edge_width
        rounds = s.rounds + s.conservative  # a conservative readout is one more round of messages
        widths = [inputs.num_own] + [w] * (rounds - 1)
        self.edge = nn.ModuleList(nn.Linear(inputs.num_edge, e, bias=False) for _ in widths)
        self.receiver = nn.ModuleList(nn.Linear(k, e, bias=False) for k in widths)
        self.sender = nn.ModuleList(nn.Linear(k, e, bias=False) for k in widths)
        self.relation = nn.Parameter(0.3 * torch.randn(rounds, s.num_relations, e))
        self.message = nn.ModuleList(nn.Linear(e, w) for _ in range(s.rounds))
        self.own = nn.ModuleList(nn.Linear(k, w, bias=False) for k in widths[: s.rounds])
        self.node_type = nn.Parameter(0.3 * torch.randn(s.num_node_types, w))
        self.output = nn.Linear(e if s.conservative else w, s.num_features, bias=not s.conservative)
        linear = s.num_features if s.shortcut else s.num_linear
        self.linear_edge = nn.Parameter(0.15 * torch.randn(s.num_relations, inputs.num_edge, linear))
        self.linear_own = nn.Parameter(0.15 * torch.randn(s.num_relations, inputs.num_own, linear))
        if s.num_hyperedge_types:
            self.hyperedges = HyperedgeMessages(widths[: s.rounds], s.num_hyperedge_types, e, w)

    def forward(self, x: Float[Tensor, "*batch nodes state"], topology: Topology) -> Float[Tensor, "*batch nodes phi"]:
        rows = x.movedim(-2, 0)
        phi = self.on(topology)(rows.reshape(len(rows), -1, x.shape[-1]))
        return phi.reshape(*rows.shape[:-1], -1).movedim(0, -2)

    def on(self, topology: Topology) -> Encode:
        """What encodes states [nodes, batch, state] of a topology into phi [nodes, batch, features].

        What depends on the types of nodes and edges only is looked up here, once for all states; so are the layers on
        the edge's inputs of all rounds, which are one product.
        """
        s = self.shape
        inputs = self.inputs.on(topology)
        edge_weights = torch.stack([layer.get_parameter("weight").T for layer in self.edge])
        ends = zip(self.receiver, self.sender, strict=True)
        end_weights = [torch.stack([end.get_parameter("weight").T for end in both]) for both in ends]
        relation = self.relation[:, topology.edge_type].unsqueeze(2)
        node_type = self.node_type[topology.node_type].unsqueeze(1)
        to_linear = torch.cat([self.linear_edge, self.linear_own], dim=1)[topology.edge_type]
        of_hyperedges = self.hyperedges.on(topology) if s.num_hyperedge_types else None

        def encode(x: Tensor) -> Tensor:
            own, edge = inputs(x)
            of_edges = (_each(edge, edge_weights) + relation).unbind()

            def edge_messages(r: int) -> Tensor:
                """f_E without its output layer: of each edge in a round, from it, its relation, receiver and sender."""
                return nn.functional.silu(of_edges[r] + topology.both_ends(_each(hidden, end_weights[r])))

            hidden = own
            for r in range(s.rounds):
                update = self.message[r](topology.sum(edge_messages(r))) + self.own[r](hidden)
                if of_hyperedges is not None:
                    update = update + of_hyperedges(r, hidden)
                hidden = nn.functional.silu(update + node_type) if r == 0 else hidden + nn.functional.silu(update)
            linear = torch.bmm(torch.cat([edge, topology.sent(own)], dim=-1), to_linear)
            if s.conservative:
                messages = self._bounded(self.output(edge_messages(s.rounds)))
                return topology.net(torch.cat([messages, linear], dim=-1))
            if s.shortcut:
                return self._bounded(self.output(hidden) + topology.sum(linear))
            return torch.cat([self._bounded(self.output(hidden)), topology.sum(linear)], dim=-1)

        return encode

    @torch.no_grad()
    def start_at(self, samples: Sequence[tuple[Tensor, Topology]], scale: float, heard: float) -> None:
        """Set the size of bounded features with a shortcut, before training: std `scale` and mean 0 over the samples.

        heard: the share of messages and hidden layers, beside what is linear in a node's own
            inputs. Where it is small, features begin as linear maps of single nodes, and the weights of neighbours by
            how far apart these are.
        """
        own = {int(r) for _, t in samples for r in t.edge_type[t.senders == t.receivers].unique()}
        others = [r for r in range(self.shape.num_relations) if r not in own]
        self.linear_own[others] = heard * self.linear_own[others]
        self.linear_edge.mul_(heard)
        self.output.weight.mul_(heard)
        bound, self.bound = self.bound, UNBOUNDED
        rows = torch.cat([self.on(topology)(x).flatten(0, 1) for x, topology in samples])
        self.bound = bound
        gain = scale / rows.std(0).clamp_min(1e-6)
        self.output.bias.sub_(rows.mean(0)).mul_(gain)
        self.output.weight.mul_(gain[:, None])
        self.linear_own.mul_(gain)
        self.linear_edge.mul_(gain)

    def _bounded(self, values: Tensor) -> Tensor:
        """bound x tanh(. / bound), as a sigmoid, which is several times faster: nearly linear in the middle."""
        return 2 * self.bound * torch.sigmoid(2 / self.bound * values) - self.bound


def _each(values: Float[Tensor, "rows batch c"], matrices: Float[Tensor, "k c d"]) -> Float[Tensor, "k rows batch d"]:
    """All rows times each matrix."""
    flat = values.reshape(1, -1, values.shape[-1]).expand(matrices.shape[0], -1, -1)
    return torch.bmm(flat, matrices).unflatten(1, values.shape[:2])


@dataclass(frozen=True)
class MessagePassingConfig(FeaturesConfig):
    """num_features bounded by +-bound, num_linear linear ones; widths of hidden layers; rounds of messages.

    conservative: features are net flows, and the operator acts on phi alone, not on x.
    """

    kind: ClassVar[str] = "message_passing"
    num_features: int = 32
    num_linear: int = 8
    node_width: int = 64
    edge_width: int = 32
    rounds: int = 2
    bound: float = 5.0
    conservative: bool = False

    def encoder(self, shape: StateShape, inputs: InputLayer) -> Encoder:
        sizes = EncoderShape(
            num_relations=shape.num_relations,
            num_node_types=shape.num_node_types,
            num_features=self.num_features,
            num_linear=self.num_linear,
            node_width=self.node_width,
            edge_width=self.edge_width,
            rounds=self.rounds,
            conservative=self.conservative,
            num_hyperedge_types=shape.num_hyperedge_types * shape.hyperedges,
        )
        return Encoder(inputs, sizes, self.bound)


class MessagePassing(Features):
    """Learned features: messages between neighbours."""

    name = "message_passing"
    Config = MessagePassingConfig
    dynamics = "gce.dynamics.message:MessageDynamics"
    hyper = True
    config: MessagePassingConfig

    def __init__(self, shape: StateShape, config: MessagePassingConfig) -> None:
        super().__init__(shape, config)
        self.encoder = config.encoder(shape, self.input_layer())
        self.prepared()

    def input_layer(self) -> InputLayer:
        return self.shape.input_layer(InputLayer)

    @property
    def inputs(self) -> InputLayer:
        return self.encoder.inputs

    @property
    def num_phi(self) -> int:
        return self.config.num_features + self.config.num_linear

    @property
    def regressed_state(self) -> list[int]:
        return [] if self.config.conservative else super().regressed_state

    def on(self, topology: Topology) -> Encode:
        return self.encoder.on(topology)

    def reach(self, topology: Topology) -> int:
        """The rounds of messages, and one edge more by the mean field."""
        return self.config.rounds + self.config.conservative + 1
