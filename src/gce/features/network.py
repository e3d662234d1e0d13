"""Networks whose lines conduct: what flows at a node, and how far a push spreads within one step.

The first edge attribute is a line's conductance b_ij >= 0 (or nearly always so), L the network's Laplacian. Where nodes
have little inertia of their own, they settle within a step among their neighbours, these among theirs, and so on: a
step then depends on far nodes, however many rounds of messages a model passes. An implicit step says how (Hairer and
Wanner 1996, on stiff systems):

    (diag(s) + L) (next - now) = what pushes each node on its own

so the operator acts on each node alone, and all it acts on stands three times: as it is, spread by G, as within one
substep, and by G diag(s) G, as within two,

    G = (diag(s) + L)^-1,      s_i = sum over k of exp(theta_k) |a_ik|

theta is learned, one for each node type and attribute a_k (and a constant): what a node holds against its lines.

Features of a node are products of two of [1, attributes, x_i, flows sum_j b_ij (x_j - x_i)]; none is learned.
Attributes absurdly far out of what was trained on count as at a bound, so that numbers stay finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.errors import InputError
from gce.features.base import Encode, Features, FeaturesConfig, StateShape
from gce.features.inputs import InputLayer
from gce.graphs.topology import Topology
from gce.operators.prior import TrainingPrior

BOUND = 1e3
"""Of an attribute, in its units."""


class NetworkEncoder(nn.Module):
    """States [nodes, batch, state] to phi [nodes, batch, products]; nothing of it is learned."""

    def __init__(self, inputs: InputLayer) -> None:
        super().__init__()
        self.inputs = inputs

    def on(self, topology: Topology) -> Encode:
        """What encodes states [nodes, batch, state] of a topology into phi [nodes, batch, features]."""
        n = self.inputs.num_node_attributes
        mean, std = self.inputs.attribute_mean[:n], self.inputs.attribute_std[:n]
        attributes = ((topology.node_attributes - mean) / std).clamp(-BOUND, BOUND).unsqueeze(1)
        carried = (conductance(topology) / line_unit(self.inputs)).reshape(-1, 1, 1)
        signals = 1 + n + 2 * self.inputs.num_state
        first, second = torch.triu_indices(signals, signals, device=mean.device)
        state = (first == 0) & (second > n) & (second <= n + self.inputs.num_state)
        kept = ~(state | (second == 0))
        first, second = first[kept], second[kept]

        def encode(x: Tensor) -> Tensor:
            flows = topology.sum(carried * topology.difference(x))
            known = attributes.to(x.dtype).expand(-1, x.shape[1], -1)
            z = torch.cat([torch.ones_like(x[..., :1]), known, x, flows], dim=-1)
            return z.index_select(-1, first) * z.index_select(-1, second)

        return encode


class Reach(nn.Module):
    """How a network spreads what acts on its nodes, from what its nodes and lines are."""

    def __init__(self, num_node_types: int, num_attributes: int) -> None:
        super().__init__()
        # Attributes hold little at first: one of which training cannot tell must not matter where it is large.
        self.theta = nn.Parameter(torch.full((num_node_types, 1 + num_attributes), -3.0))
        with torch.no_grad():
            self.theta[:, 0] = 0

    def weights(
        self, topology: Topology, inputs: InputLayer
    ) -> list[tuple[Float[Tensor, "nodes nodes"], Float[Tensor, "nodes nodes"]]]:
        """(unit G, G diag(s)) of each graph, the unit that of s.

        Sums of |b| stand on the diagonal, so that lines of negative b leave it invertible.
        """
        n, b = inputs.num_node_attributes, conductance(topology)
        size = (inputs.attribute_mean[:n].square() + inputs.attribute_std[:n].square()).sqrt()
        held = (topology.node_attributes.abs() / size).clamp(max=BOUND)
        known = torch.cat([torch.ones_like(held[:, :1]), held], dim=1)
        s = line_unit(inputs) * (self.theta.exp()[topology.node_type] * known).sum(1)
        unit = line_unit(inputs) * self.theta.exp().sum(1).mean()  # the same for all graphs, as the operator may be
        diagonal = s + b.new_zeros(topology.num_nodes).index_add(0, topology.receivers, b.abs())
        found, start = [], 0
        for nodes in topology.splits:
            inside = (topology.receivers >= start) & (topology.receivers < start + nodes)
            system = torch.diag(diagonal[start : start + nodes]).double()
            where = topology.receivers[inside] - start, topology.senders[inside] - start
            system = system.index_put(where, -b[inside].double(), accumulate=True)
            G = torch.linalg.inv(system)
            found.append(((unit * G).to(s.dtype), (G * s[start : start + nodes]).to(s.dtype)))
            start += nodes
        return found

    def on(self, topology: Topology, inputs: InputLayer) -> Callable[[Tensor], Tensor]:
        """What puts signals [nodes, batch, d] beside themselves spread once and twice, [nodes, batch, 3 d].

        inputs: whose units of attributes count.
        """
        weights = self.weights(topology, inputs)

        def spread(values: Tensor, turn: int) -> Tensor:
            parts = zip(weights, values.flatten(1).split(topology.splits), strict=True)
            return torch.cat([of_graph[turn].to(part.dtype) @ part for of_graph, part in parts]).reshape(values.shape)

        def widened(values: Tensor) -> Tensor:
            once = spread(values, 0)
            return torch.cat([values, once, spread(once, 1)], dim=-1)

        return widened


def conductance(topology: Topology) -> Float[Tensor, " edges"]:
    """b of each edge, 0 of a node and itself."""
    return topology.edge_attributes[:, 0] * (topology.senders != topology.receivers)


def line_unit(inputs: InputLayer) -> Float[Tensor, ""]:
    """The usual conductance of a line."""
    return inputs.attribute_mean[inputs.num_node_attributes].abs().clamp_min(1e-6)


@dataclass(frozen=True)
class NetworkConfig(FeaturesConfig):
    """memory: how many rows the systems trained on count for in the regression of a new one; 0 for none."""

    kind: ClassVar[str] = "network"
    memory: float = 0.0


class Network(Features):
    """Products of two signals of a node, and what acts on it spread over the network; the form is "local"."""

    name = "network"
    Config = NetworkConfig
    formerly = {"network": True}
    settings = {"form": "local", "potential": "constant", "ridge": 1e-6}
    # What is learned of the reach fits into single steps.
    training_settings = {
        "iterations": 220,
        "horizon": 16,
        "learning_rate": 0.15,
        "free_running": False,
        "systems": 2,
        "fit_episodes": 8,
        "fit_steps": 20,
        "rollouts": 2,
        "noise_share": 0.0,
    }
    lasting_noise = True
    copies = 3
    config: NetworkConfig

    def __init__(self, shape: StateShape, config: NetworkConfig) -> None:
        super().__init__(shape, config)
        self.encoder = NetworkEncoder(shape.input_layer(InputLayer))
        self.spreading = Reach(shape.num_node_types, shape.num_node_attributes)
        regressors = self.copies * (self.width + shape.num_inputs) + shape.num_node_types
        self.memory = TrainingPrior(regressors, self.num_targets, config.memory) if config.memory else None
        self.prepared()

    @classmethod
    def settings_for(cls, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {**cls.settings, "node_constants": 0.0} if asked.get("memory") else cls.settings

    @classmethod
    def check(cls, config: Any) -> None:
        super().check(config)
        if config.num_edge_attributes == 0 or config.points:
            raise InputError("a network's lines need a first attribute, how well they conduct, and nodes no place")
        if config.features.memory and config.node_constants:
            raise InputError(
                f"a memory (here {config.features.memory:g}) is for networks without constants of single nodes; choose "
                "node_constants=0, or memory=0"
            )

    @property
    def inputs(self) -> InputLayer:
        return self.encoder.inputs

    @property
    def num_phi(self) -> int:
        """Products of two of [1, attributes, state, flows], without 1 and the state, which are regressors anyway."""
        state = self.shape.num_state
        signals = 1 + self.shape.num_node_attributes + 2 * state
        return signals * (signals + 1) // 2 - 1 - state

    @property
    def training_prior(self) -> TrainingPrior | None:
        return self.memory

    def on(self, topology: Topology) -> Encode:
        return self.encoder.on(topology)

    def spread(self, topology: Topology) -> Callable[[Tensor], Tensor]:
        return self.spreading.on(topology, self.inputs)

    def reach(self, topology: Topology) -> int:
        """All nodes: an implicit step depends on all."""
        return topology.num_nodes

    def anchored(self, topology: Topology) -> bool:
        return True
