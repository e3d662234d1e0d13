"""CKO: compositional Koopman operators (Li, He, Wu, Katabi, Torralba 2020).

A message-passing autoencoder psi = E(o), o = D(psi); one operator a relation type on the plain sums of the features of
the neighbours in that relation, fitted in closed form to some episodes of a system; rollouts stay linear,

    psi_{t+1} = C' X(psi_t, a_t),     o_t = D(psi_t).

It is trained over windows of episodes that the operators were not fitted on.

Loss (|.| root mean square over nodes and coordinates):

    autoencoding    mean_t |D(E(o_t)) - o_t|
    prediction      mean_t |D(psi_t) - o_t|,   psi rolled out from E(o_0)
    metric          0.3 mean over nodes and pairs of times of | ||E(o_t) - E(o_s)|| - ||o_t - o_s|| |

The metric term asks that distances between features are those between observations.

Operators are fitted in every iteration, which takes most of it unless regressors of different receivers are told apart:
where a relation type belongs to receivers of one type, X'X falls into a block for each (27 relations of Swim: three
blocks of a third of the regressors, a ninth of the operations). A rollout is one product a step for all systems,
filled up with zeros to the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gce.baselines.koopman import Composed, Koopman, RelationBlocks
from gce.baselines.trainable import Draw, Schedule, Trainable, WindowBatch
from gce.features.base import StateShape
from gce.features.inputs import InputLayer
from gce.features.message_passing import Encoder, EncoderShape
from gce.graphs.topology import Topology
from gce.training.batches import Recorded, miss


@dataclass(frozen=True)
class CkoConfig(StateShape):
    """ridge_factors: times `ridge`, to choose from when adapting, by the error of predicting the episodes from their
    starts; training has `ridge` itself."""

    features: int = 32
    node_width: int = 64
    edge_width: int = 32
    rounds: int = 2
    ridge: float = 2e-3
    ridge_factors: tuple[float, ...] = (1.0,)
    metric_weight: float = 0.3


def message_passing(config: StateShape, num_state: int, outputs: int, width: tuple[int, int], rounds: int) -> Encoder:
    """Message passing as published: states and their differences, no lengths or directions; all but unbounded."""
    seen = replace(config, num_observations=num_state, previous_action=False, points=())
    shape = EncoderShape(
        num_relations=config.num_relations,
        num_node_types=config.num_node_types,
        num_features=outputs,
        num_linear=0,
        node_width=width[0],
        edge_width=width[1],
        rounds=rounds,
    )
    return Encoder(seen.input_layer(InputLayer), shape, bound=100.0)


class CkoAdapted(Composed):
    model: Cko

    def decode(self, x: Float[Tensor, "*batch s"]) -> Float[Tensor, "*batch nodes d"]:
        psi = x.unflatten(-1, (self.graph.num_nodes, -1))[..., : self.model.config.features]
        return self.model.decoder(psi, self.topology)


class Cko(Koopman, Trainable):
    name, config_class, adapted_class = "cko", CkoConfig, CkoAdapted
    config: CkoConfig
    schedule = Schedule(horizons=(4, 16, 16, 32, 32, 64), draw=Draw(fit_episodes=8))

    def __init__(self, config: CkoConfig) -> None:
        super().__init__(config)
        c = config
        self.ridges = [factor * c.ridge for factor in c.ridge_factors]
        width = (c.node_width, c.edge_width)
        self.encoder = message_passing(c, c.num_observations, c.features, width, c.rounds)
        self.decoder = message_passing(c, c.features, c.num_observations, width, c.rounds)
        self.blocks = RelationBlocks(c, c.features)

    def set_inputs(self, systems: Sequence[Recorded]) -> None:
        d = self.config.num_observations
        self.encoder.inputs.set_units((s.states[0, ::4, :, :d].transpose(0, 1), s.topology) for s in systems)
        # The decoder sees the same attributes.
        self.decoder.inputs.attribute_mean.copy_(self.encoder.inputs.attribute_mean)
        self.decoder.inputs.attribute_std.copy_(self.encoder.inputs.attribute_std)

    def features(
        self, observations: Float[Tensor, "*batch nodes d"], topology: Topology
    ) -> Float[Tensor, "*batch nodes f"]:
        return self.encoder(observations, topology)

    def loss(self, batch: WindowBatch, generator: torch.Generator) -> Float[Tensor, ""]:
        c, topology, w = self.config, batch.topology, batch.windows
        if batch.fit is None:
            raise ValueError("operators are fitted in training; draw episodes to fit on")
        d = c.num_observations
        truth = w.states[..., :d]
        fit_psi = self.encoder(batch.fit.states[..., :d], topology)
        fit_z = torch.cat([fit_psi[:, :-1], batch.fit.states[:, :-1, :, d:]], dim=-1)
        X = self.blocks.regressors(fit_z, batch.fit.inputs, topology)
        C = fitted(self.blocks, X, fit_psi[:, 1:], topology, c.ridge)
        psi = self.encoder(truth, topology)
        z = torch.cat([psi[:, 0], w.states[:, 0, :, d:]], dim=-1)
        path = rolled_out(self.blocks, C, z, w.inputs, topology)[..., : c.features]
        decoded = self.decoder(torch.cat([psi, path.clamp(-1e3, 1e3)], dim=1), topology)
        steps = truth.shape[1]
        other = torch.randperm(steps, generator=generator)
        near = _distance(psi, psi[:, other]) - _distance(truth, truth[:, other])
        return (
            miss(decoded[:, :steps], truth, topology)
            + miss(decoded[:, steps:], truth[:, 1:], topology)
            + c.metric_weight * near.abs().mean()
        )


def fitted(
    blocks: RelationBlocks,
    X: Float[Tensor, "*batch nodes D"],
    psi: Float[Tensor, "*batch nodes m"],
    topology: Topology,
    ridge: float,
) -> list[Float[Tensor, "D m"]]:
    """The operators of each graph, as `Blocks.regressions` finds them all at once."""
    operators = []
    for start, graph in _graphs(topology):
        whole = X.new_zeros(X.shape[-1], psi.shape[-1], dtype=torch.float64)
        for nodes in _apart(graph):
            some = replace(topology, splits=(len(nodes),))  # regressions look at the splits alone
            (part,) = blocks.regressions(X[..., start + nodes, :], psi[..., start + nodes, :], some)
            # The ridge is on the mean over all rows of the graph, of which these are some.
            whole = whole + part.solve(ridge * graph.num_nodes / len(nodes))
        operators.append(whole)
    return operators


def _apart(graph: Topology) -> list[Int[Tensor, " nodes"]]:
    """The nodes of a graph by type; all together where two types receive in the same relation."""
    pairs = torch.stack([graph.node_type[graph.receivers], graph.edge_type]).unique(dim=1)
    if pairs.shape[1] > len(graph.edge_type.unique()):
        return [torch.arange(graph.num_nodes)]
    return [(graph.node_type == kind).nonzero().squeeze(1) for kind in graph.node_type.unique()]


def rolled_out(
    blocks: RelationBlocks,
    coefficients: Sequence[Float[Tensor, "D m"]],
    z: Float[Tensor, "windows nodes f"],
    inputs: Float[Tensor, "windows steps nodes i"],
    topology: Topology,
) -> Float[Tensor, "windows steps nodes f"]:
    """z after each step."""
    graphs = zip(coefficients, _graphs(topology), strict=True)
    systems = [blocks.assemble(C.to(z.dtype), graph) for C, (_, graph) in graphs]
    largest = max(topology.splits)

    def filled(rows: Float[Tensor, "*batch nodes k"]) -> Float[Tensor, "graphs *batch s"]:
        """Nodes of each graph side by side, zeros after them."""
        parts = [part.flatten(-2) for part in rows.split(topology.splits, dim=-2)]
        width = largest * rows.shape[-1]
        return torch.stack([torch.nn.functional.pad(p, (0, width - p.shape[-1])) for p in parts])

    s, i = largest * z.shape[-1], largest * inputs.shape[-1]
    A = torch.stack([_padded(A.T, s, s) for A, _, _ in systems])
    B = torch.stack([_padded(B.T, i, s) for _, B, _ in systems])
    c = torch.stack([_padded(c[None], 1, s) for _, _, c in systems])
    pushed = torch.einsum("gwti,gis->tgws", filled(inputs), B) + c
    x, path = filled(z), []
    for push in pushed:
        x = torch.baddbmm(push, x, A)
        path.append(x)
    whole = torch.stack(path, dim=2).unflatten(-1, (largest, -1))
    return torch.cat([one[..., :size, :] for one, size in zip(whole, topology.splits, strict=True)], dim=-2)


def _graphs(topology: Topology) -> Iterator[tuple[int, Topology]]:
    """The graphs of a union, each with the number of its first node."""
    start = 0
    for size in topology.splits:
        inside = (topology.receivers >= start) & (topology.receivers < start + size)
        nodes = slice(start, start + size)
        alone = Topology(
            senders=topology.senders[inside] - start,
            receivers=topology.receivers[inside] - start,
            edge_type=topology.edge_type[inside],
            node_type=topology.node_type[nodes],
            node_attributes=topology.node_attributes[nodes],
            edge_attributes=topology.edge_attributes[inside],
            splits=(size,),
        )
        yield start, alone
        start += size


def _padded(matrix: Float[Tensor, "r c"], rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    return torch.nn.functional.pad(matrix, (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]))


def _distance(left: Float[Tensor, "*batch c"], right: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
    return ((left - right).square().sum(-1) + 1e-8).sqrt()
