"""One recorded motion of a system of objects, and what a model must be made for to be given it.

What the actions of a system may be: which nodes take one, and between which bounds. Means and standard deviations of
many episodes, and the way to unit variance and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from gce.errors import InputError, table
from gce.graphs.graph import Graph
from gce.names import Shown

if TYPE_CHECKING:
    from gce.trajectory.dataset import Dataset

Array = np.ndarray

FLAT = 1e-8
"""A coordinate that varies less than this share of its size is left in its own unit."""


@runtime_checkable
class Sizes(Protocol):
    """How many coordinates and kinds of everything a model knows."""

    @property
    def num_observations(self) -> int: ...
    @property
    def num_actions(self) -> int: ...
    @property
    def num_exogenous(self) -> int: ...
    @property
    def num_node_attributes(self) -> int: ...
    @property
    def num_edge_attributes(self) -> int: ...
    @property
    def num_relations(self) -> int: ...
    @property
    def num_node_types(self) -> int: ...


def check_one_system(sizes: Sizes, episodes: Sequence[Episode], graph: Graph) -> None:
    """Episodes of another system, or of something the model was not made for, are refused."""
    for k, episode in enumerate(episodes):
        g = episode.graph
        if g is not graph and not g.equals(graph):
            raise InputError(
                f"episode {k} is of another graph than episode 0; adapt to episodes of one system at a time"
            )
        for what, found, expected in (
            ("coordinates", episode.observations.shape[2], sizes.num_observations),
            ("action coordinates", episode.actions.shape[2], sizes.num_actions),
        ):
            if found != expected:
                raise InputError(f"episode {k} has {found} {what}, the model was made for {expected}")
        check_graph(sizes, g, f"episode {k}")


def check_graph(sizes: Sizes, g: Graph, whose: str) -> None:
    """A graph that the model was not made for is refused."""
    for what, found, expected in (
        ("node attributes", g.node_attributes.shape[1], sizes.num_node_attributes),
        ("edge attributes", g.edge_attributes.shape[1], sizes.num_edge_attributes),
    ):
        if found != expected:
            raise InputError(f"{whose} has {found} {what}, the model was made for {expected}")
    of_hyperedges = getattr(sizes, "num_hyperedge_types", np.inf)  # baselines leave hyperedges out
    for what, found, known in (
        ("relation", int(g.edge_type.max()), sizes.num_relations),
        ("node", int(g.node_type.max()), sizes.num_node_types),
        ("hyperedge", -1 if g.hyperedges is None else int(g.hyperedges[2].max(initial=-1)), of_hyperedges),
    ):
        if found >= known:
            types = f"0 to {known - 1}" if known else "none"
            raise InputError(f"{whose} has {what} type {found}, the model knows {types}; train it on such data")


@dataclass(frozen=True, eq=False, repr=False)
class Episode(Shown):
    """T+1 observations and T actions of the nodes of a graph: `actions[t]` takes `observations[t]` to `[t+1]`.

    exogenous: inputs that are known in advance but not chosen (forecasts), one row a step like the actions.
    parameters: the physical parameters of the system, as far as known; JSON values.
    seed: what the simulator was seeded with, None for recordings of other origin.
    limits: which nodes of the system take an action and between which bounds, None where nobody said.
    """

    graph: Graph
    observations: Float[Array, "steps_plus_1 nodes coordinates"]
    actions: Float[Array, "steps nodes action_coordinates"]
    exogenous: Float[Array, "steps nodes exogenous_coordinates"] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    limits: Limits | None = None

    def __post_init__(self) -> None:
        check_arrays(self.graph, self.observations, self.actions, self.exogenous)
        if self.limits is not None and self.limits.low.shape != self.actions.shape[1:]:
            raise InputError(
                f"the limits are for actions of shape {self.limits.low.shape} a step, the actions have "
                f"{self.actions.shape[1:]}"
            )

    @property
    def length(self) -> int:
        """T, the number of steps."""
        return len(self.actions)

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    def facts(self) -> dict[str, Any]:
        sizes = {"coordinates": self.observations.shape[2], "actions": self.actions.shape[2]}
        return {"steps": self.length, "nodes": self.num_nodes, **sizes}

    def curves(self) -> Array:
        return self.observations[..., 0]

    def window(self, start: int, length: int) -> Episode:
        """Steps start to start+length as an episode of its own."""
        if not 0 <= start <= start + length <= self.length:
            raise InputError(
                f"the window {start} to {start + length} leaves the episode's steps 0 to {self.length}; ask for less"
            )
        end = start + length
        exogenous = None if self.exogenous is None else self.exogenous[start:end]
        observations, actions = self.observations[start : end + 1], self.actions[start:end]
        return replace(self, observations=observations, actions=actions, exogenous=exogenous, seed=None)


def check_arrays(graph: Graph, observations: Array, actions: Array, exogenous: Array | None, where: str = "") -> None:
    """Shapes that fit one another and the graph, and finite numbers; `where` opens the sentence otherwise."""
    for name, values in (("observations", observations), ("actions", actions), ("exogenous", exogenous)):
        if values is None and name == "exogenous":
            continue
        if not isinstance(values, np.ndarray):
            raise InputError(f"{where}{name} are of type {type(values).__name__}, expected an array of numbers")
        if values.ndim != 3:
            raise InputError(f"{where}{name} have shape {values.shape}, expected (steps, nodes, coordinates)")
        if values.shape[1] != graph.num_nodes:
            raise InputError(
                f"{where}{name} are of {values.shape[1]} nodes, but the graph has {graph.num_nodes}; give all"
            )
        if not np.issubdtype(values.dtype, np.floating):
            raise InputError(f"{where}{name} hold {values.dtype} values, expected floating-point numbers")
        if not np.isfinite(values).all():
            step, node, coordinate = np.argwhere(~np.isfinite(values))[0]
            raise InputError(
                f"{where}{name} hold {values[step, node, coordinate]} at step {step}, node {node}, "
                f"coordinate {coordinate}; leave out or mend the episode"
            )
    steps = len(actions)
    if steps < 1 or len(observations) != steps + 1:
        raise InputError(
            f"{where}there are {len(observations)} observations and {steps} actions; T actions lead through T+1 "
            "observations, T at least 1 (drop the last action if it leads nowhere)"
        )
    if exogenous is not None and len(exogenous) != steps:
        raise InputError(
            f"{where}there are {len(exogenous)} rows of exogenous inputs for {steps} steps; give one a step"
        )
    if graph.tied is not None and graph.tied.shape[1] != observations.shape[2]:
        raise InputError(
            f"{where}the graph ties {graph.tied.shape[1]} coordinates a node, observations have "
            f"{observations.shape[2]}; give an id for each"
        )


@dataclass(frozen=True, eq=False)
class Limits:
    """The lowest and highest action of every node, infinite where there is no bound.

    Where the two are equal (0 as a rule) there is nothing to choose: the node takes no action.
    """

    low: Float[Array, "nodes action_coordinates"]
    high: Float[Array, "nodes action_coordinates"]

    def __post_init__(self) -> None:
        if self.low.ndim != 2 or self.low.shape != self.high.shape:
            raise InputError(
                f"the lowest actions have shape {self.low.shape}, the highest {self.high.shape}; "
                "expected (nodes, action coordinates) for both"
            )
        if not (self.low <= self.high).all():  # NaN is refused too
            node, column = np.argwhere(~(self.low <= self.high))[0]
            raise InputError(
                f"the action of node {node} is bounded by {self.low[node, column]} and {self.high[node, column]} in "
                f"coordinate {column}; give the smaller bound first"
            )

    @property
    def actuated(self) -> Bool[Array, " nodes"]:
        """Which nodes take an action."""
        return np.any(self.low < self.high, axis=1)

    @classmethod
    def of(
        cls,
        num_nodes: int,
        num_actions: int,
        actuated: ArrayLike | None = None,
        bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    ) -> Limits:
        """From which nodes act (numbers of nodes or one truth value a node; None: all) and (lowest, highest) action.

        A bound is one number, one for each action coordinate, or one for each node and coordinate.
        """
        acts = _actuated(actuated, num_nodes)[:, None]
        low, high = (_bound(side, b, num_nodes, num_actions) for side, b in zip(SIDES, bounds, strict=True))
        return cls(np.where(acts, low, 0.0), np.where(acts, high, 0.0))

    @classmethod
    def filled(
        cls, actions: list[Array], actuated: ArrayLike | None = None, bounds: tuple[ArrayLike, ArrayLike] | None = None
    ) -> Limits:
        """As given; what is missing is taken from recorded actions [T, nodes, coordinates] of the system.

        Coordinates of a node act that were ever other than 0, and bounds are the lowest and highest action recorded of
        any node, so that no plan leaves what was tried.
        """
        lowest, highest = (np.stack([pick(a, axis=0) for a in actions]) for pick in (np.min, np.max))
        used = ((lowest != 0) | (highest != 0)).any(axis=0) | (actuated is not None)
        if bounds is None:
            bounds = (lowest.min(axis=(0, 1)), highest.max(axis=(0, 1)))
        given = cls.of(actions[0].shape[1], actions[0].shape[2], actuated, bounds)
        return cls(np.where(used, given.low, 0.0), np.where(used, given.high, 0.0))

    def check(self, actions: Array, where: str = "") -> None:
        """Refuse recorded actions of nodes that take none; actions beyond the bounds are the recording's affair."""
        idle = (actions != self.low) & ~self.actuated[:, None]
        if idle.any():
            step, node, column = np.argwhere(idle)[0]
            raise InputError(
                f"{where}node {node} is not among the actuated nodes, but its action is {actions[step, node, column]} "
                f"at step {step}; nodes are numbered from 0"
            )


SIDES = ("lowest", "highest")


def control_limits(
    dataset: Dataset, group: int = 0
) -> tuple[Bool[Array, " nodes"], Float[Array, "nodes action_coordinates"], Float[Array, "nodes action_coordinates"]]:
    """(actuated, lowest, highest) action of every node of one system of a data set.

    As the data set says; where it says nothing, as the actions recorded of the system tell (`Limits.filled`).
    """
    found = dataset.group(group)
    limits = found.limits
    if limits is None:
        limits = Limits.filled([dataset[int(k)].actions for k in found.episodes])
    return limits.actuated, limits.low, limits.high


def _actuated(given: ArrayLike | None, num_nodes: int) -> Array:
    if given is None:
        return np.ones(num_nodes, bool)
    values = np.asarray(given) if np.size(given) else np.zeros(0, np.int64)
    if values.dtype == bool:
        if values.shape != (num_nodes,):
            raise InputError(f"actuated has shape {values.shape}, expected ({num_nodes},): one truth value a node")
        return values
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"actuated holds {values.dtype} values, expected numbers of nodes or truth values")
    values = values.astype(np.int64).reshape(-1)
    if values.size and not (values.min() >= 0 and values.max() < num_nodes):
        wrong = values[(values < 0) | (values >= num_nodes)][0]
        raise InputError(f"actuated has node {wrong} but there are {num_nodes} nodes; nodes are numbered from 0")
    return np.isin(np.arange(num_nodes), values)


def _bound(side: str, given: ArrayLike, num_nodes: int, num_actions: int) -> Array:
    values = table(f"the {side} action", given, finite=False)
    if values.shape not in ((), (num_actions,), (num_nodes, num_actions)):
        raise InputError(
            f"the {side} action has shape {values.shape}, expected a number, ({num_actions},) for the action "
            f"coordinates or ({num_nodes}, {num_actions}) for all nodes"
        )
    return np.broadcast_to(values, (num_nodes, num_actions))


@dataclass(frozen=True)
class Normalisation:
    """(value - mean) / std of every coordinate; actions are only divided, so that no action stays no action."""

    observation_mean: Float[Array, " coordinates"]
    observation_std: Float[Array, " coordinates"]
    action_std: Float[Array, " action_coordinates"]

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> Normalisation:
        """In one pass over the episodes, nodes that take no action included."""
        observations, actions = _Moments(), _Moments()
        for episode in episodes:
            observations.add(episode.observations)
            actions.add(episode.actions)
        return cls(observations.mean, observations.std, actions.std)

    def normalise(self, observations: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        return (observations - self.observation_mean) / self.observation_std

    def denormalise(self, observations: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        return observations * self.observation_std + self.observation_mean


class _Moments:
    """Mean and standard deviation, merged from chunk to chunk without cancellation (Chan et al. 1983)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.zeros(0)
        self._squares = np.zeros(0)

    def add(self, values: Array) -> None:
        rows = np.concatenate(values).astype(np.float64)
        mean = rows.mean(axis=0)
        squares = np.square(rows - mean).sum(axis=0)
        if self.count == 0:
            self.count, self.mean, self._squares = len(rows), mean, squares
            return
        total = self.count + len(rows)
        gap = mean - self.mean
        self._squares = self._squares + squares + gap**2 * self.count * len(rows) / total
        self.mean = self.mean + gap * len(rows) / total
        self.count = total

    @property
    def std(self) -> Array:
        std = np.sqrt(self._squares / self.count)
        return np.where(std > FLAT * np.maximum(1.0, np.abs(self.mean)), std, 1.0)
