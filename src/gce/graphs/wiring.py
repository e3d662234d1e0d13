"""Who sends to whom in plain arrays: rows of edges from rows of nodes and sums back, as products with the incidence.

The same as `topology` offers to learning, for planners, which need no gradients of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

Array = np.ndarray
SMALL = 2048
"""Edges times nodes up to which sums over edges are products with full matrices."""


@dataclass(frozen=True, eq=False)
class Wiring:
    """Who sends to whom, and sums over edges as products with their incidence."""

    senders: Int[Array, " edges"]
    receivers: Int[Array, " edges"]
    nodes: int
    dtype: np.dtype

    def _incidence(self, signs: list[tuple[Array, float]]) -> Array | csr_array:
        edges = np.arange(len(self.senders))
        values = np.concatenate([np.full(len(edges), sign, self.dtype) for _, sign in signs])
        where = (np.concatenate([ends for ends, _ in signs]), np.tile(edges, len(signs)))
        matrix = csr_array((values, where), shape=(self.nodes, len(edges)))
        return matrix.toarray() if self.nodes * len(edges) <= SMALL else matrix

    @cached_property
    def _into(self) -> Array | csr_array:
        return self._incidence([(self.receivers, 1)])

    @cached_property
    def _out(self) -> Array | csr_array:
        return self._incidence([(self.senders, 1)])

    @cached_property
    def _net(self) -> Array | csr_array:
        return self._incidence([(self.receivers, 1), (self.senders, -1)])

    @cached_property
    def _apart(self) -> Array | csr_array:
        return -self._net.T if isinstance(self._net, np.ndarray) else csr_array(-self._net.T)

    def sent(self, values: Float[Array, "nodes ..."]) -> Float[Array, "edges ..."]:
        """The sender's row."""
        return np.take(values, self.senders, axis=0)

    def received(self, values: Float[Array, "nodes ..."]) -> Float[Array, "edges ..."]:
        """The receiver's row."""
        return np.take(values, self.receivers, axis=0)

    def into(self, values: Float[Array, "edges ..."]) -> Float[Array, "nodes ..."]:
        """The sum of what comes in."""
        return _times(self._into, values)

    def out(self, values: Float[Array, "edges ..."]) -> Float[Array, "nodes ..."]:
        """The sum of what goes out."""
        return _times(self._out, values)

    def net(self, values: Float[Array, "edges ..."]) -> Float[Array, "nodes ..."]:
        """What comes in less what goes out."""
        return _times(self._net, values)

    def apart(self, values: Float[Array, "nodes ..."]) -> Float[Array, "edges ..."]:
        """The sender's row less the receiver's."""
        return _times(self._apart, values)


def _times(matrix: Array | csr_array, values: Array) -> Array:
    return (matrix @ values.reshape(len(values), -1)).reshape(matrix.shape[0], *values.shape[1:])
