"""A system of the general method as plain arrays, for the kernels of `general_compiled`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from gce.dynamics import general_compiled, general_slopes_compiled
from gce.dynamics.compiled import available, say_compiling
from gce.model.hierarchy import Hierarchy, learner
from gce.system.general import GeneralSystem

Array = np.ndarray
LARGEST = 100_000_000
"""Numbers that the way back may need room for; torch goes back through larger systems, a part at a time."""


class Weights(NamedTuple):
    """The graph, layers as products from the right, and how nodes move; whole numbers first.

    plain: columns of a node's state and inputs that enter the network as they are; edge_acts: those that act on edges,
    of receivers and of senders, -1 for none; near: of the dense part. filled: where the linear system's factors are
    not zero; its layer of edges is the last. turning: 1 positions, 2 parts of angles. edge_const [layers, edges, w].
    """

    senders: Array
    receivers: Array
    seen: Array
    frame: Array
    kept: Array
    plain: Array
    edge_acts: Array
    near: Array
    filled: Array
    free: Array
    out: Array
    round: Array
    turning: Array
    edge_unit: Array
    edge_const: Array
    edge: Array
    encode1: Array
    encode1_bias: Array
    encode2: Array
    encode2_bias: Array
    receiver: Array
    sender: Array
    after: Array
    after_bias: Array
    update_own: Array
    update_heard: Array
    update_bias: Array
    update2: Array
    update2_bias: Array
    weight: Array
    weight_bias: Array
    right: Array
    right_bias: Array
    back_own: Array
    back_into: Array
    back_bias: Array
    back2: Array
    back2_bias: Array
    decode1: Array
    decode1_bias: Array
    decode2: Array
    decode2_bias: Array
    dense: Array
    step: Array
    scale: Array
    offset: Array
    rates: Array
    late_rates: Array
    history: int

    @staticmethod
    def of(under: Hierarchy) -> Weights:
        features, wires, c = learner(under.model), under.wires, under.model.config
        motion, w, d, a = features.motion, features.config.width, c.num_observations, c.num_actions
        n, m = under.topology.num_nodes, len(features.free)
        relation = _numpy(wires.relation)
        rounds: list[Any] = list(features.passes)
        layers = [*rounds, *([] if features.whole is None else [features.whole])]
        # Columns of a node's state and inputs, and which of them enter where.
        columns, on_edges = np.arange(c.num_state + c.num_inputs), features.on_edges
        acted, inputs = columns[c.history * d : c.num_state], columns[c.num_state :]
        given = np.concatenate([inputs[: 0 if c.late_action else a - on_edges], inputs[a:]])
        acts, places = (acted if c.late_action else inputs)[a - on_edges : a], _numpy(wires.places)
        edge_acts = np.full((2 * bool(on_edges), len(relation)), -1)
        if on_edges:
            there = (places >= 0) & (places < on_edges)
            edge_acts = np.where(there, acts[places.clip(0, on_edges - 1)], -1)
        # Edges: differences less their mean, what is known, actions on them.
        unit, told = 1 / _numpy(features.edge_std)[relation], _numpy(wires.edges)[:, 0]
        edge = _numpy(features.edge.weight).reshape(len(layers), w, -1).transpose(0, 2, 1)
        mean = -_numpy(features.edge_mean)[relation] * unit
        edge_const = np.concatenate([mean, told], 1) @ edge[:, : d + told.shape[1]]
        edge_const += _stack([x.sender.bias for x in layers], (0, w))[:, None]
        edge = np.concatenate([edge[:, :d], edge[:, d + told.shape[1] :]], 1)
        # Nodes: own, actions before and [change, where there is one], inputs, what is known, latent numbers.
        first, own, lag = _turned(features.encode[0].weight), len(motion.kept) + len(acted), (c.history == 2) * d
        late = a - on_edges if c.late_action else 0  # zeros in their place
        taken = own + lag + late + len(given)
        encode1 = np.concatenate([first[:own], first[own + lag + late : taken], first[own : own + lag]])
        known = [_numpy(wires.nodes)[:, 0], np.broadcast_to(_numpy(under.latent), (n, features.config.latent))]
        M, decode, s = _numpy(under.M), features.decode[2], features.whole
        pairs = motion.pairs((0, 1)) if motion.frame is not None else []
        parts: list[Any] = [
            wires.senders, wires.receivers, _pairs([*pairs, motion.frame] if motion.frame is not None else []),
            motion.frame or [], motion.kept, np.concatenate([acted, given]), edge_acts,
            np.zeros((0, 0)) if under.near is None else under.near.near, filled(wires, n), features.free, _pairs(pairs),
            _pairs(motion.circles), _numpy(motion.moved_mask) + 2 * _numpy(motion.angles_mask),
            unit, edge_const, edge, encode1, np.concatenate(known, 1) @ first[taken:] + _numpy(features.encode[0].bias),
            _turned(features.encode[2].weight), features.encode[2].bias,
            *(_stack([_turned(getattr(x, name).weight) for x in layers], (0, w, w)) for name in ("receiver", "sender")),
            _stack([_turned(x.after[1].weight) for x in rounds], (0, w, w)),
            _stack([x.after[1].bias for x in rounds], (0, w)),
            _stack([_turned(x.update[0].weight)[:w] for x in rounds], (0, w, w)),
            _stack([_turned(x.update[0].weight)[w:] for x in rounds], (0, w, w)),
            _stack([x.update[0].bias for x in rounds], (0, w)),
            _stack([_turned(x.update[2].weight) for x in rounds], (0, w, w)),
            _stack([x.update[2].bias for x in rounds], (0, w)),
            *([np.zeros(of) for of in ((w, 0), 0, (w, 0), 0, (w, w), (0, w), w, (w, w), w)] if s is None else [
                _turned(s.weight[1].weight), s.weight[1].bias, _turned(s.right.weight), s.right.bias,
                _turned(s.back[0].weight)[:w], _turned(s.back[0].weight)[w:], s.back[0].bias,
                _turned(s.back[2].weight), s.back[2].bias]),
            _turned(features.decode[0].weight), features.decode[0].bias, _turned(decode.weight) @ M[:w],
            _numpy(decode.bias) @ M[:w] + M[w], np.zeros((n, 0, m)) if under.W is None else under.W,
            motion.step, motion.scale, motion.offset, motion.rates, motion.late_rates,
        ]  # fmt: skip
        kinds = [np.int64] * Weights._fields.index("edge_unit") + [np.float32] * len(parts)
        arrays = [np.ascontiguousarray(_numpy(part), kind) for part, kind in zip(parts, kinds, strict=False)]
        every: list[Any] = [*arrays, int(c.history)]
        return Weights(*every)


def _numpy(part: Any) -> Array:
    return part.detach().numpy() if isinstance(part, Tensor) else np.asarray(part)


def _turned(weight: Any) -> Array:
    return _numpy(weight).T


def _stack(parts: Sequence[Any], empty: tuple[int, ...]) -> Array:
    return np.stack([_numpy(part) for part in parts]) if parts else np.zeros(empty)


def _pairs(pairs: Sequence[Sequence[int]]) -> Array:
    return np.array([list(pair) for pair in pairs], np.int64).reshape(-1, 2)


class Reach(NamedTuple):
    """Which pairs (node, i) a target of i is felt by, on the way back: first (i, i), then one hop further a round.

    node, seed: of the pairs of level k from level[k] on; up: which pair of the next level each is. Of rounds, from
    edges[k] on: the edge, its place among edges x nodes, the pair of its receiver and that of its sender one level on.
    """

    node: Array
    seed: Array
    level: Array
    up: Array
    edges: Array
    on: Array
    of: Array
    receiver: Array
    sender: Array
    every: Array

    @staticmethod
    def of_rounds(W: Weights) -> Reach:
        n, channels, rounds = len(W.encode1_bias), W.right.shape[1], len(W.after)
        felt, levels, ups, on = np.eye(n, dtype=bool), [], [], []
        for step in range(rounds + 1):
            levels.append(felt)
            if step == rounds:
                break
            wider = felt.copy()
            np.logical_or.at(wider, W.senders, felt[W.receivers])
            edge, seed = np.nonzero(felt[W.receivers])
            here, there = _places(felt), _places(wider)
            ups.append(there[felt])
            on.append((edge, edge * n + seed, here[W.receivers[edge], seed], there[W.senders[edge], seed]))
            felt = wider
            if channels and rounds - 1 - step == rounds // 2:
                levels.append(felt)
                ups.append(np.flatnonzero(felt))
                felt = np.ones_like(felt)
        node, seed = (np.concatenate([np.nonzero(level)[k] for level in levels]) for k in (0, 1))
        ends = [np.cumsum([0, *(len(part) for part in parts)]) for parts in (ups, [each[0] for each in on])]
        parts: list[Any] = [np.concatenate([each[k] for each in on]) if on else np.zeros(0, int) for k in range(4)]
        ends[0] = np.cumsum([0, *(int(level.sum()) for level in levels)])
        up = np.concatenate(ups) if ups else np.zeros(0, int)
        of, receiver, sender = parts[1:]
        return Reach(node, seed, ends[0], up, ends[1], parts[0], of, receiver, sender, np.arange(len(W.senders)))


def _places(chosen: Bool[Array, "nodes seeds"]) -> Array:
    """Which of the chosen pairs each is."""
    places = np.full(chosen.shape, -1)
    places[chosen] = np.arange(int(chosen.sum()))
    return places


def filled(wires: Any, n: int) -> Array:
    """Where the factors of a matrix of the graph are not zero."""
    found = np.eye(n, dtype=np.int64)
    found[_numpy(wires.receivers), _numpy(wires.senders)] = 1
    for p in range(n):
        found[p + 1 :, p + 1 :] |= found[p + 1 :, p : p + 1] & found[p : p + 1, p + 1 :]
    return found


class Parts(NamedTuple):
    """What of a system every plan needs."""

    weights: Weights
    reach: Reach

    def room(self, states: int, slopes: bool = False) -> Array:
        """Numbers that kernels need at once."""
        return np.empty(needed(self.weights, states, slopes), np.float32)


def needed(W: Weights, states: int, slopes: bool) -> int:
    n, E, (P, w), R, k = len(W.encode1_bias), len(W.senders), W.encode1.shape, len(W.after), W.right.shape[1]
    Q, m, C = W.edge.shape[1], W.decode2.shape[1], 4 * len(W.step) + P
    there = states * (n * (P + C + m + (8 + R) * w + k + n * k) + E * (Q + k + (3 + 2 * R) * w))
    back = n * m * (n * (C + P + k + 5 * w) + E * (Q + k + 2 * w)) if slopes else 0
    return there + back + 4096


_known: WeakKeyDictionary[GeneralSystem, Parts | None] = WeakKeyDictionary()


def parts_of(system: GeneralSystem) -> Parts | None:
    """Once for each system; None where kernels do not serve it."""
    if system not in _known:
        weights = Weights.of(system.hierarchy) if available() and str(system.model.dtype) == "torch.float32" else None
        small = weights is not None and needed(weights, general_slopes_compiled.ROWS, True) < LARGEST
        _known[system] = Parts(weights, Reach.of_rounds(weights)) if weights is not None and small else None
        if small:
            say_compiling(general_compiled.rollout, general_slopes_compiled.slopes)
    return _known[system]
