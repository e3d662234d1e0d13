"""Test systems: a random system that no model was trained on, recordings to adapt to, and a goal to reach.

Everything follows from (world, sizes, seed): all methods meet the same systems, which is what paired tests need. A goal
is where recorded actions of the world's kind lead; on the grid it is v = 1. A cell of a table is one run on a system.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from gce.baselines import Adapted
from gce.control.problem import control_error
from gce.envs import GraphEnv, PowerGrid, Protocol, world_named
from gce.envs.base import Policy
from gce.envs.recording import excited
from gce.metrics import nrmse
from gce.planning.closed_loop import Run, control, figures, problem_for
from gce.planning.oracle import LinearOracle, linear_oracle
from gce.reproduce import paper
from gce.reproduce.experiment import Cell, Context, Experiment, Preset
from gce.reproduce.methods import Method
from gce.reproduce.versions import conditions
from gce.system.system import System
from gce.training.learning import Predictor
from gce.trajectory import Episode

Array = np.ndarray

SEEN, UNSEEN = paper.SEEN, paper.UNSEEN
TEST, VALIDATION = 7_000_000, 8_000_000
"""Seeds of the systems of the tables, and of those that action weights are chosen on."""
UNADAPTED = ("nothing", "oracle")
"""Methods without a model; the oracle is there on the grid only."""


def sizes_of(world: str, split: str) -> tuple[int, int]:
    """The smallest and largest system: those trained on, or others."""
    kind = world_named(world)
    return {SEEN: kind.object_range, UNSEEN: kind.recipe.unseen}[split]


@dataclass(frozen=True)
class Setting:
    """A system drawn at random. goal: where an episode of recorded actions leads; episodes: to adapt to."""

    env: GraphEnv
    seed: int
    goal: Float[Array, "nodes d"]
    target: Episode
    episodes: list[Episode]

    def restart(self, **noises: float) -> GraphEnv:
        """The system at its start again; the loads of a grid are the same for every method."""
        self.env.reset(seed=self.seed, options={"parameters": self.env.parameters, "goal": self.goal, **noises})
        return self.env


@lru_cache(maxsize=2)
def draw(world: str, sizes: tuple[int, int], seed: int, episodes: int = 8, **noises: float) -> Setting:
    """A system, a clean episode that gives the goal, and recordings of it with the noises asked for.

    Cells of one seed follow each other, and share the system.
    """
    env = world_named(world)(objects=sizes)
    env.reset(seed=seed)
    system = {"parameters": env.parameters}
    first, *others = (int(np.random.SeedSequence([seed, k]).generate_state(1)[0]) for k in range(episodes + 1))
    target = record_episode(env, first, system)
    rest = [record_episode(env, other, system | noises) for other in others]
    goal = env.default_goal(env.graph.num_nodes)
    if goal is None:
        goal = target.observations[env.recipe.protocol.horizon].astype(float)
    return Setting(env, first, goal, target, rest)


def record_episode(
    env: GraphEnv, seed: int, options: Mapping[str, Any], rng: np.random.Generator | None = None
) -> Episode:
    """An episode of the world's kind of actions, drawn by the generator, or else by the seed too."""
    return Episode(env.graph, *excited(env, seed, options, rng))


def run_control(
    setting: Setting, method: Method, adapted: System | Adapted, protocol: Protocol, **noises: float
) -> tuple[Run, dict[str, Any]]:
    """Control a system from its start, and what is reported of it."""
    env = setting.restart(**noises)
    run = control(env, method.planner(adapted, problem_for(env, setting.goal, protocol)), protocol.feedback)
    found = figures(env, run)
    psi, aim = (adapted.outputs_at(o, "features") for o in (run.observations[1:], setting.goal[None]))
    effort = env.action_weight * np.square(run.actions / env.action_std).sum()
    kept = ("control_error", "control_error_positions", "control_error_over_nothing", "nothing", "cost", "status")
    reported: dict[str, Any] = {name: found[name] for name in kept}
    reported["feature_cost"] = float(np.square(psi - aim).sum() + effort)
    reported["plan_seconds"] = float(sum(found["plan_seconds"]))
    reported["objects"] = env.graph.num_nodes
    return run, reported | env.extra_figures(run.observations, run.goal)


def prediction_errors(
    adapted: Predictor, target: Episode, unit: Float[Array, " d"], start: Float[Array, "nodes d"] | None = None
) -> Float[Array, " steps"]:
    """NRMSE of each step of an episode, predicted from its first observation, or from another start."""
    truth = target.observations.astype(float)
    with np.errstate(over="ignore", invalid="ignore"):
        return nrmse(adapted.predict(truth[0] if start is None else start, target.actions)[1:], truth[1:], unit)


def protocol_for(world: str, settings: dict[str, Any]) -> Protocol:
    """The world's, with the costs that settings name; `costs_alone` for plans that nothing else holds back."""
    changes = {name: settings[name] for name in ("action_cost", "state_cost") if settings.get(name) is not None}
    if settings.get("costs_alone"):
        changes |= {"change_cost": 0.0, "rate": np.inf}
    return replace(world_named(world).recipe.protocol, **changes)


# ---- cells ----


class WorldTable(Experiment):
    """Made of runs in worlds: a cell for each row of settings and each seed."""

    planned: ClassVar[bool] = True
    """Whether runs are controlled; otherwise the world's protocol does not decide them."""

    @abstractmethod
    def rows(self, context: Context) -> list[dict[str, Any]]:
        """The settings of the table's cells; those of models that are not there are left out."""

    def count(self, preset: Preset, settings: dict[str, Any], context: Context) -> int:
        """How many seeds a row has."""
        return 1

    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        found = []
        for settings in self.rows(context):
            name = settings["method"]
            model = None if name in UNADAPTED else context.method(settings["world"], settings.get("model", name))
            if model is not None or name in UNADAPTED:
                runs = range(self.count(preset, settings, context))
                found += [control_cell(self, seed, settings, model, self.planned) for seed in runs]
        return sorted(found, key=lambda cell: cell.seed)


def control_cell(
    experiment: Experiment, seed: int, settings: dict[str, Any], model: Method | None, planned: bool = True
) -> Cell:
    name, files = (settings["method"], None) if model is None else (model.kind, model.files)
    stated = conditions(settings["world"], name, files, planned)
    return Cell(experiment.name, settings, seed, experiment.version, stated)


def run_cell(cell: Cell, context: Context, predicted: bool = False) -> dict[str, Any]:
    """One controlled run. predicted: the mean NRMSE of predicting the episode that the goal is of, too.

    Settings: world, split, method, action_cost; and where a table varies them state_cost, model (if not named as the
    method), form, episodes, observation_noise, process_noise.
    """
    s = cell.settings
    noises = {name: s.get(name, 0.0) for name in ("observation_noise", "process_noise")}
    sizes = sizes_of(s["world"], s["split"])
    setting = draw(s["world"], sizes, TEST + cell.seed, s.get("episodes", 8), **noises)
    if s["method"] in UNADAPTED:
        return _unadapted(setting, s["method"], **noises)
    found = loaded(context, s["world"], s.get("model", s["method"]), s.get("form"))
    adapted = found.adapt(setting.episodes)
    reported = run_control(setting, found, adapted, protocol_for(s["world"], s), **noises)[1]
    if predicted:
        reported["nrmse"] = float(prediction_errors(adapted, setting.target, setting.env.observation_std).mean())
    return {**reported, "trained_minutes": found.minutes}


_models: dict[tuple[Any, ...], Method] = {}


def loaded(context: Context, world: str, name: str, form: str | None = None) -> Method:
    key = (context.models, world, name, form)
    if key not in _models:
        found = context.method(world, name)
        if found is None:
            raise LookupError(context.skipped[-1])
        _models[key] = replace(found, form=form)
    return _models[key]


def _unadapted(setting: Setting, name: str, **noises: float) -> dict[str, Any]:
    """Doing nothing, and on the grid plans of the true linear model."""
    env = setting.restart(**noises)
    protocol, goal, places = env.recipe.protocol, setting.goal, env.positions
    policy = doing_nothing(env)
    if name == "oracle":
        oracle = grid_oracle(env)  # type: ignore[arg-type]
        policy = oracle_plans(env, oracle, protocol.feedback, looks_always=True)
    observations, actions = env.run(policy, protocol.horizon, noisy=False)
    found = {
        "control_error": control_error(observations[-1], goal),
        "control_error_positions": control_error(observations[-1][:, places], goal[:, places]),
        "cost": env.run_cost(observations[1:], actions, goal),
        "status": "solved",
        "objects": env.graph.num_nodes,
    }
    return found | env.extra_figures(observations, goal)


# ---- what is compared with on the grid: doing nothing, and an oracle ----


def doing_nothing(env: GraphEnv) -> Policy:
    return lambda t: np.zeros((env.graph.num_nodes, len(env.action_names)))


def told_of_grid(env: PowerGrid, observations: Array, actions: Array) -> dict[str, float]:
    """The error and the cost of a run towards v = 1."""
    goal = env.default_goal(env.graph.num_nodes)
    error = env.extra_figures(observations, goal)["voltage_error"]
    return {"error": error, "cost": env.run_cost(observations[1:], actions, goal)}


def grid_oracle(env: PowerGrid) -> LinearOracle:
    """LQR on the true linearised step with the world's costs; actions of the generators only."""
    protocol, n = env.recipe.protocol, env.graph.num_nodes
    A, B, c = env.linearised()
    weight = np.zeros((protocol.horizon, 2 * n))
    weight[:, :n] = np.sqrt(protocol.state_cost)
    weight[-1, :n] = np.sqrt(protocol.state_cost + protocol.terminal_cost)
    goal = np.concatenate([np.ones(n), np.zeros(n)])
    return linear_oracle(A, B[:, env.actuated], c, goal, weight, np.sqrt(protocol.action_cost), env.action_limit)


def oracle_plans(env: GraphEnv, oracle: LinearOracle, feedback: int, looks_always: bool = False) -> Policy:
    """A plan every so many steps, from what is seen then.

    looks_always: at every step, as a controller does, so that the noises of what both see are the same.
    """
    plan: list[Array] = []

    def act(t: int) -> Array:
        planned = t % feedback == 0
        if planned or looks_always:
            seen = env.observe()
        if planned:
            plan[:] = oracle.plan(t, seen.T.reshape(-1))
        return on_nodes(env, plan[t % feedback])

    return act


def on_nodes(env: GraphEnv, controls: Float[Array, " n"]) -> Float[Array, "nodes 1"]:
    """Controls of the actuated nodes as actions of all."""
    actions = np.zeros((env.graph.num_nodes, 1))
    actions[env.actuated, 0] = controls
    return actions
