"""What a run leaves for its report: one file of arrays, details.npz, beside the run's figures.

The arrays speak for themselves (`Details`); words and numbers about them are JSON in the array `about`. The file holds
no objects, so reading it runs no code.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Complex, Float, Int

from gce import __version__
from gce.control.problem import Problem
from gce.envs import GraphEnv
from gce.errors import InputError
from gce.planning.closed_loop import Run, uncontrolled
from gce.planning.controller import Plan
from gce.system.system import System
from gce.trajectory import Episode
from gce.views.inspection import fit_by_episodes, operator_spectrum, step_spectrum, weights_along

Array = np.ndarray

FILE = "details.npz"
LIBRARIES = ("torch", "numpy", "scipy", "pymunk", "gymnasium", "piqp")


@dataclass(frozen=True, eq=False)
class Details:
    """about: JSON values; whether a simulator acted, the world, names, points, settings, model and versions.

    observations, actions: what happened, or the plan where there is no simulator. goal: NaN where a node is free.
    nothing: what happens when nothing is done; costs: the reported cost of each step; both empty without a simulator.
    plan_at: the step of each plan; plan_actions, plan_observations: all plans' one after another, the latter each with
    its start first. weights: Gibbs weights along the observations. fit_errors: NRMSE at each step of predicting the
    run, or a recorded episode where there is no simulator, after adapting to so many episodes (`fit_counts`).
    """

    about: dict[str, Any]
    observations: Float[Array, "M_plus_1 nodes d"]
    actions: Float[Array, "M nodes a"]
    goal: Float[Array, "nodes d"]
    unit: Float[Array, " d"]
    actuated: Bool[Array, " nodes"]
    low: Float[Array, "nodes a"]
    high: Float[Array, "nodes a"]
    nothing: Float[Array, "states nodes d"]
    costs: Float[Array, " charged"]
    edge_index: Int[Array, "2 edges"]
    node_type: Int[Array, " nodes"]
    weights: Float[Array, "M_plus_1 weighted"]
    plan_at: Int[Array, " plans"]
    plan_actions: Float[Array, "planned nodes a"]
    plan_observations: Float[Array, "expected nodes d"]
    operator_spectrum: Complex[Array, " features"]
    step_spectrum: Complex[Array, " coordinates"]
    fit_counts: Int[Array, " fits"]
    fit_errors: Float[Array, "fits predicted"]

    def plans(self) -> list[tuple[int, Array, Array]]:
        """(at, actions, observations) of each plan; each goes on to the end of the run."""
        M, found, start = len(self.actions), [], 0
        for k, at in enumerate(self.plan_at.tolist()):
            length = M - at
            found.append(
                (at, self.plan_actions[start : start + length],
                 self.plan_observations[start + k : start + k + length + 1])
            )  # fmt: skip
            start += length
        return found


def details_of_run(
    env: GraphEnv, run: Run, system: System, adapted: Sequence[Episode], settings: dict[str, Any]
) -> Details:
    """Of a run on a simulator. settings: how it was asked for, JSON values."""
    low, high = env.action_bounds
    costs = [env.stage_cost(o, run.goal, a) for o, a in zip(run.observations[1:], run.actions, strict=True)]
    return _details(
        system,
        adapted,
        (run.observations, run.actions, run.goal),
        list(zip(run.planned_at, run.plans, strict=True)),
        about={"simulated": True, **env.describe(), "positions": env.positions.tolist(), "settings": settings},
        unit=env.observation_std,
        bounds=(env.actuated, low, high),
        nothing=uncontrolled(env, len(run.actions)),
        costs=np.array(costs),
        predicted=(run.observations, run.actions, None),
    )


def details_of_plan(
    plan: Plan,
    problem: Problem,
    system: System,
    adapted: Sequence[Episode],
    recorded: Episode | None,
    about: dict[str, Any],
) -> Details:
    """Of a plan for a system that has no simulator: what the model expects stands for what happens.

    recorded: an episode that was not adapted to, to see how well it is predicted; where it or the episodes adapted to
    are not at hand, nothing is said of the fit. about: its coordinates' names and the settings, JSON values.
    """
    model, goal = system.model, problem.goals[-1]
    if problem.tracked is not None:
        goal = np.where(np.broadcast_to(problem.tracked.reshape(len(goal), -1), goal.shape), goal, np.nan)
    return _details(
        system,
        adapted,
        (plan.observations, plan.actions, goal),
        [(0, plan)],
        about={"simulated": False, "world": model.config.world, "dt": model.config.dt, **about},
        unit=model.observation_std.double().numpy(),
        bounds=(np.asarray(problem.controls.any(-1)), problem.low, problem.high),
        nothing=np.zeros((0, *plan.observations.shape[1:])),
        costs=np.zeros(0),
        predicted=None
        if recorded is None
        else (recorded.observations.astype(float), recorded.actions.astype(float), recorded.exogenous),
    )


def _details(
    system: System,
    adapted: Sequence[Episode],
    path: tuple[Array, Array, Array],
    plans: list[tuple[int, Plan]],
    about: dict[str, Any],
    unit: Array,
    bounds: tuple[Array, Array, Array],
    nothing: Array,
    costs: Array,
    predicted: tuple[Array, Array, Array | None] | None,
) -> Details:
    """path: observations, actions and goal; predicted: observations, actions and exogenous inputs that no fit knew."""
    observations, actions, goal = path
    weights = weights_along(system, observations, actions)
    counts, errors = np.zeros(0, np.int64), np.zeros((0, 0))
    if predicted is not None and adapted:
        truth, taken, exogenous = predicted
        counts, errors = fit_by_episodes(system, adapted, truth, taken, unit, exogenous)
    actuated, low, high = bounds
    return Details(
        about={**about, "points": system.model.config.points, "model": _model(system), "versions": versions()},
        observations=observations,
        actions=actions,
        goal=goal,
        unit=np.asarray(unit, np.float64),
        actuated=actuated,
        low=low,
        high=high,
        nothing=nothing,
        costs=costs,
        edge_index=system.graph.edge_index,
        node_type=system.graph.node_type,
        weights=weights,
        plan_at=np.array([at for at, _ in plans]),
        plan_actions=np.concatenate([plan.actions for _, plan in plans]),
        plan_observations=np.concatenate([plan.observations for _, plan in plans]),
        operator_spectrum=operator_spectrum(system, weights[0]),
        step_spectrum=step_spectrum(system, observations[0]),
        fit_counts=counts,
        fit_errors=errors,
    )


def _model(system: System) -> dict[str, Any]:
    """What decides the model, as JSON values; the potential's hyper-parameter as it was learned."""
    features = system.model.features
    config = dataclasses.asdict(system.model.config)
    own = config.pop("features")
    config |= {"kind": features.name, **own, "operator_alone": features.linear}
    learned = getattr(system.model.potential, "value", None)
    return config if learned is None else {**config, "potential_value": float(learned.detach())}


def versions() -> dict[str, str]:
    found = {"gce": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_details(details: Details, folder: Path) -> None:
    """Write details.npz, whole or not at all."""
    arrays = {field.name: getattr(details, field.name) for field in dataclasses.fields(details)}
    arrays["about"] = np.array(json.dumps(details.about))
    temporary = folder / f".{FILE}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(temporary, folder / FILE)
    except OSError as error:
        raise InputError(f"cannot write {folder / FILE}: {error.strerror or error}; give another place") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_details(folder: Path) -> Details:
    """What `write_details` wrote; anything else is refused with a sentence."""
    file = folder / FILE
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give one that `gce control ... --out {folder}` wrote")
    if not file.is_file():
        raise InputError(f"{folder} has no {FILE}; give a folder that `gce control ... --out` or `gce demo` wrote")
    names = [field.name for field in dataclasses.fields(Details)]
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in names if name in stored}
        about = json.loads(str(arrays.get("about")))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is damaged ({error}); run `gce control ... --out {folder}` again") from None
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(f"{file} lacks {missing[0]!r}; run `gce control ... --out {folder}` again")
    return Details(**{**arrays, "about": about})
