"""How a node's coordinates move, by the structure found in recordings; the network says what is left.

    o' = o + R (step * y)                 free coordinates; R turns vectors from the node's frame into the world's
    p' = p + dt (v + v') / 2, p + dt v'   positions by their velocities, means or backward differences
    (c, s)' = (c, s) turned by dt (w + w') / 2     angles by their rates; all circles are kept to

In units (`unit`, `centre`) in which the coordinates of a vector share one, so that turning it and scaling it commute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

SMALLEST = 1e-9
LARGEST_TURN = 3.0
LARGEST_TARGET = 30.0
"""Beyond which a rollout has left what was ever recorded, in spreads of the increments."""


class Motion(nn.Module):
    """structure: the fields of `gce.trajectory.structure.Structure` that say how coordinates move.

    Where turns leave the dynamics alone and nodes say how they are turned in the plane, each has a frame of its own;
    where they do not say it, whole systems may be turned at random in training (`turned`).
    """

    unit: Tensor
    centre: Tensor
    step: Tensor
    scale: Tensor
    offset: Tensor
    spread: Tensor
    rates: Tensor
    late_rates: Tensor
    moved_mask: Tensor
    angles_mask: Tensor
    round_mask: Tensor
    round_quarter: Tensor

    def __init__(self, num_observations: int, structure: Mapping[str, Any]) -> None:
        super().__init__()
        self.d = d = num_observations
        moves = structure.get("moves", ())
        self.moves = tuple(zip(moves, structure.get("backward", (False,) * len(moves)), strict=True))
        self.turns = tuple(structure.get("turns", ()))
        self.circles = tuple(structure.get("circles", ()))
        self.vectors = tuple(structure.get("vectors", ())) if structure.get("turn_invariant") else ()
        self.planes = planes_of(self.vectors, structure.get("turn_axis"))
        flat = self.planes == [(0, 1)] and all(len(vector) == 2 for vector in self.vectors)
        self.frame = self.turns[0][:2] if self.turns and flat else None
        bound = {move[0] for move, _ in self.moves} | {c for turn in self.turns for c in turn[:2]}
        self.free = [c for c in range(d) if c not in bound]
        hidden = {*structure.get("shift_invariant", ()), *(self.frame or ())}
        self.kept = [c for c in range(d) if c not in hidden]
        """What a node knows of itself: not where it is where shifts change nothing, nor its own frame."""
        for name in ("centre", "offset"):
            self.register_buffer(name, torch.zeros(d))
        for name in ("unit", "step", "scale"):
            self.register_buffer(name, torch.ones(d))
        pairs = self.pairs((0, 1)) if self.frame is not None else []
        seen = [*pairs, *([self.frame] if self.frame is not None else [])]
        tables = {"out": quarter(d, pairs), "seen": quarter(d, seen), "round": quarter(d, self.circles)}
        for name, (turned, mask) in tables.items():
            self.register_buffer(f"{name}_quarter", turned, persistent=False)
            self.register_buffer(f"{name}_mask", mask, persistent=False)
        for name, columns in (
            ("moved", [m[0] for m, _ in self.moves]),
            ("angles", [c for t in self.turns for c in t[:2]]),
        ):
            self.register_buffer(f"{name}_mask", torch.zeros(d).index_fill(0, torch.tensor(columns).long(), 1), False)
        self.register_load_state_dict_post_hook(lambda module, keys: self._tabulate())
        self._tabulate()

    @torch.no_grad()
    def set_units(self, mean: Tensor, std: Tensor, step: Tensor) -> None:
        """mean, std: of the observation, which is otherwise normalised by them; step: the spread of its increments."""
        unit, step, centre = std.clone(), step.clone(), mean.clone()
        for pair in [list(pair) for plane in self.planes for pair in self.pairs(plane)]:
            for of in (unit, step):
                of[pair] = of[pair].square().mean().sqrt()
            centre[pair] = 0
        centre[[move[1] for move, _ in self.moves] + [turn[2] for turn in self.turns]] = 0
        for circle in self.circles:
            unit[list(circle)], centre[list(circle)] = 1, 0
        self.unit.copy_(unit)
        self.centre.copy_(centre)
        self.step.copy_((step / unit).clamp_min(SMALLEST))
        self.scale.copy_(std / unit)
        self.offset.copy_((mean - centre) / unit)
        self._tabulate()

    def _tabulate(self) -> None:
        """spread: where free coordinates are, in spreads of their increments; rates, late_rates: what means of
        velocities before and after a step, or those after it alone, do to positions and angles."""
        rates, late = self.unit.new_zeros(2, self.d, self.d)
        for (p, v, dt), backward in self.moves:
            (late if backward else rates)[v, p] = dt * self.unit[v] / self.unit[p]
        for c, s, w, dt in self.turns:
            rates[w, c] = rates[w, s] = dt * self.unit[w]
        spread = torch.diag(self.step)[self.free]
        for name, table in (("spread", spread), ("rates", rates), ("late_rates", late)):
            self.register_buffer(name, table, persistent=False)

    def pairs(self, plane: tuple[int, int]) -> list[tuple[int, int]]:
        """Coordinates of vectors in a plane."""
        return [(vector[plane[0]], vector[plane[1]]) for vector in self.vectors]

    def turned(self, q: Float[Tensor, "*batch d"], plane: tuple[int, int], angle: float) -> Float[Tensor, "*batch d"]:
        """Everything turned in a plane."""
        circles = self.circles if all(len(vector) == 2 for vector in self.vectors) else ()
        turn, mask = quarter(self.d, [*self.pairs(plane), *circles])
        return q * (1 - mask + math.cos(angle) * mask) + math.sin(angle) * (q @ turn)

    def inward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Normalised observations in the units of this module."""
        return x * self.scale + self.offset

    def outward(self, q: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return (q - self.offset) / self.scale

    def seen_from(self, q: Float[Tensor, "*batch d"], frame: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Vectors, and how nodes are turned, as from a frame: that of the nodes with these coordinates."""
        return q if self.frame is None else self._turned(q, frame, -1.0, "seen")

    def targets(self, q: Float[Tensor, "*batch d"], following: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch m"]:
        """y of a step."""
        rise = following - q
        rise = rise if self.frame is None else self._turned(rise, q, -1.0, "out")
        return (rise / self.step)[..., self.free]

    def advance(self, q: Float[Tensor, "*batch d"], y: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch d"]:
        """The next state."""
        rise = y.clamp(-LARGEST_TARGET, LARGEST_TARGET) @ self.spread
        new = q + (rise if self.frame is None else self._turned(rise, q, 1.0, "out"))
        if self.moves or self.turns:
            by_rate = (q + new) / 2 @ self.rates + new @ self.late_rates
            new = new + by_rate * self.moved_mask
            if self.turns:
                angle = by_rate.clamp(-LARGEST_TURN, LARGEST_TURN) * self.angles_mask
                new = new * angle.cos() + (new @ self.round_quarter) * angle.sin()
        return self.kept_to(new)

    def kept_to(self, q: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """With circles of unit length."""
        if not self.circles:
            return q
        square = q.square() * self.round_mask
        length = square + (q @ self.round_quarter).square() + 1 - self.round_mask
        return q / length.clamp_min(1e-6).sqrt()

    def _turned(self, q: Tensor, frame: Tensor, sign: float, name: str) -> Tensor:
        """Vectors turned by the angle of a frame: c q + s q', q' a quarter turn further."""
        assert self.frame is not None
        i, j = self.frame
        mask, quarter = getattr(self, f"{name}_mask"), getattr(self, f"{name}_quarter")
        c, s = frame[..., i : i + 1], sign * frame[..., j : j + 1]
        return q * (1 - mask + c * mask) + (q @ quarter) * s


def planes_of(vectors: Sequence[Sequence[int]], axis: int | None) -> list[tuple[int, int]]:
    """Which parts of vectors turns mix; axis: the coordinate about whose axis, None about all."""
    if all(len(vector) == 2 for vector in vectors):
        return [(0, 1)] if vectors else []
    about = {vector.index(axis) for vector in map(list, vectors) if axis in vector}
    return [(k, (k + 1) % 3) for k in range(3) if not about or (k + 2) % 3 in about]


def quarter(d: int, pairs: Sequence[Sequence[int]]) -> tuple[Float[Tensor, "d d"], Float[Tensor, " d"]]:
    """(the matrix of a quarter turn of all pairs, for rows; which coordinates are among them)."""
    turned, mask = torch.zeros(d, d), torch.zeros(d)
    for i, j in pairs:
        turned[j, i], turned[i, j] = -1, 1
        mask[[i, j]] = 1
    return turned, mask
