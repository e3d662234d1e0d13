"""An adapted system to first order around one state, for graphs of any size: x' = A x + B u + c, A and B sparse.

A node's next state depends on few others: those within reach of the encoder's rounds and of the mean field. Nodes whose
reaches do not overlap share one backward pass through the model (Curtis, Powell and Reid 1974), so that the number of
passes does not grow with the graph.

The anchor is the mean of the recorded observations. It suits systems that stay near it, as voltages do. Where a system
is noisy, derivatives are means over states about it (`around`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array, csr_array, eye_array
from torch import Tensor

from gce.control.linear_path import LinearPath
from gce.control.tracking import Selection
from gce.dynamics.message_kernel import MessageStep
from gce.errors import InputError
from gce.graphs.topology import Topology
from gce.system.system import System

Array = np.ndarray
DENSE = 0.2
"""Share of entries beyond which a product with a full matrix is faster."""
TOGETHER = 20_000
"""Edges times backward passes taken at once."""
NOISY, PAIRS, SPREAD = 0.2, 3, 2.0
"""Noise of a step, in units of the observation, from which slopes are means over so many pairs of states; how many
times the noise of a step these are thrown about, since it builds up over steps."""


@dataclass(frozen=True)
class Linear:
    """x' = A x + B a + c, nodes flattened, a column of B for every action of every node; A dense if hardly sparse."""

    A: csr_array | Array
    B: csr_array
    c: Float[Array, " s"]


def reach(topology: Topology, hops: int) -> csr_array:
    """Which nodes are within so many edges of which, [nodes, nodes]."""
    N = topology.num_nodes
    edges = (np.ones(topology.num_edges), (topology.receivers.numpy(), topology.senders.numpy()))
    step = csr_array((csr_array(edges, shape=(N, N)) + eye_array(N)) > 0, dtype=np.int8)
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
    pull, constant = _by_hand(system) if _plain(system) else _by_autograd(system)
    near = reach(topology, N if c.network else c.rounds + c.conservative + 1)
    colours = coloured(near)
    count = np.diff(near.indptr)
    A, B = [], []
    seeds = [(k, np.flatnonzero(colours == colour)) for colour in range(colours.max() + 1) for k in range(width)]
    together = max(1, TOGETHER // topology.num_edges)
    for first in range(0, len(seeds), together):
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


Pull = Callable[[Array], tuple[Array, Array]]
"""Cotangents [k, nodes, c] of the next state to those of the state and of the inputs [k, nodes, inputs]."""


def around(system: System) -> Float[Array, "nodes rows c"]:
    """The mean observation; where a system is noisy, states about it in pairs, as far off as its noise throws them.

    Noise is what one step of the fitted operator leaves unexplained. Features that are bent within its reach have
    slopes at one state that no state keeps: their mean over the noise counts (statistical linearisation, Gelb 1974).
    """
    model, c = system.model, system.model.config
    residual = system.operator.residual
    std = residual.diagonal(dim1=-2, dim2=-1).reshape(-1, residual.shape[-1]).mean(0)[: len(model.free)].sqrt().numpy()
    if std.max() < NOISY:
        return np.zeros((system.graph.num_nodes, 1, c.num_state), np.float32)
    found = np.zeros((system.graph.num_nodes, 2 * PAIRS, c.num_state), np.float32)
    thrown = np.random.default_rng(0).standard_normal((system.graph.num_nodes, PAIRS, len(std)))
    found[..., model.free] = SPREAD * std * np.concatenate([thrown, -thrown], axis=1)
    return found


def _by_autograd(system: System) -> tuple[Pull, Float[Array, " s"]]:
    """(the way back through a step from the mean observation, the state it leads to)."""
    model, topology, c = system.model, system.topology, system.model.config
    x = torch.zeros(topology.num_nodes, c.num_state, requires_grad=True)
    inputs = torch.zeros(topology.num_nodes, c.num_inputs, requires_grad=True)
    step = model.stepper([system.operator], topology, reproject=False)
    after = step(model.features(x, topology), inputs)[0]

    def pull(every: Array) -> tuple[Array, Array]:
        found = [torch.autograd.grad(after, (x, inputs), torch.as_tensor(o), retain_graph=True) for o in every]
        by_x, by_inputs = zip(*found, strict=True)
        return torch.stack(by_x).numpy(), torch.stack(by_inputs).numpy()

    return pull, after.detach().double().flatten().numpy()


def _plain(system: System) -> bool:
    """Whether the state is the observation and a step is known by hand."""
    c = system.model.config
    return c.num_state == c.num_observations and MessageStep.fits(system.model, system.topology)


def _by_hand(system: System) -> tuple[Pull, Float[Array, " s"]]:
    """The same through `message_step`."""
    model, topology, c = system.model, system.topology, system.model.config
    m, inputs = len(model.free), c.num_inputs
    step = MessageStep.of(model, system.operator, topology)
    x = around(system)
    rows = x.shape[1]
    kept = step.kept(x)
    keep, spread = (part.numpy() for part in model.motion())
    moving = (~model.held[topology.node_type][:, :m]).float().numpy()
    C = system.operator.coefficients[:, :m].float().numpy()
    first = model.form.num_state_regressors(topology)
    by_relation = C[first : first + c.num_relations * inputs].reshape(c.num_relations, inputs, m)
    acting = by_relation[topology.edge_type.numpy()] * (not c.late_action)

    def pull(every: Array) -> tuple[Array, Array]:
        by_y = np.einsum("knd,md,nm->mnk", every, spread, moving)
        at_each = np.ascontiguousarray(np.repeat(by_y[..., None] / np.float32(rows), rows, axis=-1))
        by_x = every @ keep.T + step.pull(kept, at_each).sum(-1).transpose(2, 1, 0)
        heard = np.einsum("eam,mek->eka", acting, by_y[:, step.wiring.receivers])
        return by_x, step.wiring.out(heard).transpose(1, 0, 2)

    with torch.no_grad():
        still = model.stepper([system.operator], topology, reproject=True)
        push = still.drive(torch.zeros(1, topology.num_nodes, inputs), None).push[:, 0].numpy()
    following = ((step.targets(x).mean(1) + push) * moving) @ spread
    return pull, following.astype(np.float64).reshape(-1)


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
        model = self.system.model
        if model.implicit is not None or self.system.graph.tied is not None:
            raise InputError("plans around one state are for nodes without ties and features without channels")

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
