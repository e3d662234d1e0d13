"""A potential with heavy tails: f = -log(1 + |psi_i - psi_j|^2 / s^2), so that far neighbours still count."""

import torch
from torch import nn

import gce
from gce.potentials import Potential


@gce.register
class Cauchy(Potential):
    name = "cauchy"
    at_most_own = True  # f is at most 0, and 0 of a node and itself
    valued = True  # --bandwidth gives s

    def __init__(self, scale, learned):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(scale).log(), requires_grad=learned)

    @classmethod
    def make(cls, num_features, value, learned):
        return cls(value, learned)

    def forward(self, receivers, senders):
        """One number an edge, from the features of its receiver and of its sender."""
        return -((receivers - senders).square().sum(-1) / self.log_scale.exp() ** 2).log1p()
