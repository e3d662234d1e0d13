"""Soft: a robot of boxes that grows from a box fixed to the ground."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gce.envs.base import Protocol, Recipe
from gce.envs.boxes import FIXED, PRESET, RECIPE, BoxEnv, BoxParameters, draw_materials, grow, random_walk
from gce.errors import InputError

GROUND = (0, -4)


class Soft(BoxEnv):
    """A soft robot on a fixed foot.

    Description: 5-9 unit boxes grown at random from a foot at (0, -4) whose lower corners are pinned to the world.
        Soft and actuated boxes are damped springs along sides and diagonals (stiffness k, damping k/20), rigid ones
        are pins. No gravity.
    Action: a force [N] along the diagonals of each actuated box, positive pulls its corners together; controllers
        keep within +-650. It shows in the positions one step late, so the full state is (o_t, a_{t-1}).
    Observation, each box: x, y of its four corners [m] (lower left, upper left, lower right, upper right), then their
        velocities [m/s] (finite differences). Corners shared by boxes are one: the mean of the bodies pinned there.
    Relations: 9 x the receiver's material (actuated, soft, rigid, fixed) + direction, see `boxes.DIRECTIONS`.
    Start: undeformed, at rest.
    Recorded actions: per actuated box a random walk from 0 with steps uniform in +-200, clipped to +-650.
    Termination: none.
    """

    world = "soft"
    observation_std = np.array(
        [1.2885, 0.8396, 1.2959, 0.8435, 1.2884, 0.8401, 1.2957, 0.8440]
        + [0.5312, 0.4988, 0.6374, 0.6147, 0.5258, 0.4894, 0.6334, 0.6088]
    )
    action_std = np.array([270.17])
    action_limit = 650.0
    action_weight = 0.001
    num_relations = 36
    stiffness_range = (600.0, 1000.0)
    recipe = Recipe(
        # Recorded forces change by up to 200 N a step: beyond half of that plans shake what no model predicts.
        protocol=Protocol(64, 32, 3e-3, 1.0, 1e-2, change_cost=2.0, rate=100.0),
        offered=(3, 20),
        model=PRESET,
        repeats=5e-3,
        **RECIPE,
    )

    def draw_parameters(self, rng: np.random.Generator, num_objects: int) -> BoxParameters:
        if num_objects < 3:
            raise InputError(f"soft: {num_objects} objects are too few; it needs the foot and two actuated boxes")
        cells = grow(rng, num_objects, GROUND)
        return self._draw_springs(rng, cells, [FIXED, *draw_materials(rng, num_objects - 1)])

    def draw_action(self, rng: np.random.Generator, steps: int) -> Float[np.ndarray, " steps"]:
        return random_walk(rng, steps, 200.0, self.action_limit)
