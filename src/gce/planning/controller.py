"""Controllers: an adapted system and a problem in, plans out.

Weights along the plan: `along` recomputes features and Gibbs weights along the predicted path and solves again until
the plan settles; `frozen` keeps everything as it is at the current state. Where plans are made in features, frozen
weights are the default, and the plan is the paper's convex program; elsewhere they are a linearisation at one state.

What controllers share stands here too: the dynamics that suit a system, plans, a problem in flat, normalised terms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.control.problem import Cost, Problem, weights_of
from gce.control.settle import Dynamics, Settled, Task, Tell, settle
from gce.control.solver import Solver, Suitable, chosen_solver
from gce.control.tracking import DEADLINE, ControlLimits, OutOfTime, Status
from gce.dynamics.anchored import AnchoredDynamics
from gce.dynamics.embedded import EmbeddedDynamics
from gce.dynamics.features import FeatureDynamics
from gce.dynamics.state import StateDynamics, state_class, state_dynamics
from gce.errors import InputError, of_kind, real, whole
from gce.model.model import Model, Units
from gce.names import Shown
from gce.system import uncertainty as doubts
from gce.system.system import System
from gce.system.uncertainty import Outlook
from gce.trajectory import Sizes

if TYPE_CHECKING:
    from gce.planning.realtime import Turn

Array = np.ndarray

HARD, KEPT = 1e6, 1e-3
"""The cost of leaving hard limits, and standard deviations within which they are kept."""
SystemDynamics = StateDynamics | FeatureDynamics | EmbeddedDynamics | AnchoredDynamics


def dynamics_of(
    system: System,
    controls: Bool[Array, "nodes a"],
    opening: bool = False,
    exogenous: Float[Tensor, "M nodes e"] | None = None,
    on: str = "observations",
    frozen: bool = False,
) -> SystemDynamics:
    """The dynamics for a planner: linear in features where the model rolls out so, around one state on large graphs.

    controls: which (node, action) entries are planned. opening: whether the first step opens an episode. exogenous:
    known inputs, normalised. on: whether outputs are observations or features. frozen: Gibbs weights as at the start.
    """
    model = system.model
    if model.features.planned_in_features:
        return EmbeddedDynamics(system, controls, exogenous, frozen)
    if not model.features.selects:
        raise InputError("plans need a model whose features hold the observation; train one with --decoder selection")
    if not model.config.reproject and model.form.shared and model.features.linear:
        return FeatureDynamics(system, controls, opening, exogenous, frozen, on)
    if on == "observations" and model.features.anchored(system.topology):
        return AnchoredDynamics(system, controls, exogenous)
    return state_dynamics(system, controls, opening, exogenous, on).for_plans()


SUITABLE = Suitable()


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Shown):
    """actions [M, nodes, a] and what the model expects of them: observations [M+1, nodes, d], the present one first.

    features [M+1, nodes, f]: psi along the prediction, worked out by `encode` when asked for. cost: of the problem, as
    predicted. status: solved, or why not, with advice. gradient: what is left of the projected gradient, as a share of
    that of doing nothing. seconds: CPU time. outlook: how far off it may end, and whether it is worth carrying out.
    """

    actions: Float[Array, "M nodes a"]
    observations: Float[Array, "M_plus_1 nodes d"]
    encode: Callable[[], Array]
    cost: float
    status: Status
    iterations: int
    gradient: float
    seconds: float
    outlook: Outlook | None = None

    @property
    def features(self) -> Float[Array, "M_plus_1 nodes f"]:
        return self.encode()

    def facts(self) -> dict[str, Any]:
        sizes = {"steps": len(self.actions), "nodes": self.actions.shape[1], "actions": self.actions.shape[2]}
        return {"status": repr(str(self.status)), **sizes, "cost": f"{self.cost:.4g}", "seconds": f"{self.seconds:.2g}"}

    def curves(self) -> Array:
        return self.observations[..., 0]


@runtime_checkable
class Planner(Protocol):
    """Whatever plans for a problem."""

    @property
    def problem(self) -> Problem: ...

    def plan(
        self,
        observation: Float[Array, "nodes d"],
        *,
        step: int = 0,
        opening: bool = False,
        before: tuple[Array, Array] | None = None,
        start: Float[Array, "M nodes a"] | None = None,
    ) -> Plan: ...


@runtime_checkable
class Aimed(Protocol):
    """Dynamics that say what their outputs are at observations to reach."""

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]: ...


@dataclass(frozen=True)
class Turns:
    """How long a plan is worked at: how often it is solved again at most, when it has settled, after how many turns
    without much gain it is given up (0 never), and whom to tell of each turn."""

    iterations: int
    tolerance: float
    patience: int = 0
    tell: Tell = lambda turn, share: None


def check_problem(problem: Problem, nodes: int, sizes: Sizes) -> None:
    """That a problem is one of a system with so many nodes and coordinates."""
    p = problem
    if p.goal.shape[-2:] != (nodes, sizes.num_observations):
        raise InputError(
            f"the goal has shape {p.goal.shape}, this system's observations {(nodes, sizes.num_observations)}; give "
            "a row a node and a column a coordinate"
        )
    if p.low.shape != (nodes, sizes.num_actions):
        raise InputError(
            f"the bounds have shape {p.low.shape}, this system's actions {(nodes, sizes.num_actions)}; give a row "
            "a node and a column an action"
        )
    exogenous = (p.horizon, nodes, sizes.num_exogenous)
    if sizes.num_exogenous and (p.exogenous is None or p.exogenous.shape != exogenous):
        raise InputError(f"the model needs {sizes.num_exogenous} exogenous inputs a node at each step; give them")


def exogenous_after(problem: Problem, step: int, unit: Tensor) -> Float[Tensor, "M nodes e"] | None:
    """The exogenous inputs of the steps that remain, in their unit; None where the model has none."""
    if not 0 <= step < problem.horizon:
        raise InputError(f"step {step} is not within the horizon of {problem.horizon} steps; plan before it ends")
    if problem.exogenous is None or not len(unit):
        return None
    return torch.as_tensor(problem.exogenous[step:], dtype=unit.dtype) / unit


def settled_plan(
    model: Units,
    dynamics: Dynamics,
    aimed: Aimed,
    x0: Float[Array, " s"],
    problem: Problem,
    step: int,
    before: tuple[Array, Array] | None,
    start: Float[Array, "M nodes a"] | None,
    turns: Turns,
    solver: Solver = SUITABLE,
    follow: Callable[[Array], Array] | None = None,
) -> tuple[Settled, Float[Array, "M nodes a"], float]:
    """(the settled plan, its actions in physical units, its cost) of the problem's steps after `step`, from x0.

    before: (observation, action) one step earlier. start: the plan made before, of the steps that remain.
    solver: of each quadratic problem. follow: x_1..x_M under actions by the model itself, asked before anything else,
        so that there is an answer when the time is over before the dynamics have one.
    """
    p, scale = problem, model.arrays.action_std
    last = np.zeros(int(p.controls.sum())) if before is None else (before[1] / scale)[p.controls]
    task = task_of(model, aimed, p, step, last)
    u = np.zeros_like(task.w) if start is None else (start / scale)[:, p.controls]
    kept = task if start is None else task.keeping(u, efforts(p.change_cost, p, scale))

    def physical(u: Array) -> Array:
        actions = np.zeros((len(u), *p.controls.shape))
        actions[:, p.controls] = u
        return np.clip(actions * scale, p.low, p.high)

    idle = task.limits.nearest(u)
    expected = None if follow is None else follow(physical(idle))
    try:
        settled = settle(
            dynamics, kept, x0, u, solver.solve, turns.iterations, turns.tolerance, turns.patience, turns.tell
        )
    except OutOfTime:
        if expected is None:
            raise
        settled = Settled(idle, expected, math.inf, Status.TIME_LIMIT, 0, math.inf)
    cost = float(task.cost(dynamics.outputs(settled.x), settled.u))
    return settled, physical(settled.u), cost


def task_of(model: Units, dynamics: Aimed, problem: Problem, step: int, last: Array) -> Task:
    """A problem's remaining steps in the planner's flat, normalised terms; `last` is the control before them."""
    p = problem
    M, (nodes, d), scale = p.horizon - step, p.goal.shape[-2:], model.arrays.action_std
    mean, std = model.arrays.observation_mean, model.arrays.observation_std
    goal = dynamics.goal(p.goals[step:])
    tracked = np.ones((nodes, d)) if p.tracked is None else np.broadcast_to(p.tracked.reshape(nodes, -1), (nodes, d))
    if p.on == "observations":
        shape, factors = (nodes, d), tracked * std / p.unit
    else:
        width = goal.shape[-1] // nodes
        shape, factors = (nodes, width), np.broadcast_to(tracked.max(-1, keepdims=True), (nodes, width))
    running, terminal = weights_of(p.state_cost, shape, factors), weights_of(p.terminal_cost, shape, factors)
    if running.ndim == terminal.ndim == 1:
        W = np.tile(running, (M, 1))
        W[-1] = np.hypot(running, terminal)
    else:
        both = [np.diag(w) if w.ndim == 1 else w for w in (running, terminal)]
        W = np.tile(np.concatenate([both[0], np.zeros_like(both[1])]), (M, 1, 1))
        W[-1] = np.concatenate(both)
    w = np.tile(efforts(p.action_cost, p, scale), (M, 1))
    low, high = (np.tile((bound / scale)[p.controls], (M, 1)) for bound in (p.low, p.high))
    rate = None if p.rate is None else (p.rate / scale)[p.controls]
    limits = ControlLimits(low, high, rate, None if rate is None else last)
    if p.soft_low is None or p.soft_high is None or p.on == "features":
        return Task(goal, W, w, limits)
    soft_low, soft_high = (((bound - mean) / std).reshape(-1) for bound in (p.soft_low, p.soft_high))
    return Task(goal, W, w, limits, soft_low, soft_high, HARD if p.hard else p.soft_cost)


def efforts(cost: Cost, problem: Problem, scale: Array) -> Float[Array, " n"]:
    """The square root of a cost of actions, one a control; scale: the unit of normalised actions."""
    found = weights_of(cost, problem.low.shape, scale / problem.action_unit)
    if found.ndim == 2:
        raise InputError(
            "a cost of actions as a matrix is not supported; give a number, one a coordinate or one a node"
        )
    return found.reshape(problem.low.shape)[problem.controls]


def in_space_of(model: Model, problem: Problem, **costs: Any) -> Problem:
    """The problem in the space that plans of a model are made in; costs: to change, by their names in `Problem`.

    In features it is the paper's: |psi - psi_*|^2_Q1 at every step, with a weight of the last, and |psi^a|^2_Q2 within
    bounds; no limit on the rate, and nothing that keeps to the plan before.
    """
    if not model.features.planned_in_features:
        return replace(problem, **costs)
    unit = model.arrays.action_std
    asked: dict[str, Any] = {**model.features.costs, **costs}
    return replace(problem, on="features", rate=None, change_cost=0.0, action_unit=unit, **asked)


@dataclass(frozen=True, eq=False)
class Controller:
    """Plans for one system and problem.

    iterations: how often a plan is solved again at most; tolerance: when it has settled; patience: after how many turns
    without much gain it is given up. tell: called at each turn of a plan, to show that it works or to stop it.
    solver: of the quadratic problem at each turn, a name in `gce.control.solver.SOLVERS` or a `Solver` of your own.
    time_limit: seconds after which a plan ends, with the best actions found so far; None for no limit.
    mode: whether `gce.run` settles each plan, or spends one turn a step (`begin`; the time limit is then of a step).
    """

    system: System
    problem: Problem
    weights: Literal["along", "frozen"] | None = None
    iterations: int = 120
    tolerance: float = 1e-4
    patience: int = 4
    tell: Tell = lambda turn, share: None
    solver: str | Solver = "suitable"
    time_limit: float | None = None
    mode: str = "settled"

    def __post_init__(self) -> None:
        whole("iterations", self.iterations, 1)
        whole("patience", self.patience)
        real("tolerance", self.tolerance, above=0)
        if self.time_limit is not None:
            real("time_limit", self.time_limit, above=0)
        of_kind("the system", self.system, System, "gce.adapt(model, episodes) gives one")
        of_kind("the problem", self.problem, Problem, "gce.Problem(horizon=40, goal=..., low=..., high=...) is one")
        p, c, n = self.problem, self.system.model.config, self.system.graph.num_nodes
        if not self.system.operator.form.controllable:
            raise InputError(
                f"an operator of the form {self.system.operator.form.name!r} entangles history and action and cannot "
                "be controlled; adapt with hom_mean, hom or dense"
            )
        check_problem(p, n, c)
        if self.weights not in ("along", "frozen", None):
            raise InputError(f"weights are kept 'along' the plan or 'frozen', not {self.weights!r}")
        if self.mode not in ("settled", "realtime"):
            raise InputError(f"the mode is 'settled' or 'realtime', not {self.mode!r}")
        chosen_solver(self.solver)
        if self.system.model.features.planned_in_features and p.on != "features":
            raise InputError("this model plans in feature space, as the paper does; state the problem on='features'")
        state_class(self.system)  # compiled kernels are loaded here, in no plan

    @property
    def frozen(self) -> bool:
        """Whether Gibbs weights stay as they are at the current state."""
        return (self.weights or ("frozen" if self.system.model.features.planned_in_features else "along")) == "frozen"

    def begin(self, observation: Float[Array, "nodes d"], plan: Plan | None = None) -> Turn:
        """The first of the turns in real time: a whole plan, however long it takes, unless one is given."""
        from gce.planning.realtime import Frame, Turn

        if plan is None:
            plan = replace(self, time_limit=None).plan(observation, opening=True)
        frame = Frame.of(self)
        u = plan.actions[:, self.problem.controls] / frame.scale
        return Turn(frame, 0, plan.observations[0], True, None, u, None, plan.status, plan.seconds, plan.seconds)

    def plan(
        self,
        observation: Float[Array, "nodes d"],
        *,
        step: int = 0,
        opening: bool = False,
        before: tuple[Array, Array] | None = None,
        start: Float[Array, "M nodes a"] | None = None,
    ) -> Plan:
        """The best actions from an observation on, for the steps that remain.

        step: how many of the problem's steps have passed. opening: whether the observation opens an episode.
        before: (observation, action) one step earlier; needed where the model's state holds them, and for limits on
        the rate. start: the plan made before, of the steps that remain: to begin from, and to keep to (`change_cost`).
        """
        clock, until = time.process_time(), time.monotonic() + (self.time_limit or math.inf)
        p, model = self.problem, self.system.model
        exogenous = exogenous_after(p, step, model.exogenous_std)
        frozen = self.frozen
        known = dynamics_of(self.system, p.controls, opening, exogenous, p.on, frozen)
        state = self.system.state(observation, opening, before)
        x0 = known.reduced(state)
        dynamics: Dynamics = known.frozen_at(x0) if frozen else known
        turns = Turns(self.iterations, self.tolerance, self.patience, self.tell)
        solver = chosen_solver(self.solver)

        def follow(actions: Array) -> Array:
            later = None if p.exogenous is None else p.exogenous[step:]
            path = self.system.rollout(observation, actions, exogenous=later, opening=opening, before=before)
            return known.reduced(path.states[1:])

        quick = self.time_limit is None or getattr(dynamics, "ready", True)
        token = DEADLINE.set(until)
        try:
            settled, actions, cost = settled_plan(
                model, dynamics, known, x0, p, step, before, start, turns, solver, None if quick else follow
            )
        finally:
            DEADLINE.reset(token)
        states = torch.cat([state[None], known.lifted(settled.x)])
        expected, outlook = self._seen(state, states[1:], observation), None
        status = settled.status if np.isfinite(expected).all() else Status.NOT_FINITE
        if opening:
            doubts.of_start(self.system, expected[0])
            doubts.of_prediction(self.system, expected, actions)
        if opening and status is not Status.TIME_LIMIT:  # no time is left for what comes
            still = known.lifted(dynamics.rollout(x0, np.zeros_like(settled.u)))
            idle, aimed = self._seen(state, still, observation), None
            if p.tracked is not None:
                aimed = p.tracked.reshape(len(idle[0]), -1)
            if outlook := Outlook.of(self.system, p.goals[-1], aimed, expected, idle, actions):
                outlook.say()
        if p.hard and status is not Status.NOT_FINITE and p.beyond(expected[1:]) > KEPT:
            status = Status.INFEASIBLE
        return Plan(
            actions, expected, lambda: self._features(states), cost, status, settled.iterations,
            settled.gradient, time.process_time() - clock, outlook,
        )  # fmt: skip

    def _seen(self, state: Tensor, after: Tensor, observation: Array) -> Float[Array, "M_plus_1 nodes d"]:
        """What is observed of a state, which is known, and of those after it."""
        states, model = torch.cat([state[None], after]), self.system.model
        seen = model.denormalise(states[..., : model.config.num_observations].double()).numpy()
        seen[0] = observation
        return np.asarray(seen)

    def _features(self, states: Float[Tensor, "steps nodes c"]) -> Float[Array, "steps nodes f"]:
        """One step after another, which needs little room on large graphs."""
        with torch.no_grad():
            return np.stack([self.system.model.features(x, self.system.topology).double().numpy() for x in states])
