"""An adapted baseline as dynamics that a planner can work with: flat, normalised, in its actuated controls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.baselines.base import Adapted
from gce.baselines.koopman import LinearAdapted
from gce.control.settle import dense_path
from gce.control.tracking import DensePath

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class BaselineDynamics:
    """x is what the baseline steps: features, a latent state, or the observation itself.

    controls: which (node, action) entries are planned; the others stay 0. exogenous: known inputs at every step,
    normalised. Linear methods have the same matrices at every step, and then a plan is one quadratic problem.
    """

    adapted: Adapted
    controls: Bool[Array, "nodes a"]
    exogenous: Float[Tensor, "M nodes e"] | None = None

    def start(
        self, observation: Float[Array, "nodes d"], before: tuple[Array, Array] | None = None
    ) -> Float[Array, " s"]:
        """x_0 of an observation in physical units; before: (observation, action) one step earlier."""
        return self.adapted.start(observation, before).numpy()

    def _inputs(self, u: Float[Array, "*batch M n"]) -> Float[Tensor, "*batch M nodes inputs"]:
        actions = np.zeros((*u.shape[:-1], *self.controls.shape))
        actions[..., self.controls] = u
        inputs = torch.from_numpy(actions)
        if self.exogenous is None:
            return inputs
        known = self.exogenous[: u.shape[-2]].double().expand(*inputs.shape[:-1], -1)
        return torch.cat([inputs, known], dim=-1)

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        start = torch.from_numpy(x0).expand(*u.shape[:-2], -1)
        return self.adapted.rollout(start, self._inputs(u)).numpy()

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        earlier = torch.from_numpy(np.concatenate([x0[None], x[:-1]]))
        by_x, by_u = self.adapted.slopes(earlier, self._inputs(u))
        inputs = by_u.unflatten(-1, (self.controls.shape[0], -1))[..., : self.controls.shape[1]]
        return dense_path(by_x.numpy(), inputs.numpy()[..., self.controls], x0, x, u)

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        """What the outputs are at observations to reach, in physical units."""
        return self.adapted.model.normalise(torch.tensor(observations)).flatten(-2).numpy()

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        """The normalised observations of all nodes."""
        with torch.no_grad():
            return self.adapted.observe(torch.from_numpy(x)).flatten(-2).numpy()

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        return self.adapted.output_slopes(torch.from_numpy(x)).numpy()


@dataclass(frozen=True, eq=False)
class EmbeddingDynamics(BaselineDynamics):
    """As published for Koopman operators (Li et al. 2020): outputs are the features psi of all nodes, a part of x."""

    adapted: LinearAdapted

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        """The features of observations when nothing is pushed; a goal that stays is encoded once."""
        distinct, which = np.unique(observations, axis=0, return_inverse=True)
        return self.outputs(np.stack([self.start(goal) for goal in distinct]))[which.reshape(-1)]

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        return x[..., self.adapted.embedding]

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        return np.eye(x.shape[-1])[None, self.adapted.embedding]
