"""Many episodes of many systems: read one by one from memory or from a file, grouped by physical system."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from gce.errors import InputError, listed, of_kind
from gce.files import border, parsed_json
from gce.graphs.graph import Graph
from gce.names import Shown, some
from gce.trajectory.episode import Episode, Limits, Normalisation
from gce.trajectory.reading import EXPECTED, Stored, open_file, read_metadata
from gce.trajectory.storage import HYPEREDGES, NO_SEED, OF_EDGES, OF_NODES, TABLES, Flattener, Writer

Arrays = dict[str, np.ndarray | Stored]


@dataclass(frozen=True)
class Group:
    """One physical system: its number, graph, parameters, the indices of its episodes, and what its actions may be."""

    number: int
    graph: Graph
    parameters: dict[str, Any]
    episodes: Int[np.ndarray, " episodes"]
    limits: Limits | None = None


class Dataset(Shown, Sequence[Episode]):
    """Episodes of any length and size. Reading `dataset[k]` reads one episode; a file is never loaded whole.

    Make one with `open` (a file), `from_episodes` (memory) or `select` and `split` (a part of another).
    """

    def __init__(self, arrays: Arrays, metadata: dict[str, Any], indices: Int[np.ndarray, " episodes"]) -> None:
        self._arrays = arrays
        self._tables = {name: arrays[name][:] for name in TABLES}
        self._graphs: dict[int, Graph] = {}
        self._bounds: dict[int, Limits] = {}
        self._indices = indices
        self.metadata = metadata

    # ---- making one ----

    @classmethod
    def open(cls, path: Path | str) -> Dataset:
        """A data set file, read lazily."""
        arrays = open_file(path)
        metadata = read_metadata(arrays["episodes/group"].array.file)
        return cls(dict(arrays), metadata, np.arange(len(arrays["episodes/group"])))

    @classmethod
    def from_episodes(
        cls, episodes: Iterable[Episode], groups: Sequence[int] | None = None, metadata: dict[str, Any] | None = None
    ) -> Dataset:
        """In memory.

        groups: the physical system of each episode; the graph and parameters of a system are those of its first
            episode. By default every episode is of a system of its own.
        """
        rows: dict[str, list[np.ndarray]] = {}
        flat = Flattener(lambda name, more: rows.setdefault(name, []).append(more))
        flat.add_all(episodes, groups)
        arrays = {name: np.concatenate(pieces) for name, pieces in rows.items()}
        return cls({**arrays, **flat.tables()}, dict(metadata or {}), np.arange(flat.num_episodes))

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        edge_index: Any,
        *,
        groups: Sequence[Hashable] | None = None,
        edge_type: Any = None,
        node_type: Any = None,
        edge_attributes: Any = None,
        node_attributes: Any = None,
        hyperedges: Any = None,
        hyperedge_type: Any = None,
        exogenous: Any = None,
        actuated: Any = None,
        action_bounds: tuple[Any, Any] | None = None,
        undirected: bool = False,
        dt: float = 1.0,
        node_names: Any = None,
        observation_names: Sequence[str] | None = None,
        action_names: Sequence[str] | None = None,
        structure: dict[str, Any] | None = None,
        edge_actions: Any = None,
    ) -> Dataset:
        """In memory, from lists with one array an episode.

        observations, actions, exogenous: arrays [T+1, N, d], [T, N, a] and [T, N, e]; T and N may differ from episode
            to episode. actions None: a system without actions.
        edge_actions: [T, E, 1], such as a joint's torque, one number an edge of `edge_index`. Kept as further action
            columns of the receivers, one for each neighbour in the order of their numbers.
        groups: the system (any name or number) each episode is of; by default all are of one.

        What follows describes a system; give one for all, or a list with one an episode:

        edge_index: [2, E], senders and receivers, nodes numbered from 0; missing self-edges are added.
        edge_type, node_type: whole numbers from 0, meaning the same in all systems. Without edge types, edges are
            told apart by the node types they join.
        edge_attributes, node_attributes: [E, q] and [N, p].
        hyperedges, hyperedge_type: the nodes of each relation among three or more, and the type of each, by default 0.
        actuated: numbers of the nodes that take an action, or a truth value a node; by default those whose action was
            ever other than 0.
        action_bounds: (lowest, highest), each a number, one an action coordinate or [N, a]; by default the lowest and
            the highest recorded.
        undirected: every edge runs both ways.
        node_names: one a node; plans are written, and goals read, in these.

        dt: seconds a step. observation_names, action_names: one a coordinate. structure: what a model should know, see
            the file format.
        """
        from gce.trajectory.arrays import describe, episodes_from_arrays

        low, high = (None, None)
        if action_bounds is not None:
            bounds = listed("action_bounds", action_bounds, "two: the lowest and the highest")
            if len(bounds) != 2:
                raise InputError(f"action_bounds has {len(bounds)} entries, expected two: the lowest and the highest")
            low, high = bounds
        if structure is not None:
            of_kind("structure", structure, dict, "see the file format")
        episodes, numbers = episodes_from_arrays(
            observations,
            actions,
            exogenous,
            groups,
            undirected,
            {
                "edge_index": (edge_index, 2),
                "edge_type": (edge_type, 1),
                "node_type": (node_type, 1),
                "edge_attributes": (edge_attributes, 2),
                "node_attributes": (node_attributes, 2),
                "hyperedges": ((hyperedges, hyperedge_type), 2),
                "node_names": (node_names, 1),
                "actuated": (actuated, 1),
                "the lowest action": (low, 2),
                "the highest action": (high, 2),
            },
            edge_actions,
        )
        if edge_actions is not None:
            more = episodes[0].actions.shape[2] - (0 if actions is None else np.shape(actions[0])[2])
            structure = {**(structure or {}), "edge_actions": more}
            if action_names is not None:
                action_names = [
                    *listed("action_names", action_names, "names"),
                    *(f"edge_action_{k}" for k in range(more)),
                ]
        names = {"observation_names": observation_names, "action_names": action_names}
        return cls.from_episodes(episodes, numbers, describe(dt, structure, names, episodes[0]))

    def save(self, path: Path | str, dtype: Any = None) -> None:
        """Write a file; `dtype` defaults to the precision the data has."""
        dtype = self._arrays["episodes/observations"].dtype if dtype is None else dtype
        with Writer(path, self.metadata, dtype) as writer:
            writer.add_all(self, self.groups.tolist())

    def close(self) -> None:
        """Close the file behind the data set, if there is one."""
        observations = self._arrays["episodes/observations"]
        if isinstance(observations, Stored):
            observations.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- episodes ----

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return self.select(np.arange(len(self))[k])
        if not -len(self) <= k < len(self):
            raise IndexError(f"episode {k} of {len(self)}")
        with self._border():
            return self._episode(int(self._indices[k]))

    def __iter__(self) -> Iterator[Episode]:
        return (self[k] for k in range(len(self)))

    @cached_property
    def lengths(self) -> Int[np.ndarray, " episodes"]:
        """T of every episode."""
        pointer, nodes = self._tables["episodes/action_pointer"], np.diff(self._tables["groups/node_pointer"])
        return (np.diff(pointer) // nodes[self._tables["episodes/group"]])[self._indices]

    @property
    def world(self) -> str | None:
        """The world the data was recorded in, None for data of other origin."""
        return self.metadata.get("world")

    def facts(self) -> dict[str, Any]:
        groups = np.unique(self.groups)
        nodes = np.diff(self._tables["groups/node_pointer"])[groups]
        told = {"episodes": len(self), "systems": len(groups), "steps": _range(self.lengths), "nodes": _range(nodes)}
        return {**told, "world": self.world} if self.world else told

    def curves(self) -> np.ndarray | None:
        if not len(self):
            return None
        with self._border():
            return self[0].curves()

    # ---- groups ----

    @property
    def groups(self) -> Int[np.ndarray, " episodes"]:
        """The group (physical system) of every episode."""
        return np.asarray(self._tables["episodes/group"][self._indices])

    def group(self, number: int) -> Group:
        episodes = np.flatnonzero(self.groups == number)
        if episodes.size == 0:
            known = some(np.unique(self.groups).tolist(), most=10)
            raise InputError(f"the data set has no group {number}; its groups are {known}")
        g = int(number)
        with self._border():
            return Group(g, self._graph(g), self._parameters(g), episodes, self._limits(g))

    def select(self, episodes: Sequence[int] | Int[np.ndarray, " chosen"]) -> Dataset:
        """Some of the episodes, in the order given, without copying anything."""
        chosen = np.asarray(episodes, dtype=np.int64)
        if chosen.size and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            raise InputError(
                f"episodes are numbered 0 to {len(self) - 1}, asked for {chosen.tolist()}; choose among these"
            )
        part = Dataset(self._arrays, self.metadata, self._indices[chosen])
        part._graphs, part._bounds = self._graphs, self._bounds
        return part

    def split(self, shares: Sequence[float], seed: int = 0) -> list[Dataset]:
        """Parts with these shares of the groups, drawn at random; episodes of one group stay together."""
        if min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise InputError(f"shares must not be negative and add up to at most 1, got {list(shares)}")
        numbers = np.random.default_rng(seed).permutation(np.unique(self.groups))
        ends = np.rint(np.cumsum(shares) * len(numbers)).astype(int)
        return [
            self.select(np.flatnonzero(np.isin(self.groups, part))) for part in np.split(numbers[: ends[-1]], ends[:-1])
        ]

    def cut(self, steps: int) -> Dataset:
        """Episodes of so many steps each, cut from these one after another; what is left over is dropped."""
        if steps < 1:
            raise InputError(f"episodes are cut to {steps} steps, expected at least 1")
        pieces = [(int(k), int(start)) for k, start in self.windows(steps, steps)]
        if not pieces:
            raise InputError(f"no episode has {steps} steps; the longest has {self.lengths.max()}")
        episodes = (self[k].window(start, steps) for k, start in pieces)
        return Dataset.from_episodes(episodes, [int(self.groups[k]) for k, _ in pieces], self.metadata)

    # ---- for learning ----

    def normalisation(self) -> Normalisation:
        return Normalisation.of(self)

    def windows(self, length: int, stride: int = 1) -> Int[np.ndarray, "windows 2"]:
        """(episode, first step) of all stretches of so many steps; none reaches beyond its episode."""
        if length < 1 or stride < 1:
            raise InputError(f"windows need a length and a stride of at least 1, got {length} and {stride}")
        per_episode = [np.arange(0, steps - length + 1, stride) for steps in self.lengths]
        episodes = np.repeat(np.arange(len(self)), [len(starts) for starts in per_episode])
        return np.stack([episodes, np.concatenate([np.zeros(0, np.int64), *per_episode])], axis=1)

    def pairs(self) -> Int[np.ndarray, "pairs 2"]:
        """(episode, step) of all one-step pairs."""
        return self.windows(1)

    # ---- inside ----

    def _border(self) -> AbstractContextManager[None]:
        """What is wrong in a file is told as of that file."""
        array = self._arrays["episodes/observations"]
        return border(array.path, EXPECTED) if isinstance(array, Stored) else nullcontext()

    def _episode(self, e: int) -> Episode:
        g = int(self._tables["episodes/group"][e])
        graph = self._graph(g)
        seed = int(self._tables["episodes/seed"][e])

        def rows(name: str, pointer: str) -> np.ndarray:
            start, end = self._tables[f"episodes/{pointer}"][e : e + 2]
            values = self._arrays[f"episodes/{name}"][start:end]
            return np.asarray(values).reshape(len(values) // graph.num_nodes, graph.num_nodes, values.shape[-1])

        return Episode(
            graph=graph,
            observations=rows("observations", "observation_pointer"),
            actions=rows("actions", "action_pointer"),
            exogenous=rows("exogenous", "action_pointer") if "episodes/exogenous" in self._arrays else None,
            parameters=self._parameters(g),
            seed=None if seed == NO_SEED else seed,
            limits=self._limits(g),
        )

    def _graph(self, g: int) -> Graph:
        if g not in self._graphs:
            nodes = slice(*self._tables["groups/node_pointer"][g : g + 2])
            edges = slice(*self._tables["groups/edge_pointer"][g : g + 2])
            rows = self._arrays
            parts = {**dict.fromkeys(OF_EDGES, edges), **dict.fromkeys(OF_NODES, nodes)}
            arrays = {n: np.asarray(rows[f"groups/{n}"][part]) for n, part in parts.items() if f"groups/{n}" in rows}
            ends = np.ascontiguousarray(np.asarray(rows["groups/edges"][edges]).T)
            self._graphs[g] = Graph(ends, **arrays, hyperedges=self._hyperedges(g))
        return self._graphs[g]

    def _hyperedges(self, g: int) -> np.ndarray | None:
        if HYPEREDGES not in self._arrays:
            return None
        rows = np.asarray(self._arrays[HYPEREDGES][:]).astype(np.int64)
        mine = rows[slice(*np.searchsorted(rows[:, 0], [g, g + 1])), 1:]
        return np.ascontiguousarray(mine.T) if len(mine) else None

    def _parameters(self, g: int) -> dict[str, Any]:
        with border(f"groups/parameters of group {g}", "a JSON object"):
            return dict(parsed_json(self._tables["groups/parameters"][g]))

    @property
    def limited(self) -> bool:
        """Whether bounds of actions are kept; files made before they were, or elsewhere, have none."""
        return "groups/action_low" in self._arrays

    def _limits(self, g: int) -> Limits | None:
        if not self.limited:
            return None
        if g not in self._bounds:
            nodes = slice(*self._tables["groups/node_pointer"][g : g + 2])
            low, high = (np.asarray(self._arrays[f"groups/action_{side}"][nodes]) for side in ("low", "high"))
            self._bounds[g] = Limits(low, high)
        return self._bounds[g]


def _range(values: np.ndarray) -> str:
    return "-".join(map(str, np.unique([values.min(), values.max()]))) if len(values) else "0"
