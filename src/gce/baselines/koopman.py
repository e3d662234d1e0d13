"""Koopman operators that are composed over a graph: one block a relation type, fitted in closed form.

With features psi_i of a node, the previous action beside them where the state holds it, z_i = [psi_i, a_i before],

    psi_i <- sum over relations r of C_r (sum of z_j in relation r) + D_r (sum of a_j in relation r) + G g_i + b_type(i)
                                   + E_r (sum of e_ij z_j in relation r)

g are properties of a node that do not change, e of an edge; a method may do without either. As one linear system of all
nodes: x' = A x + B u + c.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gce.baselines.base import Adapted, Baseline
from gce.features.base import StateShape
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.operators import HomForm, Shape
from gce.operators.regression import Moments, solve
from gce.training.batches import Recorded
from gce.trajectory import Episode


@dataclass(frozen=True)
class GraphRegression:
    """Sums of a regression over the regressors that are used; a graph has few of all relation types.

    used: which regressors; free: which of these are constants, that no ridge penalises.
    """

    moments: Moments
    used: Bool[Tensor, " D"]
    free: Bool[Tensor, " used"]

    def solve(self, ridge: float) -> Float[Tensor, "D m"]:
        penalty = torch.where(self.free, 0.0, ridge).double()
        coefficients = solve(self.moments, penalty).coefficients
        whole = coefficients.new_zeros(len(self.used), coefficients.shape[1])
        return whole.index_put((self.used.nonzero().squeeze(1),), coefficients)


class RelationBlocks:
    """Regressors of the next features, and the linear system that fitted coefficients make of a graph."""

    def __init__(self, config: StateShape, num_features: int, num_static: int = 0, num_edge: int = 0) -> None:
        c = config
        self.features, self.static, self.edge = num_features, num_static, num_edge
        self.carried = c.previous_action * c.num_actions
        self.form = HomForm(Shape(num_features + self.carried, c.num_inputs, c.num_relations, c.num_node_types))

    def regressors(
        self,
        z: Float[Tensor, "*batch nodes f"],
        inputs: Float[Tensor, "*batch nodes i"],
        topology: Topology,
        static: Float[Tensor, "nodes g"] | None = None,
        edge: Float[Tensor, "edges e"] | None = None,
    ) -> Float[Tensor, "*batch nodes D"]:
        """[g, weighted sums by relation, plain sums by relation, actions by relation, constants]."""
        rows = z.movedim(-2, 0)  # sums take nodes first
        X = self.form.regressors(rows, inputs.movedim(-2, 0), None, topology).movedim(0, -2)
        parts = [] if static is None else [static.expand(*X.shape[:-1], -1)]
        if edge is not None:
            R, sent = self.form.shape.num_relations, topology.sent(rows)
            weights = edge.reshape(len(edge), *[1] * (rows.ndim - 2), -1)
            weighted = (weights.unsqueeze(-1) * sent.unsqueeze(-2)).flatten(-2)
            table = weighted.new_zeros(len(rows) * R, *weighted.shape[1:])
            table = table.index_add(0, topology.receivers * R + topology.edge_type, weighted)
            parts.append(table.unflatten(0, (len(rows), R)).movedim(1, -2).flatten(-2).movedim(0, -2))
        return torch.cat([*parts, X], dim=-1)

    def regressions(
        self, X: Float[Tensor, "*batch nodes D"], psi: Float[Tensor, "*batch nodes m"], topology: Topology
    ) -> list[GraphRegression]:
        """The regression of the next features of each graph of a union."""
        sums = []
        for x, y in zip(X.split(topology.splits, dim=-2), psi.split(topology.splits, dim=-2), strict=True):
            x = x.flatten(0, -2)
            used = (x != 0).any(0)
            moments = Moments.of(x[:, used], y.flatten(0, -2))
            free = used.nonzero().squeeze(1) >= len(used) - self.form.num_constants(topology)
            sums.append(GraphRegression(moments, used, free))
        return sums

    def assemble(
        self,
        coefficients: Float[Tensor, "D m"],
        topology: Topology,
        static: Float[Tensor, "nodes g"] | None = None,
        edge: Float[Tensor, "edges e"] | None = None,
    ) -> tuple[Float[Tensor, "s s"], Float[Tensor, "s u"], Float[Tensor, " s"]]:
        """(A, B, c) of the system of all nodes: every edge places its relation's block."""
        shape, N = self.form.shape, topology.num_nodes
        R, width, inputs = shape.num_relations, shape.num_features, shape.num_actions
        sizes = [self.static, R * self.edge * width, R * width, R * inputs, shape.num_node_types]
        by_static, by_edge, by_state, by_input, constants = coefficients.split(sizes)
        edges = (topology.receivers, topology.senders)
        A = coefficients.new_zeros(N, N, width, width)
        blocks = by_state.view(R, width, -1)[topology.edge_type].mT
        if edge is not None:
            weighted = by_edge.view(R, self.edge, width, -1)[topology.edge_type]
            blocks = blocks + torch.einsum("ek,ekfm->emf", edge, weighted)
        A[(*edges, slice(self.features))] = blocks
        B = coefficients.new_zeros(N, N, width, inputs)
        B[(*edges, slice(self.features))] = by_input.view(R, inputs, -1)[topology.edge_type].mT
        nodes = torch.arange(N)
        for k in range(self.carried):
            B[nodes, nodes, self.features + k, k] = 1.0
        c = coefficients.new_zeros(N, width)
        c[:, : self.features] = constants[topology.node_type]
        if static is not None:
            c[:, : self.features] += static @ by_static
        return A.transpose(1, 2).reshape(N * width, -1), B.transpose(1, 2).reshape(N * width, -1), c.flatten()


class Koopman(Baseline):
    """A baseline whose operators are fitted in closed form to the episodes of a system."""

    blocks: RelationBlocks
    ridges: Sequence[float]
    """To choose from when adapting, by the error of predicting the episodes from their starts."""
    adapted_class: ClassVar[type[Composed]]

    @abstractmethod
    def features(
        self, observations: Float[Tensor, "*batch nodes d"], topology: Topology
    ) -> Float[Tensor, "*batch nodes f"]:
        """psi."""

    def static(self, topology: Topology) -> Float[Tensor, "nodes g"] | None:
        """Properties of nodes that do not change."""
        return None

    def edge(self, topology: Topology) -> Float[Tensor, "edges e"] | None:
        """Properties of edges that do not change."""
        return None

    def embedded(self, states: Float[Tensor, "*batch nodes c"], topology: Topology) -> Float[Tensor, "*batch nodes z"]:
        """z: features, and beside them the previous action of the states."""
        d = self.config.num_observations
        return torch.cat([self.features(states[..., :d], topology), states[..., d:]], dim=-1)

    @torch.no_grad()
    def fit(self, episodes: Sequence[Episode]) -> Composed:
        model, graph = copy.deepcopy(self).double(), episodes[0].graph
        topology = Topology.of(graph)
        fixed = (topology, model.static(topology), model.edge(topology))
        regressors, targets = [], []
        for episode in episodes:
            states, inputs = model.recorded(episode)
            z = model.embedded(states, topology)
            regressors.append(self.blocks.regressors(z[:-1], inputs, *fixed))
            targets.append(z[1:, :, : self.blocks.features])
        (regression,) = self.blocks.regressions(torch.cat(regressors), torch.cat(targets), topology)
        candidates = [
            self.adapted_class(model, graph, *self.blocks.assemble(regression.solve(ridge), *fixed))
            for ridge in self.ridges
        ]
        if len(candidates) == 1:
            return candidates[0]
        seen = Recorded.of(model, episodes)
        return min(candidates, key=lambda adapted: adapted.miss(seen.states, seen.inputs))


class LinearAdapted(Adapted):
    """x' = A x + B u + c; x are the z of all nodes."""

    def __init__(self, model: Baseline, graph: Graph, A: Tensor, B: Tensor, c: Tensor) -> None:
        super().__init__(model, graph)
        self.A, self.B, self.c = A, B, c

    def step(self, x: Float[Tensor, "*batch s"], inputs: Float[Tensor, "*batch nodes i"]) -> Float[Tensor, "*batch s"]:
        return x @ self.A.T + inputs.flatten(-2) @ self.B.T + self.c

    def features(self, x: Float[Tensor, "*batch s"]) -> Float[Tensor, "*batch nodes f"]:
        return x.unflatten(-1, (self.graph.num_nodes, -1))

    @property
    def embedding(self) -> Int[np.ndarray, " p"]:
        """Which entries of x are features psi: all but previous actions, which stand last of each node."""
        sizes = self.model.config
        entries = np.arange(len(self.c)).reshape(self.graph.num_nodes, -1)
        return entries[:, : entries.shape[1] - sizes.previous_action * sizes.num_actions].flatten()

    def slopes(
        self, x: Float[Tensor, "M s"], inputs: Float[Tensor, "M nodes i"]
    ) -> tuple[Float[Tensor, "M s s"], Float[Tensor, "M s n"]]:
        """The same matrices at every row, stored once."""
        return self.A.expand(len(x), -1, -1), self.B.expand(len(x), -1, -1)


class Composed(LinearAdapted):
    """Of features."""

    model: Koopman

    def encode(self, state: Float[Tensor, "*batch nodes c"]) -> Float[Tensor, "*batch s"]:
        return self.model.embedded(state, self.topology).flatten(-2)
