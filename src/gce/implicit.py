"""Implicit features: how a push anywhere spreads over a body of stiffly coupled points within one step.

A node made of several points couples them pairwise, and nodes share points (tied coordinates). Stiff couplings act
within a step: what a damper does depends on the velocities after the step, so a push spreads over the whole body at
once, not one neighbour a step. With the incidence G of pairs and points (the relative velocity of pair p along its
direction is (G v)_p), m the number of points that coincide, couplings h, and scalar pushes g along the pairs,

    dv = (diag(m) + G' diag(h) G)^-1 G' g

is the velocity change of all points at once. A channel is one signal (a constant, which finds the rest length, a
pair's stretch, its rate, the node's previous action) on the pairs of one node type and one class of equal lengths; the
couplings h of each type and class are learned, in several heads. Pushes along pairs conserve momentum, and the operator
has one coefficient a channel, shared by all points and both axes: the features are vectors, and turn with the body.

With `drag`, one more channel a node type holds what a medium does to the outer sides of a node that pushes: each end
that moves outward at speed s along the outward normal n of a side of length L feels -s^2 L n while the node's action is
below zero. (A second channel for other actions was tried: fitted to noise, it feeds energy in, and rollouts explode.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gce.inputs import InputLayer
from gce.topology import Topology

HELD_MASS = 1e4
SAME_LENGTH = 0.1
COUPLINGS = (0.5, 3.0)
"""Where the heads start, in units of a point's mass."""


@dataclass(frozen=True)
class Body:
    """The points of one graph: the corner of each point, pairs as incidence of corners, and the corners' masses."""

    nodes: slice
    corner: Int[Tensor, " points"]
    incidence: Float[Tensor, "pairs corners"]
    mass: Float[Tensor, " corners"]
    kind: Int[Tensor, " pairs"]
    outer: Float[Tensor, " pairs"]
    node_type: Int[Tensor, " pairs"]


class ImplicitLayer(nn.Module):
    """States to vector channels: [*batch, nodes, velocity coordinates of the points, channels], normalised."""

    pair_class: Tensor
    inputs: InputLayer

    def __init__(
        self, inputs: InputLayer, num_node_types: int, dt: float, drag: bool = False, num_classes: int = 2
    ) -> None:
        super().__init__()
        self.dt, self.drag = dt, drag
        self.num_node_types, self.num_classes = num_node_types, num_classes
        # The encoder owns the units; as a submodule here they would be saved twice.
        object.__setattr__(self, "inputs", inputs)
        start = torch.tensor(COUPLINGS).log()
        self.log_coupling = nn.Parameter(start[:, None].repeat(1, num_node_types * num_classes))
        self.register_buffer("pair_class", torch.zeros(len(inputs.pairs), dtype=torch.int64))

    @property
    def num_channels(self) -> int:
        signals = 3 + self.inputs.num_previous_actions
        return len(COUPLINGS) * (signals * self.num_classes + self.drag) * self.num_node_types

    @torch.no_grad()
    def set_classes(self) -> None:
        """Pairs of nearly equal mean length are of one class, the shortest first; the last takes all the rest."""
        lengths = self.inputs.length_mean.amax(0)
        order = lengths.argsort()
        number = 0
        for before, k in zip([None, *order.tolist()], order.tolist(), strict=False):
            if before is not None and lengths[k] > (1 + SAME_LENGTH) * lengths[before]:
                number += 1
            self.pair_class[k] = min(number, self.num_classes - 1)

    def forward(
        self,
        x: Float[Tensor, "*batch nodes state"],
        topology: Topology,
        held: Bool[Tensor, "nodes points"],
    ) -> Float[Tensor, "*batch nodes speeds channels"]:
        batch = x.shape[:-2]
        x = x.reshape(-1, *x.shape[-2:])
        signals, directions = self.inputs.pair_signals(x, topology, self.dt)
        resistance = self.inputs.resistance(x) if self.drag else None
        parts = []
        for body in self._bodies(topology, held):
            pushed = None if resistance is None else resistance[:, body.nodes].flatten(1, 2)
            told, along = signals[:, body.nodes].flatten(1, 2), directions[:, body.nodes].flatten(1, 2)
            parts.append(self._solve(body, told, along, pushed))
        fields = torch.cat(parts, dim=1)
        speeds = [c for point in self.inputs.points for c in point[2:]]
        fields = fields.reshape(len(x), topology.num_nodes, len(speeds), -1)
        return (fields / self.inputs.unit_std[speeds][:, None]).reshape(*batch, *fields.shape[1:])

    def _solve(
        self,
        body: Body,
        signals: Float[Tensor, "batch pairs signals"],
        directions: Float[Tensor, "batch pairs signals 2"],
        resistance: Float[Tensor, "batch pairs ends 2"] | None,
    ) -> Float[Tensor, "batch points_2 channels"]:
        kinds = self.num_node_types * self.num_classes
        # G [batch, pairs, 2 corners], along the present directions; each push acts only on its own kind of pair.
        incidence = body.incidence.to(signals.dtype)
        G = (incidence[:, :, None] * directions[:, :, 0, None, :]).flatten(2)
        mine = torch.nn.functional.one_hot(body.kind, kinds).to(signals.dtype)
        vectors = (signals.unsqueeze(-1) * directions).unsqueeze(-1) * mine[:, None, None, :]
        pushes = torch.einsum("pc,bpsxk->bcxsk", incidence, vectors).flatten(1, 2).flatten(2)
        if resistance is not None:
            pushes = torch.cat([pushes, self._resist(body, resistance)], dim=-1)
        mass = torch.diag(body.mass.repeat_interleave(2).to(signals.dtype))
        fields = []
        for log_coupling in self.log_coupling:
            h = log_coupling.exp()[body.kind]
            system = mass + G.mT @ (h[:, None] * G)
            # Definite unless a state is not finite; then the features are not either, and whoever asked will see.
            fields.append(torch.cholesky_solve(pushes, torch.linalg.cholesky_ex(system)[0]))
        by_corner = torch.cat(fields, dim=-1).unflatten(1, (-1, 2))
        return by_corner[:, body.corner].flatten(1, 2)

    def _resist(
        self, body: Body, resistance: Float[Tensor, "batch pairs ends 2"]
    ) -> Float[Tensor, "batch corners_2 channels"]:
        """What the medium does to the ends of outer sides, gathered at the corners, by node type."""
        mine = torch.nn.functional.one_hot(body.node_type, self.num_node_types).to(resistance.dtype)
        felt = (resistance * body.outer[:, None, None]).unsqueeze(-1) * mine[:, None, None, :]
        incidence = body.incidence.to(resistance.dtype)
        ends = torch.stack([incidence.clamp_max(0).abs(), incidence.clamp_min(0)], dim=1)
        return torch.einsum("pec,bpexk->bcxk", ends, felt).flatten(1, 2)

    def _bodies(self, topology: Topology, held: Tensor) -> list[Body]:
        """Built once for a topology, and kept with it."""
        cache: dict[int, list[Body]] = topology.__dict__.setdefault("_bodies", {})
        if id(self) not in cache:
            cache[id(self)] = self._build(topology, held)
        return cache[id(self)]

    def _build(self, topology: Topology, held: Tensor) -> list[Body]:
        points = len(self.inputs.points)
        first, second = (torch.tensor(side) for side in zip(*self.inputs.pairs, strict=True))
        bodies, start = [], 0
        for size in topology.splits:
            nodes = slice(start, start + size)
            if topology.tied is None:
                corner = torch.arange(size * points)
            else:
                ids = topology.tied[nodes][:, [point[0] for point in self.inputs.points]]
                corner = torch.unique(ids, return_inverse=True)[1].reshape(-1)
            count = int(corner.max()) + 1
            mass = torch.bincount(corner, minlength=count).float()
            mass = mass + HELD_MASS * torch.zeros(count).index_add(0, corner, held[nodes].reshape(-1).float())
            table = corner.reshape(size, points)
            one = torch.eye(count)
            incidence = (one[table[:, second]] - one[table[:, first]]).flatten(0, 1)
            kind = topology.node_type[nodes][:, None] * self.num_classes + self.pair_class[None, :]
            # An outer side is a pair of the shortest class that no other node has.
            ends = torch.stack([table[:, first], table[:, second]], dim=-1).sort(-1).values.flatten(0, 1)
            _, which, shared = torch.unique(ends, dim=0, return_inverse=True, return_counts=True)
            outer = (shared[which] == 1) & (self.pair_class.repeat(size) == 0)
            types = topology.node_type[nodes].repeat_interleave(len(self.inputs.pairs))
            bodies.append(Body(nodes, corner, incidence, mass, kind.reshape(-1), outer.float(), types))
            start += size
        return bodies
