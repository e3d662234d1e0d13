"""An adapted system to first order around one state, for graphs of any size: x' = A x + B u + c, A and B sparse.

A node's next state depends on few others: those within reach of the encoder's rounds and of the mean field. Nodes whose
reaches do not overlap share one backward pass through the model (Curtis, Powell and Reid 1974), so that the number of
passes does not grow with the graph.

The anchor is the mean of the recorded observations. It suits systems that stay near it, as voltages do. Where a system
is noisy, derivatives are means over states about it (`around`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array, csr_array, eye_array
from torch import Tensor

from gce.control.graph_path import LinearPath
from gce.control.tracking import Selection, hurry
from gce.dynamics.state import state_class
from gce.errors import InputError
from gce.graphs.topology import Topology
from gce.system.system import System

Array = np.ndarray
DENSE = 0.2
"""Share of entries beyond which a product with a full matrix is faster."""
TOGETHER = 20_000
"""Edges times backward passes taken at once."""


@dataclass(frozen=True)
class Linear:
    """x' = A x + B a + c, nodes flattened, a column of B for every action of every node; A dense if hardly sparse."""

    A: csr_array | Array
    B: csr_array
    c: Float[Array, " s"]


def reach(topology: Topology, hops: int) -> csr_array:
    """Which nodes are within so many edges, or hyperedges, of which, [nodes, nodes]."""
    N = topology.num_nodes
    edges = (np.ones(topology.num_edges), (topology.receivers.numpy(), topology.senders.numpy()))
    near = csr_array(edges, shape=(N, N)) + eye_array(N)
    if (known := topology.hyperedges) is not None:
        members = (np.ones(len(known.node)), (known.node.numpy(), known.number.numpy()))
        near = near + (of := csr_array(members, shape=(N, known.count))) @ of.T
    step = csr_array(near > 0, dtype=np.int8)
    found = step
    if hops >= N:  # a network may fall apart, but then nothing is gained by knowing
        return csr_array(np.ones((N, N), np.int8))
    for _ in range(hops - 1):
        found = csr_array((found.astype(np.int32) @ step) > 0, dtype=np.int8)
    return found


def coloured(near: csr_array) -> Int[Array, " nodes"]:
    """A colour for each node, so that no node is near two of one colour; greedy."""
    N = near.shape[0]
    heard = csr_array(near.T)
    colours = np.full(N, -1)
    for i in range(N):
        hurry()
        mine = near.indices[near.indptr[i] : near.indptr[i + 1]]
        taken = np.unique(np.concatenate([heard.indices[heard.indptr[j] : heard.indptr[j + 1]] for j in mine]))
        used = np.unique(colours[taken])
        used = used[used >= 0]
        gaps = np.flatnonzero(used != np.arange(len(used)))
        colours[i] = gaps[0] if len(gaps) else len(used)
    return colours


_known: WeakKeyDictionary[System, Linear] = WeakKeyDictionary()


def linear(system: System) -> Linear:
    """The model of a system to first order around the mean observation, once for each system."""
    if system not in _known:
        _known[system] = _linear(system)
    return _known[system]


def _linear(system: System) -> Linear:
    topology, c = system.topology, system.model.config
    N, width = topology.num_nodes, c.num_state
    pull, constant = state_class(system).pullback(system)
    near = reach(topology, system.model.features.reach(topology))
    colours = coloured(near)
    count = np.diff(near.indptr)
    A, B = [], []
    seeds = [(k, np.flatnonzero(colours == colour)) for colour in range(colours.max() + 1) for k in range(width)]
    together = max(1, TOGETHER // topology.num_edges)
    for first in range(0, len(seeds), together):
        hurry()
        some = seeds[first : first + together]
        every = np.zeros((len(some), N, width), np.float32)
        for one, (k, mine) in zip(every, some, strict=True):
            one[mine, k] = 1
        for (k, mine), by_x, by_inputs in zip(some, *pull(every), strict=True):
            receivers = np.repeat(mine, count[mine])
            senders = np.concatenate([near.indices[near.indptr[i] : near.indptr[i + 1]] for i in mine])
            A.append(_entries(receivers * width + k, senders, by_x))
            B.append(_entries(receivers * width + k, senders, by_inputs))
    found = _joined(A, (N * width, N * width))
    dense = found.nnz > DENSE * np.prod(found.shape)
    return Linear(found.toarray() if dense else found, _joined(B, (N * width, N * c.num_inputs)), constant)


def _entries(rows: Array, senders: Array, by: Float[Array, "nodes d"]) -> tuple[Array, Array, Array]:
    """(values, rows, columns) of derivatives by the coordinates of senders."""
    d = by.shape[1]
    columns = (senders[:, None] * d + np.arange(d)).reshape(-1)
    return by[senders].astype(np.float64).reshape(-1), np.repeat(rows, d), columns


def _joined(parts: list[tuple[Array, Array, Array]], shape: tuple[int, int]) -> csr_array:
    values, rows, columns = (np.concatenate(part) for part in zip(*parts, strict=True))
    kept = values != 0
    return csr_array(coo_array((values[kept], (rows[kept], columns[kept])), shape=shape))


@dataclass(frozen=True, eq=False)
class AnchoredDynamics:
    """The linear dynamics of the state of all nodes.

    controls: which (node, action) entries are planned; the others stay 0. exogenous: known inputs at every step,
    normalised.
    """

    system: System
    controls: Bool[Array, "nodes a"]
    exogenous: Float[Tensor, "M nodes e"] | None = None

    def __post_init__(self) -> None:
        if not self.system.model.features.linear or self.system.graph.tied is not None:
            raise InputError("plans around one state are for nodes without ties and features without channels")

    along_paths: ClassVar[bool] = False

    @property
    def ready(self) -> bool:
        """Whether the first prediction needs no derivatives before."""
        return self.system in _known

    def frozen_at(self, x0: Float[Array, " s"]) -> AnchoredDynamics:
        """Itself: it is linear."""
        return self

    def after_opening(self) -> AnchoredDynamics:
        return self

    def reduced(self, states: Float[Tensor, "*batch nodes c"]) -> Float[Array, "*batch s"]:
        """The planner's state behind a state of the model."""
        return states.flatten(-2).double().numpy()

    def lifted(self, x: Float[Array, "*batch s"]) -> Float[Tensor, "*batch nodes c"]:
        """The model's state behind a state of the planner."""
        return torch.as_tensor(x, dtype=torch.float32).unflatten(-1, (self.system.graph.num_nodes, -1))

    @cached_property
    def _B(self) -> csr_array:
        """Of the planned controls."""
        node, action = np.nonzero(self.controls)
        return csr_array(linear(self.system).B[:, node * self.system.model.config.num_inputs + action])

    def _constants(self, steps: int) -> Float[Array, "steps s"]:
        known = linear(self.system)
        if self.exogenous is None:
            return np.broadcast_to(known.c, (steps, len(known.c)))
        inputs = self.system.model.config.num_inputs
        at = (np.arange(len(self.controls))[:, None] * inputs + np.arange(self.controls.shape[1], inputs)).reshape(-1)
        return known.c + (known.B[:, at] @ self.exogenous[:steps].flatten(1).double().numpy().T).T

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        many = u.reshape(-1, *u.shape[-2:])
        path = self.path(x0, np.empty((0, len(x0))), many[0])
        return np.stack([path.forward(one) for one in many]).reshape(*u.shape[:-1], -1)

    def path(self, x0: Float[Array, " s"], x: Float[Array, "steps s"], u: Float[Array, "M n"]) -> LinearPath:
        return LinearPath(linear(self.system).A, self._B, self._constants(len(u)), x0)

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        """The normalised observations of all nodes."""
        return x[..., self._observed]

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        """The outputs at observations to be reached."""
        return self.system.outputs_at(observations, "observations")

    def output_slopes(self, x: Float[Array, "M s"]) -> Selection:
        return Selection(self._observed, np.ones((1, len(self._observed))), x.shape[-1])

    @cached_property
    def _observed(self) -> Array:
        c = self.system.model.config
        first = np.arange(self.system.graph.num_nodes) * c.num_state
        return (first[:, None] + np.arange(c.num_observations)).reshape(-1)
