"""A model trained on random graphs controls real grids after eight episodes of each.

For each grid of `gce.envs.real_grids` and each seed: a random stress, 8 recorded episodes to adapt to, and a controlled
run of 100 steps with plans at 0 and 50, and another with a plan every 10 steps, beside doing nothing and an oracle
(affine LQR on the true linearised step, stress and offset known, actions clipped where they are applied) that plans
twice or feeds back at every step. All see the same loads.

A run is a line of real_grids.jsonl; a command given again goes on after the last line.

    python -m gce.reproduce.studies.real_grids --out results
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gce.envs import PowerGrid
from gce.envs.real_grids import CASES, MESHED
from gce.model.files import load_model, shipped
from gce.model.model import Model
from gce.planning.closed_loop import control, problem_for, uncontrolled
from gce.planning.controller import Controller
from gce.planning.oracles import LinearOracle, linear_oracle
from gce.progress import progress, run_module
from gce.reproduce.studies.lines import Lines
from gce.system.system import adapt
from gce.trajectory import Episode

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
        import torch

        torch.set_num_threads(1)
        lines = Lines(self.out / "real_grids.jsonl")
        known = {(run["case"], run["seed"]) for run in lines.records}
        model = load_model(self.model or shipped(MESHED))
        asked = [(case, seed) for case in self.cases for seed in range(self.seeds)]
        missing = [run for run in asked if run not in known]
        with progress("controlling real grids", len(asked), "runs") as done:
            done(len(asked) - len(missing))
            for case, seed in missing:
                lines.add(one_run(model, case, seed, self.adapt))
                done(1)
        summary = summarise(lines.records)
        (self.out / "real_grids.json").write_text(json.dumps(summary, indent=2) + "\n")
        (self.out / "real_grids.md").write_text(table(summary))


def one_run(model: Model, case: str, seed: int, episodes: int) -> dict[str, Any]:
    """Errors |V_M - 1| / |V_0 - 1| and costs of all methods on one stressed grid."""
    protocol = PowerGrid.recipe.protocol
    env = PowerGrid(topology=case)
    env.reset(seed=seed)
    parameters = env.parameters
    start: dict[str, Any] = {"seed": 1000 * (seed + 1), "options": {"parameters": parameters}}
    recorded = []
    for k in range(episodes):
        env.reset(seed=1000 * (seed + 1) + 1 + k, options={"parameters": parameters})
        observations, actions = env.run(env.excitation(np.random.default_rng([seed, k]), 100), 100)
        recorded.append(Episode(env.graph, observations, actions))
    system = adapt(model, recorded, measure=False)
    env.reset(**start)
    goal, found = np.tile([1.0, 0.0], (parameters.num_nodes, 1)), {}
    still = uncontrolled(env, protocol.horizon)
    found["nothing"] = told(env, still, np.zeros((protocol.horizon, parameters.num_nodes, 1)))
    for name, feedback in (("ours", protocol.feedback), ("ours_often", 10)):
        env.reset(**start)
        run = control(env, Controller(system, problem_for(env, goal, protocol), weights="frozen"), feedback)
        found[name] = {
            **told(env, run.observations, run.actions),
            "status": run.status,
            "plan_seconds": sum(plan.seconds for plan in run.plans),
        }
    oracle = oracle_of(env, protocol.horizon, protocol.terminal_cost, protocol.action_cost)
    policies = {"oracle": two_plans(env, oracle, protocol.feedback), "oracle_feedback": fed_back(env, oracle)}
    for name, policy in policies.items():
        env.reset(**start)
        found[name] = told(env, *env.run(policy, protocol.horizon))
    away = np.abs(still[0, :, 0] - 1)
    return {
        "case": case,
        "seed": seed,
        "nodes": parameters.num_nodes,
        "generators": int(sum(parameters.is_generator)),
        "rms_at_start": float(np.sqrt(np.mean(away**2))),
        "worst_at_start": float(away.max()),
        "methods": found,
    }


def told(env: PowerGrid, observations: np.ndarray, actions: np.ndarray) -> dict[str, Any]:
    away = observations[:, :, 0] - 1
    goal = np.tile([1.0, 0.0], (away.shape[1], 1))
    return {
        "error": float(np.linalg.norm(away[-1]) / np.linalg.norm(away[0])),
        "cost": float(sum(env.stage_cost(o, goal, a) for o, a in zip(observations[1:], actions, strict=True))),
        "worst_at_end": float(np.abs(away[-1]).max()),
    }


def oracle_of(env: PowerGrid, horizon: int, terminal_cost: float, action_cost: float) -> LinearOracle:
    """LQR on the true linearised step; actions of the generators only."""
    A, B, c = env.linearised()
    n = env.graph.num_nodes
    weight = np.zeros((horizon, 2 * n))
    weight[:, :n] = 1.0
    weight[-1, :n] = np.sqrt(1 + terminal_cost)
    goal = np.concatenate([np.ones(n), np.zeros(n)])
    return linear_oracle(A, B[:, env.actuated], c, goal, weight, np.sqrt(action_cost), env.action_limit)


def fed_back(env: PowerGrid, oracle: LinearOracle) -> Callable[[int], np.ndarray]:
    return lambda t: _on_nodes(env, oracle.act(t, env._observation().T.reshape(-1)))


def two_plans(env: PowerGrid, oracle: LinearOracle, feedback: int) -> Callable[[int], np.ndarray]:
    plan: list[np.ndarray] = []

    def act(t: int) -> np.ndarray:
        if t % feedback == 0:
            plan[:] = oracle.plan(t, env._observation().T.reshape(-1))
        return _on_nodes(env, plan[t % feedback])

    return act


def _on_nodes(env: PowerGrid, controls: np.ndarray) -> np.ndarray:
    actions = np.zeros((env.graph.num_nodes, 1))
    actions[env.actuated, 0] = controls
    return actions


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
        [case, str(found["nodes"]), str(found["generators"]), f"{100 * found['rms_at_start']:.1f}%"]
        + [f"{m['error']:.3f} ({m['cost']:.2f})" for m in found["methods"].values()]
        for case, found in summary["cases"].items()
    ]
    lines = [" | ".join(row) for row in (head, ["---"] * len(head), *rows)]
    seeds = max(found["seeds"] for found in summary["cases"].values())
    about = (
        "# Real grids\n\nControl error |V_M - 1| / |V_0 - 1| and, in brackets, cost over 100 steps: means over "
        f"{seeds} stresses of each grid. The model was trained on random sparse graphs of 30-100 nodes and adapted to "
        "8 episodes of 100 steps.\n`python -m gce.reproduce.studies.real_grids --out results` makes this table.\n\n"
    )
    return about + "\n".join(f"| {line} |" for line in lines) + "\n"


if __name__ == "__main__":
    run_module(RealGrids)
