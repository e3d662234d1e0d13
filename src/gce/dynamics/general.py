"""A system of the general method as dynamics for a planner.

    x' = m(x, y),  y = y(x, a):   A = dm/dx + dm/dy dy/dx,   B = dm/dy dy/da

y needs one way back through the network for each free coordinate of each node, at all steps of a path at once; how a
node then moves (m) is its own affair, a small derivative for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.control.settle import dense_path
from gce.control.tracking import DensePath, hurry
from gce.dynamics import general_compiled, general_slopes_compiled
from gce.dynamics.general_weights import Parts, parts_of
from gce.dynamics.state import StateDynamics
from gce.errors import InputError
from gce.model.hierarchy import Hierarchy, learner
from gce.system.general import GeneralSystem

Array = np.ndarray
TOGETHER = 3_000_000
"""Numbers of a layer gone back through at once."""


@dataclass(frozen=True, eq=False)
class GeneralDynamics(StateDynamics):
    """The model as it predicts, linearised along the plan."""

    def __post_init__(self) -> None:
        if self.on != "observations":
            raise InputError("a model of the general method plans in observations; state the problem on='observations'")
        if self.system.graph.tied is not None:
            raise InputError("the general method does not plan for nodes with ties; train by another method")

    @cached_property
    def _under(self) -> Hierarchy:
        return cast(GeneralSystem, self.system).hierarchy

    @cached_property
    def _parts(self) -> Parts | None:
        return parts_of(cast(GeneralSystem, self.system))

    def rollout(self, x0: Float[Array, "*#batch s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        inputs, start = self._inputs(u), self.lifted(x0)
        inputs, start = inputs.reshape(-1, *inputs.shape[-3:]), start.expand(*u.shape[:-2], -1, -1)
        start = start.reshape(-1, *start.shape[-2:])
        if self._parts is not None:
            found = np.empty((*inputs.shape[:3], start.shape[-1]))
            W, room = self._parts.weights, self._parts.room(len(start))
            general_compiled.rollout(W, start.contiguous().numpy(), inputs.contiguous().numpy(), room, found)
            return found.reshape(*u.shape[:-1], -1)
        inputs, start = inputs.permute(1, 2, 0, 3), start.transpose(0, 1)  # [M, nodes, batch, inputs]
        with torch.no_grad():
            states = self._under.rollout(start, inputs)
        return self.reduced(states.permute(2, 0, 1, 3)).reshape(*u.shape[:-1], -1)

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        under, model, c = self._under, self.system.model, self.system.model.config
        earlier, inputs = self.lifted(np.concatenate([x0[None], x[:-1]])), self._inputs(u)
        (M, N, width), free, n = earlier.shape, len(model.free), u.shape[1]
        if self._parts is not None:
            by_state, every = np.empty((M, N, width, N, width)), np.empty((M, N, width, N, inputs.shape[-1]))
            room = self._parts.room(general_slopes_compiled.ROWS, True)
            general_slopes_compiled.slopes(*self._parts, earlier.numpy(), inputs.numpy(), room, by_state, every)
            B = every[..., : c.num_actions].reshape(M, N * width, -1)[..., self.controls.reshape(-1)]
            return dense_path(by_state.reshape(M, N * width, -1), B, x0, x, u)
        earlier, inputs = earlier.transpose(0, 1), inputs.transpose(0, 1)
        features = learner(model)
        z = torch.cat([earlier, inputs], -1).requires_grad_(True)
        y = under.targets(features.inward(z[..., :width]), z[..., width:]).transpose(0, 1).flatten(1)  # [M, targets]
        rows = torch.eye(N * free, dtype=y.dtype)
        chunk = max(1, TOGETHER // (M * max(N, len(under.wires.senders)) * features.config.width))
        parts: list[Tensor] = []
        for part in rows.split(chunk):
            hurry()
            every = part[:, None].expand(-1, M, -1)
            parts += torch.autograd.grad(y, z, every, retain_graph=True, is_grads_batched=True)
        by = torch.cat(parts).permute(2, 0, 1, 3).unflatten(1, (N, free))  # [M, nodes, free, nodes, c + inputs]
        with torch.no_grad():
            of_state, of_target = self._moved(earlier.transpose(0, 1), y.detach().unflatten(1, (N, free)))
            A = torch.einsum("tidk,tikjc->tidjc", of_target, by[..., :width])
            for i in range(N):
                A[:, i, :, i] += of_state[:, i]
            acting = by[..., width : width + c.num_actions].flatten(3)[..., torch.as_tensor(self.controls.flatten())]
            B = torch.einsum("tidk,tikn->tidn", of_target, acting).double().numpy()
        if c.previous_action:
            where = np.zeros((N, width), bool)
            where[:, width - c.num_actions :] = self.controls
            B[:, where] = np.eye(n)
        return dense_path(A.double().numpy().reshape(M, N * width, -1), B.reshape(M, N * width, n), x0, x, u)

    def _moved(self, x: Float[Tensor, "M nodes c"], y: Float[Tensor, "M nodes m"]) -> tuple[Tensor, Tensor]:
        """How each node's next state answers to its state and to its targets, y given."""
        motion, c = learner(self.system.model).motion, self.system.model.config
        d, history = c.num_observations, c.history

        def moved(x: Tensor, y: Tensor) -> Tensor:
            o = motion.outward(motion.advance(motion.inward(x[:d]), y))
            return torch.cat([o, x[:d], torch.zeros_like(x[2 * d :])] if history == 2 else [o, torch.zeros_like(x[d:])])

        slopes = torch.func.vmap(torch.func.jacfwd(moved, argnums=(0, 1)))(x.flatten(0, 1), y.flatten(0, 1))
        of_state, of_target = (part.unflatten(0, x.shape[:2]) for part in slopes)
        return of_state, of_target
