"""One controlled run: the cell that all tables of control are made of.

Settings: world, split, method, action_cost; and where a table varies them state_cost, model (if not named as the
method), form, episodes, observation_noise, process_noise. `nothing` and `oracle` are methods too (the
oracle on the grid only).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gce.metrics import control_error, nrmse
from gce.planning.oracles import linear_oracle
from gce.reproduce.cells import Cell
from gce.reproduce.experiment import Context, Experiment
from gce.reproduce.methods import Method
from gce.reproduce.tasks import TEST, Setting, draw, protocol_for, run_control, sizes_of
from gce.reproduce.versions import conditions

UNADAPTED = ("nothing", "oracle")
DEFAULT_EPISODES = 8


def control_cell(
    experiment: Experiment, seed: int, settings: dict[str, Any], model: Method | None, planned: bool = True
) -> Cell:
    """planned: whether the run is controlled; otherwise the world's protocol does not decide it."""
    name, files = (settings["method"], None) if model is None else (model.kind, model.files)
    stated = conditions(settings["world"], name, files, planned)
    return Cell(experiment.name, settings, seed, experiment.version, stated)


def run_cell(cell: Cell, context: Context, predicted: bool = False) -> dict[str, Any]:
    """predicted: the mean NRMSE of predicting the episode that the goal is of, too."""
    s = cell.settings
    noise = {name: s.get(name, 0.0) for name in ("observation_noise", "process_noise")}
    setting = _drawn(s["world"], s["split"], TEST + cell.seed, s.get("episodes", DEFAULT_EPISODES), *noise.values())
    protocol = protocol_for(s["world"], s)
    if s["method"] in UNADAPTED:
        return _unadapted(setting, s["method"], **noise)
    found = loaded(context, s["world"], s.get("model", s["method"]), s.get("form"))
    subject = found.adapt(setting.episodes)
    figures = run_control(setting, subject, protocol, **noise)[1]
    if predicted:
        truth = setting.target.observations.astype(float)
        with np.errstate(over="ignore", invalid="ignore"):
            path = subject.predict(truth[0], setting.target.actions)
            figures["nrmse"] = float(nrmse(path[1:], truth[1:], setting.env.observation_std).mean())
    return {**figures, "trained_minutes": found.minutes}


@lru_cache(maxsize=2)
def _drawn(world: str, split: str, seed: int, episodes: int, observation: float, process: float) -> Setting:
    """Cells of one seed follow each other, and share the system."""
    return draw(world, sizes_of(world, split), seed, episodes, observation_noise=observation, process_noise=process)


_models: dict[tuple[Any, ...], Method] = {}


def loaded(context: Context, world: str, name: str, form: str | None = None) -> Method:
    key = (context.models, world, name, form)
    if key not in _models:
        found = context.method(world, name)
        if found is None:
            raise LookupError(context.skipped[-1])
        _models[key] = replace(found, form=form)
    return _models[key]


def _unadapted(setting: Setting, name: str, observation_noise: float, process_noise: float) -> dict[str, Any]:
    """Doing nothing, and on the grid two plans of the true linear model."""
    env = setting.restart(observation_noise, process_noise)
    protocol, nodes = env.recipe.protocol, env.graph.num_nodes
    M = protocol.horizon
    plan = np.zeros((M, nodes, 1))
    if name == "oracle":
        A, B, c = env.linearised()  # type: ignore[attr-defined]
        weight = np.tile(np.concatenate([np.ones(nodes), np.zeros(nodes)]), (M, 1))
        weight[-1] *= np.sqrt(1 + protocol.terminal_cost)
        used = np.flatnonzero(env.actuated)
        goal = np.concatenate([np.ones(nodes), np.zeros(nodes)])
        oracle = linear_oracle(A, B[:, used], c, goal, weight, np.sqrt(0.01), env.action_limit)
    path, seen = [env._observation()], env.observe()
    for t in range(M):
        if name == "oracle" and t % protocol.feedback == 0:
            plan[t:, used, 0] = oracle.plan(t, seen.T.reshape(-1))
        env._advance(plan[t])
        path.append(env._observation())
        seen = env.observe()
    observations = np.stack(path)
    places, goal = env.positions, setting.goal
    figures = {
        "control_error": control_error(observations[-1], goal),
        "control_error_positions": control_error(observations[-1][:, places], goal[:, places]),
        "cost": float(sum(env.stage_cost(o, goal, a) for o, a in zip(observations[1:], plan, strict=True))),
        "status": "solved",
        "objects": nodes,
    }
    return figures | env.extra_figures(observations, goal)
