"""Does control always end well? Many runs on a bank of adapted systems, with random goals, starts and seeds.

A goal is where recorded actions of the world's kind lead (grid: v = 1). Counted are runs whose plans were all solved,
runs that end with another status, answers that are not finite, and actions out of bounds. A run is one line of
control_runs_WORLD.jsonl; a command given again goes on after the last line.

    python -m gce.reproduce.studies.control_runs --world rope --runs 8000 --systems 160 --out results
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gce.envs import GraphEnv, world_named
from gce.model.files import load_model, shipped
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller
from gce.progress import progress, run_module
from gce.reproduce.studies.lines import Lines
from gce.system.system import System, adapt
from gce.trajectory import Episode

SYSTEM_SEED, GOAL_SEED = 5_000_000, 6_000_000


@dataclass
class ControlRuns:
    """Control many systems; write one line a run, and a summary."""

    world: str = "rope"
    """The world."""
    runs: int = 8000
    """How many runs."""
    systems: int = 160
    """How many adapted systems they share."""
    feedback: int | None = None
    """Plan again after so many steps; by default the world's."""
    out: Path = Path("results")
    """The folder to write to."""

    def run(self) -> None:
        import torch

        torch.set_num_threads(1)
        lines = Lines(self.out / f"control_runs_{self.world}.jsonl")
        per_system = -(-self.runs // self.systems)
        first = len(lines.records) // per_system
        with progress(f"controlling {self.world}", self.runs, "runs") as done:
            done(min(len(lines.records), self.runs))
            for k, (env, system) in enumerate(self._bank(first), start=first):
                for r in range(len(lines.records), min((k + 1) * per_system, self.runs)):
                    lines.add({"run": r, "system": k, **self._one(env, system, r)})
                    done(1)
                self._summarise(lines.records)
                if len(lines.records) >= self.runs:
                    break

    def _bank(self, first: int) -> Iterator[tuple[GraphEnv, System]]:
        """Systems drawn at random, each adapted to 8 recorded episodes."""
        world = world_named(self.world)
        model = load_model(shipped(world.usual_model()))
        for k in range(first, self.systems):
            env = world(objects=world.object_range)
            env.reset(seed=SYSTEM_SEED + k)
            parameters, episodes = env.parameters, []
            for e in range(8):
                seed = SYSTEM_SEED + 10 * k + e
                env.reset(seed=seed, options={"parameters": parameters})
                observations, actions = env.run(env.excitation(np.random.default_rng([seed, 1]), 100), 100)
                episodes.append(Episode(env.graph, observations, actions))
            yield env, adapt(model, episodes, measure=False)

    def _one(self, env: GraphEnv, system: System, r: int) -> dict[str, Any]:
        protocol, seed = env.recipe.protocol, GOAL_SEED + r
        env.reset(seed=seed, options={"parameters": env.parameters})
        goal = env.default_goal(env.graph.num_nodes)
        if goal is None:
            M = protocol.horizon
            goal = env.run(env.excitation(np.random.default_rng([seed, 2]), M), M)[0][-1]
        env.reset(seed=seed, options={"parameters": env.parameters, "goal": goal})
        controller = Controller(system, problem_for(env, goal, protocol), tolerance=protocol.tolerance)
        run = control(env, controller, self.feedback or protocol.feedback)
        low, high = env.action_bounds
        found = figures(env, run)
        return {
            "status": found["status"],
            "control_error": found["control_error"],
            "over_nothing": found["control_error_over_nothing"],
            "finite": bool(np.isfinite(run.actions).all() and np.isfinite(run.observations).all()),
            "in_bounds": bool((run.actions >= low).all() and (run.actions <= high).all()),
            "seconds": sum(found["plan_seconds"]),
        }

    def _summarise(self, done: list[dict[str, Any]]) -> None:
        statuses = [line["status"] for line in done]
        errors = np.array([line["control_error"] for line in done])
        summary = {
            "world": self.world,
            "runs": len(done),
            "asked": self.runs,
            "solved": statuses.count("solved"),
            "other_statuses": {s: statuses.count(s) for s in sorted(set(statuses) - {"solved"})},
            "not_finite": sum(not line["finite"] for line in done),
            "out_of_bounds": sum(not line["in_bounds"] for line in done),
            "control_error": {"mean": float(errors.mean()), "median": float(np.median(errors))},
            "plan_cpu_seconds": {"mean": float(np.mean([line["seconds"] for line in done]))},
        }
        (self.out / f"control_runs_{self.world}.json").write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    run_module(ControlRuns)
