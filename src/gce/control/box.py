"""Quadratic programs with bounds only, to the last digit: projected Newton (Bertsekas 1982).

    minimise  u'Hu / 2 + g'u   subject to   low <= u <= high

Controls on a bound that the gradient pushes against are held; the others take a Newton step, cut at the bounds, as
much of it as pays. Once the held ones are right, one step is exact: a few suffice from a good start.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import cho_factor, cho_solve

Array = np.ndarray


def box_qp(
    H: Float[Array, "k k"],
    g: Float[Array, " k"],
    low: Float[Array, " k"],
    high: Float[Array, " k"],
    start: Float[Array, " k"],
    iterations: int = 30,
) -> tuple[Float[Array, " k"], Bool[Array, " k"]]:
    """(the best controls, which of them are free); H positive definite, or scipy raises LinAlgError."""
    u = np.clip(start, low, high)
    free = np.ones(len(u), dtype=bool)
    for _ in range(iterations):
        gradient = H @ u + g
        free = ~(((u <= low) & (gradient > 0)) | ((u >= high) & (gradient < 0)))
        if not free.any() or np.abs(gradient[free]).max() <= 1e-13 * (np.abs(g) + np.abs(H) @ np.abs(u)).max():
            break
        step = np.zeros_like(u)
        step[free] = -cho_solve(cho_factor(H[np.ix_(free, free)]), gradient[free])
        share = 1.0
        while True:
            moved = np.clip(u + share * step, low, high) - u
            # The change of the cost, written so that it does not drown in the cost itself.
            change = gradient @ moved + moved @ H @ moved / 2
            if change <= 0.1 * (gradient @ moved) < 0:
                break
            share /= 2
            if share < 1e-8:
                return u, free
        u = np.clip(u + share * step, low, high)
    return u, free
