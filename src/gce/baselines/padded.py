"""Embeddings that know no graph: the states of all nodes side by side, padded with zeros, in one latent vector.

    x = [states of nodes 1..N, 0 ... 0; which nodes there are],   z ~ E(x) = N(mean(x), var(x)),   x ~ N(D(z), noise^2)

Nodes keep the order of the recording. What two methods share stands here; they differ in the latent dynamics and the
loss of single steps. To it comes, as in the training of all other methods here, the error of predicting a whole window,

    mean_t |D(z_t) - x_t|,   z_0 the mean of E(x_0), z_t the mean path;   |.| root mean square over coordinates.

Both adapt by gradient descent on the episodes of a system.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.baselines.base import Adapted
from gce.baselines.trainable import FineTuned, WindowBatch
from gce.errors import InputError
from gce.features.base import StateShape
from gce.graphs.graph import Graph


@dataclass(frozen=True)
class PaddedConfig(StateShape):
    """max_nodes: rows of the padded state; noise: of the decoder, in standard deviations of the observation.

    path: weight of the error of paths of many steps; 0 is the published loss of single steps, whose rollouts drift.
    """

    max_nodes: int = 14
    latent: int = 32
    width: int = 256
    noise: float = 0.1
    path: float = 1.0


@dataclass(frozen=True)
class Normal:
    """Independent normal variables."""

    mean: Float[Tensor, "*batch z"]
    logvar: Float[Tensor, "*batch z"]

    def sample(self, generator: torch.Generator) -> Float[Tensor, "*batch z"]:
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype)
        return self.mean + torch.exp(self.logvar / 2) * noise

    def log_density(self, z: Float[Tensor, "*batch z"]) -> Float[Tensor, "*batch"]:
        """Without its constant."""
        return -0.5 * ((z - self.mean).square() * torch.exp(-self.logvar) + self.logvar).sum(-1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Without the constant that `log_density` leaves out."""
        return 0.5 * (1 + self.logvar).sum(-1)

    def divergence(self, other: Normal) -> Float[Tensor, "*batch"]:
        """KL(self | other)."""
        gap = (self.mean - other.mean).square() + torch.exp(self.logvar)
        return 0.5 * (gap * torch.exp(-other.logvar) - 1 + other.logvar - self.logvar).sum(-1)


class NormalNet(nn.Module):
    """A network whose output is a normal distribution."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.net = mlp(inputs, width, 2 * outputs)

    def forward(self, *parts: Tensor) -> Normal:
        mean, logvar = self.net(torch.cat(parts, dim=-1)).chunk(2, dim=-1)
        return Normal(mean, 6 * torch.tanh((logvar - 4) / 6))  # small at first, and within e^-6 to e^6


class PaddedBaseline(FineTuned):
    """Encoder and decoder of padded states."""

    config: PaddedConfig

    def __init__(self, config: PaddedConfig) -> None:
        super().__init__(config)
        c = config
        self.num_coordinates = c.max_nodes * c.num_state
        self.num_controls = c.max_nodes * c.num_inputs
        self.encoder = NormalNet(self.num_coordinates + c.max_nodes, c.width, c.latent)
        self.decoder = mlp(c.latent, c.width, self.num_coordinates)

    @abstractmethod
    def step_loss(
        self,
        x: Float[Tensor, "rows padded"],
        actions: Float[Tensor, "rows u"],
        next_x: Float[Tensor, "rows padded"],
        present: Float[Tensor, "rows coordinates"],
        generator: torch.Generator,
    ) -> Float[Tensor, ""]:
        """The published loss, of pairs one step apart."""

    @abstractmethod
    def advance(self, z: Float[Tensor, "*batch z"], actions: Float[Tensor, "*batch u"]) -> Float[Tensor, "*batch z"]:
        """The mean of the next latent state."""

    def pad(self, values: Float[Tensor, "*batch nodes c"]) -> Float[Tensor, "*batch padded"]:
        """Rows of all nodes, then zeros."""
        missing = self.config.max_nodes - values.shape[-2]
        if missing < 0:
            raise InputError(
                f"the system has {values.shape[-2]} nodes, the padded state has room for {self.config.max_nodes}; "
                "train with a larger max_nodes"
            )
        return nn.functional.pad(values, (0, 0, 0, missing)).flatten(-2)

    def padded(self, states: Float[Tensor, "*batch nodes c"]) -> Float[Tensor, "*batch padded"]:
        """x: the padded states and which nodes there are."""
        return torch.cat([self.pad(states), self.pad(torch.ones_like(states[..., :1]))], dim=-1)

    def loss(self, batch: WindowBatch, generator: torch.Generator) -> Float[Tensor, ""]:
        """The method's own loss of the windows' first steps, per coordinate, and the error of the mean path."""
        parts, w, splits = [], batch.windows, batch.topology.splits
        for states, inputs in zip(w.states.split(splits, dim=-2), w.inputs.split(splits, dim=-2), strict=True):
            parts.append((self.padded(states), self.pad(inputs), self.pad(torch.ones_like(states[:, 0]))))
        x, actions, present = (torch.cat(column) for column in zip(*parts, strict=True))
        own = self.step_loss(x[:, 0], actions[:, 0], x[:, 1], present, generator)
        return own / self.num_coordinates + self.config.path * self.path_loss(x, actions, present)

    def path_loss(
        self,
        x: Float[Tensor, "rows steps_plus_1 padded"],
        actions: Float[Tensor, "rows steps inputs"],
        present: Float[Tensor, "rows coordinates"],
    ) -> Float[Tensor, ""]:
        """Root mean square error of the decoded mean path from a window's first state, mean over steps and windows."""
        z, path = self.encoder(x[:, 0]).mean, []
        for u in actions.unbind(1):
            z = self.advance(z, u)
            path.append(z)
        wrong = self.decoder(torch.stack(path, dim=1)) - x[:, 1:, : self.num_coordinates]
        squares = (wrong.square().clamp(max=1e4) * present[:, None]).sum(-1) / present.sum(-1)[:, None]
        return (squares + 1e-6).sqrt().mean()

    def likelihood(
        self, x: Float[Tensor, "rows padded"], z: Float[Tensor, "rows z"], present: Float[Tensor, "rows coordinates"]
    ) -> Float[Tensor, " rows"]:
        """log N(x; D(z), noise^2) over the coordinates that are there, without its constant."""
        wrong = (x[:, : self.num_coordinates] - self.decoder(z)) * present
        return -0.5 * wrong.square().sum(-1) / self.config.noise**2

    def adapted(self, graph: Graph) -> PaddedAdapted:
        return PaddedAdapted(self, graph)


class PaddedAdapted(Adapted):
    """The mean path in the latent space."""

    model: PaddedBaseline

    def encode(self, state: Float[Tensor, "*batch nodes c"]) -> Float[Tensor, "*batch s"]:
        return self.model.encoder(self.model.padded(state)).mean

    def step(self, x: Float[Tensor, "*batch s"], inputs: Float[Tensor, "*batch nodes i"]) -> Float[Tensor, "*batch s"]:
        return self.model.advance(x, self.model.pad(inputs))

    def decode(self, x: Float[Tensor, "*batch s"]) -> Float[Tensor, "*batch nodes d"]:
        c = self.model.config
        rows = self.model.decoder(x).unflatten(-1, (c.max_nodes, c.num_state))
        return rows[..., : self.graph.num_nodes, : c.num_observations]


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
    )
