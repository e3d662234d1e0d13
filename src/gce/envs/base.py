"""What every world answers: its graph, its actions and bounds, its observations, and how to draw it.

A world is a Gymnasium environment of graphs. `reset` draws a random system (or takes the parameters given), `step`
takes one action a node. Beside the Gymnasium interface, `run` records an episode in a tight loop; both drive the
same three methods of a world: `_begin`, `_advance` and `_observation`.

What experiments chose for a world: numbers alone, which models, planners and tables look up in `World.recipe`.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, GraphInstance
from gymnasium.spaces import Graph as GraphSpace
from jaxtyping import Bool, Float, UInt8

from gce.errors import InputError, real
from gce.graphs.graph import Graph


@dataclass(frozen=True)
class Protocol:
    """How a world is controlled unless asked otherwise.

    horizon, feedback: steps of a run and between its plans. state_cost, terminal_cost: of observations; action_cost: of
    actions; change_cost: of leaving the plan made one step before, less by the factor k for one made k steps before;
    rate: how much an action may change in a step, in its own unit. Chosen on systems recorded for validation.
    tolerance: when a plan has settled (`Controller`).
    unit, action_unit: what costs are in; None for the mean of the world's units, and for the action's unit.
    positions_only: whether velocities cost nothing.
    """

    horizon: int
    feedback: int
    state_cost: float
    terminal_cost: float
    action_cost: float
    tolerance: float = 1e-4
    change_cost: float = 0.0
    rate: float = np.inf
    unit: float | None = None
    action_unit: float | None = None
    positions_only: bool = False


@dataclass(frozen=True)
class Pictures:
    """Of a controlled system with so many objects; None for no picture.

    columns: pictures a row, None for one row. chart: a word for the file and the label of the first coordinate, where
    its course is drawn too.
    """

    objects: int | None = None
    columns: int | None = None
    chart: tuple[str, str] | None = None


@dataclass(frozen=True)
class Recipe:
    """A world's sizes, protocol and presets, beside what its class says of itself (`object_range`: sizes trained on).

    unseen: sizes that no model was trained on, for tests. offered: sizes in the explorer, planned within a minute or
    so; None for those trained on. pictures: among the tables.
    model, training: fields of `ModelConfig` and `TrainingConfig`, iterations and horizon that validation preferred.
    published: the same two for the tuned preset of the paper's method, where they differ from world to world.
    recording: fields of `Recording` for the tables' models, of systems of the sizes trained on.
    baselines: by method, what is changed in its model, schedule and number of validation systems.
    counts: by kind of method (runs, costly, latent, slow), the field of a preset that counts its runs here, if another.
    longer_trained: whether its table has models of longer training too.
    repeats: how far a run computed again may differ, relative to a figure's size; more where the world is chaotic.
    """

    protocol: Protocol
    unseen: tuple[int, int]
    offered: tuple[int, int] | None = None
    pictures: Pictures = Pictures()
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recording: Mapping[str, Any] = field(default_factory=lambda: {"episodes": 6000, "group_size": 12})
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    longer_trained: bool = False
    repeats: float = 1e-5


Array = np.ndarray
Policy = Callable[[int], Float[Array, "nodes action"]]
"""The actions of step t; it may look at the environment it acts on."""
Picture = UInt8[Array, "height width 3"]

OPTIONS = ("objects", "parameters", "observation_noise", "process_noise", "goal")


class GraphEnv(gym.Env[GraphInstance, Array]):
    """One system of interacting objects.

    observation: a graph instance; `nodes` is [nodes, coordinates], `edges` the relation type of each edge and
        `edge_links` its (sender, receiver).
    action: [nodes, action coordinates] in physical units; rows of nodes that are not actuated are ignored. Actions
        are not clipped unless a world says so: the bounds are what a controller keeps to.
    reward: minus the stage cost to the goal (0 without a goal), see `stage_cost`.

    objects: how many objects a drawn system has, a number or a (low, high) range. With a range the spaces change
        at every reset; `PaddedEnv` gives them one size.
    """

    world: ClassVar[str]
    recipe: ClassVar[Recipe]
    """What experiments chose for the world: sizes, protocol, presets."""
    version: ClassVar[int] = 1
    """Raised where what is simulated, observed or drawn at random changes: runs that are kept are of a version."""
    dt: ClassVar[float]
    Parameters: ClassVar[type]
    observation_names: ClassVar[tuple[str, ...]]
    position_names: ClassVar[tuple[str, ...]]
    action_names: ClassVar[tuple[str, ...]]
    observation_std: ClassVar[Array]
    """Fixed units: what errors are measured in, and noise is a share of."""
    action_std: ClassVar[Array]
    action_limit: ClassVar[float]
    action_weight: ClassVar[float]
    """The weight of squared actions in the reported cost."""
    num_relations: ClassVar[int]
    object_range: ClassVar[tuple[int, int]]
    """Sizes of the systems recorded for training."""
    group_size: ClassVar[int]
    """Episodes recorded of one physical system."""
    points: ClassVar[tuple[tuple[int, int, int, int], ...]] = ()
    """The coordinates (x, y, vx, vy) of each point of a node, where observations are points in the plane."""
    late_action: ClassVar[bool] = False
    """Whether an action shows in the observations one step late."""
    fresh_start: ClassVar[bool] = False
    """Whether the first step of an episode is free of all forces but the action."""
    words: ClassVar[tuple[str, str, str, str]] = ("object", "objects", "positions", "m")
    """What pages call an object, several of them, and their positions; the unit of these."""
    cases: ClassVar[tuple[str, ...]] = ()
    """Names of real systems, where the world has any (`of_case`)."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the world beside the number of objects; the class has those it takes unless told otherwise."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}

    graph: Graph
    parameters: Any

    def __init__(self, objects: int | tuple[int, int] = 7, render_mode: str | None = None) -> None:
        low, high = (objects, objects) if isinstance(objects, int) else objects
        if not 1 <= low <= high:
            raise InputError(f"objects must be a positive number or a range of them, got {objects}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise InputError(f"render_mode is {render_mode!r}, expected None or 'rgb_array'")
        self.objects = (low, high)
        self.render_mode = render_mode
        unbounded = np.full(len(self.observation_names), np.inf)
        self.observation_space = GraphSpace(
            node_space=Box(-unbounded, unbounded, dtype=np.float64), edge_space=Discrete(self.num_relations)
        )
        self._set_action_space(low)

    # ---- what a world defines ----

    @abstractmethod
    def draw_parameters(self, rng: np.random.Generator, num_objects: int) -> Any:
        """The parameters of a random system with so many objects."""

    @abstractmethod
    def build_graph(self, parameters: Any) -> Graph:
        """The graph of a system: relations, attributes, tied coordinates."""

    @abstractmethod
    def excitation(self, rng: np.random.Generator, steps: int) -> Policy:
        """The world's generator of recorded actions, for one episode of the current system."""

    @abstractmethod
    def _begin(self) -> None:
        """Put the simulator at the start of the system `self.parameters`."""

    @abstractmethod
    def _advance(self, action: Array) -> None:
        """Simulate one step."""

    @abstractmethod
    def _observation(self) -> Array:
        """The current observation, without noise."""

    @abstractmethod
    def draw(self, observation: Array, action: Array | None = None, goal: Array | None = None) -> Picture:
        """A picture of an observation of the current system, with the goal and the action."""

    @property
    @abstractmethod
    def actuated(self) -> Bool[Array, " nodes"]:
        """Which nodes take an action."""

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What a data set of this world says of it, as JSON values."""
        return {
            "world": cls.world,
            "dt": cls.dt,
            "observation_names": list(cls.observation_names),
            "action_names": list(cls.action_names),
            "structure": {
                "points": [list(point) for point in cls.points],
                "late_action": cls.late_action,
                "fresh_start": cls.fresh_start,
            },
        }

    @classmethod
    def model_for(cls, settings: Mapping[str, Any], sizes: Iterable[int]) -> str:
        """The name of the model that comes with the package for systems of these numbers of nodes."""
        return cls.world

    @classmethod
    def usual_model(cls) -> str:
        """The name of the model that comes with the package for what the world draws unless told otherwise."""
        return cls.model_for(cls.settings, cls.object_range)

    def shipped_model(self) -> str:
        """The name of the model that comes with the package for the current system."""
        return self.model_for(self.settings, [self.graph.num_nodes])

    @classmethod
    def of_case(cls, case: str) -> GraphEnv:
        """The world of a real system."""
        raise InputError(f"{cls.world} has no real systems; leave the case {case!r} out")

    # ---- what a controller asks ----

    @property
    def action_bounds(self) -> tuple[Array, Array]:
        """(lowest, highest) action of every node, both 0 where a node is not actuated."""
        high = np.where(self.actuated[:, None], self.action_limit, 0.0) * np.ones(len(self.action_names))
        return -high, high

    @property
    def node_names(self) -> list[str]:
        """What the nodes of the current system are called."""
        return [str(k) for k in range(self.graph.num_nodes)]

    @property
    def positions(self) -> Bool[Array, " coordinates"]:
        """Which coordinates of an observation are positions."""
        return np.isin(self.observation_names, self.position_names)

    @classmethod
    def default_goal(cls, num_nodes: int) -> Float[Array, "nodes coordinates"] | None:
        """The goal unless another is given; None where that is an observation that recorded actions reach."""
        return None

    def stage_cost(self, observation: Array, goal: Array, action: Array) -> float:
        """|(o - goal) / std|^2 + action_weight |a / action std|^2, the reported cost of one step."""
        miss = (observation - goal) / self.observation_std
        effort = np.where(self.actuated[:, None], action, 0.0) / self.action_std
        return float(np.sum(miss**2) + self.action_weight * np.sum(effort**2))

    def run_cost(
        self,
        observations: Float[Array, "steps nodes coordinates"],
        actions: Float[Array, "steps nodes action"],
        goal: Float[Array, "nodes coordinates"],
    ) -> float:
        """The stage costs of all steps, observations[t] being what actions[t] leads to."""
        miss = np.square((observations - goal) / self.observation_std).sum()
        return float(miss + self.action_weight * np.square(actions / self.action_std).sum())

    def extra_figures(
        self, observations: Float[Array, "steps nodes coordinates"], goal: Float[Array, "nodes coordinates"]
    ) -> dict[str, float]:
        """What is reported of a run in this world beside what is reported in all."""
        return {}

    # ---- Gymnasium ----

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[GraphInstance, dict[str, Any]]:
        """Start a system: drawn at random, or as the options say.

        options: objects (a number), parameters (the world's Parameters or a mapping with some of their fields; the
            others are drawn), observation_noise and process_noise (shares of the fixed units), goal (an observation).
        """
        super().reset(seed=seed)
        options = dict(options or {})
        for name in options:
            if name not in OPTIONS:
                raise InputError(f"{self.world} has no reset option {name!r}; the options are {', '.join(OPTIONS)}")
        parameters = self._parameters(options)
        if parameters is not getattr(self, "parameters", None):  # episodes of one system share their graph
            self.parameters = parameters
            self.graph = self.build_graph(parameters)
            self._set_action_space(self.graph.num_nodes)
        self.observation_noise = _share("observation_noise", options)
        self.process_noise = _share("process_noise", options)
        self._action = np.zeros(self.action_space.shape or ())
        goal = options.get("goal")
        self.goal = self.default_goal(self.graph.num_nodes) if goal is None else self._check_goal(goal)
        self._begin()
        return self._instance(self.observe()), {"parameters": dataclasses.asdict(self.parameters)}

    def step(self, action: Array) -> tuple[GraphInstance, float, bool, bool, dict[str, Any]]:
        self._action = self._check_action(action)
        self._advance(self._action)
        cost = 0.0 if self.goal is None else self.stage_cost(self._observation(), self.goal, self._action)
        return self._instance(self.observe()), -cost, False, False, {}

    def observe(self) -> Float[Array, "nodes coordinates"]:
        """The current observation, with noise where it was asked for."""
        return self._noisy(self._observation())

    def run(self, policy: Policy, steps: int, noisy: bool = True) -> tuple[Array, Array]:
        """Act for so many steps: observations [steps+1, nodes, coordinates] and actions [steps, nodes, action].

        noisy: whether observations have the noise that was asked for; otherwise they are true.
        """
        observations, actions = [self._observation()], []
        for t in range(steps):
            actions.append(policy(t))
            self._advance(actions[-1])
            observations.append(self._observation())
        seen = np.stack(observations)
        return self._noisy(seen) if noisy else seen, np.stack(actions)

    def render(self) -> Any:
        return self.draw(self._observation(), self._action, self.goal) if self.render_mode == "rgb_array" else None

    # ---- inside ----

    def _parameters(self, options: dict[str, Any]) -> Any:
        given = options.get("parameters", {})
        if isinstance(given, self.Parameters):
            return given
        low, high = self.objects
        count = int(options.get("objects", self.np_random.integers(low, high + 1)))
        if count < 1:
            raise InputError(f"objects is {count}, expected at least 1")
        known = [field.name for field in dataclasses.fields(self.Parameters)]
        for name in given:
            if name not in known:
                raise InputError(f"{self.world} has no parameter {name!r}; its parameters are {', '.join(known)}")
        if all(name in given for name in known):
            return self.Parameters(**given)
        return dataclasses.replace(self.draw_parameters(self.np_random, count), **given)

    def _set_action_space(self, nodes: int) -> None:
        limit = np.full((nodes, len(self.action_names)), self.action_limit)
        self.action_space = Box(-limit, limit, dtype=np.float64)

    def _check_action(self, action: Array) -> Array:
        action = np.asarray(action, dtype=np.float64)
        if action.shape != self.action_space.shape:
            raise InputError(f"the action has shape {action.shape}, expected {self.action_space.shape}: a row a node")
        if not np.isfinite(action).all():
            node = np.argwhere(~np.isfinite(action))[0][0]
            raise InputError(f"the action of node {node} is not a finite number; give one within the bounds")
        return action

    def _check_goal(self, goal: Array) -> Array:
        goal = np.asarray(goal, dtype=np.float64)
        expected = (self.graph.num_nodes, len(self.observation_names))
        if goal.shape != expected or not np.isfinite(goal).all():
            raise InputError(f"the goal must be finite numbers of shape {expected}, got shape {goal.shape}")
        return goal

    def _instance(self, observation: Array) -> GraphInstance:
        return GraphInstance(
            nodes=observation,
            edges=self.graph.edge_type.copy(),
            edge_links=np.ascontiguousarray(self.graph.edge_index.T),
        )

    def _noisy(self, observations: Array) -> Array:
        if self.observation_noise == 0:
            return observations
        noise = self.np_random.standard_normal(observations.shape)
        return observations + self.observation_noise * self.observation_std * noise


def _share(name: str, options: dict[str, Any]) -> float:
    value = real(name, options.get(name, 0.0))
    if not 0 <= value < np.inf:
        raise InputError(f"{name} is {value}; give a share of the observations' units, 0.1 for 10%")
    return value


def check_choice(world: str, name: str, value: float, low: float, high: float) -> None:
    """A physical parameter outside its range is refused with the range."""
    if not low <= value <= high:
        raise InputError(f"{world}: {name} is {value}, expected between {low} and {high}")
