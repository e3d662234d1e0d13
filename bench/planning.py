"""Cost of a plan, everything included: linearising, assembling, solving until the projected gradient is 1e-4 of that of
doing nothing.

Rope (9 masses, 40 steps) and Soft (9 boxes, 64 steps, 4 of them actuated) are adapted systems and goals that recorded
actions reach; the same problem is timed through a modelling layer (cvxpy) with the states as variables, in the same
run. Grids run in a process of their own, for its peak memory; the operator is adapted to a small grid of the same kind:
its blocks are shared by all nodes, and a plan costs the same whatever they are. CPU seconds on one thread.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

BODIES: dict[str, dict[str, Any]] = {
    "rope": {"objects": 9, "actuated": 1, "seconds": 0.02},
    "soft": {"objects": 9, "actuated": 4, "seconds": 0.15},
}
GRIDS: dict[str, dict[str, Any]] = {
    "grid of 150": {"topology": "erdos_renyi", "nodes": 150, "generators": 50, "seconds": 2, "megabytes": 500},
    "lattice of 1,000": {"topology": "lattice", "nodes": 1000, "generators": 250},
    "lattice of 10,000": {"topology": "lattice", "nodes": 10_000, "generators": 2500, "seconds": 90, "megabytes": 4000},
}
GROWTH = 13


def bench_planning(goals: int = 3) -> dict[str, Any]:
    found: dict[str, Any] = {name: plan_body(name, goals) for name in BODIES}
    for name, case in GRIDS.items():
        call = [case["topology"], case["nodes"], case["generators"]]
        out = subprocess.run(
            [sys.executable, "-m", "bench.planning", json.dumps(call)], capture_output=True, text=True, check=True
        )
        limits = {f"most_{what}": case[what] for what in ("seconds", "megabytes") if what in case}
        found[name] = json.loads(out.stdout.splitlines()[-1]) | limits
    small, large = (found[f"lattice of {size}"]["seconds"] for size in ("1,000", "10,000"))
    found["growth"] = {"ratio": large / small, "most": GROWTH}
    return found


# ---- Rope and Soft ----


def plan_body(world: str, goals: int) -> dict[str, Any]:
    """Means over a few systems and goals: plan seconds, of a first plan and of one more; how many times a plan cvxpy
    takes."""
    import torch

    from gce.planning.closed_loop import problem_for
    from gce.planning.controller import Controller

    torch.set_num_threads(1)
    first, again, theirs, turns, costs = [], [], [], [], []
    for k in range(goals):
        env, system, goal = body_system(world, BODIES[world]["objects"], BODIES[world]["actuated"], k)
        controller = Controller(system, problem_for(env, goal, env.recipe.protocol))
        plan = controller.plan(env.observe(), opening=True)
        first.append(plan.seconds)
        again.append(min(controller.plan(env.observe(), opening=True).seconds for _ in range(3)))
        turns.append(plan.iterations)
        seconds, cost = through_cvxpy(controller, env.observe())
        theirs.append(seconds)
        costs.append(cost / plan.cost)
    return {
        "first_seconds": float(np.mean(first)),
        "seconds": float(np.mean(again)),
        "most_seconds": BODIES[world]["seconds"],
        "turns": float(np.mean(turns)),
        "cvxpy_seconds": float(np.mean(theirs)),
        "ratio": float(np.mean(theirs) / np.mean(again)),
        "cost_ratio": float(np.mean(costs)),
    }


def body_system(world: str, objects: int, actuated: int, seed: int) -> tuple[Any, Any, Any]:
    """(environment at its start, adapted system, goal) with so many objects, so many of them actuated."""
    from gce.envs import world_named
    from gce.model.files import load_model, shipped
    from gce.system.system import adapt
    from gce.trajectory import Episode

    env = world_named(world)(objects=objects)
    tries = 100 * seed
    env.reset(seed=tries)
    while int(env.actuated.sum()) != actuated:
        tries += 1
        env.reset(seed=tries)
    parameters, episodes = env.parameters, []
    for k in range(9):
        env.reset(seed=tries + k, options={"parameters": parameters})
        observations, actions = env.run(env.excitation(np.random.default_rng([tries, k]), 100), 100)
        episodes.append(Episode(env.graph, observations, actions))
    goal = episodes[0].observations[env.recipe.protocol.horizon].astype(float)
    env.reset(seed=tries, options={"parameters": parameters, "goal": goal})
    return env, adapt(load_model(shipped(world)).requires_grad_(False), episodes[1:], measure=False), goal


def through_cvxpy(controller: Any, observation: np.ndarray) -> tuple[float, float]:
    """(seconds, cost) of the same plan with each quadratic problem handed to a modelling layer."""
    from gce.control.settle import settle
    from gce.planning.controller import dynamics_of, task_of

    system, problem = controller.system, controller.problem
    dynamics = dynamics_of(system, problem.controls, opening=True)
    x0 = dynamics.reduced(system.state(observation, True))
    start = time.process_time()
    task = task_of(system.model, dynamics, problem, 0, np.zeros(int(problem.controls.sum())))
    settled = settle(dynamics, task, x0, np.zeros_like(task.w), solve_cvxpy)
    return time.process_time() - start, settled.cost


def solve_cvxpy(problem: Any, u: np.ndarray) -> tuple[np.ndarray, str]:
    """States and controls as variables, the dynamics as constraints."""
    import cvxpy as cp

    from gce.control.tracking import dense

    path, limits = problem.path, problem.limits
    M, s, n = path.B.shape
    E = dense(problem.E, M)
    x, v = cp.Variable((M + 1, s)), cp.Variable((M, n))
    held = [x[0] == path.x0, v >= limits.low, v <= limits.high]
    held += [x[t + 1] == path.A[t] @ x[t] + path.B[t] @ v[t] + path.c[t] for t in range(M)]
    cost = cp.sum_squares(cp.multiply(problem.w, v) - problem.v)
    cost += sum(cp.sum_squares(E[t] @ x[t + 1] - problem.e[t]) for t in range(M))
    cp.Problem(cp.Minimize(cost), held).solve(solver=cp.CLARABEL)
    return limits.nearest(np.asarray(v.value)), "solved"


# ---- grids ----


def plan_grid(topology: str, nodes: int, generators: int) -> dict[str, Any]:
    """One plan of 100 steps towards v = 1."""
    import torch

    from gce.planning.closed_loop import problem_for
    from gce.planning.controller import Controller

    torch.set_num_threads(1)
    env, system = grid_system(topology, nodes)
    problem = problem_for(env, env.default_goal(nodes), env.recipe.protocol)
    planned = np.flatnonzero(problem.controls[:, 0])[:generators]
    kept = np.zeros((nodes, 1), bool)
    kept[planned] = True
    problem = replace(problem, low=np.where(kept, problem.low, 0.0), high=np.where(kept, problem.high, 0.0))
    controller = Controller(system, problem)
    first, again = (controller.plan(env.observe(), opening=True) for _ in range(2))
    return {
        "seconds": first.seconds,
        "again_seconds": again.seconds,
        "megabytes": peak_megabytes(),
        "status": first.status,
        "gradient": first.gradient,
        "generators": len(planned),
    }


def peak_megabytes() -> float:
    """Of this process alone: on Linux `ru_maxrss` begins with what the process that started it held."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def grid_system(topology: str, nodes: int, seed: int = 1) -> tuple[Any, Any]:
    """(environment of that size, a system on it under blocks adapted to a small one)."""
    from gce.envs.grid import PowerGrid
    from gce.model.files import load_model, shipped
    from gce.system.system import adapt
    from gce.trajectory import Episode

    small = PowerGrid(min(nodes, 150), topology=topology)
    episodes = []
    for k in range(3):
        small.reset(seed=seed + k, options={} if k == 0 else {"parameters": small.parameters})
        observations, actions = small.run(small.excitation(np.random.default_rng(k), 30), 30)
        episodes.append(Episode(small.graph, observations, actions))
    system = adapt(load_model(shipped("grid")), episodes, measure=False)
    env = PowerGrid(nodes, topology=topology)
    env.reset(seed=seed)
    return env, replace(system, graph=env.graph, operator=replace(system.operator, constants=None))


if __name__ == "__main__":
    print(json.dumps(plan_grid(*json.loads(sys.argv[1]))))
