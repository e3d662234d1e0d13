"""Message passing out of feature space (paper, 'Mapping to RKHSs', the way back).

    o_i = f_V(phi_i, sum over j in E(i) of f_E(phi_i, phi_j, r_ij))

with one hidden layer each; r is the relation of j to i. Where features do not hold the observation, this is how it is
found again; coordinates that are one and the same are then set to their mean by whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from gce.errors import InputError
from gce.features.base import StateShape
from gce.features.inputs import InputLayer
from gce.features.message_passing import MessagePassing, MessagePassingConfig
from gce.graphs.topology import Topology


class Decoder(nn.Module):
    """phi [nodes, batch, features] to normalised observations [nodes, batch, d]."""

    def __init__(
        self,
        num_features: int,
        num_observations: int,
        num_relations: int,
        num_node_types: int,
        node_width: int = 64,
        edge_width: int = 32,
    ) -> None:
        super().__init__()
        self.receiver = nn.Linear(num_features, edge_width, bias=False)
        self.sender = nn.Linear(num_features, edge_width, bias=False)
        self.relation = nn.Parameter(0.3 * torch.randn(num_relations, edge_width))
        self.message = nn.Linear(edge_width, node_width)
        self.own = nn.Linear(num_features, node_width, bias=False)
        self.node_type = nn.Parameter(0.3 * torch.randn(num_node_types, node_width))
        self.output = nn.Linear(node_width, num_observations)
        self.direct = nn.Linear(num_features, num_observations, bias=False)

    def on(self, topology: Topology) -> Callable[[Tensor], Tensor]:
        """What decodes features on a topology; what depends on its types only is looked up here."""
        relation = self.relation[topology.edge_type].unsqueeze(1)
        node_type = self.node_type[topology.node_type].unsqueeze(1)

        def decode(phi: Tensor) -> Tensor:
            heard = topology.received(self.receiver(phi)) + topology.sent(self.sender(phi))
            messages = topology.sum(nn.functional.silu(heard + relation))
            hidden = nn.functional.silu(self.message(messages) + self.own(phi) + node_type)
            # What is linear in the features need not pass through the hidden layer.
            return self.output(hidden) + self.direct(phi)

        return decode


@dataclass(frozen=True)
class AutoencoderConfig(MessagePassingConfig):
    """As message passing; features say where things are, so they cannot be net flows."""

    kind: ClassVar[str] = "autoencoder"

    def __post_init__(self) -> None:
        if self.conservative:
            raise InputError(
                "conservative features do not say where things are, so no decoder can; choose decoder='selection', or "
                "features that are not conservative"
            )


class Autoencoder(MessagePassing):
    """Features that know where things are; the operator acts on phi alone, and the decoder finds the observation."""

    name = "autoencoder"
    Config = AutoencoderConfig
    formerly = {"decoder": "message_passing"}
    settings = {"conservative": False, "reproject": False}  # rollouts stay among the features, as in the paper
    selects = False
    linear = False

    def __init__(self, shape: StateShape, config: AutoencoderConfig) -> None:
        super().__init__(shape, config)
        s, c = shape, config
        self.decoder = Decoder(
            self.num_phi, s.num_observations, s.num_relations, s.num_node_types, c.node_width, c.edge_width
        )

    def input_layer(self) -> InputLayer:
        return self.shape.input_layer(InputLayer, absolute=True)

    @property
    def regressed_state(self) -> list[int]:
        return []

    def decoder_on(self, topology: Topology) -> Callable[[Tensor], Tensor]:
        return self.decoder.on(topology)
