"""Derivatives of a step of a body of tied points, by the implicit function theorem: all steps of a path at once.

The velocity change y of the corners under one head solves, with D the difference across a pair p,

    R(Q, V, a, y) = diag(m) y + sum_p D_p' [ h_p u_p (u_p . D_p y) - f_p ] = 0

u = DQ / |DQ|, and f_p the pair's push: along u by its stretch and rate, along the pair's earlier direction e by the
action. So dy = -(diag(m) + G' h G)^-1 dR at fixed y, and dR is a sum of 2 x 2 blocks, one a pair. A medium's resistance
acts on single corners in the same way. Symbols are those of `bodies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from gce.dynamics.bodies import BodyFrame, BodyPairs, BodyStep, Outer

Array = np.ndarray
ROWS = 16
"""How many steps are worked out together: what is kept of them should fit into the processor's cache."""


@dataclass(frozen=True)
class Slopes:
    """d (velocity change of corner i) / d (position, velocity of corner j; action of node k), physical units."""

    by_position: Float[Array, "steps i2 j2"]
    by_velocity: Float[Array, "steps i2 j2"]
    by_action: Float[Array, "steps i2 nodes"]


def slopes(
    step: BodyStep,
    Q: Float[Array, "steps points 2"],
    V: Float[Array, "steps points 2"],
    a: Float[Array, "steps nodes"],
) -> Slopes:
    """At positions and velocities of all nodes' points, physical units, and previous actions, normalised."""
    size = 2 * len(step.mass)
    every = np.empty((len(Q), size, 2 * size + a.shape[1]))
    for first in range(0, len(Q), ROWS):
        some = slice(first, first + ROWS)
        every[some] = _slopes(step, Q[some], V[some], a[some])
    return Slopes(every[..., :size], every[..., size : 2 * size], every[..., 2 * size :])


def _slopes(step: BodyStep, Q: Array, V: Array, a: Array) -> Float[Array, "steps i2 columns"]:
    """dy = -(diag(m) + G' h G)^-1 dR, summed over the heads."""
    pairs = step.pairs_at(step.points, Q, V, a)
    inverse = np.linalg.inv(step.coupled(pairs.u))
    y = (inverse @ step.felt(pairs, step.points, Q, V, a)).reshape(*inverse.shape[:2], -1, 2)
    blocks = _of_pairs(step, pairs, y)
    if step.outer is not None:
        more = _of_ends(step, step.outer, step.points, Q, V, a)
        blocks = [np.concatenate(both, axis=2) for both in zip(blocks, more, strict=True)]
    tables = zip(step.incidences, blocks, strict=True)
    dR = np.concatenate([assembled(table, block, len(step.mass)) for table, block in tables], axis=-1)
    return (inverse @ dR).sum(1)


def _of_pairs(step: BodyStep, pairs: BodyPairs, y: Float[Array, "steps heads corners 2"]) -> list[Array]:
    """d (f - h u (u . Dy)) by DQ, DV [steps, heads, pairs, 2, 2] and the action [steps, heads, pairs, 2, 1].

    Of u by DQ it is P = (1 - u u') / |DQ|, and of e likewise.
    """
    _, c1, c2, c3 = step.push.transpose(1, 0, 2)[..., None]  # [heads, pairs, 1]
    u, e, h = pairs.u[:, None], pairs.e[:, None], step.coupling[..., None]
    P_u, P_e = _turning(pairs.length, pairs.u)[:, None], _turning(pairs.length_before, pairs.e)[:, None]
    Dy = np.matmul(step.across, y)
    turned = c2 * pairs.parting[:, None] - h * Dy
    turned = (turned - (turned * u).sum(-1, keepdims=True) * u) / pairs.length[:, None, :, None]
    along_u = pairs.along_u[..., None] - h * (u * Dy).sum(-1, keepdims=True)
    by_e = pairs.along_e[..., None, None] * P_e
    by_place = _outer(u, c1 * u + turned) + along_u[..., None] * P_u + by_e
    by_speed = c2[..., None] * _outer(u, u) - step.dt * by_e
    return [by_place, by_speed, (c3 * e)[..., None]]


def _of_ends(step: BodyStep, outer: Outer, points: BodyFrame, Q: Array, V: Array, a: Array) -> list[Array]:
    """d (-r(s) n) by the side, the end's velocity and the action, times the medium's coefficients, shaped as of pairs.

    r = s^2 / (1 + (s / S)^2), s = v . n where positive, n outward: k (1 - n n') turns a side's change into that of n.
    """
    (n, k), v, on = points.facing(Q), V[:, points.ends], step.acting(a)[:, outer.node]
    s = (v * n).sum(-1).clip(min=0)
    bend = 1 + (s / step.usual_speed) ** 2
    r, slope = s**2 / bend, 2 * s / bend**2
    by_switch = on * (1 - on) / step.switch if step.switch else 0 * on
    quarter = np.array([[0.0, 1.0], [-1.0, 0.0]])
    by_n = slope[..., None, None] * _outer(n, v) + r[..., None, None] * np.eye(2)
    by_side = k[..., None, None] * (np.eye(2) - _outer(n, n)) @ quarter
    blocks = (
        -on[..., None, None] * by_n @ by_side,
        -(on * slope)[..., None, None] * _outer(n, n),
        ((by_switch * r)[..., None] * n)[..., None],
    )
    return [outer.medium[..., None, None] * block[:, None] for block in blocks]


def direction(D: Float[Array, "*batch 2"]) -> tuple[Array, Array]:
    """Length and unit vector."""
    length = np.sqrt(np.einsum("...x,...x->...", D, D) + 1e-8)
    return length, D / length[..., None]


def incidence(left: Float[Array, "p i"], right: Float[Array, "p j"]) -> csr_array:
    """left_p' right_p of every p, flattened: sums of blocks over all corners are products with it."""
    return csr_array((left[:, :, None] * right[:, None, :]).reshape(len(left), -1).T)


def assembled(table: csr_array, blocks: Float[Array, "*batch p x y"], corners: int) -> Float[Array, "*batch ix jy"]:
    """sum_p left_p' block_p right_p over all corners, from the incidence of left and right."""
    *batch, p, x, y = blocks.shape
    many = blocks.reshape(-1, p, x * y)
    summed = table @ many.transpose(1, 0, 2).reshape(p, -1)
    by_row = summed.reshape(corners, -1, len(many), x, y).transpose(2, 0, 3, 1, 4)
    return by_row.reshape(*batch, corners * x, -1)


def _turning(length: Float[Array, "*batch"], u: Float[Array, "*batch 2"]) -> Float[Array, "*batch 2 2"]:
    """d u / d D of u = D / |D|."""
    return (np.eye(2) - _outer(u, u)) / length[..., None, None]


def _outer(a: Float[Array, "*#batch 2"], b: Float[Array, "*#batch 2"]) -> Float[Array, "*batch 2 2"]:
    return a[..., :, None] * b[..., None, :]
