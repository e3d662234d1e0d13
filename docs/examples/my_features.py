"""A kind of features that is not learned: random cosines of a node's observation (Rahimi and Recht 2007)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import gce
from gce.features import Features, FeaturesConfig
from gce.features.inputs import InputLayer


@dataclass(frozen=True)
class CosinesConfig(FeaturesConfig):
    kind: ClassVar[str] = "cosines"
    num_features: int = 32  # gce train --features


@gce.register
class Cosines(Features):
    name, Config = "cosines", CosinesConfig

    def __init__(self, shape, config):
        super().__init__(shape, config)
        self.units = shape.input_layer(InputLayer)
        self.register_buffer("directions", torch.randn(shape.num_state, config.num_features))
        self.register_buffer("phases", 2 * torch.pi * torch.rand(config.num_features))
        self.prepared()

    inputs = property(lambda self: self.units)
    num_phi = property(lambda self: self.config.num_features)

    def on(self, topology):
        """What turns states [nodes, batch, state] into features [nodes, batch, num_phi]."""
        return lambda x: torch.cos(x @ self.directions + self.phases)

    def reach(self, topology):
        return 1  # edges: features are of a node alone, the mean field reaches its neighbours
