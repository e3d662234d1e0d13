"""What leaves the dynamics alone: shifts, turns; whether actions show late and the past tells more than the present.

All are regressions of increments, judged on episodes left out: does what is added to the regressors take error away?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gce.trajectory.rows import Rows, better, left_out

if TYPE_CHECKING:
    from gce.trajectory.structure import Structure

Array = np.ndarray


def targets(rows: Rows, found: Structure) -> list[int]:
    """Coordinates that no other one moves."""
    bound = {p for p, *_ in found.moves} | {c for circle in found.circles for c in circle} | set(found.constant)
    return [c for c in range(rows.now.shape[1]) if c not in bound]


def _usual(rows: Rows, own: Iterable[int], acting: bool = True) -> Array:
    """Linear regressors: these coordinates and the actions of a node by type, differences to its neighbours."""
    alone = np.concatenate(
        [np.ones((len(rows.now), 1)), rows.now[:, list(own)], rows.action[:, : None if acting else 0]], axis=1
    )
    return np.concatenate([rows.by_type(alone), rows.summed(rows.near)], axis=1)


def unmoved(rows: Rows, found: Structure) -> tuple[int, ...]:
    """Coordinates whose absolute value adds nothing, squared and cubed as well, to differences or to bent ones."""
    d, Y = rows.now.shape[1], (rows.after - rows.now)[:, targets(rows, found)]
    unit = (rows.now - rows.now.mean(0)) / np.maximum(rows.now.std(0), 1e-12)
    told = (
        {c for circle in found.circles for c in circle}
        | {v for _, v, _ in found.moves}
        | {w for *_, w, _ in found.turns}
    )
    moved = {p for p, *_ in found.moves}
    unmoved, bent = [], rows.summed(_bent(rows, found))
    for c in (c for c in range(d) if c not in told and c not in found.constant):
        fewer = _usual(rows, [k for k in range(d) if k != c])
        more = rows.by_type(unit[:, [c]] ** np.array([1, 2, 3]))

        def adds(base: Array, Y: Array, more: Array = more) -> bool:
            return better(left_out(np.concatenate([base, more], 1), Y, rows.part), left_out(base, Y, rows.part))

        # An absolute value may stand for a bend of the differences: stiff springs, constant lengths.
        told_now = adds(fewer, Y) and adds(np.concatenate([fewer, bent], 1), Y)
        # What slowly comes back is not seen in one step; a position with a velocity comes back by this.
        if not told_now and (c in moved or not adds(fewer, rows.later[:, [c]] - rows.now[:, [c]])):
            unmoved.append(c)
    return tuple(unmoved)


def _bent(rows: Rows, found: Structure) -> Array:
    """Of vectors their directions and the like, which turn with them; of other coordinates squares and cubes."""
    pairs, columns = list(zip(found.vectors[::2], found.vectors[1::2], strict=False)), []
    for position, velocity in pairs:
        _, hat, cubed, _, along = _of_edge(rows, position, velocity)
        columns += [hat, cubed, along]
    in_vectors = {c for vector in found.vectors for c in vector}
    rest = rows.near[:, [c for c in range(rows.near.shape[1]) if c not in in_vectors]]
    rest = rest / np.maximum(rest.std(0), 1e-12) if len(rest) else rest
    return np.concatenate([*columns, rest**2, rest**3], axis=1)


def _of_edge(rows: Rows, position: Sequence[int], velocity: Sequence[int]) -> list[Array]:
    """What turns with the vectors between neighbours: r, its direction, r |r|^2, w, w along r."""
    r, w = rows.near[:, list(position)], rows.near[:, list(velocity)]
    length = np.linalg.norm(r, axis=1, keepdims=True) + 1e-9
    hat, unit = r / length, length.mean() if len(length) else 1.0
    return [r / unit, hat, r * (length / unit) ** 2, w, (hat * w).sum(1, keepdims=True) * hat]


def late(rows: Rows) -> bool:
    """Whether the action before tells of the next increment, and the action now does not."""
    acted = (rows.action != 0).any(1) | (rows.before != 0).any(1)
    if acted.sum() < 100:
        return False
    base = _usual(rows, range(rows.now.shape[1]), acting=False)
    Y = rows.after - rows.now
    moving = Y.std(0) > 1e-12

    def error(*columns: Array) -> Array:
        X = np.concatenate([base, *(rows.by_type(c) for c in columns)], axis=1)
        return left_out(X[acted], Y[acted][:, moving], rows.part[acted])

    both, now, before = error(rows.action, rows.before), error(rows.action), error(rows.before)
    return better(both, now, 0.05) and not better(both, before, 0.02)


def remembers(rows: Rows, found: Structure) -> bool:
    """Whether the observation before leaves a seventh or less of what this one leaves, as where velocities miss.

    Of velocities it tells much anyway, since forces last.
    """
    told = {v for _, v, _ in found.moves} | {w for *_, w, _ in found.turns}
    watched = [c for c in targets(rows, found) if c not in told]
    Y = (rows.after - rows.now)[:, watched]
    base = _usual(rows, range(rows.now.shape[1]))
    past = np.concatenate([base, rows.by_type(rows.past), rows.summed(rows.past_near)], axis=1)
    return better(left_out(past, Y, rows.part), left_out(base, Y, rows.part), 0.85)


def turning(rows: Rows, found: Structure) -> Structure:
    """Whether turns leave the dynamics alone: in the plane, in space, or about one axis of it."""
    pairs = list(zip(found.vectors[::2], found.vectors[1::2], strict=False))
    sizes = {len(vector) for vector in found.vectors}
    if len(sizes) != 1 or 2 * len(pairs) != len(found.vectors) or (found.circles and sizes == {3}):
        return found
    for axes in ((0, 1, 2), (0, 1), (0, 2), (1, 2)) if sizes == {3} else ((0, 1),):
        acting = _acting(rows.action.shape[1] - found.edge_actions, axes, sizes.pop() if sizes == {2} else 3)
        if _turned(rows, found, pairs, axes, acting):
            axis = pairs[0][0][3 - sum(axes)] if sizes == {3} and len(axes) == 2 else None
            return replace(found, turn_invariant=True, turn_axis=axis, action_vectors=acting)
    return found


def _acting(count: int, axes: tuple[int, ...], space: int) -> tuple[tuple[int, ...], ...]:
    """Action columns in turn, taken for vectors of the whole space or of these axes, where their number allows."""
    size = space if count % space == 0 else len(axes)
    return tuple(tuple(range(k, k + size)) for k in range(0, count, size)) if count % size == 0 else ()


def _turned(rows: Rows, found: Structure, pairs: list[Any], axes: tuple[int, ...], acting: tuple[Any, ...]) -> bool:
    """Whether coefficients of single axes, and scalars along them, add nothing to what turns among these axes allow."""
    edges = [_of_edge(rows, position, velocity) for position, velocity in pairs]
    headings = []  # unit vectors of circles and across them, times the scalars that may act along these
    for circle in found.circles:
        h = rows.now[:, circle]
        across = np.stack([-h[:, 1], h[:, 0]], axis=1)
        moving = [(rows.now[:, v] * u).sum(1) for _, v in pairs for u in (h, across)]
        scalars = [np.ones(len(h)), *moving, *rows.action.T, *(rows.now[:, w] for *_, w, _ in found.turns)]
        headings += [s[:, None] * u for u in (h, across) for s in scalars]
    same = []
    for c, axis in enumerate(axes):
        columns = [rows.by_type(rows.now[:, [p[axis], v[axis]]]) for p, v in pairs]
        columns += [rows.summed(np.stack([q[:, axis] for q in of], 1)) for of in edges]
        columns += [rows.by_type(rows.action[:, [group[c if len(group) == len(axes) else axis]]]) for group in acting]
        same.append(np.concatenate([*columns, *(q[:, [c]] for q in headings)], axis=1))
    turning = {c for vector in (*found.vectors, *found.circles) for c in vector}
    still = [c for c in range(rows.now.shape[1]) if c not in turning]
    alone = rows.by_type(np.concatenate([np.ones((len(rows.now), 1)), rows.now[:, still], rows.action], axis=1))

    def of_axis(c: int, block: Array) -> Array:
        return np.concatenate([block if k == c else np.zeros_like(block) for k in range(len(axes))])

    X = np.concatenate(same)
    if len(axes) == 2:  # turns in the plane leave a + b J alone
        X = np.concatenate([X, np.concatenate([-same[1], same[0]])], axis=1)
    more = [of_axis(c, block) for c, block in enumerate(same[:-1])] + [of_axis(c, alone) for c in range(len(axes))]
    Y = np.concatenate([(rows.after - rows.now)[:, [v[axis] for _, v in pairs]] for axis in axes])
    part = np.tile(rows.part, len(axes))
    return not better(left_out(np.concatenate([X, *more], 1), Y, part), left_out(X, Y, part), 0.1)
