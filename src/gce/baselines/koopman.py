"""Koopman operators that are composed over a graph: one block a relation type, fitted in closed form.

With features psi_i of a node, the previous action beside them where the state holds it, z_i = [psi_i, a_i before],

    psi_i <- sum over relations r of C_r (sum of z_j in relation r) + D_r (sum of a_j in relation r) + G g_i + b_type(i)

g are properties of the node that do not change. As one linear system of all nodes: x' = A x + B u + c.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.base import Adapted, Baseline, Config
from gce.graph import Graph
from gce.operators import HomForm, Shape
from gce.ridge import Moments, solve
from gce.topology import Topology


class Blocks:
    """Regressors of the next features, and the linear system that fitted coefficients make of a graph."""

    def __init__(self, config: Config, num_features: int, num_static: int = 0) -> None:
        c = config
        self.features, self.static = num_features, num_static
        self.carried = c.previous_action * c.num_actions
        self.actions = c.num_actions
        self.form = HomForm(Shape(num_features + self.carried, c.num_inputs, c.num_relations, c.num_node_types))

    def regressors(
        self,
        z: Float[Tensor, "*batch nodes f"],
        inputs: Float[Tensor, "*batch nodes i"],
        static: Float[Tensor, "nodes g"] | None,
        topology: Topology,
    ) -> Float[Tensor, "*batch nodes D"]:
        X = self.form.regressors(z, inputs, None, topology)
        return X if static is None else torch.cat([static.expand(*X.shape[:-1], -1), X], dim=-1)

    def solve(self, moments: Moments, ridge: float) -> Float[Tensor, "D m"]:
        """Coefficients by ridge regression; constants are free."""
        penalty = torch.full((moments.gram.shape[-1],), ridge, dtype=torch.float64)
        penalty[len(penalty) - self.form.shape.num_node_types :] = 0
        return solve(moments, penalty).coefficients

    def next(
        self,
        coefficients: Sequence[Float[Tensor, "D m"]],
        X: Float[Tensor, "*batch nodes D"],
        inputs: Float[Tensor, "*batch nodes i"],
        topology: Topology,
    ) -> Float[Tensor, "*batch nodes f"]:
        """The next z."""
        parts = zip(X.split(topology.splits, dim=-2), coefficients, strict=True)
        psi = torch.cat([x @ C.to(x.dtype) for x, C in parts], dim=-2)
        return torch.cat([psi, inputs[..., : self.carried]], dim=-1)

    def assemble(
        self, coefficients: Float[Tensor, "D m"], static: Float[Tensor, "nodes g"] | None, topology: Topology
    ) -> tuple[Float[Tensor, "s s"], Float[Tensor, "s u"], Float[Tensor, " s"]]:
        """(A, B, c) of the system of all nodes: every edge places its relation's block."""
        shape, N = self.form.shape, topology.num_nodes
        R, width, inputs = shape.num_relations, shape.num_features, shape.num_actions
        sizes = [self.static, R * width, R * inputs, shape.num_node_types]
        by_static, by_state, by_input, constants = coefficients.split(sizes)
        edges = (topology.receivers, topology.senders)
        A = coefficients.new_zeros(N, N, width, width)
        A[(*edges, slice(self.features))] = by_state.view(R, width, -1)[topology.edge_type].mT
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


class LinearAdapted(Adapted):
    """x' = A x + B u + c; x are the z of all nodes."""

    def __init__(self, model: Baseline, graph: Graph, A: Tensor, B: Tensor, c: Tensor) -> None:
        super().__init__(model, graph)
        self.A, self.B, self.c = A, B, c

    def step(self, x: Float[Tensor, "*batch s"], inputs: Float[Tensor, "*batch nodes i"]) -> Float[Tensor, "*batch s"]:
        return x @ self.A.T + inputs.flatten(-2) @ self.B.T + self.c

    def slopes(
        self, x: Float[Tensor, "M s"], inputs: Float[Tensor, "M nodes i"]
    ) -> tuple[Float[Tensor, "M s s"], Float[Tensor, "M s n"]]:
        """The same matrices at every row, stored once."""
        return self.A.expand(len(x), -1, -1), self.B.expand(len(x), -1, -1)
