"""Linear dynamics of equal steps, sparse where they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array

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
