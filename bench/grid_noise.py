"""How does noise hurt control of the power grid? Two plans of 100 steps, from noisy observations, on noisy states.

Grids of 100 to 150 nodes that no model has seen, adapted to 8 episodes recorded under the same noises. Noise on the
observations, or on the state at every step, is a share of the fixed units of v and its rate. The error is
|v_M - 1| / |v_0 - 1| on the true v; three rows: doing nothing, the oracle (LQR with the true linear model, clipped),
and ours, with a Kalman filter where observations are noisy. A grid under one noise is a line of noisy_grids.jsonl; the
command given again goes on after the last line.

    python -m bench.grid_noise --grids 24 --out results
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.lines import Lines, write_json
from gce.envs import PowerGrid
from gce.model.files import load_model, shipped
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller
from gce.planning.observer import Filter
from gce.planning.oracle import LinearOracle
from gce.progress import run_module
from gce.reproduce.tasks import doing_nothing, grid_oracle, oracle_plans, record_episode, told_of_grid
from gce.system.system import System, adapt

SEED = 9_000_000
LEVELS = (0.0, 0.02, 0.05, 0.1, 0.2)
CASES = [("observation", level) for level in LEVELS] + [("process", level) for level in LEVELS[1:]]


@dataclass
class NoisyGrids:
    """Control grids under noise; write one line a grid and noise, and a table."""

    grids: int = 24
    """How many grids."""
    adapt: int = 8
    """Episodes of 100 steps adapted to."""
    feedback: int = 50
    """Plan again after so many steps."""
    out: Path = Path("results")
    """The folder to write to."""

    def run(self) -> None:
        lines = Lines(self.out / "noisy_grids.jsonl")
        model = load_model(shipped(PowerGrid.usual_model())).requires_grad_(False)
        asked = [{"grid": k, "noise": kind, "level": level} for k in range(self.grids) for kind, level in CASES]
        lines.fill("controlling grids", asked, partial(self._one, model), self._summarise)

    def _one(self, model: Any, grid: int, noise: str, level: float) -> dict[str, Any]:
        env, first = _grid(grid), SEED + 1000 * (grid + 1)
        options = {"parameters": env.parameters, f"{noise}_noise": level}
        episodes = [record_episode(env, first + e, options) for e in range(self.adapt)]
        system = adapt(model, episodes, measure=False)
        env.reset(seed=first + 999, options=options)
        found = {"nodes": env.graph.num_nodes, "ours": self._ours(env, system)}
        policies = {"oracle": oracle_plans(env, _oracle(grid), self.feedback), "nothing": doing_nothing(env)}
        for name, policy in policies.items():
            env.reset(seed=first + 999, options=options)
            found[name] = told_of_grid(env, *env.run(policy, env.recipe.protocol.horizon, noisy=False))
        return found

    def _ours(self, env: PowerGrid, system: System) -> dict[str, Any]:
        problem = problem_for(env, env.default_goal(env.graph.num_nodes), env.recipe.protocol)
        observer = None
        if env.observation_noise:
            noise = env.observation_noise * env.observation_std
            observer = partial(Filter.opened, system, controls=problem.controls, noise=noise)
        run = control(env, Controller(system, problem), self.feedback, observer=observer)
        found = figures(env, run)
        return {"error": found["voltage_error"], "cost": found["cost"], "status": found["status"]}

    def _summarise(self, done: list[dict[str, Any]]) -> None:
        table = []
        for kind, level in CASES:
            rows = [line for line in done if (line["noise"], line["level"]) == (kind, level)]
            if not rows:
                continue
            means = {
                who: {what: float(np.mean([row[who][what] for row in rows])) for what in ("error", "cost")}
                for who in ("nothing", "oracle", "ours")
            }
            solved = sum(row["ours"]["status"] == "solved" for row in rows)
            ratio = means["ours"]["error"] / means["oracle"]["error"]
            table.append({"noise": kind, "level": level, "n": len(rows), **means, "ratio": ratio, "solved": solved})
        write_json(self.out / "noisy_grids.json", table)


def _grid(number: int) -> PowerGrid:
    env = PowerGrid(objects=(100, 150))
    env.reset(seed=SEED + number)
    return env


@lru_cache(maxsize=1)
def _oracle(grid: int) -> LinearOracle:
    """The same under all noises, which follow each other."""
    return grid_oracle(_grid(grid))


if __name__ == "__main__":
    run_module(NoisyGrids)
