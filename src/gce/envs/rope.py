"""Rope: a chain of masses hanging from one that slides along a rail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymunk
from jaxtyping import Bool

from gce.envs.base import Pictures, Policy, Protocol, Recipe, check_choice
from gce.envs.parts import BodyEnv, Canvas
from gce.errors import InputError
from gce.graphs.graph import Graph

SPACING = 0.3
RADIUS = 0.06
TOP = 1.0
RAIL = 2.0
SLACK = 1.075
"""Rest length of a spring, in units of the distance at the start: the rope starts compressed."""


@dataclass(frozen=True)
class RopeParameters:
    """num_masses; init_x: where the rope hangs at the start [m]; stiffness [N/m]; damping [Ns/m]; gravity [m/s^2]."""

    num_masses: int
    init_x: float
    stiffness: float
    damping: float
    gravity: float

    def __post_init__(self) -> None:
        if self.num_masses < 2:
            raise InputError(f"rope: num_masses is {self.num_masses}, expected at least 2")
        check_choice("rope", "init_x", self.init_x, -RAIL, RAIL)
        check_choice("rope", "stiffness", self.stiffness, 0, 1e6)
        check_choice("rope", "damping", self.damping, 0, 1e6)
        check_choice("rope", "gravity", self.gravity, -100, 100)


class Rope(BodyEnv):
    """A chain of masses whose top one is pushed along a rail.

    Description: masses of 1 kg and radius 0.06 m, started in a vertical line 0.3 m apart, the first at height 1 m on
        a horizontal rail from -2 to 2 m. Damped springs join neighbours (stiffness k) and masses two apart (k/2),
        both with damping k/20 and rest lengths 7.5% above the distances at the start. Masses collide.
    Action: a horizontal impulse on the first mass [Ns], applied before the step; controllers keep within +-2.
    Observation, each mass: x, y [m], vx, vy [m/s] (finite differences).
    Relations: 0 top mass itself; 1 top from its neighbour, 2 the reverse; 3 top from two apart, 4 the reverse;
        5 neighbours; 6 two apart; 7 other mass itself.
    Start: at rest, stretched to nothing, so the rope first falls and bounces.
    Recorded actions: uniform in +-2 minus the first mass's x, which pulls it back to the middle.
    Termination: none.
    """

    world = "rope"
    Parameters = RopeParameters
    words = ("mass", "masses", "positions", "m")
    observation_names = ("x", "y", "vx", "vy")
    position_names = ("x", "y")
    action_names = ("impulse",)
    observation_std = np.array([0.33443, 0.66125, 1.25085, 0.55361])
    action_std = np.array([0.4618])
    action_limit = 2.0
    action_weight = 0.01
    num_relations = 8
    object_range = (5, 9)
    group_size = 25
    points = ((0, 1, 2, 3),)
    # The engine moves bodies before it computes forces: the first step knows only the impulse.
    fresh_start = True
    recipe = Recipe(
        protocol=Protocol(40, 40, 3e-4, 1.0, 1e-3),
        unseen=(10, 14),
        offered=(3, 30),
        pictures=Pictures(9),
        model={"conservative": True},
        published={"model": {"q2": 20.0}},
        counts={"costly": "runs"},
        longer_trained=True,
    )

    parameters: RopeParameters

    def draw_parameters(self, rng: np.random.Generator, num_objects: int) -> RopeParameters:
        stiffness = rng.uniform(500, 1500)
        return RopeParameters(
            num_masses=num_objects,
            init_x=rng.uniform(-0.6, 0.6),
            stiffness=stiffness,
            damping=stiffness / 20,
            gravity=rng.uniform(-8, -2),
        )

    def build_graph(self, parameters: RopeParameters) -> Graph:
        n = parameters.num_masses
        relations = np.full((n, n), -1)
        rows = np.arange(n)
        for hops, kind in ((1, 5), (2, 6)):
            relations[rows[hops:], rows[:-hops]] = relations[rows[:-hops], rows[hops:]] = kind
        relations[rows, rows] = 7
        relations[0, :3] = [0, 1, 3][:n]
        relations[1:3, 0] = [2, 4][: n - 1]
        return Graph.from_relations(relations, node_type=np.minimum(rows, 1))

    @property
    def actuated(self) -> Bool[np.ndarray, " nodes"]:
        return np.arange(self.parameters.num_masses) == 0

    def excitation(self, rng: np.random.Generator, steps: int) -> Policy:
        push = np.zeros((steps, self.parameters.num_masses, 1))
        push[:, 0, 0] = rng.uniform(-2, 2, steps)

        def act(t: int) -> np.ndarray:
            # Rounded to single precision, as stored, so that a replay is exact.
            push[t, 0, 0] = np.float32(push[t, 0, 0] - self._places.table[0, 0])
            return push[t]

        return act

    # ---- physics ----

    def _build_space(self) -> pymunk.Space:
        p = self.parameters
        space = pymunk.Space()
        space.gravity = (0, p.gravity)
        moment = pymunk.moment_for_circle(1, 0, RADIUS)
        masses = [pymunk.Body(1, moment) for _ in range(p.num_masses)]
        for i, body in enumerate(masses):
            body.position = (p.init_x, TOP - SPACING * i)
        # The solver goes through the constraints in the order they were added.
        joints: list[pymunk.Constraint] = [
            pymunk.GrooveJoint(space.static_body, masses[0], (-RAIL, TOP), (RAIL, TOP), (0, 0))
        ]
        for hops, stiffness in ((1, p.stiffness), (2, p.stiffness / 2)):
            for upper, lower in zip(masses, masses[hops:], strict=False):
                rest = SLACK * SPACING * hops
                joints.append(pymunk.DampedSpring(upper, lower, (0, 0), (0, 0), rest, stiffness, p.damping))
        space.add(*masses, *(pymunk.Circle(body, RADIUS) for body in masses), *joints)
        self._top = masses[0]
        return space

    def _apply(self, action: np.ndarray) -> None:
        x, y = self._places.table[0].tolist()
        self._top.apply_impulse_at_world_point((float(action[0, 0]), 0), (x, y))

    def _objects(self, positions: np.ndarray) -> np.ndarray:
        return positions

    # ---- picture ----

    def draw(self, observation: np.ndarray, action: np.ndarray | None = None, goal: np.ndarray | None = None) -> Any:
        depth = SPACING * SLACK * 1.25 * self.parameters.num_masses
        canvas = Canvas(left=-2.2, right=2.2, bottom=TOP - depth - 0.2, top=TOP + 0.35)
        canvas.line([(-RAIL, TOP), (RAIL, TOP)], canvas.RAIL, 0.03)
        if goal is not None:
            canvas.line(goal[:, :2], canvas.GOAL, 0.02)
            for x, y in goal[:, :2]:
                canvas.circle((x, y), RADIUS, outline=canvas.GOAL)
        canvas.line(observation[:, :2], canvas.LINK, 0.025)
        for i, (x, y) in enumerate(observation[:, :2]):
            canvas.circle((x, y), RADIUS, fill=canvas.ACTUATED if i == 0 else canvas.BODY)
        if action is not None:
            x, y = observation[0, :2]
            canvas.arrow((x, y + 0.18), (x + 0.4 * float(action[0, 0]), y + 0.18), canvas.ACTION)
        return canvas.image()
