"""A model adapted to some episodes of a system and predicting another: what is reported of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from gce.metrics import nrmse
from gce.model.model import Model
from gce.system.system import System, adapt
from gce.trajectory import Episode


@dataclass(frozen=True)
class Prediction:
    """Observations predicted, the 90% interval, the error of each step, and the share of the truth in the interval.

    system: what predicted; adapting: the episodes as it saw them.
    """

    predicted: Float[np.ndarray, "steps_plus_1 nodes d"]
    low: Float[np.ndarray, "steps_plus_1 nodes d"]
    high: Float[np.ndarray, "steps_plus_1 nodes d"]
    nrmse: Float[np.ndarray, " steps"]
    coverage: float
    system: System
    adapting: list[Episode]


def prediction(
    model: Model,
    episode: Episode,
    adapting: Sequence[Episode],
    unit: Float[np.ndarray, " d"],
    noise: float = 0.0,
    seed: int = 0,
    reproject: bool | None = None,
) -> Prediction:
    """Adapt to some episodes and predict another from its first observation and its actions; the truth is clean.

    noise: added to the observations of the adaptation episodes and to the first observation, in shares of `unit`.
    """
    rng = np.random.default_rng(seed)

    def noisy(observations: np.ndarray) -> np.ndarray:
        return observations + noise * unit * rng.standard_normal(observations.shape) if noise else observations

    seen = [replace(e, observations=noisy(e.observations.astype(float))) for e in adapting]
    system = adapt(model, seen)
    truth = episode.observations.astype(float)
    predicted = system.predict(noisy(truth[0]), episode.actions, exogenous=episode.exogenous, reproject=reproject)
    low, high = system.intervals(predicted)
    inside = (truth[1:] >= low[1:]) & (truth[1:] <= high[1:])
    error = nrmse(predicted[1:], truth[1:], unit)
    return Prediction(predicted, low, high, error, float(inside.mean()), system, seen)
