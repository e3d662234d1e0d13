"""Bodies of tied points as dynamics for a planner: every corner once, in plain arrays, set up once for a system.

The velocity changes are those of `ImplicitLayer.combined` in a fixed combination, for one graph. With the differences D
across pairs, u = DQ / |DQ|, G = u . D, masses m, and couplings h and coefficients c of each head,

    dV = sum_heads (diag(m) + G' diag(h) G)^-1 (D' f + r),    f = (c0 + c1 |DQ| + c2 u . DV) u + c3 a e

e: the direction of DQ - dt DV, one step earlier; a: the previous actions; r: a medium's resistance at outer sides. See
`features.body_channels` for where this comes from, and `body_slopes` for the derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array
from torch import Tensor

from gce.control.settle import dense_path
from gce.control.tracking import DensePath
from gce.dynamics.body_slopes import assembled, direction, incidence, slopes
from gce.dynamics.state import StateDynamics
from gce.features.bodies import Bodies
from gce.features.body_channels import COUPLINGS, ImplicitLayer
from gce.graphs.topology import Topology
from gce.system.system import System

Array = np.ndarray
SWITCH = 0.3
"""Over which width of a normalised action a planner lets a medium come into play, which it does at once."""


@dataclass(frozen=True, eq=False)
class BodyDynamics(StateDynamics):
    """Bodies of tied points under implicit features alone: every corner once, then the previous actions.

    x = [positions; velocities of the corners, in physical units; previous actions of the planned controls]. A step is
    the model's where the operator adds nothing to the implicit features.
    switch: over which width of a normalised action a medium comes into play; 0 for at once, as in the model.
    """

    switch: float = 0.0

    def for_plans(self) -> BodyDynamics:
        """With a medium that comes into play smoothly."""
        return replace(self, switch=SWITCH)

    @cached_property
    def _parts(self) -> BodyParts:
        return _parts_of(self.system, self.switch)

    def reduced(self, states: Float[Tensor, "*batch nodes c"]) -> Float[Array, "*batch s"]:
        parts, values = self._parts, states.double().numpy()
        batch, d = values.shape[:-2], len(parts.mean)
        o = values[..., :d] * parts.std + parts.mean
        Q, V = (o[..., c].reshape(*batch, -1, 2)[..., parts.point, :] for c in (parts.places, parts.speeds))
        return np.concatenate([Q.reshape(*batch, -1), V.reshape(*batch, -1), values[..., d:][..., self.controls]], -1)

    def lifted(self, x: Float[Array, "*batch s"]) -> Float[Tensor, "*batch nodes c"]:
        *_, acting = self._split(x)
        return torch.as_tensor(np.concatenate([self._observed(x), acting], axis=-1), dtype=self._precision)

    def _observed(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch nodes d"]:
        parts, (Q, V, _) = self._parts, self._split(x)
        o = np.zeros((*x.shape[:-1], len(self.controls), len(parts.mean)))
        for columns, values in ((parts.places, Q), (parts.speeds, V)):
            o[..., columns] = values[..., parts.step.corner, :].reshape(*o.shape[:-1], -1)
        return (o - parts.mean) / parts.std

    def _split(self, x: Float[Array, "*batch s"]) -> tuple[Array, Array, Array]:
        """Q and V [*batch, corners, 2], and the previous actions of all nodes [*batch, nodes, a]."""
        batch, s2 = x.shape[:-1], 2 * len(self._parts.step.mass)
        actions = np.zeros((*batch, *self.controls.shape))
        actions[..., self.controls] = x[..., 2 * s2 :]
        return x[..., :s2].reshape(*batch, -1, 2), x[..., s2 : 2 * s2].reshape(*batch, -1, 2), actions

    def step(self, t: int, x: Float[Array, "*batch s"], u: Float[Array, "*batch n"]) -> Float[Array, "*batch s"]:
        return self.rollout(x, u[..., None, :])[..., 0, :]  # all steps are alike

    def rollout(self, x0: Float[Array, "*#batch s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        """V' = V + dV where a corner moves, Q' = Q + dt V'."""
        step, moving = self._parts.step, self._parts.moving
        x = np.empty((*u.shape[:-1], x0.shape[-1]))
        Q, V, before = self._split(np.broadcast_to(x0, (*u.shape[:-2], x0.shape[-1])))
        s4, acting = 4 * len(moving), np.zeros((*u.shape[:-1], *self.controls.shape))
        x[..., s4:] = acting[..., self.controls] = u
        with np.errstate(all="ignore"):
            for t in range(u.shape[-2]):
                V = V + moving * step.change(Q, V, before[..., 0])
                Q, before = Q + step.dt * V, acting[..., t, :, :]
                x[..., t, :s4] = np.concatenate([Q, V], axis=-2).reshape(*u.shape[:-2], s4)
        return x

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        """With y the velocity change, V' = V + y(Q, V, a) has rows [y_Q, 1 + y_V, y_a]; Q' dt of these, and 1 at Q.

        Derivatives are taken where the model's states are, in its precision.
        """
        parts, (M, n), s2 = self._parts, u.shape, 2 * len(self._parts.moving)
        step, earlier = parts.step, np.concatenate([x0[None], x[:-1]])
        rounded = self._observed(earlier).astype(parts.precision).astype(np.float64) * parts.std + parts.mean
        Q, V = (rounded[..., columns].reshape(M, -1, 2) for columns in (parts.places, parts.speeds))
        before = self._split(earlier)[2][..., 0].astype(parts.precision).astype(np.float64)
        with np.errstate(all="ignore"):
            by = slopes(step, Q, V, before)
        A, B = np.zeros((M, 2 * s2 + n, 2 * s2 + n)), np.zeros((M, 2 * s2 + n, n))
        rows_of_V = A[:, s2 : 2 * s2]
        rows_of_V[..., :s2], rows_of_V[..., s2 : 2 * s2] = by.by_position, by.by_velocity
        rows_of_V[..., 2 * s2 :] = by.by_action[..., np.nonzero(self.controls)[0]]
        rows_of_V *= self._parts.moving.repeat(2, axis=0)
        rows_of_V[..., s2 : 2 * s2] += np.eye(s2)
        A[:, :s2] = step.dt * rows_of_V
        A[:, :s2, :s2] += np.eye(s2)
        B[:, 2 * s2 :] = np.eye(n)
        return dense_path(A, B, x0, x, u)


@dataclass(frozen=True)
class BodyParts:
    """What of a system every plan needs.

    places, speeds: columns of the observation [x, y of a node's first point, of its second, ...]; mean, std: its units.
    point: a point at each corner, of all points of all nodes. moving: 1, or 0 where a corner is held. precision: of
    the model's states.
    """

    step: BodyStep
    places: Int[Array, " points_2"]
    speeds: Int[Array, " points_2"]
    mean: Float[Array, " d"]
    std: Float[Array, " d"]
    point: Int[Array, " corners"]
    moving: Float[Array, "corners 1"]
    precision: type[np.floating]


_known: WeakKeyDictionary[System, dict[tuple[float, torch.dtype], BodyParts]] = WeakKeyDictionary()


def _parts_of(system: System, switch: float) -> BodyParts:
    """Once for each system and switch, and again where its model has changed its precision."""
    model, topology, channels = system.model, system.topology, system.operator.channels
    known, key = _known.setdefault(system, {}), (switch, model.observation_std.dtype)
    if key in known:
        return known[key]
    features = cast(Bodies, model.features)  # which names this module as its dynamics
    held = features.held_points(topology)
    assert channels is not None
    step = BodyStep.of(features.channels, topology, held, channels, switch)
    places, speeds = (np.array([c for point in model.config.points for c in point[k : k + 2]]) for k in (0, 2))
    mean, std = model.arrays.observation_mean, model.arrays.observation_std
    point, moving = np.empty(len(step.mass), np.int64), np.ones((len(step.mass), 1))
    point[step.corner.ravel()] = np.arange(step.corner.size)
    moving[step.corner[held.numpy()]] = 0.0
    precision = np.float64 if model.dtype == torch.float64 else np.float32
    known[key] = BodyParts(step, places, speeds, mean, std, point, moving, precision)
    return known[key]


@dataclass(frozen=True)
class BodyPairs:
    """All pairs in a state: `parting` DV, u and e with the lengths behind them, the push f along u and along e."""

    parting: Float[Array, "*batch pairs 2"]
    length: Float[Array, "*batch pairs"]
    u: Float[Array, "*batch pairs 2"]
    length_before: Float[Array, "*batch pairs"]
    e: Float[Array, "*batch pairs 2"]
    along_u: Float[Array, "*batch heads pairs"]
    along_e: Float[Array, "*batch heads pairs"]


@dataclass(frozen=True)
class BodyStep:
    """Velocity changes of the corners, from arrays alone.

    ends: corners of each pair; point_ends: its points, among all points of all nodes; node: whose pair; mass: m;
    coupling: h; push: c0, c1, c2, c3, those of a constant, length, rate and action; medium: coefficients of the
    resistance at outer sides; usual_speed: S in that. corner: of each node's points. switch: over which width of a
    normalised action the medium comes into play; 0 for at once, as in the model.
    """

    dt: float
    ends: Int[Array, "pairs 2"]
    point_ends: Int[Array, "pairs 2"]
    node: Int[Array, " pairs"]
    mass: Float[Array, " corners"]
    coupling: Float[Array, "heads pairs"]
    push: Float[Array, "heads 4 pairs"]
    medium: Float[Array, "heads pairs"] | None
    corner: Int[Array, "nodes points"]
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
        heads = channels.double().unflatten(0, (len(COUPLINGS), -1))
        signals = layer.num_signals * layer.num_kinds
        along = heads[:, :signals].unflatten(1, (layer.num_signals, layer.num_kinds))[..., bodies.kind]
        units = (inputs.length_mean, inputs.length_std, inputs.rate_std)
        mean, std, rate = (unit[topology.node_type].flatten().double() for unit in units)
        c1, c2 = along[:, 1] / std, along[:, 2] / rate
        coupling = layer.log_coupling.exp().double()[:, bodies.kind]
        rows = [along[:, 0] - c1 * mean, c1, c2, along[:, 3], coupling]
        if layer.drag:
            rows.append(heads[:, signals:][:, bodies.node_type] * bodies.outer.double())
        table = torch.stack(rows, dim=1).detach().numpy()
        corner = bodies.corner.numpy()
        point_ends = np.arange(corner.size).reshape(corner.shape)[:, np.array(inputs.pairs)].reshape(-1, 2)
        return BodyStep(
            layer.dt,
            corner.reshape(-1)[point_ends],
            point_ends,
            np.repeat(np.arange(topology.num_nodes), len(inputs.pairs)),
            bodies.mass[0].double().numpy(),
            table[:, 4],
            table[:, :4],
            table[:, 5] if layer.drag else None,
            corner,
            inputs.usual_speed,
            switch,
        )

    def change(
        self, Q: Float[Array, "*batch corners 2"], V: Float[Array, "*batch corners 2"], a: Float[Array, "*batch nodes"]
    ) -> Float[Array, "*batch corners 2"]:
        """dV, physical units; a: the previous actions, normalised."""
        pairs = self.pairs_at(self.corners, Q, V, a)
        by_head = np.linalg.solve(self.coupled(pairs.u), self.felt(pairs, self.corners, Q, V, a))
        return by_head.sum(-3).reshape(V.shape)

    def pairs_at(self, frame: BodyFrame, Q: Array, V: Array, a: Array) -> BodyPairs:
        """frame: what Q and V are of, corners or points."""
        apart, parting = np.matmul(frame.across, Q), np.matmul(frame.across, V)
        length, u = direction(apart)
        length_before, e = direction(apart - self.dt * parting)
        rate = np.einsum("...px,...px->...p", u, parting)
        c0, c1, c2, c3 = self.push.transpose(1, 0, 2)  # [heads, pairs]
        along_u = c0 + c1 * length[..., None, :] + c2 * rate[..., None, :]
        return BodyPairs(parting, length, u, length_before, e, along_u, c3 * a[..., None, self.node])

    def felt(
        self, pairs: BodyPairs, frame: BodyFrame, Q: Array, V: Array, a: Array
    ) -> Float[Array, "*batch heads corners_2 1"]:
        """D' f + r."""
        f = pairs.along_u[..., None] * pairs.u[..., None, :, :]
        f += pairs.along_e[..., None] * pairs.e[..., None, :, :]
        felt = np.matmul(self._onto, f)
        if self.outer is not None:
            felt += np.matmul(self.outer.onto, self._resistance(self.outer, frame, Q, V, a)[..., None, :, :])
        return felt.reshape(*felt.shape[:-2], -1, 1)

    def coupled(self, u: Float[Array, "*batch pairs 2"]) -> Float[Array, "*batch heads corners_2 corners_2"]:
        """diag(m) + G' diag(h) G, the latter as D' (h u u') D."""
        square = (u[..., :, None] * u[..., None, :])[..., None, :, :, :]
        system = assembled(self._between, self.coupling[..., None, None] * square, len(self.mass))
        system[..., range(2 * len(self.mass)), range(2 * len(self.mass))] += self.mass.repeat(2)
        return system

    def _resistance(
        self, outer: Outer, frame: BodyFrame, Q: Array, V: Array, a: Array
    ) -> Float[Array, "*batch ends 2"]:
        """-s^2 / (1 + (s / S)^2) n for a coefficient of 1, s = v . n where positive, while the action is below zero."""
        n, _ = frame.facing(Q)
        square = np.einsum("...px,...px->...p", V[..., frame.ends, :], n).clip(min=0) ** 2
        return (-self.acting(a)[..., outer.node] * square / (1 + square / self.usual_speed**2))[..., None] * n

    def acting(self, a: Array) -> Array:
        """1 where an action is below zero and 0 above; over the switch's width, smoothly."""
        return 1 / (1 + np.exp(np.clip(a / self.switch, -500, 500))) if self.switch else (a < 0).astype(np.float64)

    # ---- tables ----

    @property
    def across(self) -> Float[Array, "pairs corners"]:
        """D."""
        return self.corners.across

    @cached_property
    def outer(self) -> Outer | None:
        """Where a medium is felt, if there is one."""
        if self.medium is None:
            return None
        k = self._outer_sides
        corner, medium = self.corners.ends, self.medium[:, k]
        return Outer(corner, self.node[k], medium, medium[:, None, :] * np.eye(len(self.mass))[corner].T)

    @cached_property
    def _outer_sides(self) -> Int[Array, " ends"]:
        """Pairs that are outer sides, each twice: for its first end and for its second."""
        return np.repeat(np.flatnonzero([] if self.medium is None else self.medium.any(axis=0)), 2)

    @cached_property
    def corners(self) -> BodyFrame:
        """Where things are, by corner."""
        return self._frame(len(self.mass), self.ends, self.corner)

    @cached_property
    def points(self) -> BodyFrame:
        """Where things are, by point of a node; points of several nodes may be one corner."""
        number = np.arange(self.corner.size).reshape(self.corner.shape)
        return self._frame(self.corner.size, self.point_ends, number)

    def _frame(self, places: int, ends: Int[Array, "pairs 2"], of_node: Int[Array, "nodes points"]) -> BodyFrame:
        eye, k = np.eye(places), self._outer_sides
        across = eye[ends[:, 1]] - eye[ends[:, 0]]
        outward = eye[ends[k]].mean(1) - eye[of_node].mean(1)[self.node[k]]
        return BodyFrame(across, across[k], outward, ends[k[::2]].reshape(-1))

    @cached_property
    def _onto(self) -> Float[Array, "corners pairs"]:
        return np.ascontiguousarray(self.across.T)

    @cached_property
    def _between(self) -> csr_array:
        return incidence(self.across, self.across)

    @cached_property
    def incidences(self) -> tuple[csr_array, csr_array, csr_array]:
        """Of pairs, then ends of outer sides: where forces act by the places, velocities and actions they depend on."""
        D, eye, of_node = self.across, np.eye(len(self.mass)), np.eye(len(self.corner))
        if self.outer is None:
            return self._between, self._between, incidence(D, of_node[self.node])
        at = eye[self.outer.corner]
        onto = np.concatenate([D, at])
        nodes = of_node[np.concatenate([self.node, self.outer.node])]
        by_place, by_speed = np.concatenate([D, self.corners.sides]), np.concatenate([D, at])
        return incidence(onto, by_place), incidence(onto, by_speed), incidence(onto, nodes)


@dataclass(frozen=True)
class BodyFrame:
    """Differences of places Q: across Q of pairs; of the ends of outer sides, each side's first and second, sides Q is
    along the side, outward Q points out of its node, and `ends` are the places themselves."""

    across: Float[Array, "pairs places"]
    sides: Float[Array, "k places"]
    outward: Float[Array, "k places"]
    ends: Int[Array, " k"]

    def facing(self, Q: Float[Array, "*batch places 2"]) -> tuple[Array, Array]:
        """n = k (y, -x) of a side (x, y), outward [*batch, ends, 2], and k = +-1 / length [*batch, ends]."""
        along = np.matmul(self.sides, Q)
        turned = np.stack([along[..., 1], -along[..., 0]], axis=-1)
        k = np.sign(np.einsum("...px,...px->...p", turned, np.matmul(self.outward, Q))) / direction(along)[0]
        return k[..., None] * turned, k


@dataclass(frozen=True)
class Outer:
    """Ends of outer sides.

    corner: at each end; node: whose side; medium: coefficients; onto: where forces act, times these.
    """

    corner: Int[Array, " ends"]
    node: Int[Array, " ends"]
    medium: Float[Array, "heads ends"]
    onto: Float[Array, "heads corners ends"]
