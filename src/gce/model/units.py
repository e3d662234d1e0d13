"""The units that a model's tensors are in: learned from data, kept with the model."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.graphs.topology import Topology


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
