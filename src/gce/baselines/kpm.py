"""KPM: Koopman operators on polynomials of the observation (the polynomial baseline of Li et al. 2020).

    psi_i = [o_i, monomials of degree 2 to `order` of v_i, o_i x attributes_i]

Beside the sums of psi over neighbours by relation stand those weighted by the attributes of edges, where there are any.

v_i is the observation, or for nodes of several points the mean place and the mean velocity of these, which keeps
places and velocities apart and the number of monomials small. Nothing is trained: the operators are fitted to the
episodes of a system by ridge regression,

    minimise mean |psi(o_{t+1}) - C' X(psi(o_t), a_t)|^2 + ridge |C|^2

and of a few ridges the one is taken that predicts these episodes best from their starts: a system that explodes would
fit single steps well. The observation is among the features, so decoding is a selection.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.base import Selecting
from gce.baselines.koopman import Composed, Koopman, RelationBlocks
from gce.features.base import StateShape
from gce.graphs.topology import Topology
from gce.trajectory import Dataset


@dataclass(frozen=True)
class KpmConfig(StateShape):
    """order: the highest degree of a monomial; ridges: to choose from."""

    order: int = 2
    ridges: tuple[float, ...] = (1e-3, 1e-2, 1e-1)


class KpmAdapted(Selecting, Composed):
    """A linear system whose decoding is a selection."""


class Kpm(Koopman):
    name, config_class, adapted_class = "kpm", KpmConfig, KpmAdapted
    config: KpmConfig

    attribute_mean: Tensor
    attribute_std: Tensor
    edge_std: Tensor

    def __init__(self, config: KpmConfig) -> None:
        super().__init__(config)
        self.ridges = config.ridges
        attributes = config.num_node_attributes
        self.register_buffer("attribute_mean", torch.zeros(attributes))
        self.register_buffer("attribute_std", torch.ones(attributes))
        self.register_buffer("edge_std", torch.ones(config.num_edge_attributes))
        places = [[point[k] for point in config.points] for k in range(4)] if config.points else []
        self.averaged = places or [[k] for k in range(config.num_observations)]
        features = config.num_observations * (1 + attributes) + len(self.monomials(len(self.averaged)))
        static = attributes + len(_products(attributes, 2))
        self.blocks = RelationBlocks(config, features, static, config.num_edge_attributes)

    def set_units(self, data: Dataset, seed: int = 0) -> None:
        super().set_units(data, seed)
        graphs = [data.group(int(g)).graph for g in sorted(set(data.groups))]
        if self.config.num_node_attributes:
            nodes = torch.cat([torch.as_tensor(g.node_attributes) for g in graphs])
            self.attribute_mean.copy_(nodes.mean(0))
            self.attribute_std.copy_(nodes.std(0).clamp_min(1e-6))
        if self.config.num_edge_attributes:
            edges = torch.cat([torch.as_tensor(g.edge_attributes) for g in graphs])
            self.edge_std.copy_(edges.std(0).clamp_min(1e-6))

    def monomials(self, variables: int) -> list[tuple[int, ...]]:
        return [m for degree in range(2, self.config.order + 1) for m in _products(variables, degree)]

    def attributes(self, topology: Topology) -> Float[Tensor, "nodes g"]:
        return (topology.node_attributes - self.attribute_mean) / self.attribute_std

    def features(
        self, observations: Float[Tensor, "*batch nodes d"], topology: Topology
    ) -> Float[Tensor, "*batch nodes f"]:
        v = torch.stack([observations[..., columns].mean(-1) for columns in self.averaged], dim=-1)
        monomials = [v[..., list(m)].prod(-1, keepdim=True) for m in self.monomials(v.shape[-1])]
        known = self.attributes(topology)
        crossed = (observations.unsqueeze(-1) * known.unsqueeze(-2)).flatten(-2)
        return torch.cat([observations, *monomials, crossed], dim=-1)

    def static(self, topology: Topology) -> Float[Tensor, "nodes g"] | None:
        """The node's attributes and their products: what acts on a node and does not change."""
        known = self.attributes(topology)
        if not known.shape[-1]:
            return None
        products = [known[:, list(m)].prod(-1, keepdim=True) for m in _products(known.shape[-1], 2)]
        return torch.cat([known, *products], dim=-1)

    def edge(self, topology: Topology) -> Float[Tensor, "edges e"] | None:
        """The attributes of edges, in their units; what they weigh has no mean taken off, as 0 says nothing passes."""
        return topology.edge_attributes / self.edge_std if self.config.num_edge_attributes else None


def _products(variables: int, degree: int) -> list[tuple[int, ...]]:
    return list(combinations_with_replacement(range(variables), degree))
