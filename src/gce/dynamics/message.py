"""A system of a message-passing model as dynamics for a planner, in plain arrays; see `message_kernel`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float

from gce.control.settle import dense_path
from gce.control.tracking import DensePath, hurry
from gce.dynamics import message_compiled, message_slopes_compiled
from gce.dynamics.compiled import available, say_compiling
from gce.dynamics.message_kernel import MessageStep
from gce.dynamics.state import Pull, StateDynamics
from gce.model.step import Stepper
from gce.system.system import System

Array = np.ndarray
ROWS = 8
"""How many states are gone back through at once: what is kept of them should fit into the processor's cache."""
NOISY, PAIRS, SPREAD = 0.2, 3, 2.0
"""Noise of a step, in units of the observation, from which slopes are means over so many pairs of states; how many
times the noise of a step these are thrown about, since it builds up over steps."""


class Weights(NamedTuple):
    """Arrays of a `MessageStep`, joined where products can be, and their transposes.

    told [inputs, rounds e]; heard [rounds, w, e + e + w]: of receivers, of senders, own. Shapes are not compiled in.
    """

    senders: Array
    receivers: Array
    chosen: Array
    moving: Array
    node_attributes: Array
    edge_attributes: Array
    difference_mean: Array
    difference_std: Array
    columns: Array
    units: Array
    edge_units: Array
    told: Array
    relation: Array
    heard: Array
    message: Array
    bias: Array
    node_type: Array
    output: Array
    output_bias: Array
    to_linear: Array
    own_mean: Array
    told_back: Array
    heard_back: Array
    message_back: Array
    output_back: Array
    own_mean_back: Array
    to_linear_back: Array
    bound: float
    concentration: float
    conservative: bool

    @staticmethod
    def of(step: MessageStep) -> Weights | None:
        """None where the model is not of single precision, or a node's inputs are wider than its layers."""
        (R, _, e), w = step.told_by.shape, step.own[0].shape[1]
        k = step.own[0].shape[0]
        if step.told_by.dtype != np.float32 or k > w or len(step.message) != len(step.own):
            return None

        def tall(matrix: Array) -> Array:
            return np.concatenate([matrix, np.zeros((w - len(matrix), matrix.shape[1]), np.float32)])

        rounds = len(step.message)
        own = [tall(step.own[r]) if r < rounds else np.zeros((w, w), np.float32) for r in range(R)]
        parts = [[tall(part) for part in both] + [mine] for both, mine in zip(step.heard_by, own, strict=True)]
        g, edges, f = step.geometry, len(step.wiring.senders), step.output[0].shape[1]
        attributes = step.node_attributes[:, 0], step.edge_attributes[:, 0]
        geometry = np.zeros((0, edges)) if g is None else np.stack([g.length_mean, g.length_std, g.rate_std])[..., 0]
        heard, own_mean = np.stack([np.concatenate(p, 1) for p in parts]), [step.own_part, step.mean_part]
        message = np.stack([W for W, _ in step.message])
        found = [
            step.wiring.senders, step.wiring.receivers, np.array(step.chosen), np.array(step.moving), *attributes,
            step.difference_mean[:, 0], step.difference_std[:, 0],
            np.array(() if g is None else g.columns), np.array(() if g is None else g.units), geometry,
            step.told_by.transpose(1, 0, 2).reshape(-1, R * e),
            step.relation[:, :, 0].transpose(1, 0, 2).reshape(-1, R * e), heard,
            message, np.stack([b for _, b in step.message]), step.node_type[:, 0], step.output[0],
            np.zeros(f) if step.output[1] is None else step.output[1], step.to_linear, np.concatenate(own_mean, 1),
            step.told_by.transpose(0, 2, 1).reshape(R * e, -1),
            np.stack([np.concatenate([q.T for q in p]) for p in parts]), message.transpose(0, 2, 1), step.output[0].T,
            np.concatenate([part.T for part in own_mean]), step.to_linear.transpose(0, 2, 1),
        ]  # fmt: skip
        whole = {0, 1, 2, 3, 8}
        arrays: list[Any] = [
            np.ascontiguousarray(a, np.int64 if k in whole else np.float32) for k, a in enumerate(found)
        ]
        arrays += [float(step.bound), float(step.concentration), bool(step.conservative)]
        return Weights(*arrays)

    def scratch(self, cotangents: int) -> Array:
        """Room for the way back with so many cotangents at once, and for the way there."""
        edges, nodes, w = len(self.senders), len(self.node_type), self.heard.shape[1]
        e_all, e, seen = self.told.shape[1], self.message.shape[1], self.told.shape[0]
        f, width = self.own_mean.shape[0], max(w, e, self.output.shape[1])
        there = edges * (2 * e_all + seen + 12 + 2 * f) + nodes * (8 * w + 4 * e + 8 * f) * (2 + len(self.message))
        back = cotangents * (edges * (2 * seen + 2 * width + 8) + nodes * (3 * width + 3 * e + 2 * f + 8 + width))
        return np.empty(there + back + 4096, np.float32)


def slopes_of(W: Weights, x: Float[Array, "M nodes c"], moving: Float[Array, "nodes m"], room: Array) -> Array:
    """By the state [M, nodes, m, nodes, c], of the targets that move."""
    (M, N, c), m = x.shape, moving.shape[1]
    node, target = (np.ascontiguousarray(k) for k in np.nonzero(moving))  # one type, or it is compiled twice
    by = np.empty((M, len(node), N, c), np.float32)
    message_slopes_compiled.slopes(W, x, node, target, room, by)
    found = np.zeros((M, N, m, N, c), np.float32)
    found[:, node, target] = by
    return found


@dataclass(frozen=True)
class Parts:
    """What of a system every plan needs.

    push [nodes, m, nodes, inputs], still [nodes, m]: what inputs and constants add to the targets. moving [nodes, m]:
    0 where a target is held. o' = o keep + y spread.
    compiled: for kernels, where they are at hand, and room for them.
    """

    step: MessageStep
    push: Float[Array, "nodes m nodes inputs"]
    still: Float[Array, "nodes m"]
    moving: Float[Array, "nodes m"]
    keep: Float[Array, "d d"]
    spread: Float[Array, "m d"]
    compiled: Weights | None
    room: Float[Array, " numbers"]

    @staticmethod
    def of(system: System) -> Parts:
        model, topology = system.model, system.topology
        nodes, inputs, m = topology.num_nodes, model.config.num_inputs, len(model.free)
        with torch.no_grad():
            step = Stepper(model, [system.operator], topology, reproject=True)
            each = torch.eye(nodes * inputs, dtype=model.dtype).reshape(-1, nodes, inputs)
            still = step.drive(0 * each[:1], None).push
            push = (step.drive(each, None).push - still).numpy().transpose(0, 2, 1)
        moving = (~model.held[topology.node_type][:, :m]).to(model.dtype)
        keep, spread = model.motion()
        kernel = MessageStep.of(model, system.operator, topology)
        weights = Weights.of(kernel) if available() else None
        if weights is not None:
            say_compiling(message_compiled.rollout, message_slopes_compiled.slopes)
        return Parts(
            kernel,
            np.ascontiguousarray(push).reshape(nodes, m, nodes, inputs),
            still[:, 0].numpy(),
            moving.numpy(),
            np.ascontiguousarray(keep.numpy()),
            np.ascontiguousarray(spread.numpy()),
            weights,
            np.empty(0) if weights is None else weights.scratch(int(moving.sum())),
        )


_known: WeakKeyDictionary[System, Parts] = WeakKeyDictionary()


def parts_of(system: System) -> Parts:
    """Once for each system, and again where its model has changed its precision."""
    found = _known.get(system)
    if found is None or str(found.keep.dtype) != str(system.model.dtype).removeprefix("torch."):
        found = _known[system] = Parts.of(system)
    return found


class MessageDynamics(StateDynamics):
    """The numbers of `StateDynamics`, many times faster."""

    @classmethod
    def fits(cls, system: System) -> bool:
        return MessageStep.fits(system.model, system.topology)

    @classmethod
    def pullback(cls, system: System) -> tuple[Pull, Float[Array, " s"]]:
        if system.model.config.num_state != system.model.config.num_observations:
            return super().pullback(system)
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
            still = Stepper(model, [system.operator], topology, reproject=True)
            push = still.drive(torch.zeros(1, topology.num_nodes, inputs), None).push[:, 0].numpy()
        hurry()
        following = ((step.targets(x).mean(1) + push) * moving) @ spread
        return pull, following.astype(np.float64).reshape(-1)

    def rollout(self, x0: Float[Array, "*#batch s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        parts = parts_of(self.system)
        (M, n), nodes, c = u.shape[-2:], len(self.controls), self.system.model.config
        many = u.reshape(-1, M, n)
        x = np.broadcast_to(x0, (*u.shape[:-2], x0.shape[-1])).reshape(len(many), nodes, -1).transpose(1, 0, 2)
        x = np.ascontiguousarray(x, dtype=parts.keep.dtype)
        pushed = self._pushed(parts, many)
        acting = self._acting(many) if c.previous_action else None
        found = np.empty((len(many), M, *x.shape[::2]))
        if parts.compiled is not None:
            none = np.empty((*pushed.shape[1:3], nodes, 0), np.float32)
            acted = none if acting is None else np.ascontiguousarray(acting.transpose(1, 2, 0, 3))
            starts, pushes = x.transpose(1, 0, 2), pushed.transpose(1, 2, 0, 3)
            message_compiled.rollout(
                parts.compiled, np.ascontiguousarray(starts), np.ascontiguousarray(pushes), parts.keep, parts.spread,
                parts.moving, c.history, acted, self._fresh_at(0), parts.room, found,
            )  # fmt: skip
            return found.reshape(*u.shape[:-1], -1)
        with np.errstate(all="ignore"):
            for t in range(M):
                x = self._following(parts, t, x, pushed[:, :, t], None if acting is None else acting[:, :, t])
                found[:, t] = x.transpose(1, 0, 2)
        return found.reshape(*u.shape[:-1], -1)

    def _following(self, parts: Parts, t: int, x: Array, pushed: Array, acting: Array | None) -> Array:
        """One step of states [nodes, batch, c]."""
        c = self.system.model.config
        d = c.num_observations
        y = pushed if self._fresh_at(t) else parts.step.targets(x) + pushed
        o = x[..., :d] @ parts.keep + (y * parts.moving[:, None]) @ parts.spread
        if c.num_state == d:
            return o
        known = [o, *([x[..., :d]] if c.history == 2 else []), *([] if acting is None else [acting])]
        return np.concatenate(known, axis=-1)

    def _fresh_at(self, t: int) -> bool:
        return self.opening and t == 0 and self.system.model.config.fresh_start

    def _acting(self, many: Float[Array, "batch M n"]) -> Float[Array, "nodes batch M a"]:
        """The actions of all nodes."""
        actions = np.zeros((*many.shape[:2], *self.controls.shape), parts_of(self.system).keep.dtype)
        actions[..., self.controls] = many
        return actions.transpose(2, 0, 1, 3)

    def _pushed(self, parts: Parts, many: Float[Array, "batch M n"]) -> Float[Array, "nodes batch M m"]:
        """What inputs and constants add to the targets of every step."""
        dtype, (nodes, m) = parts.keep.dtype, parts.still.shape
        actions = self._acting(many).transpose(1, 2, 0, 3)
        if self.exogenous is not None:
            known = np.broadcast_to(
                self.exogenous[: many.shape[1]].numpy(), (*actions.shape[:-1], self.exogenous.shape[-1])
            )
            actions = np.concatenate([actions, known.astype(dtype)], axis=-1)
        acting = actions.reshape(*many.shape[:2], -1)
        found = acting @ parts.push.reshape(nodes * m, -1).T + parts.still.reshape(-1)
        if self._fresh_at(0):
            found[:, 0] -= parts.still.reshape(-1)
        return found.reshape(*many.shape[:2], nodes, m).transpose(2, 0, 1, 3)

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        """Derivatives by hand, all steps at once."""
        parts, c = parts_of(self.system), self.system.model.config
        nodes, M, n, d = len(self.controls), len(u), u.shape[1], c.num_observations
        earlier = np.concatenate([x0[None], x[:-1]]).reshape(M, nodes, -1).astype(parts.keep.dtype)
        width = earlier.shape[-1]
        by_x = self._slopes(parts, earlier.transpose(1, 0, 2))
        if self._fresh_at(0):
            by_x[0] = 0
        A, B = np.zeros((M, nodes, width, nodes, width)), np.zeros((nodes, width, n))
        A[:, :, :d] = np.matmul(parts.spread.T, by_x).reshape(M, nodes, d, nodes, width)
        for j in range(nodes):
            A[:, j, :d, j, :d] += parts.keep.T
        acting = (parts.moving[..., None, None] * parts.push)[..., : c.num_actions][:, :, self.controls]
        B[:, :d] = np.matmul(parts.spread.T, acting)
        if c.history == 2:
            for j in range(nodes):
                A[:, j, d : 2 * d, j, :d] = np.eye(d)
        if c.previous_action:
            B[:, width - c.num_actions :][self.controls] = np.eye(n)
        B = np.broadcast_to(B.reshape(nodes * width, n), (M, nodes * width, n))
        return dense_path(A.reshape(M, nodes * width, -1), B, x0, x, u)

    def _slopes(self, parts: Parts, x: Float[Array, "nodes M c"]) -> Float[Array, "M nodes m s"]:
        """Of the targets, by the state."""
        (nodes, m), M, c = parts.still.shape, *x.shape[1:]
        if parts.compiled is not None:
            states = np.ascontiguousarray(x.transpose(1, 0, 2))
            by = slopes_of(parts.compiled, states, parts.moving, parts.room)
            return by.reshape(M, nodes, m, nodes * c)
        node, target = np.nonzero(parts.moving)
        seeds = np.zeros((m, nodes, len(node), 1), x.dtype)
        seeds[target, node, np.arange(len(node))] = 1
        found = np.zeros((M, nodes, m, nodes, c), x.dtype)
        for first in range(0, M, ROWS):
            rows = np.ascontiguousarray(x[:, first : first + ROWS])
            every = np.ascontiguousarray(np.broadcast_to(seeds, (*seeds.shape[:3], rows.shape[1])))
            by_x = parts.step.pull(parts.step.kept(rows), every)
            found[first : first + ROWS, node, target] = by_x.transpose(3, 2, 1, 0)
        return found.reshape(M, nodes, m, nodes * c)


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
