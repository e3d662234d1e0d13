"""A model trained on random graphs controls real grids after eight episodes of each.

For each grid of `gce.envs.real_grids` and each seed: a random stress, 8 recorded episodes to adapt to, and a controlled
run of 100 steps with plans at 0 and 50, and another with a plan every 10 steps, beside doing nothing and an oracle
(affine LQR on the true linearised step, stress and offset known, actions clipped where they are applied) that plans
twice or feeds back at every step. All see the same loads.

A run is a line of real_grids.jsonl; a command given again goes on after the last line.

    python -m bench.real_grids --out results
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.lines import Lines, write_json
from gce.envs import PowerGrid
from gce.envs.real_grids import CASES, MESHED
from gce.model.files import load_model, shipped
from gce.model.model import Model
from gce.planning.closed_loop import control, problem_for
from gce.planning.controller import Controller
from gce.progress import run_module
from gce.reproduce.experiment import write_file
from gce.reproduce.statistics import markdown
from gce.reproduce.tasks import doing_nothing, grid_oracle, on_nodes, oracle_plans, record_episode, told_of_grid
from gce.system.system import adapt

METHODS = {
    "nothing": "nothing",
    "ours": "ours, two plans",
    "ours_often": "ours, a plan every 10 steps",
    "oracle": "oracle, two plans",
    "oracle_feedback": "oracle, feedback every step",
}


@dataclass
class RealGrids:
    """Control real grids; write one line a run, and a table."""

    seeds: int = 4
    """Stresses of each grid."""
    cases: tuple[str, ...] = tuple(CASES)
    """The grids."""
    adapt: int = 8
    """Episodes to adapt to."""
    model: Path | None = None
    """The folder of a model; by default the one that comes with the package."""
    out: Path = Path("results")
    """The folder to write to."""

    def run(self) -> None:
        lines = Lines(self.out / "real_grids.jsonl")
        run = partial(one_run, load_model(self.model or shipped(MESHED)), self.adapt)
        asked = [{"case": case, "seed": seed} for case in self.cases for seed in range(self.seeds)]
        lines.fill("controlling real grids", asked, run, self._summarise)

    def _summarise(self, done: list[dict[str, Any]]) -> None:
        summary = summarise(done)
        write_json(self.out / "real_grids.json", summary)
        write_file(self.out / "real_grids.md", table(summary), "--out")


def one_run(model: Model, episodes: int, case: str, seed: int) -> dict[str, Any]:
    """Errors |V_M - 1| / |V_0 - 1| and costs of all methods on one stressed grid."""
    protocol = PowerGrid.recipe.protocol
    env = PowerGrid(topology=case)
    env.reset(seed=seed)
    parameters, first = env.parameters, 1000 * (seed + 1)
    options = {"parameters": parameters}
    rngs = [np.random.default_rng([seed, k]) for k in range(episodes)]
    recorded = [record_episode(env, first + 1 + k, options, rng) for k, rng in enumerate(rngs)]
    system = adapt(model, recorded, measure=False)
    oracle, found = grid_oracle(env), {}
    policies = {
        "nothing": doing_nothing(env),
        "oracle": oracle_plans(env, oracle, protocol.feedback),
        "oracle_feedback": lambda t: on_nodes(env, oracle.act(t, env.observe().T.reshape(-1))),
    }
    for name, policy in policies.items():
        env.reset(seed=first, options=options)
        found[name] = told(env, *env.run(policy, protocol.horizon, noisy=False))
    for name, feedback in (("ours", protocol.feedback), ("ours_often", 10)):
        env.reset(seed=first, options=options)
        problem = problem_for(env, env.default_goal(parameters.num_nodes), protocol)
        run = control(env, Controller(system, problem, weights="frozen"), feedback)
        planned = {"status": run.status, "plan_seconds": sum(plan.seconds for plan in run.plans)}
        found[name] = told(env, run.observations, run.actions) | planned
    away = np.abs(run.observations[0, :, 0] - 1)
    return {
        "nodes": parameters.num_nodes,
        "generators": int(sum(parameters.is_generator)),
        "rms_at_start": float(np.sqrt(np.mean(away**2))),
        "worst_at_start": float(away.max()),
        "methods": {name: found[name] for name in METHODS},
    }


def told(env: PowerGrid, observations: np.ndarray, actions: np.ndarray) -> dict[str, Any]:
    worst = float(np.abs(observations[-1, :, 0] - 1).max())
    return {**told_of_grid(env, observations, actions), "worst_at_end": worst}


def summarise(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of each grid, and every run."""
    cases = {}
    for case in dict.fromkeys(run["case"] for run in done):
        runs = [run for run in done if run["case"] == case]
        cases[case] = {
            **{name: runs[0][name] for name in ("nodes", "generators")},
            "seeds": len(runs),
            "rms_at_start": float(np.mean([run["rms_at_start"] for run in runs])),
            "methods": {
                method: {
                    **{
                        name: float(np.mean([run["methods"][method][name] for run in runs]))
                        for name in ("error", "cost", "worst_at_end")
                    },
                    "largest_error": max(run["methods"][method]["error"] for run in runs),
                }
                for method in METHODS
            },
        }
    return {"cases": cases, "runs": done}


def table(summary: dict[str, Any]) -> str:
    """Markdown: error (cost) of each method on each grid."""
    head = ["grid", "nodes", "generators", "rms at start", *METHODS.values()]
    rows = [
        [case, found["nodes"], found["generators"], f"{100 * found['rms_at_start']:.1f}%"]
        + [f"{m['error']:.3f} ({m['cost']:.2f})" for m in found["methods"].values()]
        for case, found in summary["cases"].items()
    ]
    seeds = max(found["seeds"] for found in summary["cases"].values())
    about = (
        "# Real grids\n\nControl error |V_M - 1| / |V_0 - 1| and, in brackets, cost over 100 steps: means over "
        f"{seeds} stresses of each grid. The model was trained on random sparse graphs of 30-100 nodes and adapted to "
        "8 episodes of 100 steps.\n`python -m bench.real_grids --out results` makes this table.\n\n"
    )
    return about + markdown(head, rows)


if __name__ == "__main__":
    run_module(RealGrids)
