"""Plans for systems that have no simulator here: of data of no known world, or adapted to and kept (`gce adapt`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gce.cli.common import Labels, episode_of, known_names, write_plan
from gce.cli.problem_files import Goal, limited, read_exogenous, read_goal, read_limits, read_start
from gce.errors import InputError
from gce.progress import planning

if TYPE_CHECKING:
    from gce.cli.control import Control

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
        "low": _finite(low),
        "high": _finite(high),
        "steps": int(data.lengths[list(episodes)].max()),
        "group": group,
        "episodes": len(episodes),
    }


def own_of_folder(folder: Path, start: Path | None, episode: int) -> Own:
    """A system that `gce adapt` wrote; where `start` is a data set, with its episode."""
    import numpy as np

    from gce.system.files import about_system, load_system

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
    except (AttributeError, KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            f"{folder}/{SYSTEM_FILE} does not say between which bounds its nodes act; `gce adapt` it again"
        )
    recorded = None if start is None or start.suffix not in (".h5", ".hdf5") else _episode(start, episode, system)
    return Own(system, labels, low, high, recorded, [], steps if recorded is None else recorded.length)


def plan_own(own: Own, asked: Control) -> dict[str, Any]:
    """Plan as asked for, and write it where it is asked to go."""
    import numpy as np

    from gce import __version__
    from gce.control.problem import Problem
    from gce.planning.controller import Controller
    from gce.views.report.details import details_of_plan

    model, labels = own.system.model, own.labels
    goal = _goal(own, asked)
    M = asked.horizon or (len(goal.values) if goal.values.ndim == 3 else asked.goal_step or own.steps)
    if goal.values.ndim == 3 and len(goal.values) != M:
        raise InputError(f"the goal is a path of {len(goal.values)} steps, the horizon {M}; leave --horizon out")
    start = _start(own, asked)
    low, high = _limits(own, asked)
    problem = Problem(
        horizon=M,
        goal=goal.values,
        tracked=goal.tracked,
        low=low,
        high=high,
        state_cost=1.0 if goal.values.ndim == 3 else 0.0,
        action_cost=ACTION_COST if asked.action_cost is None else asked.action_cost,
        unit=model.observation_std.double().numpy(),
        action_unit=model.action_std.double().numpy(),
        exogenous=_exogenous(own, asked, M),
    )
    with planning(f"planning {M} steps") as tell:
        plan = Controller(own.system, problem, weights=asked.weights, tell=tell).plan(start, opening=True)
    away = (plan.observations[-1] - problem.goals[-1])[... if goal.tracked is None else goal.tracked]
    size = float(np.linalg.norm(problem.goals[-1]))  # free coordinates are 0 there
    unit = np.broadcast_to(problem.unit, problem.goals[-1].shape)[... if goal.tracked is None else goal.tracked]
    answer = {
        "predicted_control_error": float(np.linalg.norm(away)) / size if size else None,
        "predicted_distance": float(np.sqrt(np.square(away / unit).mean())),
        "predicted_cost": plan.cost,
        "status": plan.status,
        "plan_seconds": [plan.seconds],
        "iterations": [plan.iterations],
        "objects": len(labels.nodes),
        "horizon": M,
        "seed": asked.seed,
        "version": __version__,
    }
    if asked.out is not None:
        about = {
            "observation_names": list(labels.observations),
            "action_names": list(labels.actions),
            "node_names": list(labels.nodes),
            "settings": asked.settings(),
        }
        details = details_of_plan(plan, problem, own.system, own.adapted, own.episode, about)
        write_plan(asked.out, plan, labels, answer, details)
    return answer


# ---- inside ----


def _episode(file: Path, number: int, system: Any) -> Any:
    import numpy as np

    from gce.trajectory import Dataset

    with Dataset.open(file) as data:
        found = episode_of(data, file, number)
    if not np.array_equal(found.graph.edge_index, system.graph.edge_index):
        raise InputError(f"episode {number} of {file} is of another system; choose one of its own with --episode")
    return found


def _goal(own: Own, asked: Control) -> Goal:
    if asked.goal is not None:
        return read_goal(asked.goal, own.labels)
    if own.episode is None:
        raise InputError(
            "there is nothing to reach yet; give --goal with a file such as goal.csv: a header "
            f"node,{','.join(own.labels.observations)} and a row a node"
        )
    step = asked.goal_step or min(asked.horizon or own.steps, own.steps)
    if step > own.episode.length:
        raise InputError(
            f"the episode has {own.episode.length} steps, the goal is of step {step}; give an earlier --goal-step"
        )
    return Goal(own.episode.observations[step].astype(float))


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


def _finite(bounds: Any) -> list[list[float | None]]:
    """JSON has no infinity: null stands for no bound."""
    import numpy as np

    return [[float(v) if np.isfinite(v) else None for v in row] for row in bounds]
