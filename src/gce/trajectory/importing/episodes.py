"""One recorded episode: a CSV file with a row for each step and node, or an npz file of arrays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gce.errors import InputError
from gce.files import read_npz
from gce.names import some
from gce.trajectory.importing.tables import Problems, Settings, Table, header_of, read_table

STEP, NODE = "step", "node"
WHOLE = "[+-]?[0-9]{1,15}"
ARRAYS = {
    "observations": "[T+1, nodes, coordinates]",
    "actions": "[T, nodes, actions]",
    "exogenous": "[T, nodes, inputs]",
}


@dataclass(frozen=True)
class Columns:
    """Names of the columns; the same in all episodes of a data set."""

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    exogenous: tuple[str, ...]


@dataclass(frozen=True)
class EpisodeArrays:
    """[T+1, nodes, coordinates], [T, nodes, actions], [T, nodes, inputs]; no inputs: None."""

    observations: np.ndarray
    actions: np.ndarray
    exogenous: np.ndarray | None


def find_columns(file: Path, settings: Settings, problems: Problems) -> Columns | None:
    """What the columns of an episode are: as the settings say, or by their names."""
    if file.suffix == ".npz":
        arrays = _load(file, problems)
        return None if arrays is None else Columns(*(_numbered(name, arrays, settings) for name in ARRAYS))
    header = header_of(file, problems)
    if header is None:
        return None
    rest = [name for name in header if name not in (STEP, NODE)]
    actions = _chosen(settings.actions, rest, "action")
    exogenous = _chosen(settings.exogenous, rest, "exogenous")
    observations = settings.observations or [name for name in rest if name not in (*actions, *exogenous)]
    if not observations:
        problems.add(file, f"no column is an observation; the columns are {', '.join(header)}", 1)
        return None
    return Columns(tuple(observations), tuple(actions), tuple(exogenous))


def node_labels(file: Path, problems: Problems) -> list[str] | None:
    """The nodes of an episode: whole numbers in order, other names as they appear."""
    if file.suffix == ".npz":
        arrays = _load(file, problems)
        return None if arrays is None else [str(k) for k in range(arrays["observations"].shape[1])]
    header = header_of(file, problems)
    if header is None or NODE not in header:
        return None  # told when the episode is read
    table = read_table(file, Problems(file), [NODE], [])
    labels = [] if table is None else [label for label in dict.fromkeys(table.text[NODE]) if label]
    return sorted(labels, key=int) if all(re.fullmatch(WHOLE, label) for label in labels) else labels


def read_episode(
    file: Path, nodes: list[str], columns: Columns, actuated: np.ndarray | None, problems: Problems
) -> EpisodeArrays | None:
    """An episode; None, with problems, where something is wrong with it.

    actuated: a truth value a node; None where nobody said. Nodes that take no action may leave their cells empty.
    """
    before = problems.count
    read = _read_npz if file.suffix == ".npz" else _read_csv
    recorded = read(file, nodes, columns, actuated, problems)
    return recorded if problems.count == before else None


# ---- CSV ----


def _read_csv(
    file: Path, nodes: list[str], columns: Columns, actuated: np.ndarray | None, problems: Problems
) -> EpisodeArrays | None:
    header = header_of(file, problems)
    wanted = (*columns.observations, *columns.actions, *columns.exogenous)
    if header is None:
        return None
    missing = [name for name in (STEP, NODE, *wanted) if name not in header]
    if missing:
        problems.add(file, f"the column {missing[0]} is missing; the columns are {', '.join(header)}", 1)
        return None
    table = read_table(file, problems, [STEP, NODE], wanted)
    if table is None:
        return None
    grid = _grid(table, nodes, problems)
    if grid is None:
        return None
    values = np.stack([table.numbers[name] for name in wanted], axis=-1)[grid]
    d, a = len(columns.observations), len(columns.actions)
    # The action that leads beyond the last observation is nobody's business; it may be empty.
    observations, actions, exogenous = values[..., :d], values[:-1, :, d : d + a], values[:-1, :, d + a :]
    actions = _without_idle(actions, actuated)
    for names, part in ((wanted[:d], observations), (wanted[d : d + a], actions), (wanted[d + a :], exogenous)):
        for step, node, k in np.argwhere(~np.isfinite(part)):
            value = part[step, node, k]
            what = "the cell is empty or not a number (nan)" if np.isnan(value) else f"the value is {value}"
            problems.add(file, f"{what}; expected a finite number", table.rows[grid[step, node]], names[k])
    return EpisodeArrays(observations, actions, exogenous if columns.exogenous else None)


def _grid(table: Table, nodes: list[str], problems: Problems) -> np.ndarray | None:
    """Which row of a table is step t of node i, [T+1, nodes]."""
    places = {label: k for k, label in enumerate(nodes)}
    steps, who, good = [], [], True
    for line, cell, label in zip(table.rows, table.text[STEP], table.text[NODE], strict=True):
        if not re.fullmatch(WHOLE, cell):
            problems.add(table.file, f"{cell!r} is not a whole number", line, STEP)
            good = False
        elif label not in places:
            problems.add(table.file, f"there is no node {label!r}; the nodes are {some(nodes)}", line, NODE)
            good = False
        else:
            steps.append(int(cell))
            who.append(places[label])
    if not good:
        return None
    if not steps:
        problems.add(table.file, "there is no row of data below the header", 1)
        return None
    first, last = min(steps), max(steps)
    if last - first >= len(steps):
        known = set(steps)
        gap = next(step for step in range(first, last) if step not in known)
        problems.add(table.file, f"there is no row for step {gap}, but there are some for step {last}")
        return None
    if (last - first + 1) * len(nodes) > 10 * len(steps) + 10**6:
        count = f"{len(steps)} rows for {last - first + 1} steps of {len(nodes)} nodes"
        problems.add(table.file, f"there are {count}; give every node a row at every step")
        return None
    grid = np.full((last - first + 1, len(nodes)), -1)
    for row, (step, node) in enumerate(zip(steps, who, strict=True)):
        if grid[step - first, node] >= 0:
            earlier = table.rows[grid[step - first, node]]
            problems.add(
                table.file, f"step {step} of node {nodes[node]} was given in row {earlier} already", table.rows[row]
            )
            good = False
        grid[step - first, node] = row
    if first == last:
        problems.add(table.file, f"there is only step {first}; an episode has at least two")
        good = False
    empty = np.flatnonzero((grid < 0).all(axis=1))
    if empty.size:
        problems.add(table.file, f"there is no row for step {first + empty[0]}, but there are some for step {last}")
        return None
    for node in np.flatnonzero((grid < 0).any(axis=0)).tolist():
        gaps = np.flatnonzero(grid[:, node] < 0)
        problems.add(table.file, _missing(nodes[node], gaps, len(grid), first))
        good = False
    return grid if good else None


def _missing(node: str, gaps: np.ndarray, steps: int, first: int) -> str:
    """How a node's rows stop short of the episode's."""
    if len(gaps) == steps:
        return f"there is no row of node {node}; give every node a row at every step"
    if gaps[-1] == steps - 1 and len(gaps) == steps - gaps[0]:
        return f"node {node} ends at step {first + gaps[0] - 1}, the episode at step {first + steps - 1}"
    more = f" and {len(gaps) - 1} other steps" if len(gaps) > 1 else ""
    return f"node {node} has no row for step {first + gaps[0]}{more}; give every node a row at every step"


def _without_idle(actions: np.ndarray, actuated: np.ndarray | None) -> np.ndarray:
    """0 for empty cells of nodes that take no action: as was said, or because all their cells are empty."""
    empty = np.isnan(actions)
    idle = empty.all(axis=(0, 2)) if actuated is None else empty.all(axis=(0, 2)) | ~actuated
    return np.where(empty & idle[:, None], 0.0, actions)


def _chosen(named: list[str] | None, columns: list[str], word: str) -> list[str]:
    if named is not None:
        return named
    return [name for name in columns if name == word or name.startswith(word + "_")]


# ---- npz ----


def _read_npz(
    file: Path, nodes: list[str], columns: Columns, actuated: np.ndarray | None, problems: Problems
) -> EpisodeArrays | None:
    arrays = _load(file, problems)
    if arrays is None:
        return None
    steps = len(arrays["observations"]) - 1
    found = {}
    for name in ARRAYS:
        length, width = steps + (name == "observations"), len(getattr(columns, name))
        array = arrays.get(name, np.zeros((max(length, 0), len(nodes), 0)))
        if name != "observations" and len(array) == steps + 1:
            array = array[:-1]  # the action that leads nowhere
        if array.shape != (length, len(nodes), width) or steps < 1:
            problems.add(
                file,
                f"{name} has shape {array.shape}, expected ({max(length, 1)}, {len(nodes)}, {width}): "
                f"{ARRAYS[name]} with T at least 1",
            )
            continue
        found[name] = _without_idle(array, actuated) if name == "actions" else array
        for step, node, k in np.argwhere(~np.isfinite(found[name])):
            value = found[name][step, node, k]
            problems.add(file, f"{name} hold {value} at step {step}, node {node}, coordinate {k}; expected finite")
    if len(found) < 3:
        return None
    return EpisodeArrays(found["observations"], found["actions"], found["exogenous"] if columns.exogenous else None)


def _load(file: Path, problems: Problems) -> dict[str, np.ndarray] | None:
    try:
        arrays = read_npz(file)
    except InputError as error:
        problems.add(file, str(error))
        return None
    if "observations" not in arrays:
        problems.add(file, f"there is no array 'observations'; the arrays are {', '.join(arrays) or 'none'}")
        return None
    for name, axes in ARRAYS.items():
        if name in arrays and arrays[name].ndim != 3:
            advice = "; one file an episode" if arrays[name].ndim == 4 else ""
            problems.add(file, f"{name} has shape {arrays[name].shape}, expected {axes}{advice}")
            return None
        if name in arrays and arrays[name].dtype.kind not in "biuf":
            problems.add(file, f"{name} holds {arrays[name].dtype} values, expected numbers")
            return None
    return {name: arrays[name].astype(np.float64) for name in ARRAYS if name in arrays}


def _numbered(name: str, arrays: dict[str, np.ndarray], settings: Settings) -> tuple[str, ...]:
    """Names from the settings where they fit, or numbers."""
    width = arrays[name].shape[2] if name in arrays else 0
    given = getattr(settings, name)
    return tuple(given) if given and len(given) == width else tuple(f"{name}_{k}" for k in range(width))
