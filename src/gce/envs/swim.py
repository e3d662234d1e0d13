"""Swim: a robot of boxes that pushes itself through water."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from gce.envs.base import Protocol, Recipe
from gce.envs.boxes import (
    ACTUATED,
    OUTWARD,
    PRESET,
    RECIPE,
    RIGID,
    SIDES,
    SOFT,
    BoxEnv,
    BoxParameters,
    Cell,
    draw_materials,
    grow,
    random_walk,
)

WATER = 50.0

# Column heights of the gliders, one list of choices per number of boxes; they are mirrored about the middle.
GLIDERS: dict[int, tuple[tuple[int, ...], ...]] = {
    5: ((1, 3, 1), (2, 1, 2)),
    6: ((3, 3), (2, 2, 2)),
    7: ((2, 3, 2), (1, 2, 1, 2, 1), (2, 1, 1, 1, 2)),
    8: ((2, 2, 2, 2), (1, 2, 2, 2, 1), (2, 1, 2, 1, 2), (3, 2, 3)),
    9: ((2, 2, 1, 2, 2), (1, 2, 3, 2, 1), (2, 1, 3, 1, 2), (3, 3, 3)),
}

# Shares of actuated, soft and rigid by place in a column.
ALONE, FIRST, LAST, BETWEEN = (0.25, 0.25, 0.5), (0.0, 0.5, 0.5), (0.75, 0.25, 0.0), (0.4, 0.2, 0.4)


class Swim(BoxEnv):
    """A soft robot swimming freely.

    Description: unit boxes as in Soft, without the foot. An outer side of an actuated box that pushes (action below
        zero) feels the water: each of its two corners that moves outward at speed s along the outward normal n gets
        the force -50 s^2 L n, L the side's length.
    Action: a force [N] along the diagonals of each actuated box, positive pulls its corners together; controllers
        keep within +-500. It shows in the positions one step late, so the full state is (o_t, a_{t-1}).
    Observation: as in Soft.
    Relations: 9 x the receiver's material (actuated, soft, rigid) + direction, see `boxes.DIRECTIONS`.
    Start: undeformed, at rest; 5-9 boxes are gliders (mirrored columns), other numbers grow at random.
    Recorded actions, per box: 30% a random walk, 30% uniform, 40% a sine of random amplitude.
    Termination: none.
    """

    world = "swim"
    observation_std = np.array(
        [1.4993, 1.4823, 1.4999, 1.4825, 1.4993, 1.4823, 1.4997, 1.4826]
        + [0.8100, 0.8124, 0.8122, 0.8155, 0.8039, 0.8053, 0.8068, 0.8094]
    )
    action_std = np.array([210.59])
    action_limit = 500.0
    action_weight = 0.0001
    num_relations = 27
    stiffness_range = (600.0, 800.0)
    margin = 4.0  # swimmers travel up to 3 m in 100 steps
    recipe = Recipe(
        # What water does to a swimmer bends with the actions: the last digits of a plan take long, and change nothing.
        protocol=Protocol(64, 32, 3e-3, 1.0, 3e-2, tolerance=1e-3),
        offered=(4, 20),
        model={**PRESET, "drag": True},
        **RECIPE,
    )

    def draw_parameters(self, rng: np.random.Generator, num_objects: int) -> BoxParameters:
        if num_objects in GLIDERS:
            return self._draw_springs(rng, *draw_glider(rng, num_objects))
        cells = grow(rng, num_objects, (int(rng.integers(-4, 4)), int(rng.integers(-4, 4))))
        return self._draw_springs(rng, cells, draw_materials(rng, num_objects))

    def draw_action(self, rng: np.random.Generator, steps: int) -> Float[np.ndarray, " steps"]:
        kind, limit = rng.random(), self.action_limit
        if kind < 0.3:
            return random_walk(rng, steps, 250.0, limit)
        if kind < 0.6:
            return rng.uniform(-limit, limit, steps)
        period, phase = rng.uniform(1, 2.5), rng.uniform(0, 2 * np.pi)
        return np.sin(np.arange(steps) / period + phase) * rng.uniform(limit / 2, limit, steps)

    # ---- physics ----

    def _begin(self) -> None:
        super()._begin()
        sides = outer_sides(self.parameters)
        self._side_box, self._side_first, self._side_second = sides.T.copy()
        self._side_corners = np.concatenate([self._side_first, self._side_second])
        # A corner may lie on two outer sides and then feels both: a matrix adds them up.
        self._gather = (np.arange(self._num_bodies)[:, None] == self._side_corners).astype(complex)
        # Turning a side by this right angle points outward, and does so however the robot moves.
        start = self._places.points
        along = start[self._side_second] - start[self._side_first]
        outward = start[self._side_first] + along / 2 - start.reshape(-1, 4).mean(axis=1)[self._side_box]
        self._side_turn = 1j * np.sign((outward * np.conj(1j * along)).real)

    def _set_forces(self, action: np.ndarray) -> None:
        super()._set_forces(action)
        wet = action[self._side_box, 0] < 0
        if not wet.any():
            return
        points = self._places.points
        along = points[self._side_second] - points[self._side_first]
        length = np.abs(along)
        normal = np.concatenate([along * self._side_turn] * 2)  # n L, for the first corners and for the second
        self._speeds.read()
        speed = (self._speeds.points[self._side_corners] * normal.conj()).real.reshape(2, -1) / length
        resistance = -WATER * np.square(np.maximum(speed, 0.0)) * wet
        self._forces.points += self._gather @ (resistance.reshape(-1) * normal)


def outer_sides(parameters: BoxParameters) -> Int[np.ndarray, "sides 3"]:
    """(box, first body, second body) of every side of an actuated box that no 4-neighbour shares."""
    cells = {(x, y) for x, y, _ in parameters.boxes}
    sides = [
        (k, 4 * k + first, 4 * k + second)
        for k, (x, y, material) in enumerate(parameters.boxes)
        if material == ACTUATED
        for (first, second), (dx, dy) in zip(SIDES, OUTWARD, strict=True)
        if (x + dx, y + dy) not in cells
    ]
    return np.array(sides, dtype=np.int64).reshape(-1, 3)


def draw_glider(rng: np.random.Generator, num_boxes: int) -> tuple[list[Cell], list[int]]:
    """Columns of boxes, heights and offsets mirrored about the middle, materials drawn by place in the column."""
    choices = GLIDERS[num_boxes]
    heights = choices[rng.integers(len(choices))]
    columns, half = len(heights), (len(heights) + 1) // 2
    bottoms = [0]
    for before, height in zip(heights[:half], heights[1:half], strict=False):
        # The offset to the column before is such that the two share a side.
        bottoms.append(bottoms[-1] + int(rng.integers(1 - height, before)))
    bottoms += reversed(bottoms[: columns - half])

    cells = [(column, bottoms[column] + level) for column in range(columns) for level in range(heights[column])]
    places = [_place(level, heights[column]) for column in range(columns) for level in range(heights[column])]
    while True:
        materials = [int(rng.choice([ACTUATED, SOFT, RIGID], p=shares)) for shares in places]
        if materials.count(ACTUATED) >= 2:
            break
    flip_x, flip_y, swap = rng.integers(0, 2, 3)
    turned = [(-x if flip_x else x, -y if flip_y else y) for x, y in cells]
    return [(y, x) if swap else (x, y) for x, y in turned], materials


def _place(level: int, height: int) -> tuple[float, float, float]:
    if height == 1:
        return ALONE
    return FIRST if level == 0 else LAST if level == height - 1 else BETWEEN
