"""The tables of a system: nodes.csv, edges.csv and the list of its episodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gce.graphs.hyperedges import FEWEST
from gce.names import some
from gce.trajectory.importing.episodes import Columns, node_labels
from gce.trajectory.importing.tables import Problems, Settings, Table, read_table

ByName = dict[str, np.ndarray]

ENDS = ("sender", "receiver")
TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


@dataclass(frozen=True)
class SystemTables:
    """What the tables say of one system, nodes by their place.

    node_types, relations: names, "" where there is none. actuated: None where nobody said. low, high: bounds by
    action ("" for all of them), NaN where nobody said.
    """

    name: str
    settings: Settings
    files: list[Path]
    nodes: list[str]
    node_types: list[str]
    node_attributes: ByName
    actuated: np.ndarray | None
    low: ByName
    high: ByName
    edges: np.ndarray
    relations: list[str]
    edge_attributes: ByName
    hyperedges: list[list[int]]
    hyperedge_types: list[str]
    nodes_file: Path
    edges_file: Path

    def bounds(self, columns: Columns) -> tuple[np.ndarray, np.ndarray] | None:
        """(lowest, highest) action of every node [nodes, actions]: nodes.csv first, then the settings; else None."""
        sides = []
        for side, table in enumerate((self.low, self.high)):
            values = np.full((len(self.nodes), len(columns.actions)), np.nan)
            for k, action in enumerate(columns.actions):
                for name in ("", action):  # the more special one last
                    if name in self.settings.action_bounds:
                        values[:, k] = self.settings.action_bounds[name][side]
                for name in ("", action):
                    if name in table:
                        values[:, k] = np.where(np.isnan(table[name]), values[:, k], table[name])
            sides.append(values)
        low, high = sides
        if np.isnan(low).all() and np.isnan(high).all():
            return None
        return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def read_system(folder: Path, root: Path, name: str, settings: Settings, problems: Problems) -> SystemTables | None:
    """Read a system's tables, its own or else those of the folder above."""
    files = sorted(
        (f for f in (folder / "episodes").iterdir() if f.suffix in (".csv", ".npz") and not f.name.startswith(".")),
        key=lambda f: natural(f.name),
    )
    if not files:
        problems.add(folder / "episodes", "there is no .csv or .npz file in it; give one an episode")
        return None
    nodes_file, edges_file = (_find(folder, root, table) for table in ("nodes.csv", "edges.csv"))
    table = read_table(nodes_file, problems, ["node", "type", "actuated"]) if nodes_file.is_file() else None
    if table is not None and "node" not in table.text:
        problems.add(nodes_file, "the column node is missing", 1)
        return None
    nodes = node_labels(files[0], problems) if table is None else table.text["node"]
    if nodes is None or not nodes:
        if table is not None:
            problems.add(nodes_file, "there is no node in it", 1)
        else:
            problems.add(files[0], "there is no column node with the nodes of the system", 1)
        return None
    known = {""}
    for k, label in enumerate(nodes):
        if table is not None and label in known:
            problems.add(nodes_file, f"node {label!r} must have a name of its own", table.rows[k], "node")
        known.add(label)
    if table is None:
        table = Table(nodes_file, {}, {}, [])
    attributes, sides = _node_columns(table, problems)
    actuated = _actuated(table, nodes, settings, folder, problems)
    edges, relations, edge_attributes = _edges(edges_file, nodes, problems)
    members, kinds = _hyperedges(_find(folder, root, "hyperedges.csv"), nodes, problems)
    return SystemTables(
        name=name,
        settings=settings,
        files=files,
        nodes=nodes,
        node_types=table.text.get("type", [""] * len(nodes)),
        node_attributes=attributes,
        actuated=actuated,
        low=sides["low"],
        high=sides["high"],
        edges=edges,
        relations=relations,
        edge_attributes=edge_attributes,
        hyperedges=list(members.values()),
        hyperedge_types=list(kinds.values()),
        nodes_file=nodes_file,
        edges_file=edges_file,
    )


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts 2 before 10, and words by their letters."""
    runs = re.findall("[0-9]+|[^0-9]+", name)
    return [(0, int(run[:1000]), "") if run[0] in "0123456789" else (1, 0, run) for run in runs]


def _find(folder: Path, root: Path, name: str) -> Path:
    return root / name if not (folder / name).is_file() and (root / name).is_file() else folder / name


def _node_columns(table: Table, problems: Problems) -> tuple[ByName, dict[str, ByName]]:
    """(attributes, bounds) of nodes.csv: `low` and `high` for every action, `low_x` and `high_x` for the action x."""
    sides: dict[str, ByName] = {"low": {}, "high": {}}
    attributes = {}
    for name, values in table.numbers.items():
        side, _, action = name.partition("_")
        if side in sides:
            sides[side][action] = values
        else:
            attributes[name] = values
            _check_finite(table, name, values, problems)
    return attributes, sides


def _check_finite(table: Table, name: str, values: np.ndarray, problems: Problems) -> None:
    for row in np.flatnonzero(~np.isfinite(values)):
        problems.add(table.file, "the cell is empty or not finite; expected a number", table.rows[row], name)


def _actuated(
    table: Table, nodes: list[str], settings: Settings, folder: Path, problems: Problems
) -> np.ndarray | None:
    if "actuated" in table.text:
        for row, cell in zip(table.rows, table.text["actuated"], strict=True):
            if cell.lower() not in TRUTH:
                problems.add(table.file, f"{cell!r} is neither true nor false", row, "actuated")
        return np.array([TRUTH.get(cell.lower(), False) for cell in table.text["actuated"]], bool)
    if settings.actuated is None:
        return None
    known, acting = set(nodes), set(settings.actuated)
    for label in settings.actuated:
        if label not in known:
            problems.add(folder / "system.toml", f"actuated names {label!r}, but there is no such node")
    return np.array([label in acting for label in nodes], bool)


def _edges(file: Path, nodes: list[str], problems: Problems) -> tuple[np.ndarray, list[str], ByName]:
    """Senders and receivers [2, E], relations, attributes."""
    nothing: tuple[np.ndarray, list[str], ByName] = (np.zeros((2, 0), np.int64), [], {})
    if not file.is_file():
        problems.add(file, "the file is missing; its header is sender,receiver and each row an edge")
        return nothing
    table = read_table(file, problems, ["sender", "receiver", "relation"])
    if table is None:
        return nothing
    for name in ENDS:
        if name not in table.text:
            problems.add(file, f"the column {name} is missing", 1)
            return nothing
    places = {label: k for k, label in enumerate(nodes)}
    seen: dict[tuple[str, str], int] = {}
    for row, pair in zip(table.rows, zip(table.text["sender"], table.text["receiver"], strict=True), strict=True):
        for name, label in zip(ENDS, pair, strict=True):
            if label not in places:
                problems.add(file, f"there is no node {label!r}; the nodes are {some(nodes)}", row, name)
        if pair in seen:
            problems.add(file, f"the edge from {pair[0]} to {pair[1]} was given in row {seen[pair]} already", row)
        seen.setdefault(pair, row)
    index = np.array([[places.get(label, 0) for label in table.text[name]] for name in ENDS], np.int64)
    for name, values in table.numbers.items():
        _check_finite(table, name, values, problems)
    return index.reshape(2, -1), table.text.get("relation", [""] * len(table)), table.numbers


def _hyperedges(file: Path, nodes: list[str], problems: Problems) -> tuple[dict[str, list[int]], dict[str, str]]:
    """(the nodes, the type) of each hyperedge by its name; none where there is no file."""
    members: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    table = read_table(file, problems, ["hyperedge", "node", "type"], []) if file.is_file() else None
    if table is None:
        return members, kinds
    for name in ("hyperedge", "node"):
        if name not in table.text:
            problems.add(file, f"the column {name} is missing", 1)
            return members, kinds
    types = table.text.get("type", [""] * len(table))
    for row, name, label, kind in zip(table.rows, table.text["hyperedge"], table.text["node"], types, strict=True):
        if label not in nodes:
            problems.add(file, f"there is no node {label!r}; the nodes are {some(nodes)}", row, "node")
        elif nodes.index(label) in members.setdefault(name, []):
            problems.add(file, f"hyperedge {name} has node {label} twice; name each of its nodes once", row, "node")
        else:
            members[name].append(nodes.index(label))
        if kinds.setdefault(name, kind) != kind:
            problems.add(file, f"hyperedge {name} is of type {kinds[name]!r} and {kind!r}; give it one", row, "type")
    for name, found in members.items():
        if len(found) < FEWEST:
            problems.add(file, f"hyperedge {name} joins {len(found)} nodes, expected at least 3; two are an edge")
    return members, kinds
