"""Does control always end well? Many runs on a bank of adapted systems, with random goals, starts and seeds.

A goal is where recorded actions of the world's kind lead (grid: v = 1). Counted are runs whose plans were all solved,
runs that end with another status, answers that are not finite, and actions out of bounds. A run is one line of
control_runs_WORLD.jsonl; a command given again goes on after the last line.

    python -m bench.control_runs --world rope --runs 8000 --systems 160 --out results
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.lines import Lines, write_json
from gce.envs import GraphEnv, world_named
from gce.model.files import load_model, shipped
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller
from gce.progress import run_module
from gce.reproduce.tasks import record_episode
from gce.system.system import System, adapt

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
        lines = Lines(self.out / f"control_runs_{self.world}.jsonl")
        per_system = -(-self.runs // self.systems)
        asked = [{"run": r, "system": r // per_system} for r in range(self.runs)]
        lines.fill(f"controlling {self.world}", asked, self._one, self._summarise)

    def _one(self, run: int, system: int) -> dict[str, Any]:
        env, adapted = _adapted(self.world, system)
        protocol, seed = env.recipe.protocol, GOAL_SEED + run
        env.reset(seed=seed, options={"parameters": env.parameters})
        goal = env.default_goal(env.graph.num_nodes)
        if goal is None:
            M = protocol.horizon
            goal = env.run(env.excitation(np.random.default_rng([seed, 2]), M), M)[0][-1]
        env.reset(seed=seed, options={"parameters": env.parameters, "goal": goal})
        controller = Controller(adapted, problem_for(env, goal, protocol), tolerance=protocol.tolerance)
        done = control(env, controller, self.feedback or protocol.feedback)
        low, high = env.action_bounds
        found = figures(env, done)
        return {
            "status": found["status"],
            "control_error": found["control_error"],
            "over_nothing": found["control_error_over_nothing"],
            "finite": bool(np.isfinite(done.actions).all() and np.isfinite(done.observations).all()),
            "in_bounds": bool((done.actions >= low).all() and (done.actions <= high).all()),
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
        write_json(self.out / f"control_runs_{self.world}.json", summary)


@lru_cache(maxsize=1)
def _adapted(world: str, k: int) -> tuple[GraphEnv, System]:
    """A system drawn at random, adapted to 8 recorded episodes; runs of one system follow each other."""
    kind = world_named(world)
    env = kind(objects=kind.object_range)
    env.reset(seed=SYSTEM_SEED + k)
    options = {"parameters": env.parameters}
    episodes = [record_episode(env, SYSTEM_SEED + 10 * k + e, options) for e in range(8)]
    return env, adapt(load_model(shipped(kind.usual_model())), episodes, measure=False)


if __name__ == "__main__":
    run_module(ControlRuns)
