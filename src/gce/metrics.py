"""The figures reported, defined once: prediction error and distances of embeddings; `gce.control.problem` has the
control error."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def nrmse(
    predicted: Float[np.ndarray, "steps nodes coordinates"],
    true: Float[np.ndarray, "steps nodes coordinates"],
    std: Float[np.ndarray, " coordinates"],
) -> Float[np.ndarray, " steps"]:
    """At each step, the root of the mean over nodes and coordinates of ((predicted - true) / std)^2."""
    return np.sqrt(np.mean(np.square((predicted - true) / std), axis=(-2, -1)))


def mmd(first: Float[np.ndarray, "*batch d"], second: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch"]:
    """The maximum mean discrepancy of two distributions given by their embeddings: the distance of these."""
    return np.linalg.norm(first - second, axis=-1)
