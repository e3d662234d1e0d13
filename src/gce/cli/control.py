"""`gce control`."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gce.cli.beside import table
from gce.cli.common import (
    Labels,
    Place,
    Reads,
    Real,
    Whole,
    Word,
    check_numbers,
    episode_of,
    find_model,
    goal_at,
    known_names,
    model_of_method,
    optional,
    others_of_group,
    read_cost,
    told,
    units,
    write_run,
)
from gce.cli.own_plan import Own, own_of_folder, plan_own, read_goal
from gce.errors import InputError, warn
from gce.names import Method, check_same, meant
from gce.progress import TOLD, counted, progress

FAR = 0.1
"""A predicted distance from the goal that a person should hear of, in standard deviations of each coordinate."""


@dataclass
class Control(Reads):
    """Adapt to a system, plan, act on its simulator, and say how close it came.

    With a world's name a system that no model has seen is drawn and recorded; with a data set file the system is that
    of an episode; with a folder that `gce adapt` wrote it is the one adapted to. Data of no known world and adapted
    systems have no simulator: the plan itself is the result, for you to carry out.
    """

    what: tyro.conf.Positional[str]
    """rope, soft, swim, grid or flock; a data set file; or the folder of an adapted system."""
    objects: Whole = None
    """A world: how many objects the system has; by default a number it was not trained on."""
    case: Word = None
    """Grid: a real one instead of a random one, such as case118 (extra `grid`)."""
    seed: int = 0
    """A world: of the system, its recordings and its goal."""
    episode: int = 0
    """A file: the episode whose system and start are taken; an adapted system: that of the data set in --start."""
    adapt: int = 8
    """How many other episodes of the system to adapt to."""
    goal_step: Whole = None
    """A file: the goal is the episode's observation at this step; by default at the horizon."""
    goal: Place = None
    """A goal from a file (.json, .npy or .csv): one row a node, one column a coordinate. In a CSV file whose header is
    node and names of coordinates, what is left out is free."""
    start: Place = None
    """Own data, an adapted system: where it is now, a file like that of a goal; or a data set file (.h5)."""
    exogenous: Place = None
    """The same: inputs known in advance, where the system has any: a file with rows of step, node and inputs."""
    limits: Place = None
    """The same: a TOML file with `actuated = [nodes]` and `action_bounds = [lowest, highest]`, unless as recorded."""
    actuated: tuple[str, ...] = ()
    """The same, in words: the nodes that may act."""
    bounds: Annotated[tuple[float, float] | None, optional("FLOAT FLOAT")] = None
    """The same: the lowest and the highest action."""
    horizon: Whole = None
    """Steps of the plan; by default the world's, or as many as the goal's step."""
    feedback: Whole = None
    """Plan again after so many steps; by default the world's."""
    realtime: bool = False
    """Plan anew at every step, one turn of a plan each, prepared before the observation arrives."""
    env: Word = None
    """Own data, an adapted system: act on the Gymnasium or dm_control environment that module:factory makes."""
    mapping: Place = None
    """With --env: a TOML file that says which of its numbers are of which node: observations, actions, goal, keys."""
    steps: Whole = None
    """With --env: steps to act for; by default the horizon, and where more, the horizon moves along."""
    noise: float = 0.0
    """Noise on what is observed, as a share of the world's units; a Kalman filter estimates the state."""
    process_noise: float = 0.0
    """Grid: noise on the state at each step."""
    action_cost: Real = None
    """The weight of actions in the plan; by default the world's, or 1e-4."""
    q1: Word = None
    """The weight of the distance from the goal at every step (Q1): a number, one a feature separated by commas, or a
    file with one a node and feature, or a matrix. Of coordinates where plans are made in observations."""
    q_terminal: Word = None
    """The weight of the last step beside that; the same."""
    q2: Word = None
    """The weight of actions (Q2), as --action-cost: a number, one an action, or a file with one a node and action."""
    weights: Annotated[Literal["along", "frozen"] | None, optional("{along,frozen}")] = None
    """Gibbs weights along the plan: recomputed until it settles, or frozen at the current state; by default frozen
    where plans are made in features, as in the paper, and along elsewhere."""
    solver: str = "suitable"
    """Solver of the quadratic problem at each turn: riccati, condensed, matrix_free, suitable, or one of a plugin."""
    time_limit: Real = None
    """Seconds that a plan may take; it then ends with the best actions found so far. In real time: that a step may
    take; one that would take longer goes on with the plan before."""
    model: Place = None
    """The folder of a model, which says its method; by default the one that comes with the package for the world."""
    method: Annotated[Method | None, optional("{published,structured,general}")] = None
    """Which of the models that come with the package: the paper's method, or ours, the default."""
    out: Place = None
    """A folder for the episode (.h5), its figures (.json) and its animation (.gif)."""
    export: Place = None
    """Own data, an adapted system: write the plan with its feedback as a C99 file, to act without Python."""
    json: bool = False
    """Print JSON on standard output."""

    def run(self) -> None:
        import torch

        from gce.envs import WORLDS

        torch.set_num_threads(1)
        check_numbers(self, "adapt", "horizon", "feedback", "goal_step", "objects", "steps")
        self.costs()
        if self.realtime and self.feedback not in (None, 1):
            raise InputError(
                f"--realtime plans anew at every step, --feedback is {self.feedback}; leave one of them out"
            )
        if self.env is None and (self.mapping is not None or self.steps is not None):
            raise InputError("--mapping and --steps are of an environment; name it with --env module:factory")
        if self.env is not None and self.export is not None:
            raise InputError("--export writes a plan that is not acted on; leave --env out")
        if self.export is not None and self.export.suffix != ".c":
            raise InputError(f"--export is {self.export}; plans are written as C, give a file that ends in .c")
        if self.case is not None and self.what not in WORLDS:
            raise InputError(f"--case is of the grid world; {self.what} says by itself which grid it is of")
        if self.what in WORLDS:
            self._check_own(self.what)
            answer = self._drawn()
        elif Path(self.what).suffix in (".h5", ".hdf5"):
            answer = self._recorded()
        elif Path(self.what).is_dir():
            alone = self.env is None and (self.feedback is not None or self.realtime)
            if self.noise or alone or self.model is not None:
                raise InputError(
                    "an adapted system has its model, and no simulator: leave out --noise, --model, and without --env "
                    "--feedback and --realtime"
                )
            own = own_of_folder(Path(self.what), self.start, self.episode)
            check_same(self.method, own.system.model.method, f"the system in {self.what}")
            answer = plan_own(own, self)
        else:
            raise InputError(
                f"{self.what!r}{meant(self.what, list(WORLDS))} is neither a world ({', '.join(WORLDS)}), nor a data "
                "set file (.h5), nor a folder that `gce adapt` wrote; name one of these"
            )
        _advise(answer)
        if self.json:
            print(told(answer))
        else:
            print(table(answer))

    # ---- the two kinds of system ----

    def _drawn(self) -> dict[str, Any]:
        """A system drawn at random, recorded to adapt to, and a goal that recorded actions reach."""
        from gce.envs import world_named
        from gce.envs.recording import record_system
        from gce.system.system import adapt

        world = world_named(self.what)
        if self.case is not None:
            if not world.cases:
                raise InputError(f"--case is a real grid; {world.world} has none: give the grid world")
            if self.objects is not None:
                raise InputError(f"{self.case} has a number of nodes of its own; leave --objects out")
            env = world.of_case(self.case)
        else:
            env = world(objects=self.objects if self.objects is not None else world.object_range[1] + 1)
        env.reset(seed=self.seed)
        count = env.graph.num_nodes
        parameters, M = env.parameters, self.horizon or world.recipe.protocol.horizon
        model = model_of_method(self.model, env.shipped_model(), world.world, self.method)
        with progress(f"recording {self.case or f'a {self.what} of {count}'}", self.adapt + 1, "episodes") as done:
            recorded = record_system(env, self.seed, self.adapt + 1, max(M, 100), self.noise, counted(done))
        goal = world.default_goal(count) if self.goal is None else self._world_goal(env)
        if goal is None:
            goal = recorded[0].observations[M].astype(float)
        system, led = adapt(model, recorded[1:]), recorded[0].actions.astype(float)
        return self._act(env, system, parameters, goal, M, self.seed, recorded[1:], led if self.goal is None else None)

    def _recorded(self) -> dict[str, Any]:
        """The system and the start of a recorded episode; the goal is where it went, unless another is given."""
        import numpy as np

        from gce.envs import WORLDS
        from gce.system.system import adapt
        from gce.trajectory import Dataset, control_limits

        with Dataset.open(Path(self.what)) as data:
            model = find_model(self.model, data, method=self.method)
            episode = episode_of(data, self.what, self.episode)
            others = [data[k] for k in others_of_group(data, self.episode, self.adapt)]
            _, low, high = control_limits(data, int(data.groups[self.episode]))
            world, names = data.world, known_names(data.metadata, episode.parameters)
        if self.noise:
            share, rng = self.noise * units(world, model), np.random.default_rng(self.seed)
            noisy = [e.observations + share * rng.standard_normal(e.observations.shape) for e in others]
            others = [dataclasses.replace(e, observations=o) for e, o in zip(others, noisy, strict=True)]
        if world not in WORLDS:
            system = adapt(model, others)
            return plan_own(Own(system, Labels.of(names, system), low, high, episode, others, episode.length), self)
        self._check_own(world)
        if not episode.parameters:
            raise InputError(f"episode {self.episode} does not say its physical parameters; the simulator needs them")
        env = WORLDS[world]()
        M = self.horizon or self.goal_step or min(env.recipe.protocol.horizon, episode.length)
        step = self.goal_step or M
        default = env.default_goal(episode.num_nodes) if self.goal_step is None else None
        if self.goal is not None:
            env.reset(seed=0, options={"parameters": episode.parameters})
            goal = self._world_goal(env)
        else:
            goal = goal_at(episode, step) if default is None else default
        led = episode.actions.astype(float) if self.goal is None and step == M else None
        return self._act(env, adapt(model, others), episode.parameters, goal, M, episode.seed or 0, others, led)

    def _check_own(self, world: str) -> None:
        """What a simulator says by itself cannot be said otherwise."""
        for name in ("limits", "actuated", "bounds", "start", "exogenous", "env", "export"):
            if getattr(self, name):
                raise InputError(
                    f"--{name} is for systems of your own; {world} has that of its simulator: leave it out"
                )

    def _world_goal(self, env: Any) -> Any:
        """A goal for all nodes of an environment, just reset."""
        assert self.goal is not None
        nodes = tuple(str(k) for k in range(env.graph.num_nodes))
        goal = read_goal(self.goal, Labels(nodes, tuple(env.observation_names), tuple(env.action_names), ()))
        if goal.tracked is not None or goal.values.ndim != 2:
            raise InputError(
                f"{self.goal} is not a goal of every coordinate; on a simulator give one row a node, in full"
            )
        return goal.values

    # ---- acting ----

    def _act(
        self, env: Any, system: Any, parameters: Any, goal: Any, M: int, seed: int, adapted: list[Any], recorded: Any
    ) -> dict[str, Any]:
        from gce import __version__
        from gce.control.problem import control_error, harm
        from gce.planning.closed_loop import control, figures, problem_for
        from gce.planning.controller import Controller, in_space_of
        from gce.planning.observer import Filter, noise_scale
        from gce.views.report.details import details_of_run

        protocol = env.recipe.protocol
        protocol = dataclasses.replace(
            protocol,
            horizon=M,
            feedback=1 if self.realtime else self.feedback or min(protocol.feedback, M),
        )
        options = {"parameters": parameters, "observation_noise": self.noise, "process_noise": self.process_noise}
        env.reset(seed=seed, options={**options, "goal": goal})
        problem = problem_for(env, goal, protocol)
        problem = in_space_of(system.model, problem, **self.costs())
        observer = None
        # The paper plans again from what is seen.
        if self.noise and protocol.feedback < M and not system.model.features.planned_in_features:
            noise = self.noise * env.observation_std
            scale = noise_scale(system, adapted, problem.controls, noise)
            observer = partial(Filter.opened, system, controls=problem.controls, noise=noise, scale=scale)
        with progress("controlling", M, "steps") as done:
            controller = Controller(
                system,
                problem,
                self.weights,
                tolerance=protocol.tolerance,
                tell=lambda turn, share: done(0),
                solver=self.solver,
                time_limit=self.time_limit,
                mode=self.mode,
            )
            run = control(env, controller, protocol.feedback, done, observer)
        reached = figures(env, run, recorded)
        for sentence in harm(env.words[2], reached):
            warn(sentence)
        answer = {
            **reached,
            "promised_error": control_error(run.plans[-1].observations[-1], run.goal),
            "world": env.world,
            "objects": env.graph.num_nodes,
            "horizon": M,
            "feedback": protocol.feedback,
            "adapt": len(adapted),
            "seed": self.seed,
            "version": __version__,
            "warnings": list(TOLD),
        }
        if self.out is not None:
            write_run(self.out, env, run, answer, details_of_run(env, run, system, adapted, self.settings()))
        return answer

    @property
    def mode(self) -> str:
        return "realtime" if self.realtime else "settled"

    def costs(self) -> dict[str, Any]:
        """The costs that are asked for, by their names in `Problem`."""
        if self.action_cost is not None and self.q2 is not None:
            raise InputError("--action-cost and --q2 both weigh actions; give one of them")
        asked = {
            "state_cost": read_cost("--q1", self.q1),
            "terminal_cost": read_cost("--q-terminal", self.q_terminal),
            "action_cost": read_cost("--q2", self.q2) if self.action_cost is None else self.action_cost,
        }
        return {name: value for name, value in asked.items() if value is not None}

    def settings(self) -> dict[str, Any]:
        """How the run was asked for, as JSON values."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}


def _advise(answer: dict[str, Any]) -> None:
    """What to do about a plan that was not solved, or does not get there."""
    status = answer["status"]
    if not status.ok:
        print(f"the planner ended early ({status}); its best plan is used. {status.advice}", file=sys.stderr)
    if answer.get("predicted_distance", 0.0) > FAR:
        print(
            f"the plan ends {answer['predicted_distance']:.2g} standard deviations from the goal; a longer --horizon, "
            "wider bounds or a smaller --action-cost may bring it nearer",
            file=sys.stderr,
        )
