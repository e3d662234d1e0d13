"""The work behind the page: a system drawn and adapted to, and a goal pursued on its simulator.

A person may give a trained model another potential. The operator is fitted in closed form to a system's episodes under
whatever weights a potential gives to the features, so a potential can be exchanged when a model adapts, without
training. The encoder was trained beside its own potential, which is the first choice; hyper-parameters of others follow
from that one's bandwidth sigma:

    Laplace: lambda = 2 sigma sqrt(2 p / pi), for which f is the same at a distance of sigma spread over p features
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gce.control.problem import Problem, harm
from gce.envs import WORLDS, GraphEnv, Protocol, world_named
from gce.envs.recording import record_system
from gce.errors import InputError
from gce.model.files import load_model, shipped
from gce.model.model import Model
from gce.planning.closed_loop import control, figures, problem_for, uncontrolled
from gce.planning.controller import Controller, Plan, Planner, in_space_of
from gce.potentials import make_potential
from gce.system.system import System, adapt
from gce.system.weights import spread_of, weights_along, with_potential
from gce.trajectory import Dataset, Episode
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
    """What a person picked. world: its name, that of a test case, or a data set file; objects: there, the episode."""

    world: str
    objects: int
    potential: str
    seed: int


@dataclass(frozen=True, eq=False)
class PreparedSystem:
    """A system with its model adapted, and a goal to begin with.

    env: its simulator, just reset; None where there is none. problem: of the goal, for the usual horizon. unit: of
    distances. nothing: what happens if nothing is done; without a simulator as the model expects it.
    """

    choice: Choice
    env: GraphEnv | None
    system: System
    problem: Problem
    protocol: Protocol
    start: Float[Array, "nodes d"]
    goal: Float[Array, "nodes d"]
    recorded: list[Episode]
    nothing: Float[Array, "states nodes d"]
    unit: Float[Array, " d"]
    positions: Array
    words: tuple[str, str, str, str]
    nodes: list[str]

    def distances(self, observations: Array, goal: Array) -> Float[Array, " states"]:
        """Root mean square over nodes and positions of (o - goal) / unit."""
        away = ((observations - goal) / self.unit)[..., self.positions]
        return np.sqrt(np.square(away).mean((-1, -2)))


def choices(files: Sequence[Path] = ()) -> dict[str, Any]:
    """What the page offers: worlds that a model comes with the package for, test cases, data sets; JSON values."""
    offered: list[dict[str, Any]] = []
    for name, world in WORLDS.items():
        try:
            model = load_model(shipped(world.usual_model()))
        except InputError:
            continue
        low, high = world.recipe.offered or world.object_range
        sizes = {"low": low, "high": high, "start": world.object_range[0] + 2}
        trained = "The {} model was trained on {} to {} {}.".format(model.method, *world.object_range, world.words[1])
        entry: dict[str, Any] = {"counted": world.words[1], "potentials": potentials_of(model), "kind": "worlds"}
        note = f"{trained} {model.features.note}".strip()
        offered.append({**entry, "name": name, "objects": sizes, "note": note})
        for case in world.cases if importlib.util.find_spec("pandapower") else ():
            note = "A standard test case; the model was trained on random grids."
            offered.append({**entry, "name": case, "objects": None, "note": note, "kind": "test cases"})
    for file in files:
        with Dataset.open(file) as data:
            episodes = {"low": 0, "high": len(data) - 1, "start": 0}
        note = "Systems of this file: the start is the episode's, the model adapts to others of its system."
        offered.append({"counted": "episode", "potentials": {TRAINED: TRAINED}, "name": str(file), "objects": episodes,
                      "note": note, "kind": "data sets"})  # fmt: skip
    return {"worlds": offered, "horizons": {"low": HORIZONS[0], "high": HORIZONS[1], "start": HORIZON}}


def potentials_of(model: Model) -> dict[str, str]:
    """Names and descriptions of what a model can be given; only a Gaussian's bandwidth says what others should be."""
    if not model.form.weighted:
        return {TRAINED: "none: no Gibbs weights"}
    own = {TRAINED: f"{model.config.potential}, as trained"}
    if model.config.potential != "gaussian":
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
    return with_potential(model, make_potential(potential, model.features.num_phi, value))


def check(request: dict[str, Any], files: Sequence[Path] = ()) -> Choice:
    """A request's choice; what cannot be is refused."""
    name = request.get("world")
    if name in list(map(str, files)):
        with Dataset.open(Path(str(name))) as data:
            objects = _whole(request, "objects", 0, len(data) - 1)
    elif any(name in world.cases for world in WORLDS.values()):
        objects = 0
    else:
        world = world_named(name)
        objects = _whole(request, "objects", *(world.recipe.offered or world.object_range))
    return Choice(str(name), objects, str(request.get("potential")), _whole(request, "seed", 0, 10**6))


def _whole(request: dict[str, Any], name: str, low: int, high: int) -> int:
    value = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} is {value!r}, expected a whole number from {low} to {high}")
    return value


def prepare(choice: Choice, job: Job, read: Reader | None = None) -> PreparedSystem:
    """Draw a system and record it, or read one of a data set, and adapt the model to it."""
    job.tell("loading the model", 0.02)
    if read is not None and Path(choice.world).suffix:
        return _recorded(choice, job, read(Path(choice.world), choice.objects))
    cases = [world for world in WORLDS.values() if choice.world in world.cases]
    env = cases[0].of_case(choice.world) if cases else world_named(choice.world)(objects=choice.objects)
    env.reset(seed=choice.seed)
    model = under_potential(load_model(shipped(env.shipped_model())), choice.potential)
    protocol = env.recipe.protocol

    def tell(done: int) -> None:
        job.tell(f"recording episode {min(done, EPISODES) + 1} of {EPISODES + 1}", 0.1 + 0.5 * done / (EPISODES + 1))

    parameters = env.parameters
    recorded = record_system(env, choice.seed, EPISODES + 1, max(STEPS, protocol.horizon), tell=tell)
    env.reset(seed=choice.seed, options={"parameters": parameters})
    # A world that has a goal of its own keeps it; otherwise the goal is where the episode left out went, at rest.
    went = recorded[0].observations[protocol.horizon].astype(float)
    goal = env.goal if env.goal is not None else np.where(env.positions, went, 0.0)
    return _simulated(choice, env, adapted_to(model, recorded[1:], job), goal, recorded)


def adapted_to(model: Model, episodes: list[Episode], job: Job) -> System:
    job.tell(f"adapting to {len(episodes)} episodes", None)
    return adapt(model, episodes, measure=False)


def _simulated(choice: Choice, env: GraphEnv, system: System, goal: Array, recorded: list[Episode]) -> PreparedSystem:
    start = env._observation()
    problem = in_space_of(system.model, problem_for(env, goal, env.recipe.protocol))
    nothing, alike = uncontrolled(env, HORIZONS[1]), np.ones(goal.shape[1])
    return PreparedSystem(choice, env, system, problem, env.recipe.protocol, start, goal, recorded, nothing, alike,
                    env.positions, env.words, env.node_names)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RecordedSystem:
    """An episode of a data set, others of its system, the bounds of its actions, and the model to adapt."""

    model: Model
    episode: Episode
    others: list[Episode]
    low: Float[Array, "nodes a"]
    high: Float[Array, "nodes a"]
    nodes: list[str]


Reader = Callable[[Path, int], RecordedSystem]
"""Of a data set's file and the number of an episode."""


def _recorded(choice: Choice, job: Job, found: RecordedSystem) -> PreparedSystem:
    """A system of a data set; it is simulated where its world is known and its parameters were kept."""
    model, episode, low, high = found.model, found.episode, found.low, found.high
    system, recorded = adapted_to(model, found.others, job), [episode, *found.others]
    went = episode.observations[min(HORIZON, episode.length)].astype(float)
    if model.config.world in WORLDS and episode.parameters:
        env = WORLDS[model.config.world]()
        env.reset(seed=episode.seed or 0, options={"parameters": episode.parameters})
        goal = env.goal if env.goal is not None else np.where(env.positions, went, 0.0)
        return _simulated(choice, env, system, goal, recorded)
    if episode.exogenous is not None:
        raise InputError(f"{choice.world} has inputs known in advance; plan for it with `gce control`")
    unit, start = model.observation_std.double().numpy(), episode.observations[0].astype(float)
    problem = Problem(horizon=HORIZON, goal=went, low=low, high=high, state_cost=0.0, action_cost=1e-4, unit=unit,
                      action_unit=model.action_std.double().numpy())  # fmt: skip
    nothing = system.predict(start, np.zeros((HORIZONS[1], *low.shape)))
    protocol = Protocol(HORIZON, HORIZONS[1], 0.0, 1.0, 1e-4)
    words, moving = ("node", "nodes", "coordinates", "std"), np.ones(went.shape[1], bool)
    known = (start, went, recorded, nothing, unit, moving, words, found.nodes)
    return PreparedSystem(choice, None, system, in_space_of(model, problem), protocol, *known)


def described(prepared: PreparedSystem) -> dict[str, Any]:
    """A prepared system as the page draws it; JSON values."""
    system, problem = prepared.system, prepared.problem
    points, start, graph = system.model.config.points, prepared.start, system.graph
    paths = np.concatenate([e.observations for e in prepared.recorded])
    rest = np.concatenate([paths, prepared.goal[None]])
    still = np.ptp(paths, axis=0) < STILL * system.model.observation_std.double().numpy()
    weights = weights_along(system, start[None], np.zeros((0, len(start), problem.low.shape[1])))
    env = prepared.env
    return {
        "choice": dataclasses.asdict(prepared.choice),
        "scene": scene_of(points, rest, graph.edge_index, graph.node_type, np.asarray(problem.controls.any(-1))),
        "shown": shown_coordinates(points),
        "positions": prepared.positions.tolist(),
        "start": _rounded(drawn(points, start)),
        "goal": prepared.goal.tolist(),
        "still": still[:, shown_coordinates(points)].tolist(),
        "span": float(np.abs(paths[..., 0] - prepared.goal[:, 0]).max()),
        "dt": system.model.config.dt,
        "weights": _rounded(weights[0]),
        "spread": spread_of(weights, system.topology) if weights.shape[1] else None,
        "words": prepared.words,
        "nodes": prepared.nodes,
        "simulated": env is not None,
        "value": "v" if env is None else env.observation_names[0],
    }


def sought(prepared: PreparedSystem, goal: Array, horizon: int) -> tuple[Problem, Protocol]:
    """The problem of another goal and horizon."""
    usual = prepared.protocol
    protocol = dataclasses.replace(usual, horizon=horizon, feedback=min(usual.feedback, horizon))
    if prepared.env is None:
        return dataclasses.replace(prepared.problem, goal=goal, horizon=horizon), protocol
    return in_space_of(prepared.system.model, problem_for(prepared.env, goal, protocol)), protocol


def reach(prepared: PreparedSystem, goal: Array, horizon: int, job: Job) -> dict[str, Any]:
    """How near the model alone thinks it can get: one plan from the start, which nobody carries out."""
    problem, protocol = sought(prepared, goal, horizon)

    def tell(turn: int, share: float) -> None:
        job.tell("asking the model", share)

    controller = Controller(prepared.system, problem, tolerance=protocol.tolerance, tell=tell)
    plan = controller.plan(prepared.start, opening=True)
    return {
        "frame": _rounded(drawn(prepared.system.model.config.points, plan.observations[-1])),
        "distances": _rounded(prepared.distances(plan.observations, goal)),
        "nothing": _rounded(prepared.distances(prepared.nothing[: horizon + 1], goal)),
    }


def pursue(prepared: PreparedSystem, goal: Array, horizon: int, job: Job) -> dict[str, Any]:
    """Plan for a goal and act on the simulator; plans and steps are added to the job as they come."""
    problem, protocol = sought(prepared, goal, horizon)
    env, teller = prepared.env, Teller(prepared, problem, goal, protocol, job)
    result = {"nothing": _rounded(prepared.distances(prepared.nothing[: horizon + 1], goal))}
    if env is None:  # what the model expects is all there is
        plan = teller.plan(prepared.start, opening=True)
        for t, observation in enumerate(plan.observations):
            teller.show(t, observation, plan.actions[t - 1] if t else None)
        return {**result, "figures": {}, "status": plan.status, "advice": plan.status.advice, "harm": [],
                "plan_seconds": [plan.seconds]}  # fmt: skip
    env.reset(seed=env.np_random_seed, options={"parameters": env.parameters, "goal": goal})
    teller.show(0, env._observation(), None)
    run = control(env, teller, protocol.feedback, teller.stepped)
    told = figures(env, run)
    extra = env.extra_figures(run.observations, run.goal)
    shares = ("control_error", "control_error_over_nothing", "control_error_positions", *extra, "cost")
    return {
        **result,
        "figures": {name: told[name] for name in shares if told.get(name) is not None and np.isfinite(told[name])},
        "status": run.status,
        "advice": run.status.advice,
        "harm": harm(env.words[2], told),
        "plan_seconds": told["plan_seconds"],
    }


class Teller(Planner):
    """A controller that tells a job of its plans and of the steps that are taken."""

    def __init__(self, prepared: PreparedSystem, problem: Problem, goal: Array, protocol: Protocol, job: Job) -> None:
        self._prepared, self._goal, self._job = prepared, goal, job
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
                "distances": _rounded(self._prepared.distances(self._plan.observations, self._goal)),
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
        assert self._prepared.env is not None
        self.show(t, self._prepared.env._observation(), self._plan.actions[t - 1 - self._planned_at])

    def show(self, t: int, observation: Array, action: Array | None) -> None:
        """Add a step to the job."""
        system, high = self._prepared.system, self.problem.high
        self._path.append(observation)
        acted = np.zeros((0, *high.shape)) if action is None else action[None]
        weights = weights_along(system, np.stack(self._path[-1 - len(acted) :]), acted)[-1]
        limit = np.where(np.isfinite(high[:, 0]) & (high[:, 0] > 0), high[:, 0], 1.0)
        distance = self._prepared.distances(observation[None], self._goal)[0]
        self._job.add(
            {
                "kind": "step",
                "step": t,
                "places": _rounded(drawn(system.model.config.points, observation)),
                "action": [] if action is None else _rounded(action[:, 0] / limit),
                "weights": _rounded(weights),
                "distance": round(float(distance), 5),
            }
        )


def _rounded(values: Array) -> Any:
    """Nested lists, short enough to send at each step; a plan that leaves all bounds is cut at what a page can draw."""
    return np.round(np.clip(np.nan_to_num(values), -1e6, 1e6), 4).tolist()
