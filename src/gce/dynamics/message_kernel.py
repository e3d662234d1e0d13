"""One step of a message-passing model in plain arrays, and its derivative backwards, for one graph.

The same numbers as `Stepper.move` for a model whose operator is Hom+Mean with a Gaussian (or constant) potential and
whose nodes have one point or none, many times faster: what learning needs is left out, layers of all rounds on an
edge's inputs are one product, and of phi only what reaches the free coordinates is kept. Written with nodes first,
[nodes, rows, d]; rows are states, all independent.

The derivative is taken by hand, layer by layer from the targets back to the state (`pull`), for many cotangents at
once: [nodes, cotangents, rows, d].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.control.tracking import hurry
from gce.features.inputs import InputLayer
from gce.features.message_passing import MessagePassing
from gce.graphs.topology import Topology
from gce.graphs.wiring import Wiring
from gce.model.model import Model
from gce.operators import Operator

Array = np.ndarray
NEGLIGIBLE = 1e-30
BLOCK = 31 << 20
"""Bytes asked for and given back, untouched, once a system: the C library then keeps the memory of later arrays for
the next ones. Otherwise it hands all of it back after each `pull`, and page faults take a third of a plan's time."""


@dataclass(frozen=True)
class Geometry:
    """Columns (x, y, vx, vy) of a state and their physical units; units of lengths and rates of each edge."""

    columns: tuple[int, int, int, int]
    units: tuple[float, float, float, float]
    length_mean: Float[Array, "edges 1"]
    length_std: Float[Array, "edges 1"]
    rate_std: Float[Array, "edges 1"]


@dataclass
class Kept:
    """What of a step is needed to go back through it; slopes are those of activations, in the order they come."""

    said_slopes: list[Float[Array, "edges rows e"]] = field(default_factory=list)
    hidden_slopes: list[Float[Array, "nodes rows w"]] = field(default_factory=list)
    bounded_slope: Float[Array, "_ rows f"] = field(default_factory=lambda: np.empty((0, 0, 0)))
    alpha: Float[Array, "edges rows"] = field(default_factory=lambda: np.empty((0, 0)))
    between: Float[Array, "edges rows phi"] = field(default_factory=lambda: np.empty((0, 0, 0)))
    mean_part: Float[Array, "nodes rows m"] = field(default_factory=lambda: np.empty((0, 0, 0)))
    geometry: tuple[Array, ...] | None = None


@dataclass(frozen=True, eq=False)
class MessageStep:
    """Targets y of the free coordinates from states, without what inputs and constants add.

    Weights act from the right. told_by [rounds, inputs of an edge, e]: of all rounds; heard_by [rounds] of
    ([width, e], [width, e]): the receiver's and the sender's. own_part, mean_part [features, m]: the operator's blocks.
    concentration: 1 / (2 sigma^2) of the potential, 0 for a constant one.
    """

    wiring: Wiring
    chosen: list[int]
    moving: list[int]
    node_attributes: Float[Array, "nodes 1 _"]
    edge_attributes: Float[Array, "edges 1 _"]
    difference_mean: Float[Array, "edges 1 c"]
    difference_std: Float[Array, "edges 1 c"]
    geometry: Geometry | None
    told_by: Float[Array, "rounds k e"]
    relation: Float[Array, "rounds edges 1 e"]
    heard_by: list[tuple[Float[Array, "_ e"], Float[Array, "_ e"]]]
    message: list[tuple[Float[Array, "e w"], Float[Array, " w"]]]
    own: list[Float[Array, "_ w"]]
    node_type: Float[Array, "nodes 1 w"]
    output: tuple[Float[Array, "_ f"], Float[Array, " f"] | None]
    to_linear: Float[Array, "edges _ l"]
    bound: float
    conservative: bool
    concentration: float
    own_part: Float[Array, "features m"]
    mean_part: Float[Array, "features m"]

    @staticmethod
    def fits(model: Model, topology: Topology) -> bool:
        """Whether this module knows the model's parts."""
        c, loops = model.config, topology.senders == topology.receivers
        parts = model.form.blocks(torch.zeros(model.form.num_regressors(topology), 1), model.features.width)
        return (
            model.features.linear
            and model.form.weighted
            and parts is not None
            and len(parts.fields) == 1
            and len(parts.rest) == c.num_relations * c.num_inputs + c.num_node_types  # actions by relation
            and model.potential.concentration is not None
            and not model.features.inputs.within_node
            and topology.tied is None
            and not (c.num_hyperedge_types and c.hyperedges)
            # The score of a node and itself, 0, is the largest of its neighbourhood: no softmax overflows.
            and len(topology.senders[loops].unique()) == topology.num_nodes
        )

    @staticmethod
    def of(model: Model, operator: Operator, topology: Topology) -> MessageStep:
        """features: message passing, which names this module's dynamics as its own."""
        np.empty(BLOCK, np.uint8)
        encoder = cast(MessagePassing, model.features).encoder
        inputs, rounds = encoder.inputs, range(encoder.shape.rounds)
        parts = model.form.blocks(operator.coefficients[:, : len(model.free)], model.features.width)
        concentration = model.potential.concentration
        assert parts is not None and concentration is not None  # as `fits` says
        W = arrays_of({**encoder.state_dict(), "own_part": parts.own, "mean_part": parts.fields[0]}, model.dtype)
        of_graph = {"node": topology.node_attributes, "edge": topology.edge_attributes}
        attributes, k = arrays_of(of_graph, model.dtype), inputs.num_node_attributes
        edges = torch.stack([topology.senders, topology.receivers, topology.edge_type])
        senders, receivers, edge_type = edges.numpy()
        mean, std = W["inputs.attribute_mean"], W["inputs.attribute_std"]
        to_linear = np.concatenate([W["linear_edge"], W["linear_own"]], axis=1)
        every = range(len(encoder.edge))
        return MessageStep(
            wiring=Wiring(senders, receivers, topology.num_nodes, mean.dtype),
            chosen=model.features.regressed_state,
            moving=inputs.moving,
            node_attributes=((attributes["node"] - mean[:k]) / std[:k])[:, None],
            edge_attributes=((attributes["edge"] - mean[k:]) / std[k:])[:, None],
            difference_mean=W["inputs.difference_mean"][edge_type][:, None],
            difference_std=W["inputs.difference_std"][edge_type][:, None],
            geometry=_geometry(inputs, W, edge_type) if inputs.between_nodes else None,
            told_by=np.stack([W[f"edge.{r}.weight"].T for r in every]),
            relation=W["relation"][:, edge_type][:, :, None],
            heard_by=[(_flipped(W[f"receiver.{r}.weight"]), _flipped(W[f"sender.{r}.weight"])) for r in every],
            message=[(_flipped(W[f"message.{r}.weight"]), W[f"message.{r}.bias"]) for r in rounds],
            own=[_flipped(W[f"own.{r}.weight"]) for r in rounds],
            node_type=W["node_type"][topology.node_type.numpy()][:, None],
            output=(_flipped(W["output.weight"]), W.get("output.bias")),
            to_linear=to_linear[edge_type],
            bound=encoder.bound,
            conservative=encoder.shape.conservative,
            concentration=concentration,
            own_part=W["own_part"],
            mean_part=W["mean_part"],
        )

    # ---- forwards ----

    def targets(self, x: Float[Array, "nodes rows c"]) -> Float[Array, "nodes rows m"]:
        """What the state adds to the targets."""
        with np.errstate(over="ignore"):  # a closed gate
            return self._targets(x, None)

    def kept(self, x: Float[Array, "nodes rows c"]) -> Kept:
        """What `pull` needs of the steps from some states."""
        kept = Kept()
        with np.errstate(over="ignore"):
            self._targets(x, kept)
        return kept

    def _targets(self, x: Float[Array, "nodes rows c"], kept: Kept | None) -> Float[Array, "nodes rows m"]:
        wiring, rows = self.wiring, x.shape[1]
        edges = len(wiring.senders)
        in_time = hurry if kept is not None else lambda: None  # on the way to derivatives, which may be left
        seen, own = self._seen(x, kept), self._own(x)
        in_time()
        told = np.matmul(seen.reshape(edges * rows, -1), self.told_by).reshape(len(self.told_by), edges, rows, -1)
        told += self.relation

        def say(r: int, hidden: Array) -> Array:
            """What each edge says in a round."""
            in_time()
            before = told[r]
            before += wiring.received(_product(hidden, self.heard_by[r][0]))
            in_time()
            before += wiring.sent(_product(hidden, self.heard_by[r][1]))
            in_time()
            return _silu(before, None if kept is None else kept.said_slopes)

        hidden = own
        for r, ((W, b), own_by) in enumerate(zip(self.message, self.own, strict=True)):
            update = _product(wiring.into(say(r, hidden)), W)
            update += _product(hidden, own_by)
            update += b
            if r == 0:
                update += self.node_type
            following = _silu(update, None if kept is None else kept.hidden_slopes)
            hidden = following + hidden if r else following
        in_time()
        linear = np.matmul(np.concatenate([seen, wiring.sent(own)], axis=-1), self.to_linear)
        W, bias = self.output
        before = _product(say(len(self.message), hidden) if self.conservative else hidden, W)
        if bias is not None:
            before += bias
        gate = 1 / (1 + np.exp(before * (-2 / self.bound)))
        bounded = 2 * self.bound * gate - self.bound
        if self.conservative:
            phi = wiring.net(np.concatenate([bounded, linear], axis=-1))
        else:
            phi = np.concatenate([bounded, wiring.into(linear)], axis=-1)
        features = np.concatenate([x[..., self.chosen], phi], axis=-1) if self.chosen else phi
        between = wiring.apart(phi)
        alpha = np.exp(np.einsum("erp,erp->er", between, between) * -self.concentration)
        alpha /= wiring.received(wiring.into(alpha))
        mean_part = _product(features, self.mean_part)
        if kept is not None:
            kept.bounded_slope = 4 * gate * (1 - gate)
            kept.alpha, kept.between, kept.mean_part = alpha, between, mean_part
        return _product(features, self.own_part) + wiring.into(alpha[..., None] * wiring.sent(mean_part))

    def _own(self, x: Float[Array, "nodes rows c"]) -> Float[Array, "nodes rows k"]:
        own = x[..., self.moving]
        if not self.node_attributes.shape[-1]:
            return own
        return np.concatenate([own, np.repeat(self.node_attributes, x.shape[1], axis=1)], axis=-1)

    def _seen(self, x: Float[Array, "nodes rows c"], kept: Kept | None) -> Float[Array, "edges rows k"]:
        """The inputs of every edge: differences, lengths and their rates, attributes."""
        difference, g, c = self.wiring.apart(x), self.geometry, x.shape[-1]
        seen = np.empty((*difference.shape[:2], self.told_by.shape[1]), x.dtype)
        np.subtract(difference, self.difference_mean, out=seen[..., :c])
        seen[..., :c] /= self.difference_std
        if self.edge_attributes.shape[-1]:
            seen[..., -self.edge_attributes.shape[-1] :] = self.edge_attributes
        if g is None:
            return seen
        qx, qy, wx, wy = (difference[..., k] * unit for k, unit in zip(g.columns, g.units, strict=True))
        length = np.sqrt(qx * qx + qy * qy + 1e-8)
        ux, uy = qx / length, qy / length
        stretch, rate = (length - g.length_mean) / g.length_std, (ux * wx + uy * wy) / g.rate_std
        for k, value in enumerate((stretch, rate, stretch * ux, stretch * uy, rate * ux, rate * uy), start=c):
            seen[..., k] = value
        if kept is not None:
            kept.geometry = (length, ux, uy, wx, wy, stretch, rate)
        return seen

    # ---- backwards ----

    def pull(self, kept: Kept, by_y: Float[Array, "m nodes k rows"]) -> Float[Array, "c nodes k rows"]:
        """Cotangents of the state from cotangents of the targets; coordinates come first."""
        wiring, rounds = self.wiring, len(self.message)
        _, nodes, cotangents, rows = by_y.shape
        by_features, by_phi = self._features_back(kept, by_y)
        by_bounded, by_linear = by_phi
        if self.conservative:
            by_said = -wiring.apart(by_bounded)
            by_said *= kept.bounded_slope[:, None]
            by_before = _product(by_said, self.output[0].T)
            by_before *= kept.said_slopes[rounds][:, None]
            by_seen = _planes(self.told_by[rounds], by_before)
            by_hidden = self._heard_back(rounds, by_before)
            by_linear = -wiring.apart(by_linear)
        else:
            by_bounded *= kept.bounded_slope[:, None]
            by_hidden = _product(by_bounded, self.output[0].T)
            by_linear = wiring.received(by_linear)
            by_seen = np.zeros((self.told_by.shape[1], len(by_linear), cotangents * rows), by_y.dtype)
        for r in reversed(range(rounds)):
            by_update = by_hidden * kept.hidden_slopes[r][:, None]
            by_before = wiring.received(_product(by_update, self.message[r][0].T))
            by_before *= kept.said_slopes[r][:, None]
            by_seen += _planes(self.told_by[r], by_before)
            back = self._heard_back(r, by_before)
            back += _product(by_update, self.own[r].T)
            if r:
                by_hidden += back
            else:
                by_hidden = back
        lines = np.matmul(self.to_linear, by_linear.reshape(len(by_linear), cotangents * rows, -1).transpose(0, 2, 1))
        by_seen += lines[:, : len(by_seen)].transpose(1, 0, 2)
        by_own = np.ascontiguousarray(by_hidden.reshape(nodes, cotangents * rows, -1).transpose(2, 0, 1))
        by_x = -np.stack([wiring.net(by) for by in self._seen_back(kept, by_seen, cotangents)])
        said = lines[:, len(by_seen) :].transpose(1, 0, 2)
        for k, coordinate in enumerate(self.moving):
            by_x[coordinate] += by_own[k] + wiring.out(said[k])
        by_x = by_x.reshape(len(by_x), nodes, cotangents, rows)
        for k, coordinate in enumerate(self.chosen):
            by_x[coordinate] += by_features[..., k]
        return by_x

    def _features_back(
        self, kept: Kept, by_y: Float[Array, "m nodes k rows"]
    ) -> tuple[Float[Array, "nodes k rows f"], list[Float[Array, "nodes k rows _"]]]:
        """(of the state's coordinates among the features; of the bounded and of the linear part of phi)."""
        wiring, alpha, first = self.wiring, kept.alpha[:, None], len(self.chosen)
        heard = by_y[:, wiring.receivers]
        through = np.stack([wiring.out(alpha * by) for by in heard])
        by_both = np.concatenate([by_y, through]).reshape(2 * len(by_y), -1)
        ends = np.cumsum([first, self.output[0].shape[1]])
        parts = np.split(np.concatenate([self.own_part, self.mean_part], axis=1), ends)
        by_state, *by_phi = (np.matmul(by_both.T, part.T).reshape(*by_y.shape[1:], -1) for part in parts)
        if self.concentration > NEGLIGIBLE:
            by_alpha = sum(by * wiring.sent(kept.mean_part[..., k])[:, None] for k, by in enumerate(heard))
            by_score = by_alpha - wiring.received(wiring.into(alpha * by_alpha))
            by_score *= alpha * (2 * self.concentration)
            # d score = -2 concentration (phi_j - phi_i) . (d phi_j - d phi_i), j the sender.
            for by, between in zip(by_phi, np.split(kept.between, ends[1:] - first, axis=-1), strict=True):
                by += wiring.net(by_score[..., None] * between[:, None])
        return by_state, by_phi

    def _heard_back(self, r: int, by_before: Float[Array, "edges k rows e"]) -> Float[Array, "nodes k rows w"]:
        back = _product(self.wiring.into(by_before), self.heard_by[r][0].T)
        back += _product(self.wiring.out(by_before), self.heard_by[r][1].T)
        return back

    def _seen_back(
        self, kept: Kept, by_seen: Float[Array, "inputs edges rows"], cotangents: int
    ) -> list[Float[Array, "edges rows"]]:
        """Of the differences of states, from those of an edge's inputs; rows are all cotangents of all states."""
        g, c = self.geometry, self.difference_mean.shape[-1]
        by_difference = [by / self.difference_std[..., k] for k, by in enumerate(by_seen[:c])]
        if g is None or kept.geometry is None:
            return by_difference
        length, ux, uy, wx, wy, stretch, rate = (np.tile(values, (1, cotangents)) for values in kept.geometry)
        by_stretch, by_rate, ax, ay, mx, my = by_seen[c : c + 6]
        by_length = (by_stretch + ax * ux + ay * uy) / g.length_std
        by_rate = (by_rate + mx * ux + my * uy) / g.rate_std
        by_ux, by_uy = stretch * ax + rate * mx + by_rate * wx, stretch * ay + rate * my + by_rate * wy
        along = by_length - (by_ux * ux + by_uy * uy) / length
        pulled = (by_ux / length + along * ux, by_uy / length + along * uy, by_rate * ux, by_rate * uy)
        for column, unit, by in zip(g.columns, g.units, pulled, strict=True):
            by_difference[column] += by * unit
        return by_difference


def _product(values: Float[Array, "*batch k"], matrix: Float[Array, "k d"]) -> Float[Array, "*batch d"]:
    """One product of all rows; numpy's own of many axes is one of each."""
    return (values.reshape(-1, values.shape[-1]) @ matrix).reshape(*values.shape[:-1], matrix.shape[1])


def _planes(matrix: Float[Array, "d k"], values: Float[Array, "edges ... k"]) -> Float[Array, "d edges rows"]:
    """matrix times each row, coordinates first."""
    return (matrix @ values.reshape(-1, values.shape[-1]).T).reshape(len(matrix), len(values), -1)


def _silu(values: Array, slopes: list[Array] | None) -> Array:
    """x sigmoid(x); its slope is added to a list where one is given."""
    gate = 1 / (1 + np.exp(-values))
    if slopes is not None:
        slopes.append(gate * (1 + values * (1 - gate)))
    return values * gate


def arrays_of(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Array]:
    """Tensors as arrays of one precision, by one copy of all of them."""
    flat = torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in tensors.values()]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors.values()])[:-1]
    pieces = zip(tensors.items(), np.split(flat, ends), strict=True)
    return {name: piece.reshape(tensor.shape) for (name, tensor), piece in pieces}


def _flipped(weight: Array) -> Array:
    """A layer's weights as they act from the right."""
    return np.ascontiguousarray(weight.T)


def _geometry(inputs: InputLayer, W: Mapping[str, Array], edge_type: Array) -> Geometry:
    ((x, y, vx, vy),) = inputs.points
    units = [W[f"inputs.{name}"][edge_type] for name in ("length_mean", "length_std", "rate_std")]
    columns = (x, y, vx, vy)
    scales = W["inputs.unit_std"][list(columns)].tolist()
    return Geometry(columns, (scales[0], scales[1], scales[2], scales[3]), *units)
