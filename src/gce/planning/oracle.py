"""An oracle that knows the true linear model: an upper bound to compare with, never a method.

    minimise sum_{t=1..M} |W_t (x_t - x*)|^2 + |w_t * u_{t-1}|^2   under x' = A x + B u + c

by Riccati; controls are clipped as they act.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gce.control.solver import Gains, lqr
from gce.control.tracking import DensePath

Array = np.ndarray


@dataclass(frozen=True)
class LinearOracle:
    """Gains of the whole horizon, and the model that they are of; |u| <= limit."""

    A: Float[Array, "s s"]
    B: Float[Array, "s n"]
    c: Float[Array, " s"]
    gains: Gains
    limit: float

    def act(self, t: int, x: Float[Array, " s"]) -> Float[Array, " n"]:
        """Feedback: the control at step t from the state there."""
        return np.clip(self.gains.control(t, x), -self.limit, self.limit)

    def plan(self, t: int, x: Float[Array, " s"]) -> Float[Array, "steps n"]:
        """The controls from step t to the end, from the state at t alone."""
        found = []
        for k in range(t, len(self.gains.K)):
            found.append(self.act(k, x))
            x = self.A @ x + self.B @ found[-1] + self.c
        return np.array(found)


def linear_oracle(
    A: Float[Array, "s s"],
    B: Float[Array, "s n"],
    c: Float[Array, " s"],
    goal: Float[Array, " s"],
    weight: Float[Array, "M s"],
    effort: float,
    limit: float,
) -> LinearOracle:
    """weight: square roots of the costs of x - goal at steps 1..M; effort: of the controls'."""
    M, used = len(weight), np.flatnonzero(weight.any(axis=0))
    E = np.zeros((M, len(used), len(A)))
    E[:, np.arange(len(used)), used] = weight[:, used]
    each = [np.broadcast_to(part, (M, *part.shape)) for part in (A, B, c)]
    path = DensePath(each[0], each[1], each[2], np.zeros(len(A)))
    gains = lqr(path, E, weight[:, used] * goal[used], np.full((M, B.shape[1]), effort))
    return LinearOracle(A, B, c, gains, limit)
