"""Noise out of recordings whose velocities are differences of their positions.

Where v_t = (p_t - p_{t-1}) / dt holds, p and v say the same thing twice. With noise of equal size on both (in
normalised units, c = dt std_v / std_p), the most likely path is

    argmin over p of  sum_t (p_t - p~_t)^2 + sum_{t>=1} ((p_t - p_{t-1}) / c - v~_t)^2

one banded solve, whatever the size of the noise; a recording without noise stays as it is. The disagreement of the two
also tells the size of the noise: var(v~_t - (p~_t - p~_{t-1}) / c) = (1 + 2 / c^2) var(noise).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.linalg import solveh_banded


def smooth(
    observations: Float[np.ndarray, "steps nodes d"],
    kinematics: Sequence[tuple[int, int]],
    ratios: Sequence[float],
    at_rest: bool,
) -> Float[np.ndarray, "steps nodes d"]:
    """Normalised observations with noise taken out of every (position, velocity) pair.

    ratios: c of each pair; at_rest: whether recordings open with velocities of zero.
    """
    smoothed = observations.astype(np.float64)
    for (position, velocity), c in zip(kinematics, ratios, strict=True):
        p, v = smoothed[..., position], smoothed[1:, :, velocity]
        steps = len(p)
        # I + D'D in banded form, D p = (p_t - p_{t-1}) / c.
        bands = np.zeros((2, steps))
        bands[0, 1:] = -1 / c**2
        bands[1] = 1 + 2 / c**2
        bands[1, [0, -1]] = 1 + 1 / c**2
        right = p.copy()
        right[1:] += v / c
        right[:-1] -= v / c
        path = solveh_banded(bands, right)
        smoothed[..., position] = path
        smoothed[1:, :, velocity] = np.diff(path, axis=0) / c
        if at_rest:
            smoothed[0, :, velocity] = 0
    return smoothed


def noise_variance(
    observations: Float[np.ndarray, "steps nodes d"],
    kinematics: Sequence[tuple[int, int]],
    ratios: Sequence[float],
) -> float:
    """The variance of the noise on normalised observations, from how far positions and velocities disagree."""
    found = []
    for (position, velocity), c in zip(kinematics, ratios, strict=True):
        gap = observations[1:, :, velocity] - np.diff(observations[..., position], axis=0) / c
        found.append(np.mean(np.square(gap)) / (1 + 2 / c**2))
    return float(np.mean(found)) if found else 0.0
