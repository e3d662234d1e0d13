"""VAE: robust locally-linear controllable embedding (Banijamali, Shu, Ghavamzadeh, Bui, Ghodsi 2018).

A variational autoencoder of the padded state with latent dynamics that are linear around a point zbar,

    z' = A(zbar) z + B(zbar) u + c(zbar),     A = I + v(zbar) r(zbar)'

Inference runs backwards, from what came next: z' ~ E(x'), zbar ~ Q(. | x, z'), z = A^-1 (z' - B u - c). Loss: minus
the bound on log p(x' | x, u), and minus a reconstruction of x,

    - log N(x'; D(z')) + KL(Q(zbar | x, z') | E(x)) - H(E(x')) - log E(x)[z] + log det A - log N(x; D(z_x)),  z_x ~ E(x)

means over pairs (x, u, x') one step apart. Predictions and plans take zbar = z.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gce.baselines.padded import NormalNet, PaddedBaseline, PaddedConfig, mlp
from gce.baselines.trainable import Draw, Schedule

Latent = Float[Tensor, "*batch z"]
SMALLEST_DETERMINANT = 0.1


class Vae(PaddedBaseline):
    name, config_class = "vae", PaddedConfig
    schedule = Schedule(iterations=60_000, learning_rate=1e-3, draw=Draw(systems=16), validate_every=6000)

    def __init__(self, config: PaddedConfig) -> None:
        super().__init__(config)
        z, u = config.latent, self.num_controls
        self.backward_encoder = NormalNet(self.num_coordinates + config.max_nodes + z, config.width, z)
        self.transition = mlp(z, config.width, 3 * z + z * u)

    def linear(self, at: Latent) -> tuple[Latent, Latent, Float[Tensor, "*batch z u"], Latent]:
        """(v, r, B, c) at a point; v is shortened where A would lose its inverse."""
        z, u = self.config.latent, self.num_controls
        v, r, c, B = self.transition(at).split([z, z, z, z * u], dim=-1)
        v, r = 0.3 * v, 0.3 * r
        overlap = (v * r).sum(-1, keepdim=True)
        v = v / (-overlap / (1 - SMALLEST_DETERMINANT)).clamp_min(1.0)
        return v, r, B.unflatten(-1, (z, u)) / u**0.5, c

    def advance(self, z: Latent, actions: Float[Tensor, "*batch u"]) -> Latent:
        v, r, B, c = self.linear(z)
        return z + v * (r * z).sum(-1, keepdim=True) + (B @ actions.unsqueeze(-1)).squeeze(-1) + c

    def step_loss(
        self, x: Tensor, actions: Tensor, next_x: Tensor, present: Tensor, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        here, after = self.encoder(x), self.encoder(next_x)
        next_z = after.sample(generator)
        point = self.backward_encoder(x, next_z)
        v, r, B, c = self.linear(point.sample(generator))
        aim = next_z - (B @ actions.unsqueeze(-1)).squeeze(-1) - c
        determinant = 1 + (v * r).sum(-1)
        z = aim - v * ((r * aim).sum(-1) / determinant).unsqueeze(-1)  # Sherman and Morrison (1950)
        bound = (
            self.likelihood(next_x, next_z, present)
            - point.divergence(here)
            + after.entropy()
            + here.log_density(z)
            - determinant.log()
            + self.likelihood(x, here.sample(generator), present)
        )
        return -bound.mean()
