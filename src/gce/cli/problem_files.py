"""Parts of a control problem that people write in files: goals, starts, inputs known in advance, and limits."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gce.cli.common import Labels
from gce.errors import InputError
from gce.names import some

NODE, STEP = "node", "step"


@dataclass(frozen=True, eq=False)
class Goal:
    """values [nodes, d], or [steps, nodes, d] for a path; tracked [nodes, d]: what has a goal, None for all of it."""

    values: Any
    tracked: Any = None


def read_goal(path: Path, labels: Labels) -> Goal:
    """A goal's table; in a CSV file with a header, cells and nodes may be left out: they are free."""
    import numpy as np

    values, named = _read_values(path, labels.nodes, labels.observations, "goal")
    missing = np.isnan(values)
    if not missing.any():
        return Goal(values)
    if not named:
        node, column = np.argwhere(missing)[0][-2:]
        raise InputError(
            f"the goal in {path} is not a number for node {labels.nodes[node]}, {labels.observations[column]}; where "
            f"it shall be free, give a CSV file with the header node,{','.join(labels.observations)} and an empty cell"
        )
    free = missing.reshape(-1, *missing.shape[-2:])
    if (free != free[0]).any():
        step, node, _ = np.argwhere(free != free[0])[0]
        raise InputError(
            f"{path}: node {labels.nodes[node]} has no goal at step {step + 1}; give one at all steps or at none"
        )
    if free.all():
        raise InputError(f"{path} says no goal at all; give a number to at least one node")
    return Goal(np.where(missing, 0.0, values), ~free[0])


def read_start(path: Path, labels: Labels) -> Any:
    """Where a system is [nodes, d]."""
    import numpy as np

    values, _ = _read_values(path, labels.nodes, labels.observations, "start")
    if values.ndim != 2:
        raise InputError(f"the start in {path} has {len(values)} steps; give one row a node, as the system is now")
    if np.isnan(values).any():
        node, column = np.argwhere(np.isnan(values))[0]
        raise InputError(
            f"{path} does not say {labels.observations[column]} of node {labels.nodes[node]}; give all of the start"
        )
    return values


def read_exogenous(path: Path, labels: Labels, steps: int) -> Any:
    """Inputs known in advance at each of the steps [steps, nodes, e]; those beyond are not needed."""
    import numpy as np

    values, _ = _read_values(path, labels.nodes, labels.exogenous, "exogenous input")
    if values.ndim != 3 or len(values) < steps or np.isnan(values[:steps]).any():
        raise InputError(
            f"{path} does not say {', '.join(labels.exogenous)} of every node at each of the {steps} steps planned; "
            f"give rows of step,node,{','.join(labels.exogenous)}"
        )
    return values[:steps]


def read_limits(path: Path) -> tuple[list[str] | None, dict[str, tuple[float, float]]]:
    """(names of the actuated nodes, bounds by action, "" for all) of a TOML file such as a folder's system.toml."""
    from gce.trajectory.importing.tables import READERS

    try:
        told = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}; it holds lines such as action_bounds = [0, 1]") from None
    found: dict[str, Any] = {}
    for name, value in told.items():
        if name not in READERS:
            raise InputError(f"{path} says {name!r}; it may say actuated and action_bounds")
        try:
            found[name] = READERS[name](value)
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: {name} is {value!r}, expected {error}") from None
    return found.get("actuated"), found.get("action_bounds", {})


def limited(
    actuated: Sequence[str] | None, bounds: dict[str, tuple[float, float]], labels: Labels, low: Any, high: Any
) -> tuple[Any, Any]:
    """Bounds [nodes, a] with other actuated nodes or other bounds; what is not given is as it was.

    A node that begins to act has the widest bounds that any node has.
    """
    import numpy as np

    from gce.trajectory import Limits

    acting = (low < high).any(axis=1)
    low, high = (np.where(acting[:, None], side, widest) for side, widest in ((low, low.min(0)), (high, high.max(0))))
    for name, pair in bounds.items():
        if name and name not in labels.actions:
            raise InputError(f"there is no action {name!r} to bound; the actions are {', '.join(labels.actions)}")
        columns = slice(None) if not name else labels.actions.index(name)
        low[:, columns], high[:, columns] = pair
    if actuated is not None:
        for name in actuated:
            if name not in labels.nodes:
                raise InputError(f"there is no node {name!r} to act; the nodes are {some(labels.nodes)}")
        acting = np.isin(labels.nodes, actuated)
    found = Limits.of(len(low), low.shape[1], acting, (low, high))
    return found.low, found.high


# ---- inside ----


def _read_values(path: Path, nodes: Sequence[str], columns: Sequence[str], what: str) -> tuple[Any, bool]:
    """([nodes, columns] or [steps, nodes, columns], whether the file names them); NaN where it says nothing."""
    import numpy as np

    try:
        if path.suffix == ".json":
            values = np.array(json.loads(path.read_text()), dtype=np.float64)
        elif path.suffix == ".npy":
            values = np.load(path, allow_pickle=False).astype(np.float64)
        elif path.suffix == ".csv":
            if _has_header(path):
                return _read_named(path, nodes, columns), True
            values = np.loadtxt(path, delimiter=",", ndmin=2, comments="#")
        else:
            raise InputError(f"{path} is not a {what} file; give .json, .npy or .csv with one row a node")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; name a file with one row a node") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a table of numbers: {error}; write one row a node") from None
    shape = (len(nodes), len(columns))
    if values.ndim not in (2, 3) or values.shape[-2:] != shape:
        raise InputError(
            f"the {what} in {path} has shape {values.shape}, expected {shape}: a row a node ({some(nodes)}), a column "
            f"a coordinate ({some(columns)})"
        )
    if np.isinf(values).any():
        node, column = np.argwhere(np.isinf(values))[0][-2:]
        raise InputError(f"the {what} in {path} is infinite for node {nodes[node]}, {columns[column]}; give a number")
    return values, False


def _has_header(path: Path) -> bool:
    from gce.trajectory.importing.tables import Problems, header_of

    return NODE in (header_of(path, Problems(path)) or [])


def _read_named(path: Path, nodes: Sequence[str], columns: Sequence[str]) -> Any:
    """A table with the columns node, step where there are several, and some of the system's own."""
    import numpy as np

    from gce.trajectory.importing.tables import Problems, read_table

    problems = Problems(path.parent)
    table = read_table(path, problems, [NODE, STEP])
    problems.raise_any()
    assert table is not None
    for name in table.numbers:
        if name not in columns:
            raise InputError(f"{path}, column {name}: the system has no such coordinate; it has {some(columns)}")
    steps = table.text.get(STEP, ["0"] * len(table))
    for row, step, node in zip(table.rows, steps, table.text[NODE], strict=True):
        if node not in nodes:
            raise InputError(f"{path}, row {row}, column node: there is no node {node!r}; the nodes are {some(nodes)}")
        if not step.isdecimal():
            raise InputError(
                f"{path}, row {row}, column step: {step!r} is not a whole number; count steps 0, 1, 2, ..."
            )
    numbers = sorted({int(step) for step in steps})
    if not numbers:
        raise InputError(f"{path} has no row below its header; give one a node")
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise InputError(f"{path}: its steps run from {numbers[0]} to {numbers[-1]} with gaps; give every step")
    values = np.full((len(numbers), len(nodes), len(columns)), np.nan)
    given: dict[tuple[int, str], int] = {}
    for k, (row, step, node) in enumerate(zip(table.rows, steps, table.text[NODE], strict=True)):
        if (int(step), node) in given:
            raise InputError(f"{path}, row {row}: node {node} was given in row {given[int(step), node]} already")
        given[int(step), node] = row
        for name, cells in table.numbers.items():
            values[int(step) - numbers[0], nodes.index(node), columns.index(name)] = cells[k]
    if np.isinf(values).any():
        _, node, column = np.argwhere(np.isinf(values))[0]
        raise InputError(f"{path}: {columns[column]} of node {nodes[node]} is infinite; give a number")
    return values if STEP in table.text else values[0]
