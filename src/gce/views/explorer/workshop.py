"""The work behind the page: a system drawn and adapted to, and a goal pursued on its simulator.

A person may give a trained model another potential. The operator is fitted in closed form to a system's episodes under
whatever weights a potential gives to the features, so a potential can be exchanged when a model adapts, without
training. The encoder was trained beside its own potential, which is the first choice; hyper-parameters of others follow
from that one's bandwidth sigma:

    Laplace: lambda = 2 sigma sqrt(2 p / pi), for which f is the same at a distance of sigma spread over p features
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from gce.envs import WORLDS, GraphEnv, Protocol, world_named
from gce.envs.recording import record_system
from gce.errors import InputError
from gce.model.files import load_model, shipped
from gce.model.model import Model
from gce.planning.closed_loop import control, figures, problem_for, uncontrolled
from gce.planning.controller import Controller, Plan, Planner
from gce.system.system import System, adapt
from gce.system.weights import weights_along
from gce.trajectory import Episode
from gce.views.explorer.server import Job
from gce.views.pages import drawn, scene_of, shown_coordinates

Array = np.ndarray

EPISODES = 8
STEPS = 100
HORIZONS = (5, 200)
HORIZON = 100
"""Steps offered at first: more than protocols have, since goals are dragged further than recordings go."""
PLANNING = 0.8
"""The share of the time that plans take, beside the simulator's steps; for the progress bar."""
STILL = 0.05
"""A coordinate that moves less than this share of its unit in all recordings is fixed."""
CONCENTRATION = 5.0
"""Of the von Mises-Fisher potential: neighbours whose features are at right angles weigh e^-5 of the node itself."""

Change = Callable[[float, int], tuple[str, float]]
"""(learned value, number of features) to (potential, value)."""

CHANGES: dict[str, tuple[str, Change]] = {
    "wide": ("Gaussian, twice as wide", lambda sigma, p: ("gaussian", 2 * sigma)),
    "narrow": ("Gaussian, half as wide", lambda sigma, p: ("gaussian", sigma / 2)),
    "laplace": ("Laplace", lambda sigma, p: ("laplace", 2 * sigma * math.sqrt(2 * p / math.pi))),
    "vmf": ("von Mises-Fisher", lambda sigma, p: ("vmf", CONCENTRATION)),
    "constant": ("constant: a plain mean", lambda sigma, p: ("constant", 1.0)),
}
TRAINED = "trained"


@dataclass(frozen=True)
class Choice:
    """What a person picked."""

    world: str
    objects: int
    potential: str
    seed: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """A system with its model adapted, and a goal to begin with."""

    choice: Choice
    env: GraphEnv
    parameters: Any
    system: System
    goal: Float[Array, "nodes d"]
    recorded: list[Episode]


def choices() -> dict[str, Any]:
    """What the page offers, of the worlds that a model comes with the package for; JSON values."""
    found = []
    for name, world in WORLDS.items():
        try:
            model = load_model(shipped(name))
        except InputError:
            continue
        low, high = world.recipe.offered or world.object_range
        found.append(
            {
                "name": name,
                "objects": {"low": low, "high": high, "start": world.object_range[0] + 2},
                "trained": world.object_range,
                "potentials": potentials_of(model),
                "note": model.features.note,
            }
        )
    return {"worlds": found, "horizons": {"low": HORIZONS[0], "high": HORIZONS[1], "start": HORIZON}}


def potentials_of(model: Model) -> dict[str, str]:
    """Names and descriptions of what a model can be given; only a Gaussian's bandwidth says what others should be."""
    own = {TRAINED: f"{model.config.potential}, as trained"}
    if model.config.potential != "gaussian" or not model.form.weighted:
        return own
    return own | {name: description for name, (description, _) in CHANGES.items()}


def under_potential(model: Model, name: str) -> Model:
    """The same encoder under another potential."""
    if name == TRAINED:
        return model
    if name not in potentials_of(model):
        raise InputError(f"there is no potential {name!r} for this model; it has {', '.join(potentials_of(model))}")
    sigma = float(model.state_dict()["potential._log"].exp())
    potential, value = CHANGES[name][1](sigma, model.features.num_phi)
    other = Model(dataclasses.replace(model.config, potential=potential, potential_value=value))
    kept = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("potential.")}
    other.load_state_dict({**other.state_dict(), **kept})
    return other.eval()


def check(request: dict[str, Any]) -> Choice:
    """A request's choice; what cannot be is refused."""
    world = world_named(request.get("world"))
    objects = _whole(request, "objects", *(world.recipe.offered or world.object_range))
    return Choice(world.world, objects, str(request.get("potential")), _whole(request, "seed", 0, 10**6))


def _whole(request: dict[str, Any], name: str, low: int, high: int) -> int:
    value = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} is {value!r}, expected a whole number from {low} to {high}")
    return value


def prepare(choice: Choice, job: Job) -> Prepared:
    """Draw a system, record it, and adapt the shipped model to it."""
    job.tell("loading the model", 0.02)
    model = under_potential(load_model(shipped(choice.world)), choice.potential)
    env = world_named(choice.world)(objects=choice.objects)
    protocol = env.recipe.protocol
    env.reset(seed=choice.seed)
    parameters = env.parameters

    def tell(done: int) -> None:
        job.tell(f"recording episode {min(done, EPISODES) + 1} of {EPISODES + 1}", 0.1 + 0.5 * done / (EPISODES + 1))

    recorded = record_system(env, choice.seed, EPISODES + 1, max(STEPS, protocol.horizon), tell=tell)
    job.tell(f"adapting to {EPISODES} episodes", None)
    system = adapt(model, recorded[1:], measure=False)
    env.reset(seed=choice.seed, options={"parameters": parameters})
    # A world that has a goal of its own keeps it; otherwise the goal is where the episode left out went, at rest.
    went = recorded[0].observations[protocol.horizon].astype(float)
    goal = env.goal if env.goal is not None else np.where(env.positions, went, 0.0)
    return Prepared(choice, env, parameters, system, goal, recorded)


def described(prepared: Prepared) -> dict[str, Any]:
    """A prepared system as the page draws it; JSON values."""
    env, points = prepared.env, prepared.system.model.config.points
    paths = np.concatenate([e.observations for e in prepared.recorded])
    start = env._observation()
    rest = np.concatenate([paths, prepared.goal[None]])
    still = np.ptp(paths, axis=0) < STILL * env.observation_std
    weights = weights_along(prepared.system, start[None], np.zeros((0, len(start), len(env.action_names))))[0]
    return {
        "choice": dataclasses.asdict(prepared.choice),
        "scene": scene_of(points, rest, env.graph.edge_index, env.graph.node_type, env.actuated),
        "shown": shown_coordinates(points),
        "positions": env.positions.tolist(),
        "start": _rounded(drawn(points, start)),
        "goal": prepared.goal.tolist(),
        "still": still[:, shown_coordinates(points)].tolist(),
        "span": float(np.abs(paths[..., 0] - prepared.goal[:, 0]).max()),
        "unit": env.observation_std.tolist(),
        "dt": env.dt,
        "weights": _rounded(weights),
        "value": env.observation_names[0],
    }


def pursue(prepared: Prepared, goal: Array, horizon: int, job: Job) -> dict[str, Any]:
    """Plan for a goal and act on the simulator; plans and steps are added to the job as they come."""
    env = prepared.env
    usual = env.recipe.protocol
    protocol = dataclasses.replace(usual, horizon=horizon, feedback=min(usual.feedback, horizon))
    env.reset(seed=prepared.choice.seed, options={"parameters": prepared.parameters, "goal": goal})
    teller = Teller(prepared, goal, protocol, job)
    job.add(teller.step_item(0, env._observation(), None))
    run = control(env, teller, protocol.feedback, teller.stepped)
    still = uncontrolled(env, horizon)
    found = figures(env, run)
    extra = env.extra_figures(run.observations, run.goal)
    shares = ("control_error", "control_error_over_nothing", "control_error_positions", *extra, "cost")
    return {
        "figures": {name: found[name] for name in shares if found.get(name) is not None and np.isfinite(found[name])},
        "status": run.status,
        "advice": run.status.advice,
        "plan_seconds": found["plan_seconds"],
        "nothing": _rounded(teller.distances(still)),
    }


class Teller(Planner):
    """A controller that tells a job of its plans and of the steps that are taken."""

    def __init__(self, prepared: Prepared, goal: Array, protocol: Protocol, job: Job) -> None:
        self._prepared, self._goal, self._job = prepared, goal, job
        problem = problem_for(prepared.env, goal, protocol)
        self._controller = Controller(prepared.system, problem, tolerance=protocol.tolerance, tell=self._turn)
        self._horizon, self._feedback = protocol.horizon, protocol.feedback
        self._path: list[Array] = []
        self._plan: Plan | None = None
        self._planned_at = 0

    @property
    def problem(self) -> Any:
        return self._controller.problem

    def plan(self, observation: Array, **options: Any) -> Plan:
        at = self._planned_at = options.get("step", 0)
        self._turn(0, 0.0)
        self._plan = self._controller.plan(observation, **options)
        points = self._prepared.system.model.config.points
        self._job.add(
            {
                "kind": "plan",
                "at": at,
                "frames": _rounded(drawn(points, self._plan.observations)),
                "distances": _rounded(self.distances(self._plan.observations)),
                "status": self._plan.status,
            }
        )
        return self._plan

    def _turn(self, turn: int, share: float) -> None:
        """Called at each turn of a plan; a share of 1 is a plan that has settled."""
        words = f"planning {self._horizon - self._planned_at} steps: turn {turn + 1}, {share:.0%} settled"
        self._job.tell(words, self._done(PLANNING * share))

    def _done(self, share: float) -> float:
        """The share of all that is done with so much of the plan in hand and of its steps."""
        return (self._planned_at + share * min(self._feedback, self._horizon - self._planned_at)) / self._horizon

    def stepped(self, steps: int) -> None:
        """Called after each step of the simulator."""
        assert self._plan is not None
        t = len(self._path)
        taken = (t - self._planned_at) / min(self._feedback, self._horizon - self._planned_at)
        self._job.tell(f"step {t} of {self._horizon}", self._done(PLANNING + (1 - PLANNING) * taken))
        taken = self._plan.actions[t - 1 - self._planned_at]
        self._job.add(self.step_item(t, self._prepared.env._observation(), taken))

    def step_item(self, t: int, observation: Array, action: Array | None) -> dict[str, Any]:
        env, system = self._prepared.env, self._prepared.system
        self._path.append(observation)
        acted = np.zeros((0, len(observation), len(env.action_names))) if action is None else action[None]
        weights = weights_along(system, np.stack(self._path[-1 - len(acted) :]), acted)[-1]
        return {
            "kind": "step",
            "step": t,
            "places": _rounded(drawn(system.model.config.points, observation)),
            "action": [] if action is None else _rounded(action[:, 0] / env.action_limit),
            "weights": _rounded(weights),
            "distance": round(float(self.distances(observation[None])[0]), 5),
        }

    def distances(self, observations: Array) -> Float[Array, " states"]:
        """Root mean square over nodes and positions of (o - goal) / unit."""
        env = self._prepared.env
        away = (observations - self._goal)[..., env.positions] / env.observation_std[env.positions]
        return np.sqrt(np.square(away).mean((-1, -2)))


def _rounded(values: Array) -> Any:
    """Nested lists, short enough to send at each step; a plan that leaves all bounds is cut at what a page can draw."""
    return np.round(np.clip(np.nan_to_num(values), -1e6, 1e6), 4).tolist()
