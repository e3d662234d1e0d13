"""Real time: what a turn costs, and whether one turn a step is as good as plans that settle.

    python -m bench.realtime time                 one step at the whole horizon, CPU milliseconds, least of several
    python -m bench.realtime quality FILE [n]     errors over doing nothing, a line a run; goes on where FILE ends

Systems are drawn anew (seeds 500 on), nine objects each. kick: a random velocity on all that moves, half a way through;
noise: 2% of the world's units on what is observed, with a Kalman filter. One thread.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.planning import body_system

ACTUATED = {"rope": 1, "soft": 4, "swim": 4}
MODES = {"open": ("settled", 10**6), "settled": ("settled", 1), "realtime": ("realtime", 1)}
KICK, NOISE = 0.5, 0.02


def step_times(world: str, times: int = 12) -> dict[str, Any]:
    """Of one turn at the whole horizon: all, and what lies after the measurement; a plan from nothing."""
    from gce.dynamics.compiled import available
    from gce.planning.closed_loop import problem_for
    from gce.planning.controller import Controller

    env, system, goal = body_system(world, 9, ACTUATED[world], 0)
    controller = Controller(system, problem_for(env, goal, env.recipe.protocol), mode="realtime")
    first = env.observe()
    plans = [controller.plan(first, opening=True) for _ in range(3)]
    turn = controller.begin(first, plans[-1]).prepare(True).feedback(first)
    turns = []
    for _ in range(times):
        turn = turn.prepare(True).feedback(first)
        turns.append((turn.seconds, turn.feedback_seconds))
    whole, after = (1e3 * min(t[k] for t in turns) for k in (0, 1))
    plan = min(plans, key=lambda p: p.seconds)
    return {
        "world": world, "compiled": available(), "step_ms": whole, "feedback_ms": after, "plan_ms": 1e3 * plan.seconds,
        "turns": plan.iterations, "status": plan.status,
    }  # fmt: skip


def blas() -> list[str]:
    from threadpoolctl import threadpool_info

    return sorted({f"{i['internal_api']} {i.get('architecture', '')}".strip() for i in threadpool_info()})


def one(world: str, seed: int, kind: str, mode: str) -> dict[str, Any]:
    from gce.planning.closed_loop import control, problem_for, uncontrolled
    from gce.planning.controller import Controller
    from gce.planning.observer import Filter

    env, system, goal = body_system(world, 9, ACTUATED[world], seed)
    problem = problem_for(env, goal, env.recipe.protocol)
    still = uncontrolled(env, problem.horizon)[-1]
    options = {"parameters": env.parameters, "goal": goal, "observation_noise": NOISE if kind == "noise" else 0.0}
    env.reset(seed=100 * seed, options=options)
    name, feedback = MODES[mode]
    controller, observer = Controller(system, problem, mode=name), None
    if kind == "noise" and mode != "open":
        noise = NOISE * env.observation_std
        observer = partial(Filter.opened, system, controls=problem.controls, noise=noise)
    if kind == "kick":
        kicked(env, problem.horizon // 2, np.random.default_rng(seed))
    begun = time.process_time()
    run = control(env, controller, min(feedback, problem.horizon), observer=observer)
    error, nothing = (float(np.linalg.norm(o - goal)) for o in (run.observations[-1], still))
    return {
        "world": world, "seed": seed, "kind": kind, "mode": mode, "error": error / nothing,
        "statuses": {str(s): k for s, k in run.ran.statuses.items()}, "seconds": time.process_time() - begun,
    }  # fmt: skip


def kicked(env: Any, at: int, rng: np.random.Generator) -> None:
    """The bodies of a pymunk world get another velocity before a step."""
    advance, count = env._advance, iter(range(10**6))

    def step(action: Any) -> None:
        if next(count) == at:
            for body in env.space.bodies:
                if body.body_type == body.DYNAMIC:
                    body.velocity += tuple(KICK * rng.standard_normal(2))
        advance(action)

    env._advance = step


def quality(file: Path, systems: int) -> None:
    done = set()
    if file.exists():
        done = {tuple(json.loads(line)[k] for k in ("world", "seed", "kind", "mode")) for line in file.open()}
    for seed in range(500, 500 + systems):
        for world in ACTUATED:
            for kind in ("plain", "kick", "noise"):
                for mode in MODES:
                    if (world, seed, kind, mode) not in done:
                        with file.open("a") as out:
                            print(json.dumps(one(world, seed, kind, mode)), file=out, flush=True)
    print(summary(file))


def summary(file: Path) -> str:
    """Means over the systems that all modes have, and the ratio of real time to settled plans."""
    rows = [json.loads(line) for line in file.open()]
    lines = ["| world | kind | n | open | settled | real time | ratio |", "|---|---|---|---|---|---|---|"]
    for world in ACTUATED:
        for kind in ("plain", "kick", "noise"):
            of = {
                m: {r["seed"]: r["error"] for r in rows if (r["world"], r["kind"], r["mode"]) == (world, kind, m)}
                for m in MODES
            }
            seeds = sorted(set.intersection(*(set(found) for found in of.values())))
            if seeds:
                means = [float(np.mean([of[m][s] for s in seeds])) for m in MODES]
                cells = " | ".join(f"{mean:.3f}" for mean in means)
                lines.append(f"| {world} | {kind} | {len(seeds)} | {cells} | {means[2] / means[1]:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if sys.argv[1] == "time":
        print(json.dumps({"blas": blas()}))
        for world in ACTUATED:
            print(json.dumps(step_times(world)), flush=True)
    else:
        quality(Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 24)
