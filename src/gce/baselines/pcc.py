"""PCC: prediction, consistency, curvature (Levine, Chow, Shu, Li, Ghavamzadeh, Bui 2019).

An autoencoder of the padded state with latent dynamics F(z' | z, u) = N(f(z, u), var(z, u)) that may bend, but are
asked to bend little. With z' ~ E(x') and z ~ Q(. | x, z', u), means over pairs (x, u, x') one step apart:

    prediction   - log N(x'; D(z'))  +  KL(Q(z | x, z', u) | E(x))  -  H(E(x'))  -  log F(z' | z, u)
    consistency                         KL(Q(z | x, z', u) | E(x))  -  H(E(x'))  -  log F(z' | z, u)
    curvature    | f(z + e, u + n) - f(z, u) - df/dz e - df/du n |^2,   z ~ E(x), e and n normal of size 0.1

    prediction + 8 consistency + 8 curvature - 0.3 log N(x'; D(f(mean of E(x), u))) - 0.01 log N(x; D(z_x)),  z_x ~ E(x)

The prediction term bounds - log p(x' | x, u); the last two terms are the small deterministic and autoencoding ones that
implementations use to start the training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.padded import Normal, NormalNet, PaddedBaseline, PaddedConfig
from gce.baselines.trainable import Draw, Schedule


@dataclass(frozen=True)
class PccConfig(PaddedConfig):
    """Weights of the terms, and the size of the steps that curvature is measured over."""

    consistency: float = 8.0
    curvature: float = 8.0
    deterministic: float = 0.3
    autoencoding: float = 0.01
    reach: float = 0.1


class Pcc(PaddedBaseline):
    name, config_class = "pcc", PccConfig
    schedule = Schedule(iterations=40_000, learning_rate=1e-3, draw=Draw(systems=16), validate_every=4000)
    config: PccConfig

    def __init__(self, config: PccConfig) -> None:
        super().__init__(config)
        z, u = config.latent, self.num_controls
        self.backward_encoder = NormalNet(self.num_coordinates + config.max_nodes + z + u, config.width, z)
        self.transition = NormalNet(z + u, config.width, z)

    def dynamics(self, z: Float[Tensor, "*batch z"], actions: Float[Tensor, "*batch u"]) -> Normal:
        """F(. | z, u)."""
        change = self.transition(z, actions)
        return Normal(z + change.mean, change.logvar)

    def advance(self, z: Float[Tensor, "*batch z"], actions: Float[Tensor, "*batch u"]) -> Float[Tensor, "*batch z"]:
        return self.dynamics(z, actions).mean

    def bend(self, z: Tensor, actions: Tensor, generator: torch.Generator) -> Float[Tensor, " rows"]:
        """The squared distance of f from its tangent, a small step away."""
        e = self.config.reach * torch.randn(z.shape, generator=generator, dtype=z.dtype)
        n = self.config.reach * torch.randn(actions.shape, generator=generator, dtype=z.dtype)
        tangent: tuple[Tensor, Tensor] = torch.func.jvp(self.advance, (z, actions), (e, n))  # type: ignore[assignment]
        return (self.advance(z + e, actions + n) - tangent[0] - tangent[1]).square().sum(-1)

    def step_loss(
        self, x: Tensor, actions: Tensor, next_x: Tensor, present: Tensor, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        c = self.config
        here, after = self.encoder(x), self.encoder(next_x)
        next_z = after.sample(generator)
        earlier = self.backward_encoder(x, next_z, actions)
        forward = self.dynamics(earlier.sample(generator), actions)
        consistency = earlier.divergence(here) - after.entropy() - forward.log_density(next_z)
        z = here.sample(generator)
        loss = (
            consistency
            - self.likelihood(next_x, next_z, present)
            + c.consistency * consistency
            + c.curvature * self.bend(z, actions, generator)
            - c.deterministic * self.likelihood(next_x, self.advance(here.mean, actions), present)
            - c.autoencoding * self.likelihood(x, z, present)
        )
        return loss.mean()
