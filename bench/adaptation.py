"""A system that changes while it is controlled: with and without adapting to what happens (`gce.run(forget=...)`).

    python -m bench.adaptation [systems]

Ropes of nine masses (seeds 500 on) keep a share of their stiffness and damping from step 10 of 40 on. Real time; the
error at the end over that of doing nothing, which meets the same change; and the error of one step ahead over the last
ten steps, in standard deviations. One thread.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np

from bench.planning import body_system

KEPT = 0.4
FORGET = (None, 0.98, 0.95)


def softened(env: Any) -> None:
    for constraint in env.space.constraints:
        if hasattr(constraint, "stiffness"):
            constraint.stiffness *= KEPT
            constraint.damping *= KEPT


def one(seed: int) -> dict[str, Any]:
    import gce
    from gce.planning.closed_loop import problem_for
    from gce.planning.controller import Controller

    env, system, goal = body_system("rope", 9, 1, seed)
    parameters, at = env.parameters, 10
    found: dict[str, Any] = {"seed": seed}
    problem = problem_for(env, goal, env.recipe.protocol)

    def ended(act: Any) -> float:
        env.reset(seed=100 * seed, options={"parameters": parameters})
        seen, count = env.observe(), iter(range(10**6))

        def step(action: Any) -> Any:
            if next(count) == at:
                softened(env)
            env._advance(action)
            return env._observation()

        act(step, seen)
        return float(np.linalg.norm(env._observation() - goal))

    def idle(step: Any, seen: Any) -> None:
        for _ in range(problem.horizon):
            step(np.zeros_like(problem.low))

    nothing = ended(idle)
    for forget in FORGET:
        ran: list[Any] = []
        controller = Controller(system, problem, mode="realtime")

        def act(step: Any, seen: Any, controller: Any = controller, ran: Any = ran, forget: Any = forget) -> None:
            ran.append(gce.run(step, controller, seen, forget=forget))

        error = ended(act) / nothing
        seen, actions, std = ran[0].observations, ran[0].actions, system.model.arrays.observation_std
        wrong = [
            (ran[0].system.predict(seen[t], actions[t][None], opening=False, before=(seen[t - 1], actions[t - 1]))[1]
             - seen[t + 1]) / std
            for t in range(len(actions) - 10, len(actions))
        ]  # fmt: skip
        found[str(forget)] = {"error": error, "one_step": float(np.sqrt(np.mean(np.square(wrong))))}
    return found


def main() -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    systems = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    runs = []
    for seed in range(500, 500 + systems):
        runs.append(one(seed))
        print(json.dumps(runs[-1]), flush=True)
    for what in ("error", "one_step"):
        means = {str(f): round(float(np.mean([run[str(f)][what] for run in runs])), 4) for f in FORGET}
        print(json.dumps({"n": systems, what: means}), flush=True)


if __name__ == "__main__":
    main()
