"""Power grid: node voltages that drift from their references under load, held by reactive power at generators.

The equations, their symbols and the integrator are those of `gce.envs.grid_batch`; here are the random grids, the
environment, its linear model and its picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import brentq
from scipy.sparse.linalg import splu

from gce.envs.base import GraphEnv, Pictures, Policy, Protocol, Recipe
from gce.envs.grid_batch import (
    ACTION_LIMIT,
    OBSERVATION_STD,
    SUBSTEP,
    SUBSTEPS,
    GridBatch,
    GridEquations,
    GridParameters,
)
from gce.envs.parts import layout, link_colour, network_canvas, node_size, value_colour
from gce.envs.real_grids import CASES, MESHED, bus_names, case_parameters, check_case, draw_meshed
from gce.errors import InputError
from gce.graphs.graph import Graph, erdos_renyi, lattice, ring

__all__ = ["NODE_ATTRIBUTES", "GridBatch", "GridParameters", "PowerGrid"]

Array = np.ndarray

NODE_ATTRIBUTES = ("is_generator", "K", "M", "D", "q0", "total_susceptance", "stress", "offset")

STRENGTH = {"erdos_renyi": 8.0, "lattice": 16.0, "ring": 32.0}
"""Mean over nodes of the susceptance of a node's lines: sparse topologies get stronger lines, to be as stiff."""
EDGE_PROBABILITY = 0.15
HOLDS = (1, 5, 10, 25)
"""Steps a recorded action is held: short ones excite the network's fast modes, long ones the slow common mode."""

LARGEST_NETWORK = 1000
"""Nodes of a grid whose model has network features, which take the square of them."""
SATURATION = 0.1
MARGIN = 0.05
"""Of the stiffness of random sparse grids, of which K of a generator is 1.25."""


class PowerGrid(GraphEnv):
    """Voltages of a grid of generators and loads, pushed by reactive power at the generators.

    Description: nodes with a voltage v (over its reference, 1 p.u.) joined by lines. Generators, 20-50% of the
        nodes, hold their voltage with droop; every node carries a voltage-dependent load. A scheduled stress on the
        loads and an offset at the generators move the equilibrium 5.5-7.5% (rms) away from 1; the loads also
        fluctuate (6% of each node's own, 1.5% common, over 1 s).
    Action: reactive power at a generator [p.u.], held over the step. This world clips it to +-0.5.
    Observation, each node: v [1], dv, its rate [1/s]; a step is 0.05 s.
    Node attributes: `NODE_ATTRIBUTES`; stress and offset are what a dispatcher's forecast would give, and without
        them the observation would not tell where the voltages are heading. Edge attribute: the line's susceptance.
    Relations: 0 generator from generator, 1 generator from load, 2 load from generator, 3 load from load,
        4 generator itself, 5 load itself. Node types: 0 generator, 1 load.
    Start: the equilibrium without action plus N(0, 0.002), at rest; the load noise in its stationary law.
    Recorded actions: uniform in +-0.5, drawn anew every 1, 5, 10 or 25 steps, a number drawn for each generator.
    Goal: v = 1 at rest unless another is given. Termination: none.

    topology: of drawn grids: "erdos_renyi" (edge probability 0.15, connected), "ring" or "lattice" (a 2D grid, as
        square as the number of nodes allows, its last row perhaps not full), "meshed" (resembles transmission grids);
        or a real grid such as "case118"
        (`gce.envs.real_grids`), whose number of nodes is its own.
    """

    world = "grid"
    dt = SUBSTEPS * SUBSTEP
    Parameters = GridParameters
    observation_names = ("v", "dv")
    position_names = ("v",)
    action_names = ("reactive_power",)
    observation_std = OBSERVATION_STD
    # The std of a uniform draw in +-0.5 is 0.289.
    action_std = np.array([0.29])
    action_limit = ACTION_LIMIT
    action_weight = 0.01
    num_relations = 6
    object_range = (50, 100)
    group_size = 10
    words = ("bus", "buses", "voltages", "p.u.")
    cases = tuple(CASES)
    settings: Mapping[str, Any] = MappingProxyType({"topology": "erdos_renyi"})
    recipe = Recipe(
        protocol=Protocol(100, 50, 1.0, 10.0, 0.01, unit=1.0, action_unit=1.0, positions_only=True),
        unseen=(100, 150),
        offered=(5, 120),
        pictures=Pictures(102, columns=3, chart=("voltages", "voltage, p.u.")),
        model={"node_constants": 30.0},
        training={"iterations": 300, "horizon": 16, "systems": 2, "fit_episodes": 3, "fit_steps": 8, "rollouts": 2},
        published={
            # Chunks to fit on have fewer rows than all generators have actions; those of neighbours are few.
            "model": {"rounds": 2, "actions": "neighbours"},
            "training": {"iterations": 1000, "horizons": (4, 16, 16, 40), "fit_episodes": 4},
        },
        recording={"episodes": 1500, "group_size": 10, "settings": {"topology": "erdos_renyi"}},
        # Graphs of 50 to 100 nodes: as few systems, episodes and steps an iteration as our own model takes there.
        baselines={
            "cko": {
                # On grids CKO runs away with the published ridge (docs/notes/baselines.md).
                "model": {"ridge_factors": (1.0, 10.0, 100.0)},
                "schedule": {
                    "horizons": (4, 8, 16),
                    "draw": {"systems": 2, "windows": 2, "fit_episodes": 3, "fit_steps": 8},
                },
            },
            "graph_ode": {
                "schedule": {"horizons": (1, 4, 8), "draw": {"systems": 2, "windows": 2}, "parts": ()},
                "validation_systems": 1,  # adapting to one takes minutes
            },
        },
        counts={"slow": "slow_grid", **dict.fromkeys(("latent", "costly", "runs"), "grid")},
    )
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # type: ignore[misc]

    parameters: GridParameters

    def __init__(
        self, objects: int | tuple[int, int] = 50, topology: str = "erdos_renyi", render_mode: str | None = None
    ) -> None:
        known = (*STRENGTH, MESHED, *CASES)
        if topology not in known:
            raise InputError(f"grid: topology is {topology!r}, expected one of {', '.join(known)}")
        self._case = case_parameters(topology) if topology in CASES else None
        super().__init__(objects if self._case is None else self._case.num_nodes, render_mode)
        self.topology = topology
        self.settings = {"topology": topology}
        self._drawn: tuple[GridParameters, Array] | None = None

    @classmethod
    def model_for(cls, settings: Mapping[str, Any], sizes: Iterable[int]) -> str:
        """Small grids have models with network features, by topology; rings, lattices and large ones have that of the
        world, which passes messages and takes memory in proportion to lines.
        """
        topology = settings.get("topology")
        if max(sizes) > LARGEST_NETWORK or topology not in ("erdos_renyi", MESHED, *CASES):
            return cls.world
        return MESHED if topology in CASES else topology

    @classmethod
    def of_case(cls, case: str) -> PowerGrid:
        check_case(case)
        return cls(topology=case)

    # ---- the random grid ----

    def draw_parameters(self, rng: np.random.Generator, num_objects: int) -> GridParameters:
        if self._case is not None:
            if num_objects != self._case.num_nodes:
                raise InputError(
                    f"grid: {self.topology} has {self._case.num_nodes} nodes, asked for {num_objects}; "
                    "leave the number out"
                )
            return stressed(self._case, rng)
        if self.topology == MESHED:
            return draw_stressed(num_objects, rng)
        n = num_objects
        lines = draw_lines(self.topology, n, rng)
        susceptance = np.exp(0.3 * rng.standard_normal(len(lines)))
        susceptance *= STRENGTH[self.topology] * n / (2 * susceptance.sum() if len(lines) else 1.0)

        def around(value: float) -> Array:
            return value * rng.uniform(0.8, 1.2, n)

        is_generator = np.zeros(n, bool)
        is_generator[rng.permutation(n)[: max(1, round(rng.uniform(0.2, 0.5) * n))]] = True
        gain, voltage_time, filter_time = around(1.2), around(0.6), around(0.1)
        calm: dict[str, Any] = {
            "lines": lines,
            "susceptance": susceptance,
            "is_generator": is_generator,
            "gain": np.where(is_generator, gain, 0.0),
            "inertia": np.where(is_generator, voltage_time * filter_time * gain, around(0.02)),
            "damping": np.where(is_generator, (voltage_time + filter_time) * gain, around(0.3)),
            "load": rng.uniform(0.1, 0.3, n),
        }
        return stressed(GridParameters(**calm, stress=np.zeros(n), offset=np.zeros(n)), rng)

    def build_graph(self, parameters: GridParameters) -> Graph:
        p = parameters
        lines = np.array(p.lines, np.int64).reshape(-1, 2)
        is_load = 1 - np.array(p.is_generator, np.int64)
        # From i to j goes what j feels of i, b_ji, the second half of `both_ways`.
        pairs, susceptance = np.concatenate([lines, lines[:, ::-1]]), np.roll(p.both_ways(), len(lines))
        total = np.bincount(pairs[:, 1], susceptance, p.num_nodes)
        columns = (p.is_generator, p.gain, p.inertia, p.damping, p.load, total, p.stress, p.offset)
        return Graph.from_edges(
            p.num_nodes,
            pairs,
            edge_type=2 * is_load[pairs[:, 1]] + is_load[pairs[:, 0]],
            node_type=is_load,
            node_attributes=np.stack([np.asarray(column, np.float64) for column in columns], axis=1),
            edge_attributes=susceptance,
            self_type=4 + is_load,
        )

    @property
    def actuated(self) -> Bool[Array, " nodes"]:
        return np.array(self.parameters.is_generator)

    @property
    def node_names(self) -> list[str]:
        """A test case's own numbers of its buses."""
        return super().node_names if self._case is None else list(bus_names(self.topology))

    def excitation(self, rng: np.random.Generator, steps: int) -> Policy:
        generators = np.flatnonzero(self.actuated)
        holds = rng.choice(HOLDS, len(generators))
        levels = rng.uniform(-ACTION_LIMIT, ACTION_LIMIT, (steps, len(generators)))
        # Rounded to single precision, as stored, so that a replay is exact.
        levels = levels.astype(np.float32).astype(np.float64)
        push = np.zeros((steps, self.parameters.num_nodes, 1))
        push[:, generators, 0] = np.take_along_axis(levels, np.arange(steps)[:, None] // holds, axis=0)
        return lambda t: push[t]

    def stage_cost(self, observation: Array, goal: Array | None, action: Array) -> float:
        """|v - goal v|^2 + 0.01 |u|^2 in p.u. with the clipped u; v = 1 is the goal where none is given."""
        reference = 1.0 if goal is None else goal[:, 0]
        u = np.clip(np.where(self.actuated[:, None], action, 0.0), -ACTION_LIMIT, ACTION_LIMIT)
        return float(np.sum((observation[:, 0] - reference) ** 2) + self.action_weight * np.sum(u**2))

    def run_cost(self, observations: Array, actions: Array, goal: Array) -> float:
        return float(sum(self.stage_cost(o, goal, a) for o, a in zip(observations, actions, strict=True)))

    @classmethod
    def default_goal(cls, num_nodes: int) -> Float[Array, "nodes coordinates"]:
        return np.tile([1.0, 0.0], (num_nodes, 1))

    def extra_figures(self, observations: Array, goal: Array) -> dict[str, float]:
        """voltage_error: |v_M - goal v| / |v_0 - goal v|."""
        away = np.linalg.norm(observations[0, :, 0] - goal[:, 0])
        return {"voltage_error": float(np.linalg.norm(observations[-1, :, 0] - goal[:, 0]) / away)}

    # ---- physics ----

    def _begin(self) -> None:
        self._batch = GridBatch([self.parameters])
        # A spawned stream: the loads are the same for a seed whether the parameters were drawn or given.
        self._batch.reset(self.np_random.spawn(1), self.process_noise)

    def _advance(self, action: Array) -> None:
        self._batch.step(action[:, 0])

    def _observation(self) -> Array:
        return self._batch.observe()

    def linearised(self) -> tuple[Float[Array, "states states"], Float[Array, "states nodes"], Float[Array, " states"]]:
        """(A, B, c) of x' = A x + B u + c, one step of x = [v; dv] linearised at v = 1, dv = u = 0.

        The stress and the offset are known, the load noise is 0. A column of B for every node, 0 at loads; the
        derivatives are those of the two discrete substeps, the second taken where the first leads. Dense, for up
        to a few hundred nodes.
        """
        equations, h, n = GridEquations.of(self.parameters), SUBSTEP, self.parameters.num_nodes
        solve, eye = splu(equations.step_matrix()).solve, np.eye(n)
        theta, rest = equations.theta, (1 - equations.theta) / equations.theta
        from_w = solve(np.diag(equations.inertia / theta))
        from_u = solve(h * np.diag(equations.is_generator * 1.0))
        start = np.concatenate([np.ones(n), np.zeros(n)])
        x, A, B = start, np.eye(2 * n), np.zeros((2 * n, n))
        for _ in range(SUBSTEPS):
            v, w = x[:n], x[n:]
            from_v = solve(h * equations.slope(v).toarray())
            over = 1 / theta[:, None]
            along = np.block([[eye + h * from_v, h * from_w], [over * from_v, over * from_w - np.diag(rest)]])
            A, B = along @ A, along @ B + np.concatenate([h * from_u, over * from_u])
            middle = solve(equations.inertia / theta * w + h * equations.force(v))
            x = np.concatenate([v + h * middle, middle / theta - rest * w])
        return A, B, x - A @ start

    # ---- picture ----

    def draw(self, observation: Array, action: Array | None = None, goal: Array | None = None) -> Any:
        places = self._layout()
        canvas, size = network_canvas(), node_size(len(places))
        reference = np.ones(len(places)) if goal is None else goal[:, 0]
        miss = observation[:, 0] - reference
        links = link_colour(len(self.parameters.lines))
        for i, j in self.parameters.lines:
            canvas.line(places[[i, j]], links, 0.004)
        square = size * np.array([(-1, -1), (-1, 1), (1, 1), (1, -1)])
        for (x, y), generates, value in zip(places, self.parameters.is_generator, miss, strict=True):
            if generates:
                canvas.polygon(np.add(square, (x, y)), value_colour(value / SATURATION), canvas.ACTUATED, 0.22 * size)
            else:
                canvas.circle((x, y), size, fill=value_colour(value / SATURATION), outline=canvas.LINK)
        if action is not None:
            for i in np.flatnonzero(self.actuated).tolist():
                u = float(np.clip(action[i, 0], -ACTION_LIMIT, ACTION_LIMIT)) / ACTION_LIMIT
                x, y = places[i] + (1.7 * size, 0)
                canvas.arrow((x, y - 1.5 * size * u), (x, y + 1.5 * size * u), canvas.ACTION, 0.3 * size)
        rms, worst = np.sqrt(np.mean(miss**2)), np.abs(miss).max()
        canvas.text((-1.05, 0.98), f"rms deviation {100 * rms:.1f}%   worst {100 * worst:.1f}%")
        canvas.text((0.54, 0.98), "-10%")
        for k in range(21):
            left = 0.7 + 0.01 * k
            canvas.line([(left, 0.945), (left + 0.01, 0.945)], value_colour((k - 10) / 10), 0.03)
        canvas.text((0.94, 0.98), "+10%")
        return canvas.image()

    def _layout(self) -> Float[Array, "nodes 2"]:
        """Places in [-1, 1] x [-0.9, 0.9], the same at every call for a grid."""
        if self._drawn is None or self._drawn[0] is not self.parameters:
            lines = np.array(self.parameters.lines, np.int64).reshape(-1, 2)
            self._drawn = self.parameters, layout(self.parameters.num_nodes, lines)
        return self._drawn[1]


def draw_lines(topology: str, num_nodes: int, rng: np.random.Generator) -> Int[Array, "lines 2"]:
    """The lines of a random topology."""
    if topology == "ring":
        return ring(num_nodes)
    if topology == "erdos_renyi":
        return erdos_renyi(num_nodes, EDGE_PROBABILITY, rng)
    columns = int(np.ceil(np.sqrt(num_nodes)))
    lines = lattice(-(-num_nodes // columns), columns)
    return lines[(lines < num_nodes).all(axis=1)]


def stressed(calm: GridParameters, rng: np.random.Generator) -> GridParameters:
    """A grid without stress and offset, with random ones that move its equilibrium 5.5-7.5% away from v = 1."""
    n, is_generator = calm.num_nodes, np.array(calm.is_generator)
    sign = 1 if rng.random() < 0.75 else -1
    stress = sign * rng.uniform(0.11, 0.22) + _centred(0.11 * rng.standard_normal(n))
    offset = np.zeros(n)
    offset[is_generator] = _centred(0.15 * rng.standard_normal(int(is_generator.sum())))
    factor = stress_factor(GridEquations.of(calm), stress, offset, target=rng.uniform(0.055, 0.075))
    return replace(calm, stress=factor * stress, offset=factor * offset)


def draw_stressed(num_nodes: int, rng: np.random.Generator, draws: int = 50) -> GridParameters:
    """A random grid that resembles real ones; those that break down under stress are drawn again."""
    for _ in range(draws - 1):
        with suppress(InputError):
            grid = stressed(draw_meshed(num_nodes, rng), rng)
            if settles(grid):
                return grid
    return stressed(draw_meshed(num_nodes, rng), rng)


def settles(grid: GridParameters) -> bool:
    """Whether voltages are drawn to the equilibrium and, were they there, to v = 1, with some margin."""
    equations = GridEquations.of(grid)
    at = equations.equilibrium(), np.ones(grid.num_nodes)
    return all(v is not None and np.linalg.eigvals(equations.slope(v).toarray()).real.max() < -MARGIN for v in at)


def stress_factor(equations: GridEquations, stress: Array, offset: Array, target: float) -> float:
    """The factor on (stress, offset) whose equilibrium is `target` away from v = 1, rms."""

    def excess(factor: float) -> float:
        scaled = replace(equations, stress=factor * stress, source=equations.source + factor * offset)
        v = scaled.equilibrium()
        # No equilibrium is more severe than any target; 1 p.u. stands for it.
        return (1.0 if v is None else float(np.sqrt(np.mean((v - 1) ** 2)))) - target

    high = 1.0
    while excess(high) < 0:
        high *= 2
    factor = float(brentq(excess, 0.0, high, xtol=1e-12))
    if abs(excess(factor)) > 1e-6:
        raise InputError(f"grid: no stress moves this grid's equilibrium {target:.3f} away from 1; draw another grid")
    return factor


def _centred(values: Array) -> Array:
    return values - values.mean()
