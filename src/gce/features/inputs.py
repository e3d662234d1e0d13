"""What the encoder sees: the state of every node and of every edge, in units in which it varies.

What matters is often small: the stretch of a stiff spring is a short difference of large positions. So differences
are taken in units of their relation type, and where the observation consists of points in the plane, lengths between
points and the rates of these enter as well, alone and along the direction between the points. Positions then enter
only as differences: moving the whole system changes nothing.

For a pair of points with difference q and relative velocity w, u = q / |q|:

    [l, r, l u, r u, a u],   l = (|q| - mean) / std,   r = (u . w) / std,   a the node's previous action

Pairs are those of neighbouring nodes (one point a node) or of a node's own points (several).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gce.graphs.topology import Topology

Points = tuple[tuple[int, int, int, int], ...]
"""The coordinates (x, y, vx, vy) of each point of a node."""

SMALLEST_LENGTH = 3e-3
SMALLEST_UNIT = 0.02


class InputLayer(nn.Module):
    """Own inputs of nodes and inputs of edges, from normalised states.

    points: the points a node consists of; () for observations that are not points in the plane.
    num_state: coordinates of a state: the observation first, the previous action last.
    absolute: whether nodes know their places all the same.
    unit_mean, unit_std: of the observation, to measure lengths in physical units.
    """

    unit_mean: Tensor
    unit_std: Tensor
    difference_mean: Tensor
    difference_std: Tensor
    own_mean: Tensor
    own_std: Tensor
    length_mean: Tensor
    length_std: Tensor
    rate_std: Tensor
    attribute_mean: Tensor
    attribute_std: Tensor

    def __init__(
        self,
        num_observations: int,
        num_state: int,
        num_previous_actions: int,
        num_relations: int,
        num_node_types: int,
        num_node_attributes: int,
        num_edge_attributes: int,
        points: Points,
        absolute: bool = False,
    ) -> None:
        super().__init__()
        self.points, self.num_state, self.num_observations = points, num_state, num_observations
        self.num_previous_actions = num_previous_actions
        self.num_node_attributes, self.num_edge_attributes = num_node_attributes, num_edge_attributes
        coordinates = [c for point in points for c in point[:2]]
        self.pairs = list(combinations(range(len(points)), 2))
        # What a node knows of itself: all but its place, or all where there are no points.
        history = (num_state - num_previous_actions) // num_observations
        places = set() if absolute else place_coordinates(points, num_observations, history)
        self.moving = [c for c in range(num_state) if c not in places]
        self.between_nodes = len(points) == 1
        self.within_node = len(self.pairs) > 0
        geometry = 6 + 2 * num_previous_actions
        self.num_own = len(self.moving) + num_node_attributes
        self.num_edge = num_state + num_edge_attributes
        if self.between_nodes:
            self.num_edge += 6
        if self.within_node:
            self.num_own += geometry * len(self.pairs) + len(coordinates)
        kinds = num_relations if self.between_nodes else num_node_types
        lengths = 1 if self.between_nodes else len(self.pairs)
        for name, shape in (
            ("difference", (num_relations, num_state)),
            ("own", (num_node_types, 2 * len(points))),
            ("length", (kinds, lengths)),
            ("rate", (kinds, lengths)),
            ("attribute", (num_node_attributes + num_edge_attributes,)),
        ):
            self.register_buffer(f"{name}_mean", torch.zeros(shape))
            self.register_buffer(f"{name}_std", torch.ones(shape))
        self.register_buffer("unit_mean", torch.zeros(num_observations))
        self.register_buffer("unit_std", torch.ones(num_observations))

    def on(self, topology: Topology) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """What turns states [nodes, batch, state] into inputs [nodes, batch, own] and [edges, batch, edge].

        The units of the topology's nodes and edges are looked up here, once for all states.
        """
        n = self.num_node_attributes
        node_attributes = (topology.node_attributes - self.attribute_mean[:n]) / self.attribute_std[:n]
        edge_attributes = (topology.edge_attributes - self.attribute_mean[n:]) / self.attribute_std[n:]
        of_states = self.states_on(topology)

        def inputs(x: Tensor) -> tuple[Tensor, Tensor]:
            own, edge = of_states(x)
            if n:
                own.append(node_attributes.unsqueeze(1).expand(-1, x.shape[1], -1))
            if self.num_edge_attributes:
                edge.append(edge_attributes.unsqueeze(1).expand(-1, x.shape[1], -1))
            return _join(own), _join(edge)

        return inputs

    def states_on(self, topology: Topology) -> Callable[[Tensor], tuple[list[Tensor], list[Tensor]]]:
        """What states tell of nodes and of edges, attributes apart."""
        difference_mean, difference_std = rows_of(topology.edge_type, self.difference_mean, self.difference_std)
        lengths = self.length_mean, self.length_std, self.rate_std
        edge_units = rows_of(topology.edge_type, *lengths) if self.between_nodes else []
        pair_units = rows_of(topology.node_type, *lengths) if self.within_node else []
        own_mean, own_std = rows_of(topology.node_type, self.own_mean, self.own_std)
        moving = torch.tensor(self.moving, device=self.unit_std.device)
        to_points = self._to_points()

        def differences(x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            difference = topology.difference(x)
            edge = [(difference - difference_mean) / difference_std]
            own = [x.index_select(-1, moving)]
            if self.between_nodes:
                q, w = (difference @ to_points).unsqueeze(-2).chunk(2, dim=-1)
                edge.append(_geometry(q, w, edge_units))
            if self.within_node:
                q, w = self.points_of(x)
                centred = q - q.mean(-2, keepdim=True)
                first, second = self.ends
                actions = x[..., self.num_state - self.num_previous_actions :]
                apart = q[..., second, :] - q[..., first, :]
                parting = w[..., second, :] - w[..., first, :]
                own.append(_geometry(apart, parting, pair_units, actions))
                own.append((centred.flatten(-2) - own_mean) / own_std)
            return own, edge

        return differences

    @property
    def ends(self) -> tuple[list[int], list[int]]:
        """The first and the second points of a node's own pairs."""
        return [first for first, _ in self.pairs], [second for _, second in self.pairs]

    def _to_points(self) -> Float[Tensor, "state _"]:
        """The linear map from differences of states to those of points [x, y, vx, vy], in physical units."""
        columns = [point[k] for side in ((0, 1), (2, 3)) for point in self.points for k in side]
        chosen = self.unit_std.new_zeros(self.num_state, len(columns))
        chosen[columns, range(len(columns))] = self.unit_std[columns]
        return chosen

    def points_of(
        self, values: Float[Tensor, "*batch rows state"], relative: bool = False
    ) -> tuple[Float[Tensor, "*batch rows points 2"], Float[Tensor, "*batch rows points 2"]]:
        """Positions and velocities of the points in physical units, from states or (`relative`) their differences."""
        place = [c for p in self.points for c in p[:2]]
        speed = [c for p in self.points for c in p[2:]]
        q = values[..., place] * self.unit_std[place]
        if not relative:
            q = q + self.unit_mean[place]
        w = values[..., speed] * self.unit_std[speed]
        return q.unflatten(-1, (-1, 2)), w.unflatten(-1, (-1, 2))

    @torch.no_grad()
    def set_units(self, samples: Iterable[tuple[Float[Tensor, "_ _ state"], Topology]]) -> None:
        """Learn the units from states on some graphs."""
        gathered: dict[str, dict[int, list[Tensor]]] = {k: {} for k in ("difference", "own", "length", "rate")}

        def gather(name: str, kinds: Tensor, values: Tensor) -> None:
            for kind in kinds.unique().tolist():
                gathered[name].setdefault(kind, []).append(values[kinds == kind].flatten(0, 1))

        node_rows, edge_rows = [], []
        for x, topology in samples:
            difference = topology.sent(x) - topology.received(x)
            gather("difference", topology.edge_type, difference)
            if self.between_nodes:
                length, rate, _ = length_of(*self.points_of(difference, relative=True))
                gather("length", topology.edge_type, length)
                gather("rate", topology.edge_type, rate)
            if self.within_node:
                q, w = self.points_of(x)
                gather("own", topology.node_type, (q - q.mean(-2, keepdim=True)).flatten(-2))
                first, second = self.ends
                length, rate, _ = length_of(q[..., second, :] - q[..., first, :], w[..., second, :] - w[..., first, :])
                gather("length", topology.node_type, length)
                gather("rate", topology.node_type, rate)
            node_rows.append(topology.node_attributes)
            edge_rows.append(topology.edge_attributes[topology.senders != topology.receivers])
        for name, smallest in (
            ("difference", SMALLEST_UNIT),
            ("own", SMALLEST_UNIT),
            ("length", SMALLEST_LENGTH),
            ("rate", SMALLEST_UNIT),
        ):
            mean, std = getattr(self, f"{name}_mean"), getattr(self, f"{name}_std")
            for kind, pieces in gathered[name].items():
                rows = torch.cat(pieces)
                mean[kind], std[kind] = rows.mean(0), _spread(rows).clamp_min(smallest)
        for start, tables in ((0, node_rows), (self.num_node_attributes, edge_rows)):
            rows = torch.cat(tables)
            if rows.numel():
                self.attribute_mean[start : start + rows.shape[1]] = rows.mean(0)
                self.attribute_std[start : start + rows.shape[1]] = _spread(rows).clamp_min(1e-6)


def place_coordinates(points: Points, num_observations: int, history: int) -> set[int]:
    """The coordinates of a state that are places in the plane, in each of the observations it holds."""
    return {k * num_observations + c for k in range(history) for point in points for c in point[:2]}


def rows_of(kinds: Int[Tensor, " rows"], *tables: Float[Tensor, "_ _"]) -> list[Float[Tensor, "rows 1 _"]]:
    """Each table's row of each kind, for values [rows, batch, ...]."""
    return [table[kinds].unsqueeze(1) for table in tables]


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _geometry(
    q: Float[Tensor, "rows batch pairs 2"],
    w: Float[Tensor, "rows batch pairs 2"],
    units: list[Float[Tensor, "rows 1 pairs"]],
    actions: Float[Tensor, "rows batch a"] | None = None,
) -> Float[Tensor, "rows batch geometry"]:
    """[l, r, l u, r u, a u] of each pair; units: mean and spread of lengths, spread of rates."""
    length_mean, length_std, rate_std = units
    length, rate, u = length_of(q, w)
    told = torch.stack([(length - length_mean) / length_std, rate / rate_std], dim=-1)
    parts = [told, (told.unsqueeze(-1) * u.unsqueeze(-2)).flatten(-2)]
    if actions is not None:
        parts += [a.unsqueeze(-1).unsqueeze(-1) * u for a in actions.unbind(-1)]
    return torch.cat(parts, dim=-1).flatten(-2)


def _spread(rows: Float[Tensor, "rows c"]) -> Float[Tensor, " c"]:
    """The standard deviation of each column, 0 of a single row."""
    return rows.std(0, correction=min(1, len(rows) - 1))


def length_of(q: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|q|, its rate under the relative velocity w, and the direction of q."""
    length = (q.square().sum(-1) + 1e-8).sqrt()
    u = q / length.unsqueeze(-1)
    return length, (u * w).sum(-1), u
