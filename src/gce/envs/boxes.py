"""Robots made of boxes on a lattice: what Soft and Swim share.

A robot is a set of unit boxes centred on integer cells. Every box owns four corner bodies of 1 kg (no collision
shape) in the order 0 lower left, 1 upper left, 2 lower right, 3 upper right. Bodies of different boxes that coincide
at the start are pinned together and observed as one corner. The engine's solver is iterative: the kind of each
joint and the order in which joints are added are part of the physics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pymunk
from jaxtyping import Bool, Float, Int
from pymunk.batch import BodyFields

from gce.envs.base import Pictures, Policy, check_choice
from gce.envs.parts import BodyEnv, BodyField, Canvas, Colour, blend
from gce.errors import InputError
from gce.graphs.graph import Graph

ACTUATED, SOFT, RIGID, FIXED = range(4)
MATERIALS = ("actuated", "soft", "rigid", "fixed")

CORNERS = np.array([(-0.5, -0.5), (-0.5, 0.5), (0.5, -0.5), (0.5, 0.5)])
SIDES = ((0, 1), (0, 2), (1, 3), (2, 3))
"""Left, bottom, top, right."""
OUTWARD = ((-1, 0), (0, -1), (0, 1), (1, 0))
"""The cell beyond each side."""
BOTTOM = 1
DIAGONALS = ((0, 3), (1, 2))
DIAGONAL = float(np.sqrt(2))
AROUND = (0, 1, 3, 2)
"""The corners in the order of a walk around the box."""

DIRECTIONS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
"""Sender's cell minus receiver's; the relation type is 9 x the receiver's material + the index here."""

CELL_RANGE = (-4, 3)
"""Robots grow within these cells, in x and y."""

PRESET = {"implicit": True, "linear_features": 0, "ridge": 1e-2}
RECIPE: dict[str, Any] = {
    "unseen": (10, 14),
    "pictures": Pictures(8),
    "training": {"iterations": 600, "horizon": 32, "fit_steps": 20, "free_running": False},
    "baselines": {"graph_ode": {"schedule": {"parts": ()}}},  # adapting to a system takes minutes
    "counts": {"slow": "slow_boxes"},
}
"""What the recipes of Soft and Swim share."""

Cell = tuple[int, int]


@dataclass(frozen=True)
class BoxParameters:
    """boxes: (x, y, material) of each, with material 0 actuated, 1 soft, 2 rigid, 3 fixed.

    stiffness [N/m], damping [Ns/m]: of every spring.
    """

    boxes: Sequence[Sequence[float]]
    stiffness: float
    damping: float

    def __post_init__(self) -> None:
        if any(len(box) != 3 or any(value != int(value) for value in box) for box in self.boxes):
            raise InputError("boxes must be whole numbers x, y and material for each box")
        boxes = tuple((int(x), int(y), int(material)) for x, y, material in self.boxes)
        object.__setattr__(self, "boxes", boxes)
        cells = [(x, y) for x, y, _ in boxes]
        if not boxes:
            raise InputError("boxes is empty; a robot needs at least one box")
        if len(set(cells)) != len(cells):
            raise InputError("two boxes share a cell; give each its own")
        for k, (_, _, material) in enumerate(boxes):
            if not 0 <= material < len(MATERIALS):
                raise InputError(f"box {k} has material {material}, expected 0 actuated, 1 soft, 2 rigid or 3 fixed")
            if material == FIXED and k != 0:
                raise InputError(f"box {k} is fixed; only the first box may be")
        check_choice("boxes", "stiffness", self.stiffness, 0, 1e6)
        check_choice("boxes", "damping", self.damping, 0, 1e6)

    @property
    def cells(self) -> Int[np.ndarray, "boxes 2"]:
        return np.array([box[:2] for box in self.boxes])

    @property
    def materials(self) -> Int[np.ndarray, " boxes"]:
        return np.array([box[2] for box in self.boxes])

    @cached_property
    def corner_of_body(self) -> Int[np.ndarray, " bodies"]:
        """Which physical corner each body belongs to; bodies that coincide at the start share it."""
        starts = np.rint(2 * body_starts(self)).astype(int)
        _, corner = np.unique(starts, axis=0, return_inverse=True)
        return corner.reshape(-1)

    @cached_property
    def pinned_bodies(self) -> list[tuple[int, int]]:
        """All pairs of bodies of different boxes that coincide at the start, in increasing order."""
        corner = self.corner_of_body
        first, second = np.triu_indices(len(corner), 1)
        together = (corner[first] == corner[second]) & (first // 4 != second // 4)
        return list(zip(first[together].tolist(), second[together].tolist(), strict=True))


def body_starts(parameters: BoxParameters) -> Float[np.ndarray, "bodies 2"]:
    return (parameters.cells[:, None, :] + CORNERS).reshape(-1, 2)


class BoxEnv(BodyEnv):
    """A robot of boxes, each an object; actuated boxes pull or push along their diagonals."""

    Parameters = BoxParameters
    words = ("box", "boxes", "positions", "m")
    observation_names = tuple(f"{axis}{corner}" for corner in range(4) for axis in "xy") + tuple(
        f"v{axis}{corner}" for corner in range(4) for axis in "xy"
    )
    position_names = observation_names[:8]
    action_names = ("force",)
    object_range = (5, 9)
    group_size = 25
    points = tuple((2 * k, 2 * k + 1, 8 + 2 * k, 9 + 2 * k) for k in range(4))
    late_action = True

    stiffness_range: ClassVar[tuple[float, float]]
    margin: ClassVar[float] = 2.0
    """Room around the robot in a picture, beyond the middles of its outermost boxes [m]."""
    parameters: BoxParameters

    # ---- system ----

    @abstractmethod
    def draw_action(self, rng: np.random.Generator, steps: int) -> Float[np.ndarray, " steps"]:
        """The recorded actions of one actuated box."""

    def excitation(self, rng: np.random.Generator, steps: int) -> Policy:
        actions = np.zeros((steps, len(self.actuated), 1))
        for k in np.flatnonzero(self.actuated):
            actions[:, k, 0] = self.draw_action(rng, steps)
        actions = actions.astype(np.float32).astype(np.float64)  # as stored, so that a replay is exact
        return lambda t: actions[t]

    def _draw_springs(self, rng: np.random.Generator, cells: Sequence[Cell], materials: list[int]) -> BoxParameters:
        stiffness = rng.uniform(*self.stiffness_range)
        boxes = [(*cell, material) for cell, material in zip(cells, materials, strict=True)]
        return BoxParameters(boxes, stiffness, damping=stiffness / 20)

    def build_graph(self, parameters: BoxParameters) -> Graph:
        cells, materials = parameters.cells, parameters.materials
        step = cells[None, :, :] - cells[:, None, :]
        relations = np.full((len(cells), len(cells)), -1)
        for k, direction in enumerate(DIRECTIONS):
            touching = (step == direction).all(axis=-1)
            relations[touching] = (9 * materials[:, None] + k + np.zeros_like(relations))[touching]
        corner = parameters.corner_of_body.reshape(-1, 4)
        return Graph.from_relations(
            relations,
            node_type=materials,
            # Coordinates (corner, axis), then the same for the velocities.
            tied=np.concatenate(
                [2 * corner.repeat(2, axis=1) + [0, 1] * 4 + 2 * corner.size * k for k in (0, 1)], axis=1
            ),
        )

    @property
    def actuated(self) -> Bool[np.ndarray, " nodes"]:
        return self.parameters.materials == ACTUATED

    # ---- physics ----

    def _build_space(self) -> pymunk.Space:
        p = self.parameters
        space = pymunk.Space()
        moment = pymunk.moment_for_circle(1, 0, 0.01)
        starts = body_starts(p).tolist()
        bodies = [pymunk.Body(1, moment) for _ in starts]
        for body, (x, y) in zip(bodies, starts, strict=True):
            body.position = (x, y)
        joints: list[pymunk.Constraint] = []
        for fixed in np.flatnonzero(p.materials == FIXED):
            for corner in SIDES[BOTTOM]:
                body, (x, y) = bodies[4 * fixed + corner], starts[4 * fixed + corner]
                joints.append(pymunk.PinJoint(body, space.static_body, (0, 0), (x, y)))
        for k, material in enumerate(p.materials):
            for pair in (*SIDES, *DIAGONALS):
                if material == FIXED and pair == SIDES[BOTTOM]:
                    continue
                first, second = (bodies[4 * k + corner] for corner in pair)
                if material == RIGID:
                    joints.append(pymunk.PinJoint(first, second, (0, 0), (0, 0)))
                else:
                    rest = DIAGONAL if pair in DIAGONALS else 1.0
                    joints.append(pymunk.DampedSpring(first, second, (0, 0), (0, 0), rest, p.stiffness, p.damping))
        for i, j in p.pinned_bodies:
            joints.append(pymunk.PinJoint(bodies[i], bodies[j], (0, 0), (0, 0)))
        space.add(*bodies, *joints)
        return space

    def _begin(self) -> None:
        corner = self.parameters.corner_of_body
        same = corner[:, None] == corner
        self._averaging = same / same.sum(axis=1, keepdims=True)
        powered = np.flatnonzero(self.actuated)
        self._pulling = powered.repeat(2)
        self._diagonals = (4 * powered[:, None, None] + np.array(DIAGONALS)).reshape(-1, 2).T.copy()
        super()._begin()
        self._forces = BodyField(self.space, self._num_bodies, BodyFields.FORCE)

    def _apply(self, action: np.ndarray) -> None:
        self._set_forces(action)
        self._forces.write()

    def _set_forces(self, action: np.ndarray) -> None:
        """Every corner of an actuated box is pulled by the action toward the opposite corner."""
        first, second = self._diagonals
        across = self._places.points[second] - self._places.points[first]
        pull = across * (action[self._pulling, 0] / np.abs(across))
        self._forces.points[first] = pull
        self._forces.points[second] = -pull

    def _objects(self, positions: np.ndarray) -> np.ndarray:
        """Each corner at the mean of the bodies pinned there."""
        return (self._averaging @ positions).reshape(*positions.shape[:-2], -1, 8)

    # ---- picture ----

    def draw(self, observation: np.ndarray, action: np.ndarray | None = None, goal: np.ndarray | None = None) -> Any:
        cells = self.parameters.cells
        low, high = cells.min(axis=0) - self.margin, cells.max(axis=0) + self.margin
        canvas = Canvas(left=low[0], right=high[0], bottom=low[1], top=high[1])
        fills = (Canvas.ACTUATED, Canvas.SOFT, Canvas.RIGID, Canvas.FIXED)
        for k, material in enumerate(self.parameters.materials):
            fill = fills[material]
            if material == ACTUATED:
                fill = self._actuated_colour(0.0 if action is None else float(action[k, 0]))
            canvas.polygon(_outline(observation[k]), fill, Canvas.INK, 0.05)
        if goal is not None:
            for box in goal:
                canvas.polygon(_outline(box), None, Canvas.GOAL, 0.06)
        return canvas.image()

    def _actuated_colour(self, action: float) -> Colour:
        """Deep red while pulling together, pale red while pushing apart."""
        middle = blend(Canvas.ACTUATED, Canvas.PAPER, 0.35)
        share = min(abs(action) / self.action_limit, 1.0)
        return blend(middle, (150, 30, 24) if action > 0 else (250, 214, 206), share)


def grow(rng: np.random.Generator, num_boxes: int, start: Cell) -> list[Cell]:
    """A random shape: starting from one cell, a random free 4-neighbour cell of the shape is added again and again."""
    low, high = CELL_RANGE
    size = (high - low + 1) ** 2
    if num_boxes > size:
        raise InputError(f"a robot of {num_boxes} boxes does not fit into {size} cells; ask for fewer objects")
    shape = [start]
    while len(shape) < num_boxes:
        free = sorted(
            {
                (x + dx, y + dy)
                for x, y in shape
                for dx, dy in OUTWARD
                if low <= x + dx <= high and low <= y + dy <= high and (x + dx, y + dy) not in shape
            }
        )
        shape.append(free[rng.integers(len(free))])
    return shape


def draw_materials(rng: np.random.Generator, num_boxes: int) -> list[int]:
    """Half actuated, a quarter soft, a quarter rigid, drawn again until at least two boxes are actuated."""
    if num_boxes < 2:
        raise InputError(f"a robot needs at least two boxes that can be actuated, got {num_boxes}")
    while True:
        materials = rng.choice([ACTUATED, SOFT, RIGID], size=num_boxes, p=[0.5, 0.25, 0.25])
        if np.count_nonzero(materials == ACTUATED) >= 2:
            return materials.tolist()


def random_walk(rng: np.random.Generator, steps: int, reach: float, limit: float) -> np.ndarray:
    """From 0, the first step taken already at t = 0, each uniform in +-reach, clipped to +-limit on the way."""
    walk, value = np.empty(steps), 0.0
    for t, step in enumerate(rng.uniform(-reach, reach, steps).tolist()):
        value = min(max(value + step, -limit), limit)
        walk[t] = value
    return walk


def _outline(box: np.ndarray) -> np.ndarray:
    return box[:8].reshape(4, 2)[list(AROUND)]
