"""`gce control`."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tyro

from gce.cli.learn import find_model, others_of_group
from gce.cli.problem_files import read_goal, read_limits
from gce.cli.progress import progress
from gce.errors import InputError


@dataclass
class Control:
    """Adapt to a system, plan, act on its simulator, and say how close it came.

    With a world's name a system that no model has seen is drawn and recorded; with a data set file the system is that
    of an episode. For data of no known world there is no simulator: the plan itself is the result.
    """

    what: tyro.conf.Positional[str]
    """rope, soft, swim or grid, or a data set file."""
    objects: int | None = None
    """A world: how many objects the system has; by default a number it was not trained on."""
    case: str | None = None
    """Grid: a real one instead of a random one, such as case118 (extra `grid`)."""
    seed: int = 0
    """A world: of the system, its recordings and its goal."""
    episode: int = 0
    """A file: the episode whose system and start are taken."""
    adapt: int = 8
    """How many other episodes of the system to adapt to."""
    goal_step: int | None = None
    """A file: the goal is the episode's observation at this step; by default at the horizon."""
    goal: Path | None = None
    """A goal from a file (.json, .npy or .csv): one row a node, one column a coordinate."""
    limits: Path | None = None
    """Own data: a TOML file with `actuated = [nodes]` and `action_bounds = [lowest, highest]`, unless as recorded."""
    horizon: int | None = None
    """Steps of the plan; by default the world's, or as many as the goal's step."""
    feedback: int | None = None
    """Plan again after so many steps; by default the world's."""
    noise: float = 0.0
    """Noise on what is observed, as a share of the world's units; a Kalman filter estimates the state."""
    process_noise: float = 0.0
    """Grid: noise on the state at each step."""
    action_cost: float | None = None
    """The weight of actions in the plan; by default the world's."""
    weights: Literal["along", "frozen"] = "along"
    """Gibbs weights along the plan: recomputed until it settles, or frozen at the current state."""
    model: Path | None = None
    """The folder of a model; by default the one that comes with the package for the world."""
    out: Path | None = None
    """A folder for the episode (.h5), its figures (.json) and its animation (.gif)."""
    json: bool = False
    """Print JSON on standard output."""

    def run(self) -> None:
        import torch

        from gce.envs import WORLDS

        torch.set_num_threads(1)
        for name, lowest in (("adapt", 1), ("horizon", 1), ("feedback", 1), ("goal_step", 1), ("objects", 1)):
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise InputError(f"--{name.replace('_', '-')} is {value}, expected at least {lowest}")
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"--noise is {self.noise}, expected a share of the units such as 0.05")
        if self.case is not None and self.what not in WORLDS:
            raise InputError(f"--case is of the grid world; {self.what} says by itself which grid it is of")
        if self.what in WORLDS:
            answer = self._drawn()
        elif Path(self.what).suffix in (".h5", ".hdf5"):
            answer = self._recorded()
        else:
            raise InputError(f"{self.what!r} is neither a world ({', '.join(WORLDS)}) nor a data set file (.h5)")
        if self.json:
            print(json.dumps(answer))
        else:
            for name, value in answer.items():
                print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")

    # ---- the two kinds of system ----

    def _drawn(self) -> dict[str, Any]:
        """A system drawn at random, recorded to adapt to, and a goal that recorded actions reach."""
        import numpy as np

        from gce.closed_loop import PROTOCOLS
        from gce.envs import world_named
        from gce.envs.real_grids import MESHED
        from gce.files import load_model, shipped
        from gce.system import adapt
        from gce.trajectory import Episode

        world = world_named(self.what)
        if self.case is not None:
            env = real_grid(self.what, self.case, self.objects)
        else:
            env = world(objects=self.objects if self.objects is not None else world.object_range[1] + 1)
        env.reset(seed=self.seed)
        count = env.graph.num_nodes
        parameters, M = env.parameters, self.horizon or PROTOCOLS[self.what].horizon
        recorded = []
        with progress(f"recording {self.case or f'a {self.what} of {count}'}", self.adapt + 1, "episodes") as done:
            for k in range(self.adapt + 1):
                env.reset(
                    seed=1000 * (self.seed + 1) + k,
                    options={"parameters": parameters, "observation_noise": 0.0 if k == 0 else self.noise},
                )
                steps = max(M, 100)
                observations, actions = env.run(env.excitation(np.random.default_rng([self.seed, k]), steps), steps)
                recorded.append(Episode(env.graph, observations, actions, parameters=dataclasses.asdict(parameters)))
                done(1)
        goal = recorded[0].observations[M].astype(float)
        if self.goal is not None:
            goal = read_goal(self.goal, goal.shape)
        if self.what == "grid" and self.goal is None:
            goal = np.tile([1.0, 0.0], (count, 1))
        model = load_model(self.model or shipped(self.what if self.case is None else MESHED))
        system, led = adapt(model, recorded[1:]), recorded[0].actions.astype(float)
        return self._act(env, system, parameters, goal, M, self.seed, recorded[1:], led if self.goal is None else None)

    def _recorded(self) -> dict[str, Any]:
        """The system and the start of a recorded episode; the goal is where it went, unless another is given."""
        import numpy as np

        from gce.closed_loop import PROTOCOLS
        from gce.envs import WORLDS
        from gce.system import adapt
        from gce.trajectory import Dataset, control_limits

        with Dataset.open(Path(self.what)) as data:
            model = find_model(self.model, data)
            if not 0 <= self.episode < len(data):
                raise InputError(f"{self.what} has the episodes 0 to {len(data) - 1}, asked for {self.episode}")
            episode = data[self.episode]
            others = [data[k] for k in others_of_group(data, self.episode, self.adapt)]
            _, *bounds = control_limits(data, int(data.groups[self.episode]))
            world, names = data.world, {k: data.metadata.get(k) for k in ("observation_names", "action_names")}
        default = PROTOCOLS[world].horizon if world in PROTOCOLS else episode.length
        M = self.horizon or self.goal_step or min(default, episode.length)
        step = self.goal_step or M
        if self.goal is not None:
            goal = read_goal(self.goal, episode.observations.shape[1:])
        elif world == "grid" and self.goal_step is None:
            goal = np.tile([1.0, 0.0], (episode.num_nodes, 1))
        elif step <= episode.length:
            goal = episode.observations[step].astype(float)
        else:
            raise InputError(f"the episode has {episode.length} steps, the goal is asked of step {step}")
        if self.noise:
            unit = WORLDS[world].observation_std if world in WORLDS else model.observation_std.double().numpy()
            rng = np.random.default_rng(self.seed)
            others = [
                dataclasses.replace(
                    e, observations=e.observations + self.noise * unit * rng.standard_normal(e.observations.shape)
                )
                for e in others
            ]
        system = adapt(model, others)
        if self.limits is not None and world in WORLDS:
            raise InputError(f"--limits is for systems of your own; the bounds of {world} are its simulator's")
        if world not in WORLDS:
            bounds = bounds if self.limits is None else list(read_limits(self.limits, *bounds))
            return self._plan(system, episode, bounds, goal, M, others, names)
        if not episode.parameters:
            raise InputError(f"episode {self.episode} does not say its physical parameters; the simulator needs them")
        led = episode.actions.astype(float) if self.goal is None and step == M else None
        return self._act(WORLDS[world](), system, episode.parameters, goal, M, episode.seed or 0, others, led)

    # ---- acting ----

    def _act(
        self, env: Any, system: Any, parameters: Any, goal: Any, M: int, seed: int, adapted: list[Any], recorded: Any
    ) -> dict[str, Any]:
        from gce import __version__
        from gce.closed_loop import PROTOCOLS, control, figures, problem_for
        from gce.controller import Controller
        from gce.filtering import Filter, noise_scale
        from gce.report.details import details_of_run, write_details

        protocol = PROTOCOLS[env.world]
        protocol = dataclasses.replace(
            protocol,
            horizon=M,
            feedback=self.feedback or min(protocol.feedback, M),
            action_cost=protocol.action_cost if self.action_cost is None else self.action_cost,
        )
        options = {"parameters": parameters, "observation_noise": self.noise, "process_noise": self.process_noise}
        env.reset(seed=seed, options={**options, "goal": goal})
        problem = problem_for(env, goal, protocol)
        controller = Controller(system, problem, weights=self.weights, tolerance=protocol.tolerance)
        observer = None
        if self.noise and protocol.feedback < M:
            noise = self.noise * env.observation_std
            scale = noise_scale(system, adapted, problem.controls, noise)
            observer = partial(Filter.opened, system, controls=problem.controls, noise=noise, scale=scale)
        with progress("controlling", M, "steps") as done:
            run = control(env, controller, protocol.feedback, done, observer)
        answer = {
            **figures(env, run, recorded),
            "world": env.world,
            "objects": env.graph.num_nodes,
            "horizon": M,
            "feedback": protocol.feedback,
            "adapt": len(adapted),
            "seed": self.seed,
            "version": __version__,
        }
        if self.out is not None:
            _write_run(self.out, env, run, answer)
            write_details(details_of_run(env, run, system, adapted, self._settings()), self.out)
        return answer

    def _plan(
        self, system: Any, episode: Any, bounds: Any, goal: Any, M: int, adapted: list[Any], names: dict[str, Any]
    ) -> dict[str, Any]:
        """Without a simulator: the plan from the episode's first observation, as a table of actions."""
        from gce import __version__
        from gce.control.problem import Problem
        from gce.controller import Controller

        model = system.model
        problem = Problem(
            horizon=M,
            goal=goal,
            low=bounds[0],
            high=bounds[1],
            action_cost=1e-3 if self.action_cost is None else self.action_cost,
            unit=model.observation_std.double().numpy(),
            action_unit=model.action_std.double().numpy(),
            exogenous=None if episode.exogenous is None else episode.exogenous[:M].astype(float),
        )
        plan = Controller(system, problem, weights=self.weights).plan(
            episode.observations[0].astype(float), opening=True
        )
        from gce.metrics import control_error
        from gce.report.details import details_of_plan, write_details

        answer = {
            "predicted_control_error": control_error(plan.observations[-1], goal),
            "predicted_cost": plan.cost,
            "status": plan.status,
            "plan_seconds": [plan.seconds],
            "iterations": [plan.iterations],
            "objects": episode.num_nodes,
            "horizon": M,
            "seed": self.seed,
            "version": __version__,
        }
        if self.out is not None:
            _write_plan(self.out, plan, answer)
            about = {**names, "settings": self._settings()}
            write_details(details_of_plan(plan, problem, system, adapted, episode, about), self.out)
        return answer

    def _settings(self) -> dict[str, Any]:
        """How the run was asked for, as JSON values."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}


def real_grid(world: str, case: str, objects: int | None) -> Any:
    """The environment of a real grid."""
    from gce.envs import PowerGrid
    from gce.envs.real_grids import check_case

    if world != PowerGrid.world:
        raise InputError(f"--case is a real grid; {world} has none: give the grid world")
    if objects is not None:
        raise InputError(f"{case} has a number of nodes of its own; leave --objects out")
    check_case(case)
    return PowerGrid(topology=case)


def _write_run(folder: Path, env: Any, run: Any, answer: dict[str, Any]) -> None:
    """The episode, its figures and its animation."""
    from gce.charts import control_chart
    from gce.plots import write_animation
    from gce.trajectory import Writer

    _make(folder)
    file = folder / "episode.h5"
    file.unlink(missing_ok=True)
    with Writer(file, {**env.describe(), "control": answer}) as writer:
        group = writer.add_group(env.graph, dataclasses.asdict(env.parameters))
        writer.add_episode(group, run.observations, run.actions)
    (folder / "control.json").write_text(json.dumps({**answer, "goal": run.goal.tolist()}, indent=2) + "\n")
    frames = [env.draw(o, run.actions[min(t, len(run.actions) - 1)], run.goal) for t, o in enumerate(run.observations)]
    write_animation([*frames, *[frames[-1]] * 15], folder / "control.gif", min(30.0, 1 / env.dt))
    control_chart(run, env.observation_std, folder / "control.png")
    made = "episode.h5, control.json, control.gif, control.png"
    print(f"{folder}: {made}; `gce report {folder}` makes a page of it", file=sys.stderr)


def _write_plan(folder: Path, plan: Any, answer: dict[str, Any]) -> None:
    import numpy as np

    _make(folder)
    M, nodes, a = plan.actions.shape
    index = np.stack(np.meshgrid(np.arange(M), np.arange(nodes), indexing="ij"), axis=-1).reshape(-1, 2)
    header = ",".join(["step", "node", *(f"action_{k}" for k in range(a))])
    table = np.column_stack([index, plan.actions.reshape(-1, a)])
    np.savetxt(folder / "plan.csv", table, delimiter=",", header=header, comments="", fmt=["%d", "%d", *["%.9g"] * a])
    (folder / "control.json").write_text(json.dumps(answer, indent=2) + "\n")
    print(f"{folder}: plan.csv, control.json; `gce report {folder}` makes a page of it", file=sys.stderr)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from None
