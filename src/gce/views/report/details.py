"""What a run leaves for its report: one file of arrays, details.npz, beside the run's figures.

The arrays speak for themselves (`Details`); words and numbers about them are JSON in the array `about`. The file holds
no objects, so reading it runs no code.

Among them is what an adapted system looks like from inside: its Gibbs weights along a path, how its fit grows, and its
spectra. These are two, since two maps answer to the name. In feature space with weights frozen at a state, the operator
takes psi to (I (x) S + alpha (x) M) psi + inputs; its eigenvalues are those of S + mu M over the eigenvalues mu of
alpha (see `stability`). In the space of states, the step that predictions and plans take has a derivative
(`System.linearise`), with the channels of stiff bodies and the reprojection of features in it.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import typing
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Complex, Float, Int

from gce import __version__
from gce.control.problem import Problem
from gce.envs import GraphEnv
from gce.errors import InputError
from gce.files import border, parsed_json, read_npz, written
from gce.metrics import nrmse
from gce.planning.closed_loop import Run, uncontrolled
from gce.planning.controller import Plan
from gce.system.stability import blocks
from gce.system.system import System
from gce.system.uncertainty import LARGEST_UNION
from gce.system.weights import spread_of, weights_along, weights_told
from gce.trajectory import Episode

Array = np.ndarray

FILE = "details.npz"
LARGEST = 1000
"""Nodes beyond which the operator's spectrum is not taken."""
LARGEST_STATE = 250
"""Coordinates of a state beyond which that of a step is not: all its directions at once need memory by the gigabyte."""
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
        paths, start = [], 0
        for k, at in enumerate(self.plan_at.tolist()):
            end = start + len(self.actions) - at
            paths.append((at, self.plan_actions[start:end], self.plan_observations[start + k : end + k + 1]))
            start = end
        return paths


def details_of_run(
    env: GraphEnv, run: Run, system: System, adapted: Sequence[Episode], settings: dict[str, Any]
) -> Details:
    """Of a run on a simulator. settings: how it was asked for, JSON values."""
    low, high = env.action_bounds
    costs = [env.stage_cost(o, run.goal, a) for o, a in zip(run.observations[1:], run.actions, strict=True)]
    return _details(
        system,
        adapted,
        list(zip(run.planned_at, run.plans, strict=True)),
        (run.observations, run.actions, None),
        {
            "simulated": True,
            **env.describe(),
            "positions": env.positions.tolist(),
            "words": env.words,
            "node_names": env.node_names,
            "settings": settings,
        },
        observations=run.observations,
        actions=run.actions,
        goal=run.goal,
        unit=env.observation_std,
        actuated=env.actuated,
        low=low,
        high=high,
        nothing=uncontrolled(env, len(run.actions)),
        costs=np.array(costs),
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
    known = None
    if recorded is not None:
        known = recorded.observations.astype(float), recorded.actions.astype(float), recorded.exogenous
    return _details(
        system,
        adapted,
        [(0, plan)],
        known,
        {"simulated": False, "world": model.config.world, "dt": model.config.dt, **about},
        observations=plan.observations,
        actions=plan.actions,
        goal=goal,
        unit=model.observation_std.double().numpy(),
        actuated=np.asarray(problem.controls.any(-1)),
        low=problem.low,
        high=problem.high,
        nothing=np.zeros((0, *plan.observations.shape[1:])),
        costs=np.zeros(0),
    )


def _details(
    system: System,
    adapted: Sequence[Episode],
    plans: list[tuple[int, Plan]],
    predicted: tuple[Array, Array, Array | None] | None,
    about: dict[str, Any],
    **happened: Any,
) -> Details:
    """predicted: observations, actions and exogenous inputs that no fit knew. happened: arrays of `Details`."""
    weights = weights_along(system, happened["observations"], happened["actions"])
    counts, errors = np.zeros(0, np.int64), np.zeros((0, 0))
    told = spread_of(weights, system.topology) if weights.shape[1] else None
    if predicted is not None and adapted:
        truth, taken, exogenous = predicted
        counts, errors = fit_by_episodes(system, adapted, truth, taken, happened["unit"], exogenous)
        known = Episode(system.graph, truth, taken, exogenous)
        told = weights_told(system, known, adapted, happened["unit"])
        told = told and {**told, "nrmse": float(errors[-1].mean())}
    return Details(
        **happened,
        about={
            **about,
            "points": system.model.config.points,
            "model": _model(system),
            "mean_field": told,
            "versions": versions(),
        },
        edge_index=system.graph.edge_index,
        node_type=system.graph.node_type,
        weights=weights,
        plan_at=np.array([at for at, _ in plans]),
        plan_actions=np.concatenate([plan.actions for _, plan in plans]),
        plan_observations=np.concatenate([plan.observations for _, plan in plans]),
        operator_spectrum=operator_spectrum(system, weights[0]),
        step_spectrum=step_spectrum(system, happened["observations"][0]),
        fit_counts=counts,
        fit_errors=errors,
    )


def _model(system: System) -> dict[str, Any]:
    """What decides the model, as JSON values; the potential's hyper-parameter as it was learned."""
    features = system.model.features
    config = dataclasses.asdict(system.model.config)
    own = config.pop("features")
    config |= {"method": system.model.method, "kind": features.name, **own, "operator_alone": features.linear}
    learned = getattr(system.model.potential, "value", None)
    return config if learned is None else {**config, "potential_value": float(learned.detach())}


def versions() -> dict[str, str]:
    known = {"gce": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            known[library] = importlib.metadata.version(library)
    return known


def write_details(details: Details, folder: Path) -> None:
    """Write details.npz, whole or not at all."""
    arrays = {field.name: getattr(details, field.name) for field in dataclasses.fields(details)}
    arrays["about"] = np.array(json.dumps(details.about))
    with written(folder / FILE) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def read_details(folder: Path) -> Details:
    """What `write_details` wrote; anything else is refused with a sentence."""
    file = folder / FILE
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give one that `gce control ... --out {folder}` wrote")
    if not file.is_file():
        raise InputError(f"{folder} has no {FILE}; give a folder that `gce control ... --out` or `gce demo` wrote")
    names = [field.name for field in dataclasses.fields(Details)]
    with border(file, "what a run left (it is damaged)", f"run `gce control ... --out {folder}` again"):
        arrays: dict[str, Any] = read_npz(file)
        missing = [name for name in names if name not in arrays]
        if missing:
            raise InputError(f"{file} lacks {missing[0]!r}; run `gce control ... --out {folder}` again")
        about = dict(parsed_json(str(arrays["about"])))
        _check_shapes(arrays)
        return Details(**{**{name: arrays[name] for name in names}, "about": about})


def _check_shapes(arrays: dict[str, Any]) -> None:
    """That arrays have the axes that `Details` says, the same name of the same length everywhere."""
    known: dict[str, int] = {}
    for name, hint in typing.get_type_hints(Details).items():
        if name != "about":
            axes, shape = hint.dim_str.split(), arrays[name].shape
            known |= {axis: n for axis, n in zip(axes, shape, strict=False) if axis not in known}
            if len(axes) != len(shape) or any(
                n != (int(a) if a.isdigit() else known[a]) for a, n in zip(axes, shape, strict=True)
            ):
                raise ValueError(f"{name} has shape {shape}, expected {', '.join(axes)}")
    if not ((arrays["edge_index"] >= 0) & (arrays["edge_index"] < known["nodes"])).all():
        raise ValueError(f"edge_index names nodes beyond the {known['nodes']} there are")


def operator_spectrum(system: System, weights: Float[Array, " edges"]) -> Complex[Array, " eigenvalues"]:
    """Of the operator in feature space with weights frozen.

    None where it does not share its blocks over all nodes, or is not all of a step in feature space.
    """
    n, nothing = system.graph.num_nodes, np.zeros(0, np.complex128)
    if n > LARGEST:
        return nothing
    try:
        S, M = (block.cpu().numpy() for block in blocks(system.model, system.operator))
    except InputError:
        return nothing
    alpha = np.zeros((n, n))
    alpha[system.graph.receivers, system.graph.senders] = weights
    return np.linalg.eigvals(S + np.linalg.eigvals(alpha)[:, None, None] * M).astype(np.complex128).reshape(-1)


def step_spectrum(system: System, observation: Float[Array, "nodes d"]) -> Complex[Array, " eigenvalues"]:
    """Of the derivative of one step at an observation at which nothing is pushed; none where steps stay in features."""
    state = system.state(observation, opening=False)
    if state.numel() > LARGEST_STATE or system.model.features.planned_in_features:
        return np.zeros(0, np.complex128)
    A, _, _ = system.linearise(state[None], state.new_zeros(1, len(state), system.model.config.num_inputs))
    return np.linalg.eigvals(A[0].detach().double().cpu().numpy()).astype(np.complex128)


def fit_by_episodes(
    system: System,
    episodes: Sequence[Episode],
    observations: Float[Array, "steps_plus_1 nodes d"],
    actions: Float[Array, "steps nodes a"],
    unit: Float[Array, " d"],
    exogenous: Float[Array, "steps nodes e"] | None = None,
) -> tuple[Int[Array, " fits"], Float[Array, "fits steps"]]:
    """(how many episodes, NRMSE of each step) of predicting a run that none of the fits knew, by operators of 1, 2, ...

    The episodes are those adapted to, in their order; their sums add up, so that each is looked at once.
    """
    known = len(system.seen) or len(episodes)
    counts = [k for k in range(1, known + 1) if k <= 8 or k == known or k & (k - 1) == 0]
    systems, errors = system.of_first(episodes, counts), []
    together = max(1, LARGEST_UNION // system.graph.num_nodes)
    for k in range(0, len(systems), together):
        some = systems[k : k + together]
        paths = system.together(some, [observations[0]] * len(some), [actions] * len(some), exogenous)
        errors += [nrmse(path[1:], observations[1:], unit) for path in paths]
    return np.array(counts), np.stack(errors)
