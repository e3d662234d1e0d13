"""Plans for systems that have no simulator here: of data of no known world, or adapted to and kept (`gce adapt`).

The parts of their problems are what people write in files: goals, starts, inputs known in advance, and limits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gce.cli.beside import plan_warnings, prediction_beside, warn
from gce.cli.common import Labels, episode_of, goal_at, known_names, table_of, write_plan
from gce.errors import InputError
from gce.files import border, finite, read_toml
from gce.names import some
from gce.progress import TOLD, planning

if TYPE_CHECKING:
    from gce.cli.control import Control
    from gce.interop.environments import Environment

NODE, STEP = "node", "step"
SYSTEM_FILE = "system.json"
ACTION_COST = 1e-4
"""Small: a goal that can be reached shall be; this chooses among the ways to it."""


@dataclass(frozen=True, eq=False)
class Own:
    """A system with its names and the bounds of its actions [nodes, a].

    episode: recorded, to start from; None where only an observation is known. adapted: what the system was adapted to,
    where it is at hand. steps: how long its recordings are.
    """

    system: Any
    labels: Labels
    low: Any
    high: Any
    episode: Any
    adapted: Sequence[Any]
    steps: int


def own_about(data: Any, group: int, episodes: Sequence[int]) -> dict[str, Any]:
    """What a saved system should say of itself, so that it can be planned for without its data; JSON values."""
    from gce.trajectory import control_limits

    _, low, high = control_limits(data, group)
    return {
        "names": known_names(data.metadata, data.group(group).parameters),
        "low": finite(low.tolist()),
        "high": finite(high.tolist()),
        "steps": int(data.lengths[list(episodes)].max()),
        "group": group,
        "episodes": len(episodes),
    }


def own_of_folder(folder: Path, start: Path | None, episode: int) -> Own:
    """A system that `gce adapt` wrote; where `start` is a data set, with its episode."""
    import numpy as np

    from gce.system.files import about_system, load_system
    from gce.trajectory import Dataset

    if not (folder / SYSTEM_FILE).is_file():
        trained = (folder / "model.json").is_file()
        told = "is a model that was not adapted to any system" if trained else "holds no adapted system"
        model = folder if trained else "MODEL"
        raise InputError(f"{folder} {told}; make one with `gce adapt DATA.h5 --model {model} --out DIR`, and give DIR")
    system, about = load_system(folder), about_system(folder)
    shape = (system.graph.num_nodes, system.model.config.num_actions)
    try:
        # A null stands for no bound.
        low = np.array([[-np.inf if v is None else v for v in row] for row in about["low"]], np.float64)
        high = np.array([[np.inf if v is None else v for v in row] for row in about["high"]], np.float64)
        labels, steps = Labels.of(about["names"], system), int(about["steps"])
        fits = low.shape == high.shape == shape
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        fits = False
    if not fits or steps < 1 or not (low <= high).all():
        raise InputError(
            f"{folder}/{SYSTEM_FILE} does not say between which bounds its nodes act; `gce adapt` it again"
        )
    recorded = None
    if start is not None and start.suffix in (".h5", ".hdf5"):
        with Dataset.open(start) as data:
            recorded = episode_of(data, start, episode)
        if not np.array_equal(recorded.graph.edge_index, system.graph.edge_index):
            raise InputError(f"episode {episode} of {start} is of another system; choose one of its own with --episode")
    return Own(system, labels, low, high, recorded, [], steps if recorded is None else recorded.length)


def plan_own(own: Own, asked: Control) -> dict[str, Any]:
    """Plan as asked for, and write it where it is asked to go."""
    import numpy as np

    from gce import __version__
    from gce.cli.acting import act, environment
    from gce.control.problem import Problem
    from gce.planning.controller import Controller, in_space_of
    from gce.planning.export import write_c
    from gce.views.report.details import details_of_plan

    model, labels = own.system.model, own.labels
    link = None if asked.env is None else environment(own, asked)
    goal = _goal(own, asked, link)
    M = asked.horizon or (len(goal.values) if goal.values.ndim == 3 else asked.goal_step or own.steps)
    if goal.values.ndim == 3 and len(goal.values) != M:
        raise InputError(f"the goal is a path of {len(goal.values)} steps, the horizon {M}; leave --horizon out")
    start = _start(own, asked) if link is None else link.reset(asked.seed)
    low, high = _limits(own, asked)
    problem = Problem(
        horizon=M,
        goal=goal.values,
        tracked=goal.tracked,
        low=low,
        high=high,
        state_cost=1.0 if goal.values.ndim == 3 else 0.0,
        action_cost=ACTION_COST,
        unit=model.observation_std.double().numpy(),
        action_unit=model.action_std.double().numpy(),
        exogenous=_exogenous(own, asked, M),
    )
    if goal.tracked is not None and model.features.planned_in_features:
        raise InputError(
            "the goal leaves coordinates free, but plans of this model are made in features, which need the whole "
            "observation to reach; give every coordinate of every node"
        )
    problem = in_space_of(model, problem, **asked.costs())
    if link is not None:
        return act(own, asked, link, problem, start)
    with planning(f"planning {M} steps") as tell:
        planner = Controller(
            own.system, problem, weights=asked.weights, tell=tell, solver=asked.solver, time_limit=asked.time_limit
        )
        plan = planner.plan(start, opening=True)
    told = ... if goal.tracked is None else goal.tracked
    away = (plan.observations[-1] - problem.goals[-1])[told]
    size = float(np.linalg.norm(problem.goals[-1]))  # free coordinates are 0 there
    unit = np.broadcast_to(problem.unit, problem.goals[-1].shape)[told]
    still = (start - problem.goals[-1])[told]
    distance, nothing = (float(np.sqrt(np.square(gap / unit).mean())) for gap in (away, still))
    prediction = prediction_beside(own, M)
    warn(*plan_warnings(nothing, distance, prediction))
    answer = {
        "predicted_control_error": float(np.linalg.norm(away)) / size if size else None,
        "predicted_distance": distance,
        "start_distance": nothing,
        "prediction": prediction,
        "predicted_cost": plan.cost,
        "status": plan.status,
        "plan_seconds": [plan.seconds],
        "iterations": [plan.iterations],
        "objects": len(labels.nodes),
        "horizon": M,
        "seed": asked.seed,
        "version": __version__,
        "warnings": list(TOLD),
    }
    if plan.outlook is not None:
        answer["expected_error"] = {**vars(plan.outlook), "worth": plan.outlook.worth}
    if asked.export is not None:
        write_c(planner, plan, asked.export)
    if asked.out is not None:
        names = {"observation_names": labels.observations, "action_names": labels.actions, "node_names": labels.nodes}
        about = {**{name: list(each) for name, each in names.items()}, "settings": asked.settings()}
        details = details_of_plan(plan, problem, own.system, own.adapted, own.episode, about)
        write_plan(asked.out, plan, labels, answer, details)
    return answer


def _goal(own: Own, asked: Control, link: Environment | None = None) -> Goal:
    if asked.goal is not None:
        return read_goal(asked.goal, own.labels)
    if link is not None and link.mapping.goal is not None:
        return Goal(link.mapping.goal)
    if own.episode is None:
        raise InputError(
            "there is nothing to reach yet; give --goal with a file such as goal.csv: a header "
            f"node,{','.join(own.labels.observations)} and a row a node"
        )
    step = asked.goal_step or min(asked.horizon or own.steps, own.steps)
    return Goal(goal_at(own.episode, step))


def _start(own: Own, asked: Control) -> Any:
    if asked.start is not None and asked.start.suffix not in (".h5", ".hdf5"):
        return read_start(asked.start, own.labels)
    if own.episode is None:
        raise InputError(
            "where is the system now? give --start with a file such as start.csv (a header "
            f"node,{','.join(own.labels.observations)} and a row a node), or with a data set and its --episode"
        )
    return own.episode.observations[0].astype(float)


def _exogenous(own: Own, asked: Control, steps: int) -> Any:
    if not own.labels.exogenous:
        return None
    if asked.exogenous is not None:
        return read_exogenous(asked.exogenous, own.labels, steps)
    if own.episode is None or own.episode.exogenous is None or own.episode.length < steps:
        raise InputError(
            f"the plan needs {', '.join(own.labels.exogenous)} at each of its {steps} steps; give --exogenous with a "
            f"file of rows step,node,{','.join(own.labels.exogenous)}"
        )
    return own.episode.exogenous[:steps].astype(float)


def _limits(own: Own, asked: Control) -> tuple[Any, Any]:
    """As recorded; what a file says goes before that, and arguments before both."""
    actuated, bounds = (None, {}) if asked.limits is None else read_limits(asked.limits)
    if asked.bounds is not None:
        bounds = {"": asked.bounds}
    try:
        return limited(list(asked.actuated) or actuated, bounds, own.labels, own.low, own.high)
    except InputError as error:
        raise InputError(f"{asked.limits}: {error}" if asked.limits is not None else str(error)) from None


# ---- files ----


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

    told = read_toml(path)
    limits: dict[str, Any] = {}
    for name, value in told.items():
        if name not in READERS:
            raise InputError(f"{path} says {name!r}; it may say actuated and action_bounds")
        try:
            limits[name] = READERS[name](value)
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: {name} is {value!r}, expected {error}") from None
    return limits.get("actuated"), limits.get("action_bounds", {})


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
    limits = Limits.of(len(low), low.shape[1], acting, (low, high))
    return limits.low, limits.high


def _read_values(path: Path, nodes: Sequence[str], columns: Sequence[str], what: str) -> tuple[Any, bool]:
    """([nodes, columns] or [steps, nodes, columns], whether the file names them); NaN where it says nothing."""
    import numpy as np

    with border(path, "a table of numbers", "write one row a node"):
        if path.suffix == ".csv" and _has_header(path):
            return _read_named(path, nodes, columns), True
        values = table_of(path)
        if values is None:
            raise InputError(f"{path} is not a {what} file; give .json, .npy or .csv with one row a node")
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
        if not re.fullmatch("[0-9]{1,15}", step):
            raise InputError(
                f"{path}, row {row}, column step: {step!r} is not a whole number; count steps 0, 1, 2, ..."
            )
    numbers = sorted({int(step) for step in steps})
    if not numbers:
        raise InputError(f"{path} has no row below its header; give one a node")
    if numbers[-1] - numbers[0] != len(numbers) - 1:
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
