"""How does noise hurt control of the power grid? Two plans of 100 steps, from noisy observations, on noisy states.

Grids of 100 to 150 nodes that no model has seen, adapted to 8 episodes recorded under the same noises. Noise on the
observations, or on the state at every step, is a share of the fixed units of v and its rate. The error is
|v_M - 1| / |v_0 - 1| on the true v; three rows: doing nothing, the oracle (LQR with the true linear model, clipped),
and ours, with a Kalman filter where observations are noisy. A grid under one noise is a line of noisy_grids.jsonl; the
command given again goes on after the last line.

    python -m gce.reproduce.studies.grid_noise --grids 24 --out results
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gce.envs import PowerGrid
from gce.model.files import load_model, shipped
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller
from gce.planning.observer import Filter
from gce.planning.oracles import LinearOracle, linear_oracle
from gce.progress import progress, run_module
from gce.reproduce.studies.lines import Lines
from gce.system.system import System, adapt
from gce.trajectory import Episode

SEED = 9_000_000
LEVELS = (0.0, 0.02, 0.05, 0.1, 0.2)
CASES = [("observation", level) for level in LEVELS] + [("process", level) for level in LEVELS[1:]]


@dataclass
class GridNoise:
    """Control grids under noise; write one line a grid and noise, and a table."""

    grids: int = 24
    """How many grids."""
    adapt: int = 8
    """Episodes of 100 steps adapted to."""
    feedback: int = 50
    """Plan again after so many steps."""
    out: Path = Path("results")
    """The folder to write to."""

    def __post_init__(self) -> None:
        self._known: dict[bytes, LinearOracle] = {}

    def run(self) -> None:
        import torch

        torch.set_num_threads(1)
        lines = Lines(self.out / "noisy_grids.jsonl")
        known = {tuple(line[name] for name in ("grid", "noise", "level")) for line in lines.records}
        model = load_model(shipped(PowerGrid.usual_model())).requires_grad_(False)
        missing = [(k, *case) for k in range(self.grids) for case in CASES if (k, *case) not in known]
        with progress("controlling grids", self.grids * len(CASES), "runs") as done:
            done(self.grids * len(CASES) - len(missing))
            for k, kind, level in missing:
                lines.add({"grid": k, "noise": kind, "level": level, **self._one(model, k, kind, level)})
                done(1)
                if (kind, level) == CASES[-1]:
                    self._summarise(lines.records)
        self._summarise(lines.records)

    def _one(self, model: Any, k: int, kind: str, level: float) -> dict[str, Any]:
        env = PowerGrid(objects=(100, 150))
        env.reset(seed=SEED + k)
        options = {"parameters": env.parameters, f"{kind}_noise": level}
        episodes = []
        for e in range(self.adapt):
            seed = SEED + 1000 * (k + 1) + e
            env.reset(seed=seed, options=options)
            observations, actions = env.run(env.excitation(np.random.default_rng([seed, 1]), 100), 100)
            episodes.append(Episode(env.graph, observations, actions))
        system = adapt(model, episodes, measure=False)
        seed = SEED + 1000 * (k + 1) + 999
        env.reset(seed=seed, options=options)
        return {
            "nodes": env.graph.num_nodes,
            "ours": self._ours(env, system, kind, level),
            "oracle": self._oracle(env, seed, options),
            "nothing": self._nothing(env, seed, options),
        }

    def _ours(self, env: PowerGrid, system: System, kind: str, level: float) -> dict[str, Any]:
        goal = np.tile([1.0, 0.0], (env.graph.num_nodes, 1))
        problem = problem_for(env, goal, env.recipe.protocol)
        observer = None
        if kind == "observation" and level:
            noise = level * env.observation_std
            observer = partial(Filter.opened, system, controls=problem.controls, noise=noise)
        run = control(env, Controller(system, problem), self.feedback, observer=observer)
        found = figures(env, run)
        return {"error": found["voltage_error"], "cost": found["cost"], "status": found["status"]}

    def _oracle(self, env: PowerGrid, seed: int, options: dict[str, Any]) -> dict[str, Any]:
        env.reset(seed=seed, options=options)
        oracle, where = self._oracle_of(env), np.flatnonzero(env.actuated)
        start, cost, plan = env._observation(), 0.0, np.empty((0, len(where)))
        for t in range(env.recipe.protocol.horizon):
            if t % self.feedback == 0:
                plan = oracle.plan(t, env.observe().T.reshape(-1))
            action = np.zeros((env.graph.num_nodes, 1))
            action[where, 0] = plan[t % self.feedback]
            env._advance(action)
            cost += env.stage_cost(env._observation(), None, action)
        return {"error": _error(start, env._observation()), "cost": cost}

    def _oracle_of(self, env: PowerGrid) -> LinearOracle:
        """Of the last grid asked for, kept: it is the same under all noises."""
        key = np.asarray(env.parameters.stress).tobytes()
        if key not in self._known:
            self._known.clear()
            protocol, n = env.recipe.protocol, env.graph.num_nodes
            A, B, c = env.linearised()
            weight = np.zeros((protocol.horizon, 2 * n))
            weight[:, :n] = np.sqrt(protocol.state_cost)
            weight[-1, :n] = np.sqrt(protocol.state_cost + protocol.terminal_cost)
            goal = np.concatenate([np.ones(n), np.zeros(n)])
            effort, where = np.sqrt(protocol.action_cost), np.flatnonzero(env.actuated)
            self._known[key] = linear_oracle(A, B[:, where], c, goal, weight, effort, env.action_limit)
        return self._known[key]

    def _nothing(self, env: PowerGrid, seed: int, options: dict[str, Any]) -> dict[str, Any]:
        env.reset(seed=seed, options=options)
        start, cost, still = env._observation(), 0.0, np.zeros((env.graph.num_nodes, 1))
        for _ in range(env.recipe.protocol.horizon):
            env._advance(still)
            cost += env.stage_cost(env._observation(), None, still)
        return {"error": _error(start, env._observation()), "cost": cost}

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
        (self.out / "noisy_grids.json").write_text(json.dumps(table, indent=2) + "\n")


def _error(first: np.ndarray, last: np.ndarray) -> float:
    return float(np.linalg.norm(last[:, 0] - 1) / np.linalg.norm(first[:, 0] - 1))


if __name__ == "__main__":
    run_module(GridNoise)
