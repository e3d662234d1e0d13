"""CKO: compositional Koopman operators (Li, He, Wu, Katabi, Torralba 2020).

A message-passing autoencoder psi = E(o), o = D(psi); one operator a relation type on the plain sums of the features of
the neighbours in that relation, fitted in closed form to some episodes of a system; rollouts stay linear,

    psi_{t+1} = C' X(psi_t, a_t),     o_t = D(psi_t).

What it is trained with: `cko_loss`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.base import Config
from gce.baselines.cko_loss import cko_loss
from gce.baselines.koopman import Blocks, LinearAdapted, predicts_best
from gce.baselines.trainable import Schedule, Trainable
from gce.baselines.windows import Batch, Draw, Recorded
from gce.features.inputs import InputLayer
from gce.features.message_passing import Encoder, EncoderShape
from gce.graphs.topology import Topology
from gce.trajectory import Episode


@dataclass(frozen=True)
class CkoConfig(Config):
    """ridge_factors: times `ridge`, to choose from when adapting, by the error of predicting the episodes from their
    starts; training has `ridge` itself."""

    features: int = 32
    node_width: int = 64
    edge_width: int = 32
    rounds: int = 2
    ridge: float = 2e-3
    ridge_factors: tuple[float, ...] = (1.0,)
    metric_weight: float = 0.3


def message_passing(config: Config, num_state: int, outputs: int, width: tuple[int, int], rounds: int) -> Encoder:
    """Message passing as published: states and their differences, no lengths or directions; all but unbounded."""
    layer = InputLayer(
        num_observations=num_state,
        num_state=num_state,
        num_previous_actions=0,
        num_relations=config.num_relations,
        num_node_types=config.num_node_types,
        num_node_attributes=config.num_node_attributes,
        num_edge_attributes=config.num_edge_attributes,
        points=(),
    )
    shape = EncoderShape(
        num_relations=config.num_relations,
        num_node_types=config.num_node_types,
        num_features=outputs,
        num_linear=0,
        node_width=width[0],
        edge_width=width[1],
        rounds=rounds,
    )
    return Encoder(layer, shape, bound=100.0)


class Cko(Trainable):
    name, config_class = "cko", CkoConfig
    schedule: ClassVar[Schedule] = Schedule(
        iterations=4000,
        horizons=(4, 16, 16, 32, 32, 64),
        draw=Draw(systems=4, windows=4, fit_episodes=8, fit_steps=12),
    )

    def __init__(self, config: CkoConfig) -> None:
        super().__init__(config)
        c = self.config = config
        width = (c.node_width, c.edge_width)
        self.encoder = message_passing(c, c.num_observations, c.features, width, c.rounds)
        self.decoder = message_passing(c, c.features, c.num_observations, width, c.rounds)
        self.blocks = Blocks(c, c.features)

    def set_inputs(self, systems: Sequence[Recorded]) -> None:
        d = self.config.num_observations
        self.encoder.inputs.set_units((s.states[0, ::4, :, :d].transpose(0, 1), s.topology) for s in systems)
        # The decoder sees the same attributes.
        self.decoder.inputs.attribute_mean.copy_(self.encoder.inputs.attribute_mean)
        self.decoder.inputs.attribute_std.copy_(self.encoder.inputs.attribute_std)

    def regressors(
        self, psi: Float[Tensor, "*batch nodes f"], states: Tensor, inputs: Tensor, topology: Topology
    ) -> Float[Tensor, "*batch nodes D"]:
        """Of the features after psi, beside which stands the previous action of the states."""
        z = torch.cat([psi, states[..., self.config.num_observations :]], dim=-1)
        return self.blocks.regressors(z, inputs, topology)

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        return cko_loss(self, batch, generator)

    def fit(self, episodes: Sequence[Episode]) -> CkoAdapted:
        model = copy.deepcopy(self).double()
        graph = episodes[0].graph
        topology, d = Topology.of(graph), self.config.num_observations
        regressors, targets = [], []
        with torch.no_grad():
            for episode in episodes:
                states, inputs = model.states(episode)
                psi = model.encoder(states[..., :d], topology)
                regressors.append(model.regressors(psi[:-1], states[:-1], inputs, topology))
                targets.append(psi[1:])
            (regression,) = self.blocks.regressions(torch.cat(regressors), torch.cat(targets), topology)
        ridges = [factor * self.config.ridge for factor in self.config.ridge_factors]
        candidates = [
            CkoAdapted(model, graph, *self.blocks.assemble(regression.solve(ridge), topology)) for ridge in ridges
        ]
        return predicts_best(candidates, Recorded(model, episodes))


class CkoAdapted(LinearAdapted):
    model: Cko

    def encode(self, state: Float[Tensor, "*batch nodes c"]) -> Float[Tensor, "*batch s"]:
        d = self.model.config.num_observations
        psi = self.model.encoder(state[..., :d], self.topology)
        return torch.cat([psi, state[..., d:]], dim=-1).flatten(-2)

    def decode(self, x: Float[Tensor, "*batch s"]) -> Float[Tensor, "*batch nodes d"]:
        psi = x.unflatten(-1, (self.graph.num_nodes, -1))[..., : self.model.config.features]
        return self.model.decoder(psi, self.topology)
