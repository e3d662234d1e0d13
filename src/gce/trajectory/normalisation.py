"""Means and standard deviations of a data set, and the way to unit variance and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gce.trajectory.episode import Episode

FLAT = 1e-8
"""A coordinate that varies less than this share of its size is left in its own unit."""


@dataclass(frozen=True)
class Normalisation:
    """(value - mean) / std of every coordinate; actions are only divided, so that no action stays no action."""

    observation_mean: Float[np.ndarray, " coordinates"]
    observation_std: Float[np.ndarray, " coordinates"]
    action_std: Float[np.ndarray, " action_coordinates"]

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> Normalisation:
        """In one pass over the episodes, nodes that take no action included."""
        observations, actions = _Moments(), _Moments()
        for episode in episodes:
            observations.add(episode.observations)
            actions.add(episode.actions)
        return cls(observations.mean, observations.std, actions.std)

    def normalise(
        self, observations: Float[np.ndarray, "*batch coordinates"]
    ) -> Float[np.ndarray, "*batch coordinates"]:
        return (observations - self.observation_mean) / self.observation_std

    def denormalise(
        self, observations: Float[np.ndarray, "*batch coordinates"]
    ) -> Float[np.ndarray, "*batch coordinates"]:
        return observations * self.observation_std + self.observation_mean


class _Moments:
    """Mean and standard deviation, merged from chunk to chunk without cancellation (Chan et al. 1983)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.zeros(0)
        self._squares = np.zeros(0)

    def add(self, values: np.ndarray) -> None:
        rows = np.concatenate(values).astype(np.float64)
        mean = rows.mean(axis=0)
        squares = np.square(rows - mean).sum(axis=0)
        if self.count == 0:
            self.count, self.mean, self._squares = len(rows), mean, squares
            return
        total = self.count + len(rows)
        gap = mean - self.mean
        self._squares = self._squares + squares + gap**2 * self.count * len(rows) / total
        self.mean = self.mean + gap * len(rows) / total
        self.count = total

    @property
    def std(self) -> np.ndarray:
        std = np.sqrt(self._squares / self.count)
        return np.where(std > FLAT * np.maximum(1.0, np.abs(self.mean)), std, 1.0)
