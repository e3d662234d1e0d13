"""Flock: agents that move to the mean of their neighbours, those near weighing more; some are steered.

With x_i the position of agent i, E(i) its neighbours and itself, u_i the action and k the sharpness, a step is

    x_i <- sum_{j in E(i)} alpha_ij x_j + b u_i + noise,   alpha_ij = exp(-k^2 |x_i - x_j|^2 / 2) / (sum over E(i))

the soft form of opinions with bounded confidence (Hegselmann and Krause 2002). It is the Gibbs-weighted mean field of
positions with bandwidth 1/k, so it is where such weights are the truth. k = 0 gives uniform weights. With a large k
an agent heeds only those that stand where it stands, and in the end itself alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float

from gce.envs.base import GraphEnv, Pictures, Policy, Protocol, Recipe, check_choice
from gce.envs.parts import Canvas, blend, check_network
from gce.errors import InputError
from gce.graphs.graph import Graph, erdos_renyi

Array = np.ndarray

SHARPNESS = 2.0
"""Of drawn systems, a bandwidth of 0.5: wider than a group, narrower than the distance of groups."""
DEGREE = 5.5
"""Neighbours of an agent on average: about half of them in its own group, so that the graph does not tell groups."""
STEERED = 4
"""One agent in so many is steered."""
GROUPS = 3
RADIUS = 2.0
"""Of the circle on which groups start: they are 3.5 apart, seven bandwidths, and do not feel each other."""
SPREAD = 0.3
"""Std of a coordinate of an agent around its group at the start: within the bandwidth, so that groups contract."""
REACH = 0.3
"""b: how far an action of 1 moves an agent; below the bandwidth, so that a leader drags its group and seldom loses it
(`docs/notes/flock.md`).
"""
PULL = 0.3
"""Of recorded actions, towards where an agent started: groups neither drift off nor all meet at one point."""
HOLDS = (1, 5, 10, 20)
"""Steps a recorded action is held: long ones move groups, short ones tell an agent from its group."""
WINDOW = 3.4
"""Pictures show coordinates up to this."""


@dataclass(frozen=True)
class FlockParameters:
    """One flock. Lists and arrays become tuples of plain numbers, so that JSON gives back an equal object.

    links: (i, j) pairs of neighbours, each pair once; steered: which agents are; start: their positions (x, y).
    sharpness: k, one over the bandwidth of the weights.
    """

    links: Sequence[Sequence[int]] | Array
    steered: Sequence[bool] | Array
    start: Sequence[Sequence[float]] | Array
    sharpness: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", tuple((int(i), int(j)) for i, j in self.links))
        object.__setattr__(self, "steered", tuple(bool(s) for s in self.steered))
        object.__setattr__(self, "start", tuple((float(x), float(y)) for x, y in self.start))
        object.__setattr__(self, "sharpness", float(self.sharpness))
        self._check()

    @property
    def num_agents(self) -> int:
        return len(self.steered)

    def _check(self) -> None:
        check_choice("flock", "sharpness", self.sharpness, 0, 100)
        if not any(self.steered):
            raise InputError("flock: steered names no agent; at least one must be")
        if len(self.start) != self.num_agents:
            raise InputError(
                f"flock: start has {len(self.start)} positions for {self.num_agents} agents; give one each"
            )
        if not np.isfinite(self.start).all():
            raise InputError("flock: a position of start is not a finite number; give x and y of each agent")
        pairs, apart = np.array(self.links, np.int64).reshape(-1, 2), "simulate each part as a flock of its own"
        check_network("flock", pairs, self.num_agents, "link", "agent", f"join all agents; {apart}")


class Flock(GraphEnv):
    """Agents in the plane that move to a weighted mean of their neighbours, a quarter of them steered.

    Description: agents on a connected random graph with 5.5 neighbours on average. At each step an agent moves to the
        mean of its neighbours and itself, with weights exp(-k^2 d^2 / 2) by distance d that add up to one; the
        sharpness k is 2. Groups thus contract and stay apart, though the graph joins them, and steered agents drag
        theirs along. Process noise moves every agent at each step.
    Action: a displacement (ux, uy) of a steered agent, times 0.3, added to the step; controllers keep within +-1.
    Observation, each agent: x, y.
    Relations: 0 a neighbour, 1 itself. Node types: 0 steered, 1 not.
    Start: in up to three groups, connected on the graph, on a circle of radius 2; each agent N(0, 0.3) around its
        group. A system's start is one of its parameters.
    Recorded actions: uniform in +-1, drawn anew every 1, 5, 10 or 20 steps, plus 0.3 of the way back to where the
        agent started, clipped to +-1.
    Termination: none.

    sharpness: k of drawn systems, from 0 (uniform weights) to 100 (only what stands in the same place has weight).
    """

    world = "flock"
    dt = 1.0  # a step is the unit of time
    Parameters = FlockParameters
    words = ("agent", "agents", "positions", "m")
    observation_names = ("x", "y")
    position_names = ("x", "y")
    action_names = ("ux", "uy")
    # Of recordings with a sharpness of 2 (100 systems): 1.48 and 1.53, the same by symmetry; actions 0.52.
    observation_std = np.array([1.5, 1.5])
    action_std = np.array([0.52, 0.52])
    action_limit = 1.0
    action_weight = 0.01
    num_relations = 2
    object_range = (10, 20)
    group_size = 12
    settings: Mapping[str, Any] = MappingProxyType({"sharpness": SHARPNESS})
    recipe = Recipe(
        protocol=Protocol(40, 40, 3e-4, 1.0, 1e-3),
        unseen=(21, 30),
        offered=(4, 40),
        pictures=Pictures(),
        published={
            "model": {
                "rounds": 1,
                "node_width": 32,
                "edge_width": 16,
                "scale": 1.5,
                "bound": 6.0,
                "heard": 0.0,
                "shared_map": False,
            },
            "training": {
                "iterations": 2000,
                "fit_episodes": 4,
                "horizons": (4, 16, 16, 16, 40, 40, 40),
                "forward": 0.3,
                "fresh_share": 0.2,
                "fit_fresh_share": 0.2,
            },
        },
    )
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}  # type: ignore[misc]

    parameters: FlockParameters

    def __init__(
        self, objects: int | tuple[int, int] = 15, sharpness: float = SHARPNESS, render_mode: str | None = None
    ) -> None:
        super().__init__(objects, render_mode)
        check_choice("flock", "sharpness", sharpness, 0, 100)
        self.settings = {"sharpness": float(sharpness)}

    # ---- the random flock ----

    def draw_parameters(self, rng: np.random.Generator, num_objects: int) -> FlockParameters:
        n = num_objects
        links = erdos_renyi(n, DEGREE / max(n - 1, DEGREE), rng)
        leaders = rng.permutation(n)[: -(-n // STEERED)]
        groups = draw_groups(n, links, leaders[:GROUPS], rng)
        angles = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(GROUPS) / GROUPS
        centres = RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        start = centres[groups] + SPREAD * rng.standard_normal((n, 2))
        return FlockParameters(links, np.isin(np.arange(n), leaders), start, self.settings["sharpness"])

    def build_graph(self, parameters: FlockParameters) -> Graph:
        return Graph.from_edges(
            parameters.num_agents,
            np.array(parameters.links, np.int64).reshape(-1, 2),
            node_type=1 - np.array(parameters.steered, np.int64),
            self_type=1,
            undirected=True,
        )

    @property
    def actuated(self) -> Bool[Array, " nodes"]:
        return np.array(self.parameters.steered)

    def excitation(self, rng: np.random.Generator, steps: int) -> Policy:
        n, home = self.parameters.num_agents, np.array(self.parameters.start)
        levels = rng.uniform(-1, 1, (steps, n, 2))
        kept = np.arange(steps)[:, None] // rng.choice(HOLDS, n)
        levels = np.take_along_axis(levels, kept[..., None], axis=0)

        def act(t: int) -> Array:
            push = np.clip(levels[t] + PULL * (home - self._positions), -1, 1)
            # Rounded to single precision, as stored, so that a replay is exact.
            return np.where(self.actuated[:, None], push.astype(np.float32), 0.0).astype(np.float64)

        return act

    # ---- the step ----

    def weights(self, observations: Float[Array, "*batch nodes 2"]) -> Float[Array, "*batch edges"]:
        """alpha_ij of each edge of `graph`, from its sender j to its receiver i: what learned weights should be."""
        away = observations[..., self.graph.senders, :] - observations[..., self.graph.receivers, :]
        # An agent's own potential is 0, the largest there is: nothing overflows, and no sum is below 1.
        gibbs = np.exp(-0.5 * self.parameters.sharpness**2 * np.sum(away**2, axis=-1))
        return gibbs / self._over_neighbours(gibbs[..., None])[..., self.graph.receivers, 0]

    def mean_field(self, observations: Float[Array, "*batch nodes 2"]) -> Float[Array, "*batch nodes 2"]:
        """sum_j alpha_ij x_j of each agent: where it moves without an action."""
        return self._over_neighbours(self.weights(observations)[..., None] * observations[..., self.graph.senders, :])

    def _over_neighbours(self, values: Float[Array, "*batch edges d"]) -> Float[Array, "*batch nodes d"]:
        """Sums of what edges bring; these are sorted by receiver, and every node has an edge to itself."""
        first = np.searchsorted(self.graph.receivers, np.arange(self.graph.num_nodes))
        return np.add.reduceat(values, first, axis=-2)

    def _begin(self) -> None:
        self._positions = np.array(self.parameters.start)

    def _advance(self, action: Array) -> None:
        moved = self.mean_field(self._positions) + REACH * np.where(self.actuated[:, None], action, 0.0)
        if self.process_noise:
            moved += self.process_noise * self.observation_std * self.np_random.standard_normal(moved.shape)
        self._positions = moved

    def _observation(self) -> Array:
        return self._positions.copy()

    # ---- picture ----

    def draw(self, observation: Array, action: Array | None = None, goal: Array | None = None) -> Any:
        """Links are as dark as the larger weight of their two ends is large."""
        canvas = Canvas(left=-WINDOW, right=WINDOW, bottom=-WINDOW, top=WINDOW)
        table = np.zeros((len(observation), len(observation)))
        table[self.graph.receivers, self.graph.senders] = self.weights(observation)
        heeded = np.maximum(table, table.T)
        for i, j in sorted(self.parameters.links, key=lambda pair: heeded[pair]):
            canvas.line(observation[[i, j]], blend((226, 228, 230), canvas.RIGID, 3 * heeded[i, j]), 0.025)
        if goal is not None:
            for x, y in goal:
                canvas.circle((x, y), 0.11, outline=canvas.GOAL)
        for (x, y), steered in zip(observation, self.parameters.steered, strict=True):
            canvas.circle((x, y), 0.08, fill=canvas.ACTUATED if steered else canvas.BODY)
        if action is not None:
            for i in np.flatnonzero(self.actuated).tolist():
                canvas.arrow(tuple(observation[i]), tuple(observation[i] + REACH * action[i]), canvas.ACTION)
        return canvas.image()


def draw_groups(num_agents: int, links: Array, leaders: Array, rng: np.random.Generator) -> Array:
    """The group of each agent: they grow from one leader each along the links, and so are connected."""
    groups = np.full(num_agents, -1)
    groups[leaders] = np.arange(len(leaders))
    both = np.concatenate([links, links[:, ::-1]])
    while (groups < 0).any():
        joins = both[(groups[both[:, 0]] < 0) & (groups[both[:, 1]] >= 0)]
        joins = rng.permutation(joins)  # of several neighbours that have a group, the last one counts
        groups[joins[:, 0]] = groups[joins[:, 1]]
    return groups
