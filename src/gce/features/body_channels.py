"""Implicit features: how a push anywhere spreads over a body of stiffly coupled points within one step.

A node made of several points couples them pairwise, and nodes share points (tied coordinates). Stiff couplings act
within a step: what a damper does depends on the velocities after the step, so a push spreads over the whole body at
once, not one neighbour a step. With the incidence G of pairs and points (the relative velocity of pair p along its
direction is (G v)_p), m the number of points that coincide, couplings h, and scalar pushes g along the pairs,

    dv = (diag(m) + G' diag(h) G)^-1 G' g

is the velocity change of all points at once. A channel is one signal (a constant, which finds the rest length, a
pair's stretch, its rate, the node's previous action) on the pairs of one node type and one class of equal lengths. The
couplings h are fixed, in two heads, between which the fitted coefficients choose.
Pushes along pairs conserve momentum, and the operator has one coefficient a channel, shared by all points and both
axes: the features are vectors, and turn with the body.

Couplings resist. What a push c along pairs does, c / (m + h l) summed over the heads, l an eigenvalue of G'G, has one
sign for all l where it has it at both ends, sum c and sum c / h: so stretch, rate and a medium's resistance are fitted
within these bounds (`prior`); free, a coefficient that few rows tell may push where it should pull, and a body folds.
Constants are held small: sides and diagonals can pull against each other with no effect that a recording shows, until
the body buckles.

With `drag`, one more channel a node type holds what a medium does to the outer sides of a node that pushes: each end
that moves outward at speed s along the outward normal n of a side feels -s^2 / (1 + (s / S)^2) n while the node's
action is below zero. Over a whole step, a resistance that grows on would throw a fast point back faster than it came.
(A second channel for other actions was tried: fitted to noise, it feeds energy in, and rollouts explode.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gce.features.inputs import InputLayer, length_of, rows_of
from gce.graphs.topology import Topology
from gce.operators.regression import Prior

HELD_MASS = 1e4
SAME_LENGTH = 0.1
COUPLINGS = (0.5, 3.0)
"""Of the heads, in units of a point's mass."""
STIFFEST = 0.01
"""How much of a velocity change pushes need not explain: they stay small where pairs hardly tell it."""


RIDGE, CONSTANT_RIDGE = 1e-6, 1e-4
"""Of the channels' coefficients, each in units of its channel's size."""
USUAL_TURN = 0.2
USUAL_SPEED = 1.5
"""Units of velocity; see `usual_speed`."""


class BodyInputs(InputLayer):
    """Inputs that do not change when the whole system moves or turns; and what pushes along pairs of points.

    They are a node's own lengths, their rates and its previous actions; along an edge the cosine and sine of the angle
    by which the sender is turned against the receiver.
    """

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.num_own = 2 * len(self.pairs) + self.num_previous_actions + self.num_node_attributes
        self.num_edge = 2 + self.num_edge_attributes

    def states_on(self, topology: Topology) -> Callable[[Tensor], tuple[list[Tensor], list[Tensor]]]:
        mean, std, rate_std = rows_of(topology.node_type, self.length_mean, self.length_std, self.rate_std)
        first, second = self.ends

        def invariants(x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            q, w = self.points_of(x)
            length, rate, _ = length_of(q[..., second, :] - q[..., first, :], w[..., second, :] - w[..., first, :])
            own = [(length - mean) / std, rate / rate_std, x[..., self.num_state - self.num_previous_actions :]]
            # A node lies in the direction from the first half of its points to the second.
            half = len(self.points) // 2
            across = q[..., half:, :].sum(-2) - q[..., :half, :].sum(-2)
            lies = across / (across.square().sum(-1, keepdim=True) + 1e-8).sqrt()
            mine, other = topology.received(lies), topology.sent(lies)
            cosine = (mine * other).sum(-1)
            sine = mine[..., 0] * other[..., 1] - mine[..., 1] * other[..., 0]
            return own, [torch.stack([(cosine - 1) / USUAL_TURN, sine / USUAL_TURN], dim=-1)]

        return invariants

    def pair_signals(
        self, x: Float[Tensor, "batch nodes state"], topology: Topology, dt: float
    ) -> tuple[Float[Tensor, "batch nodes pairs signals"], Float[Tensor, "batch nodes pairs signals 2"]]:
        """What pushes along a node's own pairs (a constant, stretch, rate, previous actions), and in what direction.

        A previous action pushed where the points were then, one step earlier.
        """
        q, w = self.points_of(x)
        first, second = self.ends
        apart, parting = q[..., second, :] - q[..., first, :], w[..., second, :] - w[..., first, :]
        length, rate, u = length_of(apart, parting)
        earlier = length_of(apart - dt * parting, parting)[2]
        kind = topology.node_type
        stretch = (length - self.length_mean[kind]) / self.length_std[kind]
        signals, directions = [torch.ones_like(rate), stretch, rate / self.rate_std[kind]], [u, u, u]
        for a in x[..., self.num_state - self.num_previous_actions :].unbind(-1):
            signals.append(a.unsqueeze(-1).expand_as(rate))
            directions.append(earlier)
        return torch.stack(signals, dim=-1), torch.stack(directions, dim=-2)

    def directions(self, x: Float[Tensor, "*batch nodes state"]) -> Float[Tensor, "*batch nodes pairs 2"]:
        """Of a node's own pairs."""
        q, w = self.points_of(x)
        first, second = self.ends
        return length_of(q[..., second, :] - q[..., first, :], w[..., second, :] - w[..., first, :])[2]

    @property
    def usual_speed(self) -> float:
        """S in a medium's resistance: where it has half of its limit."""
        speeds = [c for p in self.points for c in p[2:]]
        return USUAL_SPEED * float(self.unit_std[speeds].mean())

    def resistance(self, x: Float[Tensor, "batch nodes state"]) -> Float[Tensor, "batch nodes pairs ends 2"]:
        """-s^2 / (1 + (s / S)^2) n at both ends of a node's pairs while the previous action is below zero."""
        q, w = self.points_of(x)
        first, second = self.ends
        along = q[..., second, :] - q[..., first, :]
        normal = torch.stack([along[..., 1], -along[..., 0]], dim=-1) / length_of(along, along)[0].unsqueeze(-1)
        outward = (q[..., second, :] + q[..., first, :]) / 2 - q.mean(-2, keepdim=True)
        normal = (normal * torch.sign((normal * outward).sum(-1, keepdim=True))).unsqueeze(-2)
        ends = torch.stack([w[..., first, :], w[..., second, :]], dim=-2)
        square = (ends * normal).sum(-1, keepdim=True).clamp_min(0).square()
        felt = -square / (1 + square / self.usual_speed**2) * normal
        return felt * (x[..., self.num_state - 1] < 0).to(x.dtype)[..., None, None, None]


@dataclass(frozen=True)
class Layout:
    """The points of all graphs of a union, as corners: `size` places a graph, of which smaller bodies leave some empty.

    corner: of each node's points; ends: of the nodes' pairs, one after another; graph, kind, node_type: of these pairs;
    outer: whether a pair is an outer side; mass: of each place; block: where the 2 x 2 block that couples end a of a
    pair with its end b stands in the matrices of all graphs.
    """

    size: int
    corner: Int[Tensor, "nodes points"]
    ends: Int[Tensor, "pairs 2"]
    graph: Int[Tensor, " pairs"]
    kind: Int[Tensor, " pairs"]
    node_type: Int[Tensor, " pairs"]
    outer: Float[Tensor, " pairs"]
    mass: Float[Tensor, "graphs size"]
    block: Int[Tensor, "pairs 2 2 2 2"]


class ImplicitLayer(nn.Module):
    """States to vector channels: [*batch, nodes, velocity coordinates of the points, channels], normalised."""

    log_coupling: Tensor
    pair_class: Tensor
    inputs: BodyInputs
    _kept: WeakKeyDictionary[Topology, Layout]

    def __init__(
        self, inputs: BodyInputs, num_node_types: int, dt: float, drag: bool = False, num_classes: int = 2
    ) -> None:
        super().__init__()
        self.dt, self.drag = dt, drag
        self.num_node_types, self.num_classes = num_node_types, num_classes
        # The encoder owns the units; as a submodule here they would be saved twice.
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "_kept", WeakKeyDictionary())
        self.register_buffer("log_coupling", torch.tensor(COUPLINGS).log()[:, None].repeat(1, self.num_kinds))
        self.register_buffer("pair_class", torch.zeros(len(inputs.pairs), dtype=torch.int64))

    @property
    def num_kinds(self) -> int:
        """Kinds of pairs: a node type and a class of lengths."""
        return self.num_node_types * self.num_classes

    @property
    def num_signals(self) -> int:
        return 3 + self.inputs.num_previous_actions

    @property
    def num_channels(self) -> int:
        """Heads x (signals x kinds, then the medium's by node type)."""
        return len(COUPLINGS) * (self.num_signals * self.num_kinds + self.drag * self.num_node_types)

    @property
    def prior(self) -> Prior:
        """What is known of the channels' coefficients before any recording."""
        kinds, width = self.num_kinds, self.num_channels // len(COUPLINGS)
        ridge = torch.full((len(COUPLINGS), width), RIDGE, dtype=torch.float64)
        ridge[:, :kinds] = CONSTANT_RIDGE
        pulls = torch.arange(kinds, 3 * kinds)
        resists = torch.arange(self.num_signals * kinds, width)
        heads = torch.tensor(COUPLINGS, dtype=torch.float64)
        signed = torch.zeros(width, width, dtype=torch.float64)
        signed[pulls, pulls], signed[resists, resists] = 1.0, -1.0
        signed = signed[torch.cat([pulls, resists])]
        ends = [torch.kron(weights, signed) for weights in (torch.ones_like(heads)[None], (1 / heads)[None])]
        return Prior(ridge.flatten(), torch.cat(ends))

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
        self._kept.clear()

    def forward(
        self,
        x: Float[Tensor, "*batch nodes state"],
        topology: Topology,
        held: Bool[Tensor, "nodes points"],
    ) -> Float[Tensor, "*batch nodes speeds channels"]:
        """Every channel on its own."""

        def apart(bodies: Layout, signals: Tensor, directions: Tensor, resistance: Tensor | None) -> Tensor:
            vectors = signals.unsqueeze(-1) * directions
            place = bodies.kind[:, None] + self.num_kinds * torch.arange(self.num_signals)
            felt = _onto(bodies, torch.stack([-vectors, vectors], dim=2), place, self.num_signals * self.num_kinds)
            if resistance is not None:
                pushed = (resistance * bodies.outer[:, None, None]).unsqueeze(3)
                felt = torch.cat([felt, _onto(bodies, pushed, bodies.node_type[:, None], self.num_node_types)], dim=-1)
            return felt.unsqueeze(1)

        return self._spread(x, topology, held, apart).flatten(-2)

    def combined(
        self,
        x: Float[Tensor, "*batch nodes state"],
        topology: Topology,
        held: Bool[Tensor, "nodes points"],
        coefficients: Float[Tensor, "graphs channels"],
    ) -> Float[Tensor, "*batch nodes speeds"]:
        """The channels in each graph's combination: the same as combining `forward`, with one solve a head."""
        heads = coefficients.to(x.dtype).unflatten(1, (len(COUPLINGS), -1))
        along = heads[..., : self.num_signals * self.num_kinds].unflatten(2, (self.num_signals, self.num_kinds))
        medium = heads[..., self.num_signals * self.num_kinds :]

        def together(bodies: Layout, signals: Tensor, directions: Tensor, resistance: Tensor | None) -> Tensor:
            weight = along[bodies.graph, :, :, bodies.kind]  # [pairs, heads, signals]
            vectors = torch.einsum("phs,bps,bpsx->bphx", weight, signals, directions)
            ends = torch.stack([-vectors, vectors], dim=2)
            if resistance is not None:
                share = medium[bodies.graph, :, bodies.node_type] * bodies.outer[:, None]
                ends = ends + share[:, None, :, None] * resistance.unsqueeze(3)
            place = torch.arange(len(COUPLINGS)).expand(len(bodies.kind), -1)
            return _onto(bodies, ends, place, len(COUPLINGS)).movedim(-1, 1).unsqueeze(-1)

        return self._spread(x, topology, held, together).sum((-2, -1))

    def behind(
        self,
        changes: Float[Tensor, "*batch nodes speeds columns"],
        x: Float[Tensor, "*batch nodes state"],
        topology: Topology,
        held: Bool[Tensor, "nodes points"],
    ) -> Float[Tensor, "*batch nodes pairs columns"]:
        """The pushes g along pairs behind normalised velocity changes r of the points (inverse of `pushed`).

        argmin over g of |M^-1 G' g - r|^2 in the norm of M + e |g|^2, that is, g = G (G'G + e M)^-1 M r.
        """
        batch, columns = x.shape[:-2], changes.shape[-1]
        bodies, u = self._bodies(topology, held), self._along(x)
        r = changes.reshape(len(u), -1, changes.shape[-2], columns) * self._speed_units[:, None]
        # M r, summed over the points that coincide; a held corner does not move.
        r = r.unflatten(2, (-1, 2)).flatten(1, 2).flatten(2)
        felt = r.new_zeros(len(u), bodies.mass.numel(), 2 * columns).index_add(1, bodies.corner.flatten(), r)
        felt = felt.unflatten(2, (2, columns)).flatten(1, 2).unflatten(1, (len(bodies.mass), -1))
        system = self._coupled(bodies, u, torch.ones_like(self.log_coupling[:1]), STIFFEST)[:, 0]
        found = torch.cholesky_solve(felt, torch.linalg.cholesky_ex(system)[0]).unflatten(2, (-1, 2)).flatten(1, 2)
        apart = found[:, bodies.ends[:, 1]] - found[:, bodies.ends[:, 0]]
        return (apart * u.unsqueeze(-1)).sum(2).reshape(*batch, topology.num_nodes, -1, columns)

    def pushed(
        self,
        pushes: Float[Tensor, "*batch nodes pairs"],
        x: Float[Tensor, "*batch nodes state"],
        topology: Topology,
        held: Bool[Tensor, "nodes points"],
    ) -> Float[Tensor, "*batch nodes speeds"]:
        """What pushes g along pairs do to the points at once, normalised: M^-1 G' g."""
        bodies, u = self._bodies(topology, held), self._along(x)
        along = pushes.reshape(len(u), -1, 1) * u
        felt = along.new_zeros(len(u), bodies.mass.numel(), 2).index_add(1, bodies.ends[:, 1], along)
        felt = felt.index_add(1, bodies.ends[:, 0], along, alpha=-1) / bodies.mass.flatten()[:, None]
        by_point = felt[:, bodies.corner.flatten()].reshape(*pushes.shape[:-1], -1)
        return by_point / self._speed_units

    def _along(self, x: Float[Tensor, "*batch nodes state"]) -> Float[Tensor, "rows pairs 2"]:
        """The directions of all pairs."""
        return self.inputs.directions(x.reshape(-1, *x.shape[-2:])).flatten(1, 2)

    @property
    def _speed_units(self) -> Tensor:
        return self.inputs.unit_std[[c for point in self.inputs.points for c in point[2:]]]

    def _spread(
        self, x: Tensor, topology: Topology, held: Tensor, push: Callable[..., Tensor]
    ) -> Float[Tensor, "*batch nodes speeds heads columns"]:
        """What pushes at the corners [batch, heads or 1, graphs, 2 size, columns] do to all points, by head."""
        batch = x.shape[:-2]
        x = x.reshape(-1, *x.shape[-2:])
        bodies = self._bodies(topology, held)
        signals, directions = self.inputs.pair_signals(x, topology, self.dt)
        resistance = self.inputs.resistance(x).flatten(1, 2) if self.drag else None
        signals, directions = signals.flatten(1, 2), directions.flatten(1, 2)
        pushes = push(bodies, signals, directions, resistance)
        # Definite unless a state is not finite; then the features are not either, and whoever asked will see.
        coupled = self._coupled(bodies, directions[:, :, 0], self.log_coupling.exp())
        factor = torch.linalg.cholesky_ex(coupled)[0]
        fields = torch.cholesky_solve(pushes.expand(*factor.shape[:-1], -1), factor)
        by_corner = fields.unflatten(3, (-1, 2)).flatten(2, 3)  # [batch, heads, corners, 2, columns]
        by_point = by_corner[:, :, bodies.corner.flatten()].unflatten(2, bodies.corner.shape).flatten(3, 4)
        by_point = by_point.permute(0, 2, 3, 1, 4) / self._speed_units[:, None, None]
        return by_point.reshape(*batch, *by_point.shape[1:])

    def _coupled(
        self,
        bodies: Layout,
        u: Float[Tensor, "batch pairs 2"],
        coupling: Float[Tensor, "heads kinds"],
        share: float = 1.0,
    ) -> Float[Tensor, "batch heads graphs size_2 size_2"]:
        """share x diag(m) + G' diag(h) G of every graph."""
        graphs, width = len(bodies.mass), 2 * bodies.size
        square = (u.unsqueeze(-1) * u.unsqueeze(-2)).unsqueeze(1) * coupling[:, bodies.kind, None, None]
        blocks = torch.stack([square, -square, -square, square], dim=3).flatten(2)
        index = bodies.block.flatten().expand_as(blocks)
        mass = share * torch.diag_embed(bodies.mass.repeat_interleave(2, dim=1)).to(u.dtype).flatten()
        return mass.expand(*blocks.shape[:2], -1).scatter_add(2, index, blocks).unflatten(2, (graphs, width, width))

    def _bodies(self, topology: Topology, held: Tensor) -> Layout:
        """Built once for a topology, and kept as long as that."""
        if topology not in self._kept:
            self._kept[topology] = self._build(topology, held)
        return self._kept[topology]

    def _build(self, topology: Topology, held: Tensor) -> Layout:
        points, pairs = len(self.inputs.points), len(self.inputs.pairs)
        first, second = self.inputs.ends
        graph = torch.arange(len(topology.splits)).repeat_interleave(torch.tensor(topology.splits))
        corners = []  # of each graph, numbered from 0
        for nodes in torch.arange(topology.num_nodes).split(topology.splits):
            ids = torch.arange(len(nodes) * points)
            if topology.tied is not None:
                ids = topology.tied[nodes][:, [point[0] for point in self.inputs.points]]
            corners.append(torch.unique(ids, return_inverse=True)[1].reshape(-1, points))
        size = max(int(table.max()) + 1 for table in corners)
        corner = torch.cat(corners) + size * graph[:, None]
        places = size * len(topology.splits)
        mass = torch.bincount(corner.flatten(), minlength=places).float()
        mass = mass + HELD_MASS * torch.zeros(places).index_add(0, corner.flatten(), held.flatten().float())
        mass = mass.where(mass > 0, 1.0)  # an empty place, which nothing pushes
        ends = torch.stack([corner[:, first], corner[:, second]], dim=-1).flatten(0, 1)
        # An outer side is a pair of the shortest class that no other node has.
        _, which, shared = torch.unique(ends.sort(-1).values, dim=0, return_inverse=True, return_counts=True)
        outer = (shared[which] == 1) & (self.pair_class.repeat(topology.num_nodes) == 0)
        kind = topology.node_type[:, None] * self.num_classes + self.pair_class
        axis = torch.arange(2)
        row = 2 * ends[:, :, None, None, None] + axis[:, None]
        column = 2 * (ends % size)[:, None, :, None, None] + axis
        return Layout(
            size=size,
            corner=corner,
            ends=ends,
            graph=graph.repeat_interleave(pairs),
            kind=kind.flatten(),
            node_type=topology.node_type.repeat_interleave(pairs),
            outer=outer.float(),
            mass=mass.unflatten(0, (-1, size)),
            block=2 * size * row + column,
        )


def _onto(
    bodies: Layout,
    vectors: Float[Tensor, "batch pairs 2 c xy"],
    column: Int[Tensor, "pairs c"],
    columns: int,
) -> Float[Tensor, "batch graphs size_2 columns"]:
    """Vectors at both ends of pairs, c of them, each in a column of its own, summed at the corners."""
    axis = torch.arange(2)
    place = (2 * bodies.ends[:, :, None, None] + axis) * columns + column[:, None, :, None]
    flat = vectors.flatten(1)
    felt = flat.new_zeros(len(flat), bodies.mass.numel() * 2 * columns)
    felt = felt.scatter_add(1, place.flatten().expand_as(flat), flat)
    return felt.unflatten(1, (len(bodies.mass), 2 * bodies.size, columns))
