"""Structure found in recordings: what moves what, angles, vectors, invariances, late actions, columns without use.

A velocity v of a position p is told by the slope of increments on mean velocities (or on the later one),

    p_{t+1} - p_t = dt (v_t + v_{t+1}) / 2,   or   = dt v_{t+1} for backward differences,   r^2 > 0.95.

Coordinates form a vector where lengths between neighbours vary less than their parts: var(sum_c q_c) < 0.75 sum_c
var(q_c), q_c = (p_jc - p_ic)^2. Invariances are regressions of increments, judged on episodes left out: the dynamics
are invariant under shifts of a coordinate where its absolute value adds nothing to differences to the neighbours, and
under turns where coefficients of each axis add nothing to those that turns leave alone. Nothing knows a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np

from gce.errors import InputError
from gce.files import LARGEST_WHOLE
from gce.trajectory.dataset import Dataset
from gce.trajectory.invariance import late, remembers, turning, unmoved
from gce.trajectory.rows import Rows, left_out

Array = np.ndarray
Move = tuple[int, int, float]

KINEMATIC_TOLERANCE = 1e-3
TIED, DOUBTFUL = 0.95, 0.5
"""r^2 from which a velocity is a position's, and from which it should be."""
RIGID = 0.75
"""The share that lengths between neighbours vary of what their parts do, below which coordinates are a vector's."""
FOLLOWED = 0.6
"""How far actions are from a coordinate whose setpoints they are, at most, in its spread."""
TINY = 1e-6
SAID = ("points", "late_action", "fresh_start")
"""What a file's metadata may say of structured models' features, beside the fields of `Structure`."""


@dataclass(frozen=True)
class Structure:
    """What recordings show of their coordinates, by number; JSON values.

    moves: (position, velocity, dt); backward: for each, whether velocities are backward differences.
    circles: (cosine, sine); turns: (cosine, sine, rate, dt).
    vectors: coordinates in the plane or in space, positions and velocities each; action_vectors: of action columns.
    shift_invariant: coordinates of which only differences to neighbours matter. turn_invariant: turns of all vectors
    and circles leave the dynamics alone; turn_axis: in space, the coordinate about whose axis, None about all.
    setpoints: (action, coordinate, spread) of actions that say where a coordinate shall be; spread: of what is missing.
    edge_actions: how many of the last action columns act on edges: the k-th of node i on the edge from its k-th
    neighbour by number. late_action: an action shows one step late. history: 2 where the observation before
    tells much more.
    constant, tiny: columns that stay, or vary below what numbers resolve.
    disagreeing: (position, velocity, r^2) where the velocity should be the position's and is not.
    """

    moves: tuple[Move, ...] = ()
    backward: tuple[bool, ...] = ()
    circles: tuple[tuple[int, int], ...] = ()
    turns: tuple[tuple[int, int, int, float], ...] = ()
    vectors: tuple[tuple[int, ...], ...] = ()
    action_vectors: tuple[tuple[int, ...], ...] = ()
    shift_invariant: tuple[int, ...] = ()
    turn_invariant: bool = False
    turn_axis: int | None = None
    setpoints: tuple[Move, ...] = ()
    edge_actions: int = 0
    late_action: bool = False
    history: int = 1
    constant: tuple[int, ...] = ()
    tiny: tuple[int, ...] = ()
    disagreeing: tuple[Move, ...] = ()

    def described(self) -> dict[str, Any]:
        """As JSON values, which `read` takes back."""
        return {name: _listed(value) for name, value in asdict(self).items()}

    @classmethod
    def read(cls, values: Mapping[str, Any], columns: int | None = None) -> Structure:
        """From JSON values; what does not have the form of its field, or names no column, is refused."""
        found = {field.name: _tupled(values[field.name]) for field in fields(cls) if field.name in values}
        for name, value in found.items():
            if not _fits(name, value, columns):
                raise InputError(f"the structure says {name} = {values[name]!r}; expected {FORMS[name]}")
        return cls(**found)


FORMS = {
    "moves": "[[position, velocity, dt], ...], columns by number",
    "backward": "[true or false, ...], one a move",
    "circles": "[[cosine, sine], ...], columns by number",
    "turns": "[[cosine, sine, rate, dt], ...], columns by number",
    "vectors": "[[x, y] or [x, y, z], ...], columns by number, positions and their velocities in turn",
    "action_vectors": "[[fx, fy] or [fx, fy, fz], ...], action columns by number",
    "shift_invariant": "[column, ...], by number",
    "turn_invariant": "true or false",
    "turn_axis": "the number of a column",
    "setpoints": "[[action, column, spread], ...], by number, the spread above zero",
    "edge_actions": "how many of the last action columns act on edges",
    "late_action": "true or false",
    "history": "1 or 2",
    "constant": "[column, ...], by number",
    "tiny": "[column, ...], by number",
    "disagreeing": "[[position, velocity, r^2], ...]",
}
"""What each field holds, in words."""
LENGTHS = {
    "moves": (3,),
    "circles": (2,),
    "turns": (4,),
    "vectors": (2, 3),
    "action_vectors": (2, 3),
    "setpoints": (3,),
    "disagreeing": (3,),
}
MEASURED = {"moves": 1, "turns": 1, "setpoints": 1, "disagreeing": 1}
"""How many numbers at the end of an entry are no columns."""


def _fits(name: str, value: Any, columns: int | None) -> bool:
    most = columns if columns is not None and name not in ("action_vectors", "setpoints") else 2**31

    def column(number: Any) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < most

    if name in ("turn_invariant", "late_action"):
        return isinstance(value, bool)
    if name == "turn_axis":
        return value is None or column(value)
    if name == "edge_actions":
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "history":
        return value in (1, 2) and not isinstance(value, bool)
    if not isinstance(value, tuple):
        return False
    if name == "backward":
        return all(isinstance(v, bool) for v in value)
    if name not in LENGTHS:
        return all(map(column, value))
    last = MEASURED.get(name, 0)
    if name == "setpoints" and not all(len(v) == 3 and v[1] < (columns or 2**31) and v[2] > 0 for v in value):
        return False
    return all(
        isinstance(entry, tuple)
        and len(entry) in LENGTHS[name]
        and all(map(column, entry[: len(entry) - last]))
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in entry)
        for entry in value
    )


def check_said(structure: Any, columns: int = LARGEST_WHOLE) -> dict[str, Any]:
    """What metadata say under `structure`, refused where it says something else than is known."""
    known = (*SAID, *(name for name in FORMS if name not in SAID))
    for name in structure:
        if name not in known:
            raise InputError(f"the metadata's structure says {name!r}; it may say {', '.join(known)}")
    points = structure.get("points", ())
    if not isinstance(points, list | tuple):
        raise InputError(f"the structure says points = {points!r}, expected a list of x, y, vx, vy")
    for point in points:
        whole = isinstance(point, list | tuple) and len(point) == 4 and all(type(c) is int for c in point)
        if not whole or not all(0 <= c < columns for c in point):
            raise InputError(f"the structure says a point {point!r}, expected x, y, vx, vy, coordinates by number")
    return dict(structure)


def find_structure(data: Dataset) -> Structure:
    """What some episodes of a data set show; what its metadata say under `structure` goes before."""
    rows = Rows.of(data)
    said = check_said(data.metadata.get("structure", {}), rows.now.shape[1])
    read = Structure.read(said, rows.now.shape[1])
    if read.edge_actions > rows.action.shape[1]:
        raise InputError(
            f"the structure says edge_actions = {read.edge_actions}, but there are {rows.action.shape[1]} action "
            "columns; say how many of these, the last ones, act on edges"
        )
    given = {name: getattr(read, name) for name in FORMS if name in said}
    found = _moving(rows, _columns(rows), data)
    for x, y, vx, vy in said.get("points", ()):
        moves = dict(zip(found.moves, found.backward, strict=True))
        for p, v in ((x, vx), (y, vy)):
            if not any(m[:2] == (p, v) for m in moves):
                moves = {m: b for m, b in moves.items() if not {p, v} & set(m[:2])}
                moves[p, v, float(data.metadata.get("dt") or 1.0)] = True
        vectors = (*found.vectors, (x, y), (vx, vy))
        found = replace(found, moves=tuple(moves), backward=tuple(moves.values()), vectors=vectors)
    found = replace(found, **given)
    if len(found.backward) != len(found.moves):
        found = replace(found, backward=(False,) * len(found.moves))
    if not found.vectors and "vectors" not in given:
        found = replace(found, vectors=_vectors(rows, found))
    if rows.enough:
        found = replace(found, late_action=late(rows), history=1 + remembers(rows, found))
        found = found if found.late_action else replace(found, setpoints=_setpoints(rows, found))
        found = replace(found, **given)
        found = replace(found, shift_invariant=unmoved(_to_go(rows, found), found))
        found = turning(rows, found)
    return replace(found, **given)


def find_kinematics(data: Dataset, dt: float, episodes: int = 20) -> tuple[tuple[int, int], ...]:
    """Pairs (position, velocity) of coordinates with v_t = (p_t - p_{t-1}) / dt throughout the first episodes."""
    sample = [data[k].observations.astype(np.float64) for k in range(min(episodes, len(data)))]
    d = sample[0].shape[-1]
    pairs = []
    for velocity in range(d):
        v = np.concatenate([o[1:, :, velocity].ravel() for o in sample])
        if v.std() == 0:
            continue
        for position in range(d):
            difference = np.concatenate([np.diff(o[..., position], axis=0).ravel() for o in sample]) / dt
            # Single precision leaves a rounding of positions, magnified by 1/dt.
            rounding = 4e-7 * max(np.abs(o[..., position]).max() for o in sample) / dt
            if position != velocity and np.abs(difference - v).max() < KINEMATIC_TOLERANCE * v.std() + rounding:
                pairs.append((position, velocity))
                break
    return tuple(sorted(pairs))


# ---- columns, positions, angles ----


def _columns(rows: Rows) -> Structure:
    std, size = rows.now.std(0), np.abs(rows.now).max(0)
    constant = np.ptp(rows.now, axis=0) <= 1e-9 * size
    tiny = ~constant & ((std < TINY) | (std < 1e-5 * size))
    return Structure(constant=_numbers(constant), tiny=_numbers(tiny))


def _moving(rows: Rows, found: Structure, data: Dataset) -> Structure:
    """Circles with their rates, positions with their velocities."""
    now, after = rows.now, rows.after
    used = [c for c in range(now.shape[1]) if c not in found.constant]
    circles = [pair for pair in combinations(used, 2) if np.abs(np.hypot(*now[:, pair].T) - 1).max() < 1e-3]
    turns, on_circle = [], {c for pair in circles for c in pair}
    rest = [c for c in used if c not in on_circle]
    for k, (i, j) in enumerate(circles):
        angle = np.angle((after[:, i] + 1j * after[:, j]) * (now[:, i] - 1j * now[:, j]))
        rates = [(*_slope(angle, (now[:, w] + after[:, w]) / 2), w) for w in rest]
        r2, slope, rate = max(rates, default=(0.0, 0.0, 0))
        if r2 > TIED:
            circles[k] = (i, j) if slope > 0 else (j, i)
            turns.append((*circles[k], rate, abs(slope)))
    exact = dict(find_kinematics(data, float(data.metadata.get("dt") or 1.0)))
    taken = {w for *_, w, _ in turns}
    fits = [_velocity(rows, p, v, exact.get(p) == v) for p in rest for v in rest if p != v and v not in taken]
    moves: list[tuple[Move, bool]] = []
    doubtful: list[Move] = []
    paired: set[int] = set()
    for r2, p, v, dt, backward in sorted(fits, key=lambda fit: (fit[3] > 0, fit[0]), reverse=True):
        if r2 < DOUBTFUL or p in paired or v in paired:
            continue
        if r2 > TIED and dt > 0:
            moves.append(((p, v, dt), backward))
        elif _of_its_own(rows, p, v, r2):
            continue
        else:
            doubtful.append((p, v, r2))
        paired |= {p, v}
    moves.sort()
    return replace(
        found,
        moves=tuple(m for m, _ in moves),
        backward=tuple(b for _, b in moves),
        circles=tuple(circles),
        turns=tuple(turns),
        disagreeing=tuple(sorted(doubtful)),
    )


def _slope(y: Array, x: Array) -> tuple[float, float]:
    """(r^2, slope) of y on x, no constant."""
    slope = float((x * y).sum() / max((x * x).sum(), 1e-300))
    return float(1 - np.square(y - slope * x).sum() / max(np.square(y).sum(), 1e-300)), slope


def _velocity(rows: Rows, p: int, v: int, exact: bool) -> tuple[float, int, int, float, bool]:
    """(r^2, position, velocity, dt, whether velocities are backward differences)."""
    step, before, later = rows.after[:, p] - rows.now[:, p], rows.now[:, v], rows.after[:, v]
    mean, last = _slope(step, (before + later) / 2), _slope(step, later)
    backward = exact or last[0] > max(mean[0], 1 - 1e-4)
    r2, dt = last if backward else mean
    return r2, p, v, dt, backward


def _of_its_own(rows: Rows, p: int, v: int, r2: float) -> bool:
    """Whether the increments of p depend on p too: then v drives it, and is no velocity."""
    step, mid = rows.after[:, p] - rows.now[:, p], (rows.now[:, v] + rows.after[:, v]) / 2
    X = np.stack([mid, rows.now[:, p]], axis=1)
    return bool(left_out(X, step[:, None], rows.part)[0] < 0.7 * (1 - r2))


# ---- setpoints ----


def _setpoints(rows: Rows, found: Structure) -> tuple[Move, ...]:
    """Actions that go with a coordinate, in its units and nearer to it than half of its spread or so."""
    setpoints, std = [], rows.now.std(0)
    for k in range(rows.action.shape[1] - found.edge_actions):
        missing = rows.action[:, [k]] - rows.now
        near = np.sqrt(np.square(missing).mean(0)) / np.maximum(std, 1e-12)
        c = int(near.argmin())
        if near[c] < FOLLOWED and c not in found.constant:
            setpoints.append((k, c, max(float(missing[:, c].std()), 1e-3 * float(std[c]))))
    return tuple(setpoints)


def _to_go(rows: Rows, found: Structure) -> Rows:
    """With what is missing to setpoints in their place, which shifts leave alone."""
    action = rows.action.copy()
    for k, c, _ in found.setpoints:
        action[:, k] -= rows.now[:, c]
    return replace(rows, action=action)


# ---- vectors ----


def _vectors(rows: Rows, found: Structure) -> tuple[tuple[int, ...], ...]:
    """Positions whose lengths between neighbours vary least, and their velocities."""
    velocity = {p: v for p, v, _ in found.moves}
    squares = rows.near**2
    if len(squares) < 100:
        return ()
    _, groups = np.unique(np.stack([rows.system[rows.row], rows.kind]), axis=1, return_inverse=True)
    count = np.bincount(groups.ravel())
    means = np.stack([np.bincount(groups.ravel(), column) for column in squares.T], axis=1) / count[:, None]
    squares = squares - means[groups.ravel()]

    def rigid(group: tuple[int, ...]) -> float:
        parts = squares[:, group].var(0)
        return float(squares[:, group].sum(1).var() / parts.sum()) if parts.min() > 0 else 1.0

    scored = [(rigid(group), group) for k in (2, 3) for group in combinations(sorted(velocity), k)]
    taken: list[tuple[int, ...]] = []
    for score, group in sorted(scored):
        if score < RIGID and not any(set(group) & set(other) for other in taken):
            taken.append(group)
    return tuple(v for group in sorted(taken) for v in (group, tuple(velocity[p] for p in group)))


def _numbers(chosen: Array) -> tuple[int, ...]:
    return tuple(int(k) for k in np.flatnonzero(chosen))


def _tupled(value: Any) -> Any:
    return tuple(_tupled(v) for v in value) if isinstance(value, list | tuple) else value


def _listed(value: Any) -> Any:
    return [_listed(v) for v in value] if isinstance(value, tuple) else value
