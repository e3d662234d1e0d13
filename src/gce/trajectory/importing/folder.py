"""A folder of systems into a data set: the tables of all systems first, so that types mean the same in all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory import Dataset, Limits, Writer
from gce.trajectory.arrays import number_relations
from gce.trajectory.importing.episodes import Columns, find_columns, read_episode
from gce.trajectory.importing.systems import SystemTables, natural, read_system
from gce.trajectory.importing.tables import NAME, Problems, Settings, read_settings
from gce.trajectory.storage import Flattener
from gce.trajectory.structure import Structure

Progress = Callable[[int], None]
"""Told how many more episodes are done."""


@dataclass(frozen=True)
class Summary:
    """What a folder holds."""

    systems: int
    episodes: int
    nodes: tuple[int, int]
    steps: tuple[int, int]
    columns: Columns
    relations: tuple[str, ...]


def count_episodes(folder: Path | str) -> int:
    """How many episodes a folder seems to hold, for a progress bar."""
    return sum(1 for _ in Path(folder).rglob("episodes/*") if _.suffix in (".csv", ".npz"))


def check_folder(folder: Path | str, progress: Progress = lambda episodes: None) -> Summary:
    """Read everything; an `InputError` lists all that is wrong."""
    return read_folder(folder, progress)[0]


def read_folder(folder: Path | str, progress: Progress = lambda episodes: None) -> tuple[Summary, Dataset]:
    """What a folder holds, and its data set in memory."""
    contents, kept = _Contents.read(Path(folder)), defaultdict[str, list[np.ndarray]](list)
    flat = Flattener(lambda name, rows: kept[name].append(rows))
    summary = _fill(contents, flat, progress)
    arrays = {name: np.concatenate(pieces) for name, pieces in kept.items()}
    return summary, Dataset({**arrays, **flat.tables()}, contents.metadata(), np.arange(flat.num_episodes))


def import_folder(folder: Path | str, out: Path | str, progress: Progress = lambda episodes: None) -> Summary:
    """A data set file from a folder; nothing is written where anything is wrong."""
    contents = _Contents.read(Path(folder))
    with Writer(out, contents.metadata(), np.float64) as writer:
        return _fill(contents, writer, progress)


@dataclass
class _Contents:
    """The tables of all systems, and everything that is wrong so far."""

    root: Path
    problems: Problems
    shared: Settings
    systems: list[SystemTables]
    columns: Columns | None
    structure: dict[str, Any]

    @classmethod
    def read(cls, root: Path) -> _Contents:
        if not root.is_dir():
            raise InputError(f"{root} is not a folder; give one with edges.csv and a folder episodes")
        problems = Problems(root)
        given = read_settings(root, problems)
        folders = [root]
        if not (root / "episodes").is_dir():
            folders = sorted((f.parent for f in root.glob("*/episodes") if f.is_dir()), key=lambda f: natural(f.name))
        if not folders:
            raise InputError(
                f"{root} has no folder called episodes, nor has any folder in it; put one file an episode there"
            )
        systems = []
        for folder in folders:
            settings = Settings(**(given if folder == root else read_settings(folder, problems, given)))
            name = folder.resolve().name
            system = read_system(folder, root, name, settings, problems)
            systems += [] if system is None else [system]
        shared = Settings(**given)
        columns = find_columns(systems[0].files[0], shared, problems) if systems else None
        contents = cls(root, problems, shared, systems, columns, dict(shared.structure))
        contents._check_alike()
        contents._name_columns()
        return contents

    def metadata(self) -> dict[str, Any]:
        columns = self.columns or Columns((), (), ())
        return {
            "world": None,
            "dt": self.shared.dt,
            "observation_names": list(columns.observations),
            "action_names": list(columns.actions),
            "exogenous_names": list(columns.exogenous),
            "node_type_names": self._type_names(),
            "relation_names": self._relation_names(),
            "imported": self.root.resolve().name,
            **({"structure": self.structure} if self.structure else {}),
        }

    def graphs(self) -> list[Graph]:
        """The graph of every system, with types that mean the same in all of them."""
        types, relations = self._type_names(), self._relation_names()
        node_types = [np.array([types.index(t) for t in s.node_types], np.int64) for s in self.systems]
        rows = [_rows(s) for s in self.systems]
        edges = [
            np.where(np.arange(len(r)) < s.edges.shape[1], s.edges[:, r], s.edges[::-1, r])
            for s, r in zip(self.systems, rows, strict=True)
        ]
        labels = [[s.relations[k] for k in r] for s, r in zip(self.systems, rows, strict=True)]
        named = None
        if relations:  # what is left of the names are self-edges nobody named
            named = [np.array([relations.index(n) if n in relations else 0 for n in of], np.int64) for of in labels]
        kinds, self_kinds = number_relations(edges, named, node_types)
        of_hyperedges = sorted({kind for s in self.systems for kind in s.hyperedge_types}, key=natural)
        graphs = []
        for g, system in enumerate(self.systems):
            nameless = (edges[g][0] == edges[g][1]) & np.array([name == "" for name in labels[g]], bool)
            graphs.append(
                Graph.from_edges(
                    len(system.nodes),
                    edges[g].T,
                    edge_type=np.where(nameless, self_kinds[g][edges[g][0]], kinds[g]),
                    node_type=node_types[g],
                    node_attributes=_table(system.node_attributes, len(system.nodes)),
                    edge_attributes=_table(system.edge_attributes, system.edges.shape[1])[rows[g]],
                    self_type=self_kinds[g],
                    hyperedges=system.hyperedges,
                    hyperedge_type=[of_hyperedges.index(kind) for kind in system.hyperedge_types],
                )
            )
        return graphs

    def _type_names(self) -> list[str]:
        return sorted({name for s in self.systems for name in s.node_types}, key=natural)

    def _relation_names(self) -> list[str]:
        """The relations somebody named, and "" if some edges between nodes have none; nothing where nobody did."""
        pairs = [(name, a == b) for s in self.systems for name, (a, b) in zip(s.relations, s.edges.T, strict=True)]
        if not any(name for name, _ in pairs):
            return []
        return sorted({name for name, of_itself in pairs if name or not of_itself}, key=natural)

    def _name_columns(self) -> None:
        """Columns may be given by their names in the structure; a file holds the numbers."""
        columns = self.columns or Columns((), (), ())

        def numbered(value: Any, names: Sequence[str], key: str) -> Any:
            if isinstance(value, list):
                return [numbered(v, names, key) for v in value]
            if isinstance(value, str) and value not in names:
                raise InputError(f"structure.{key} names {value!r}, which is no {what}")
            return names.index(value) if isinstance(value, str) else value

        try:
            for key, value in self.structure.items():
                of_actions = key == "action_vectors"
                what, names = ("action", columns.actions) if of_actions else ("observation", columns.observations)
                self.structure[key] = numbered(value, names, key)
            Structure.read(self.structure, len(columns.observations))
        except InputError as error:
            self.problems.add(self.root / NAME, str(error))

    def _check_alike(self) -> None:
        """Attributes mean the same in all systems, so all have the same."""
        for system in self.systems[1:]:
            for file, found, first in (
                (system.nodes_file, list(system.node_attributes), list(self.systems[0].node_attributes)),
                (system.edges_file, list(system.edge_attributes), list(self.systems[0].edge_attributes)),
            ):
                if found != first:
                    self.problems.add(
                        file,
                        f"the attributes are {', '.join(found) or 'none'}, those of {self.systems[0].name} are "
                        f"{', '.join(first) or 'none'}; all systems have the same",
                    )


def _fill(contents: _Contents, flat: Flattener, progress: Progress) -> Summary:
    """Read the episodes system by system; everything that is wrong is told at the end."""
    problems, columns = contents.problems, contents.columns
    graphs: Sequence[Graph | None] = [None] * len(contents.systems) if problems.count else contents.graphs()
    steps: list[int] = []
    for system, graph in zip(contents.systems, graphs, strict=True):
        if columns is None:
            break
        recorded = []
        for file in system.files:
            episode = read_episode(file, system.nodes, columns, system.actuated, problems)
            if episode is not None:
                _check_idle(episode.actions, system, file, problems)
                recorded.append(episode)
                steps.append(len(episode.actions))
            progress(1)
        limits = _limits([episode.actions for episode in recorded], system, columns, problems)
        if graph is None or limits is None or problems.count:
            continue
        names = {} if system.nodes == [str(k) for k in range(len(system.nodes))] else {"nodes": system.nodes}
        group = flat.add_group(graph, {"system": system.name, **names, **system.settings.parameters}, limits)
        for episode in recorded:
            flat.add_episode(group, episode.observations, episode.actions, episode.exogenous)
    problems.raise_any()
    assert columns is not None
    sizes = [len(system.nodes) for system in contents.systems]
    relations = tuple(contents.metadata()["relation_names"])
    return Summary(len(sizes), len(steps), (min(sizes), max(sizes)), (min(steps), max(steps)), columns, relations)


def _check_idle(actions: np.ndarray, system: SystemTables, file: Path, problems: Problems) -> None:
    """Nodes that were said to take no action have none."""
    if system.actuated is None:
        return
    for step, node, k in np.argwhere((actions != 0) & ~system.actuated[:, None])[:1]:
        problems.add(
            file,
            f"node {system.nodes[node]} is not actuated, but its action is {actions[step, node, k]} at its step "
            f"{step}, counted from 0",
        )


def _limits(actions: list[np.ndarray], system: SystemTables, columns: Columns, problems: Problems) -> Limits | None:
    if not actions:
        return None
    try:
        return Limits.filled(actions, system.actuated, system.bounds(columns))
    except InputError as error:
        problems.add(system.nodes_file, f"{error}")
        return None


def _rows(system: SystemTables) -> np.ndarray:
    """The row of every edge in edges.csv: each once or, undirected and between two nodes, twice."""
    there = np.arange(system.edges.shape[1])
    back = there[system.edges[0] != system.edges[1]] if system.settings.undirected else there[:0]
    return np.concatenate([there, back])


def _table(columns: dict[str, np.ndarray], rows: int) -> np.ndarray:
    return np.stack(list(columns.values()), axis=1) if columns else np.zeros((rows, 0))
