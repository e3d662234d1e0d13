"""The units that a model's tensors are in: learned from data, kept with the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.graphs.topology import Topology


@dataclass(frozen=True)
class UnitArrays:
    """The same units as arrays, in double precision."""

    observation_mean: Float[np.ndarray, " d"]
    observation_std: Float[np.ndarray, " d"]
    action_std: Float[np.ndarray, " a"]


class Units(nn.Module):
    """Normalised observations are (o - mean) / std; actions and exogenous inputs are divided by their deviation."""

    observation_mean: Tensor
    observation_std: Tensor
    action_std: Tensor
    exogenous_std: Tensor

    def __init__(self, num_observations: int, num_actions: int, num_exogenous: int) -> None:
        super().__init__()
        self.register_buffer("observation_mean", torch.zeros(num_observations))
        self.register_buffer("observation_std", torch.ones(num_observations))
        self.register_buffer("action_std", torch.ones(num_actions))
        self.register_buffer("exogenous_std", torch.ones(num_exogenous))

    @property
    def arrays(self) -> UnitArrays:
        """Worked out once, and again when the tensors have changed."""
        tensors = (self.observation_mean, self.observation_std, self.action_std)
        state = [(id(tensor), tensor._version) for tensor in tensors]
        known: tuple[object, UnitArrays] | None = self.__dict__.get("_arrays")
        if known is None or known[0] != state:
            known = (state, UnitArrays(*(tensor.detach().cpu().double().numpy() for tensor in tensors)))
            self.__dict__["_arrays"] = known
        return known[1]

    def normalise(self, observations: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return (observations - self.observation_mean) / self.observation_std

    def denormalise(self, observations: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return observations * self.observation_std + self.observation_mean

    def merge(
        self, observations: Float[Tensor, "*batch nodes d"], topology: Topology
    ) -> Float[Tensor, "*batch nodes d"]:
        """Tied coordinates at their mean, which is one of physical quantities, not of normalised ones."""
        if topology.tied is None:
            return observations
        physical = self.denormalise(observations).movedim(-2, 0)
        return self.normalise(topology.merge(physical).movedim(0, -2))
