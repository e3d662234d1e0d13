"""Paths of linear dynamics for large graphs: of equal steps, sparse where they are; of a graph's features, without a
matrix of the whole graph.

All nodes i share small blocks; sparse G_k say whose features reach whom (weights alpha, or the edges of a relation):

    psi_i' = own' psi_i + sum_k field_k' (G_k psi)_i + (B u)_i + c_i

so a step costs edges x f + nodes x f^2, and nothing but the path itself is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.sparse import csc_array, csr_array

from gce.control.tracking import Rows, Selection

Array = np.ndarray


@dataclass(frozen=True)
class LinearPath:
    """A `Path` of equal steps; what is known beforehand of their inputs stands in c [M, s]."""

    A: csr_array | Array
    B: csr_array
    c: Float[Array, "M s"]
    x0: Float[Array, " s"]

    def transition(self, t: int) -> csr_array | Array:
        """A of step t."""
        return self.A

    @cached_property
    def _A_back(self) -> csr_array | Array:
        return csr_array(self.A.T) if isinstance(self.A, csr_array) else self.A.T

    def gram(self, E: Rows) -> Float[Array, "Mn Mn"]:
        """sum_t Y_t'Y_t of the responses Y_t = d (E_t x_t) / du: of equal steps all follow from A^k B."""
        M, after = len(self.c), [self.B.toarray()]
        for _ in range(M - 1):
            after.append(self.A @ after[-1])
        seen = np.ascontiguousarray(np.stack(after).transpose(2, 0, 1))  # [n, M, s]
        seen = seen[:, :, E.index] if isinstance(E, Selection) else seen
        Y = np.zeros((M, *seen.shape))
        for k in range(M):
            Y[k, :, k:] = seen[:, : M - k]
        Y = Y.reshape(-1, *seen.shape[1:])
        weighed = (Y * E.weight if isinstance(E, Selection) else np.einsum("tms,kts->ktm", E, Y)).reshape(len(Y), -1)
        return weighed @ weighed.T

    def forward(self, u: Float[Array, "M n"], affine: bool = True) -> Float[Array, "M s"]:
        x = self.x0 if affine else np.zeros_like(self.x0)
        xs = np.ascontiguousarray((self.B @ u.T).T)
        if affine:
            xs += self.c
        for t in range(len(u)):
            xs[t] += self.A @ x
            x = xs[t]
        return xs

    def adjoint(self, weights: Float[Array, "M s"]) -> Float[Array, "M n"]:
        costate = weights.copy()
        for t in reversed(range(1, len(weights))):
            costate[t - 1] += self._A_back @ costate[t]
        return np.ascontiguousarray((self.B.T @ costate.T).T)


@dataclass(frozen=True)
class NodeBlocks:
    """own and fields [f, f] act on rows from the right; nodes: whose they are, all or an index."""

    nodes: slice | Array
    own: Float[Array, "f f"]
    fields: Float[Array, "fields f f"]


@dataclass(frozen=True)
class GraphStep:
    """One step: the blocks of each kind of node, the fields' G [nodes, nodes], and the constant c."""

    blocks: Sequence[NodeBlocks]
    fields: Sequence[csr_array]
    c: Float[Array, "nodes f"]

    @cached_property
    def _fields_back(self) -> list[csc_array]:
        return [G.T for G in self.fields]

    def forward(self, psi: Float[Array, "nodes f"]) -> Float[Array, "nodes f"]:
        """The part of the next features that is linear in the present ones."""
        heard = [G @ psi for G in self.fields]
        following = np.empty_like(psi)
        for block in self.blocks:
            part = psi[block.nodes] @ block.own
            for values, field in zip(heard, block.fields, strict=True):
                part += values[block.nodes] @ field
            following[block.nodes] = part
        return following

    def adjoint(self, weights: Float[Array, "nodes f"]) -> Float[Array, "nodes f"]:
        """The transposed product."""
        earlier = np.empty_like(weights)
        for block in self.blocks:
            earlier[block.nodes] = weights[block.nodes] @ block.own.T
        for k, G_back in enumerate(self._fields_back):
            said = np.empty_like(weights)
            for block in self.blocks:
                said[block.nodes] = weights[block.nodes] @ block.fields[k].T
            earlier += G_back @ said
        return earlier


@dataclass(frozen=True)
class GraphPath:
    """A `Path` of graph steps, which may all be one; B [nodes f, n] is sparse; numbers as precise as x_0's."""

    steps: Sequence[GraphStep]
    B: csr_array
    x0: Float[Array, " s"]

    @cached_property
    def _B_back(self) -> csc_array:
        return self.B.T

    def forward(self, u: Float[Array, "M n"], affine: bool = True) -> Float[Array, "M s"]:
        dtype, shape = self.x0.dtype, self.steps[0].c.shape
        psi = self.x0.reshape(shape) if affine else np.zeros(shape, dtype)
        u = u.astype(dtype, copy=False)
        xs = np.empty((len(self.steps), *shape), dtype)
        for t, step in enumerate(self.steps):
            pushed = (self.B @ u[t]).reshape(shape)
            if affine:
                pushed += step.c
            psi = xs[t] = pushed if t == 0 and not affine else step.forward(psi) + pushed
        return xs.reshape(len(xs), -1)

    def adjoint(self, weights: Float[Array, "M s"]) -> Float[Array, "M n"]:
        dtype, shape = self.x0.dtype, self.steps[0].c.shape
        found = np.empty((len(weights), self.B.shape[1]))
        carried = np.zeros(shape, dtype)
        for t in reversed(range(len(weights))):
            carried = weights[t].reshape(shape).astype(dtype) + carried
            found[t] = self._B_back @ carried.reshape(-1)
            if t:
                carried = self.steps[t].adjoint(carried)
        return found
