"""One step of a body of tied points under implicit features in a fixed combination: plain arrays, corner by corner.

The same numbers as `ImplicitLayer.combined`, for one graph and without what learning needs, many times faster; see
`implicit` for the equations and `implicit_slopes` for the derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gce.features.body_channels import COUPLINGS, ImplicitLayer
from gce.graphs.topology import Topology

Array = np.ndarray


@dataclass(frozen=True)
class BodyStep:
    """Velocity changes of the corners.

    ends: corners of each pair; node: whose pair; across: D; mass, coupling h [heads, pairs]; push [heads, 4, pairs]:
    coefficients of a constant, stretch, rate and action; medium [heads, pairs]: of the resistance at outer sides.
    usual_speed: S in that. switch: over which width of a normalised action the medium comes into
    play; 0 for at once, as in the model.
    """

    dt: float
    ends: Int[Array, "pairs 2"]
    node: Int[Array, " pairs"]
    across: Float[Array, "pairs corners"]
    mass: Float[Array, " corners"]
    coupling: Float[Array, "heads pairs"]
    push: Float[Array, "heads 4 pairs"]
    medium: Float[Array, "heads pairs"] | None
    corner: Int[Array, "nodes points"]
    pairs: Int[Array, "pairs_of_a_node 2"]
    usual_speed: float
    switch: float = 0.0

    @staticmethod
    def of(
        layer: ImplicitLayer,
        topology: Topology,
        held: Bool[Tensor, "nodes points"],
        channels: Float[Tensor, " k"],
        switch: float = 0.0,
    ) -> BodyStep:
        inputs, bodies = layer.inputs, layer._bodies(topology, held)
        kind, per_node = bodies.kind, len(inputs.pairs)
        heads = channels.double().unflatten(0, (len(COUPLINGS), -1))
        signals = layer.num_signals * layer.num_kinds
        along = heads[:, :signals].unflatten(1, (layer.num_signals, layer.num_kinds))[..., kind]
        mean, std = (getattr(inputs, f"length_{k}")[topology.node_type].flatten().double() for k in ("mean", "std"))
        rate = inputs.rate_std[topology.node_type].flatten().double()
        push = along.clone()
        push[:, 1], push[:, 2] = along[:, 1] / std, along[:, 2] / rate
        push[:, 0] = along[:, 0] - push[:, 1] * mean
        eye = np.eye(bodies.size)
        ends = bodies.ends.numpy()
        medium = None
        if layer.drag:
            medium = (heads[:, signals:][:, bodies.node_type] * bodies.outer.double()).detach().numpy()
        return BodyStep(
            layer.dt,
            ends,
            np.repeat(np.arange(topology.num_nodes), per_node),
            eye[ends[:, 1]] - eye[ends[:, 0]],
            bodies.mass[0].double().numpy(),
            layer.log_coupling.exp().double()[:, kind].detach().numpy(),
            push.detach().numpy(),
            medium,
            bodies.corner.numpy(),
            np.array(inputs.pairs),
            inputs.usual_speed,
            switch,
        )

    @cached_property
    def _incidence(self) -> Float[Array, "corners_corners pairs"]:
        """D_p'D_p of every pair, flattened: sums of 2 x 2 blocks over all corners are products with it."""
        return np.ascontiguousarray((self.across[:, :, None] * self.across[:, None, :]).reshape(len(self.ends), -1).T)

    @cached_property
    def _onto(self) -> Float[Array, "corners pairs"]:
        return np.ascontiguousarray(self.across.T)

    def change(
        self, Q: Float[Array, "*batch corners 2"], V: Float[Array, "*batch corners 2"], a: Float[Array, "*batch nodes"]
    ) -> Float[Array, "*batch corners 2"]:
        """The velocity change of every corner, physical units; a: the previous actions, normalised."""
        batch, corners, heads = V.shape[:-2], len(self.mass), len(self.coupling)
        Dq, Dv = np.matmul(self.across, Q), np.matmul(self.across, V)
        length = np.sqrt(np.einsum("...px,...px->...p", Dq, Dq) + 1e-8)
        u = Dq / length[..., None]
        before = Dq - self.dt * Dv
        before /= np.sqrt(np.einsum("...px,...px->...p", before, before) + 1e-8)[..., None]
        rate, action = np.einsum("...px,...px->...p", u, Dv), a[..., self.node]
        c0, c1, c2, c3 = self.push.transpose(1, 0, 2)  # [heads, pairs]
        tension = c0 + c1 * length[..., None, :] + c2 * rate[..., None, :]
        force = tension[..., None] * u[..., None, :, :]
        force += (c3 * action[..., None, :])[..., None] * before[..., None, :, :]
        felt = np.matmul(self._onto, force)  # [*batch, heads, corners, 2]
        if self.medium is not None:
            felt += np.matmul(self._sides.onto, self._resisted(Q, V, a)[..., None, :, :])
        square = (u[..., :, None] * u[..., None, :]).reshape(*batch, 1, -1, 4) * self.coupling[..., None]
        system = np.matmul(self._incidence, square).reshape(*batch, heads, corners, corners, 2, 2)
        system = np.swapaxes(system, -3, -2).reshape(*batch, heads, 2 * corners, 2 * corners)
        system[..., range(2 * corners), range(2 * corners)] += np.repeat(self.mass, 2)
        solved = np.linalg.solve(system, felt.reshape(*batch, heads, 2 * corners, 1))
        return solved.sum(-3).reshape(*batch, corners, 2)

    @cached_property
    def _sides(self) -> Sides:
        assert self.medium is not None
        k = np.flatnonzero(self.medium.any(axis=0))
        eye = np.eye(len(self.mass))
        first, second = eye[self.ends[k, 0]], eye[self.ends[k, 1]]
        centre = eye[self.corner].mean(1)[self.node[k]]
        medium = np.concatenate([self.medium[:, k], self.medium[:, k]], axis=1)
        onto = medium[:, None, :] * np.concatenate([first, second]).T
        return Sides(second - first, (first + second) / 2 - centre, self.ends[k].T.reshape(-1), self.node[k], onto)

    def _resisted(
        self, Q: Float[Array, "*batch corners 2"], V: Float[Array, "*batch corners 2"], a: Float[Array, "*batch nodes"]
    ) -> Float[Array, "*batch ends 2"]:
        """-s^2 / (1 + (s / S)^2) n for a coefficient of 1 at the first ends of outer sides, then at the second."""
        sides = self._sides
        along = np.matmul(sides.across, Q)
        outward = np.matmul(sides.outward, Q)
        tx, ty = along[..., 1], -along[..., 0]
        scale = np.sign(tx * outward[..., 0] + ty * outward[..., 1])
        scale /= np.sqrt(np.einsum("...px,...px->...p", along, along) + 1e-8)
        normal = np.stack([scale * tx, scale * ty], axis=-1)
        ends = np.concatenate([normal, normal], axis=-2)
        square = np.einsum("...px,...px->...p", V[..., sides.ends, :], ends).clip(min=0) ** 2
        acting = switched(a, self.switch)[..., sides.node]
        felt = -np.concatenate([acting, acting], axis=-1) * square / (1 + square / self.usual_speed**2)
        return felt[..., None] * ends


@dataclass(frozen=True)
class Sides:
    """Outer sides, k of them: across Q is along them, outward Q points out; ends: the first ones, then the second.

    node: whose side; onto [heads, corners, ends]: where forces act, times the medium's coefficients.
    """

    across: Float[Array, "k corners"]
    outward: Float[Array, "k corners"]
    ends: Int[Array, " k_2"]
    node: Int[Array, " k"]
    onto: Float[Array, "heads corners k_2"]


def switched(a: Array, width: float) -> Array:
    """1 where an action is below zero and 0 above; over a width, smoothly."""
    return 1 / (1 + np.exp(np.clip(a / width, -500, 500))) if width else (a < 0).astype(np.float64)
