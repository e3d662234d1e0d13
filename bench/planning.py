"""Cost of a plan on large grids, everything included: linearising, assembling, solving to a gradient of 1e-4.

Each size runs in a process of its own, for its peak memory. The operator is adapted to a small grid of the same kind:
its blocks are shared by all nodes, and a plan costs the same whatever they are.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np

HORIZON = 100
CASES: dict[str, dict[str, Any]] = {
    "grid of 150": {"topology": "erdos_renyi", "nodes": 150, "generators": 50, "seconds": 2, "megabytes": 500},
    "lattice of 1,000": {"topology": "lattice", "nodes": 1000, "generators": 250},
    "lattice of 10,000": {"topology": "lattice", "nodes": 10_000, "generators": 2500, "seconds": 90, "megabytes": 4000},
}
GROWTH = 13


def grid_system(topology: str, nodes: int, seed: int = 1) -> tuple[Any, Any]:
    """(environment of that size, a system on it under blocks adapted to a small one)."""
    from gce.envs.grid import PowerGrid
    from gce.files import load_model, shipped
    from gce.system import adapt
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


def plan_grid(topology: str, nodes: int, generators: int, linear: bool) -> dict[str, Any]:
    """One plan towards v = 1; linear: in feature space instead of around one state."""
    import torch

    from gce.closed_loop import PROTOCOLS, problem_for
    from gce.controller import Controller

    torch.set_num_threads(1)
    env, system = grid_system(topology, nodes)
    if linear:
        model = type(system.model)(replace(system.model.config, reproject=False))
        model.load_state_dict(system.model.state_dict())
        system = replace(system, model=model.eval())
    problem = problem_for(env, np.tile([1.0, 0.0], (nodes, 1)), PROTOCOLS["grid"])
    planned = np.flatnonzero(problem.controls[:, 0])[:generators]
    kept = np.zeros((nodes, 1), bool)
    kept[planned] = True
    problem = replace(problem, low=np.where(kept, problem.low, 0.0), high=np.where(kept, problem.high, 0.0))
    controller = Controller(system, problem, weights="frozen")
    times = []
    for _ in range(2):
        start = time.process_time()
        plan = controller.plan(env.observe(), opening=True)
        times.append(time.process_time() - start)
    return {
        "seconds": times[0],
        "again_seconds": times[1],
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "status": plan.status,
        "gradient": plan.gradient,
        "generators": len(planned),
    }


def bench_planning() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for linear in (False, True):
        for name, case in CASES.items():
            call = [case["topology"], case["nodes"], case["generators"], linear]
            out = subprocess.run(
                [sys.executable, "-m", "bench.planning", json.dumps(call)], capture_output=True, text=True, check=True
            )
            key = f"{name}, in feature space" if linear else name
            limits = {f"most_{what}": case[what] for what in ("seconds", "megabytes") if what in case}
            found[key] = json.loads(out.stdout.splitlines()[-1]) | limits
    for ending in ("", ", in feature space"):
        small, large = (found[f"lattice of {size}{ending}"]["seconds"] for size in ("1,000", "10,000"))
        found[f"growth{ending}"] = {"ratio": large / small, "most": GROWTH}
    found["against cvxpy"] = against_cvxpy()
    return found


def against_cvxpy(nodes: int = 40, horizon: int = 30) -> dict[str, float] | None:
    """The same problem through a modelling layer with the states as variables: seconds and how many times ours."""
    try:
        import cvxpy
    except ImportError:
        return None
    from gce.anchored_dynamics import AnchoredDynamics, linear
    from gce.control.matrix_free import solve_matrix_free
    from gce.control.task import Task
    from gce.control.tracking import Limits

    env, system = grid_system("lattice", nodes)
    dynamics = AnchoredDynamics(system, env.actuated[:, None])
    x0 = dynamics.reduced(system.state(env.observe(), True))
    n, p, known = int(env.actuated.sum()), 2 * nodes, linear(system)
    limits = Limits(np.full((horizon, n), -1.0), np.full((horizon, n), 1.0))
    task = Task(np.zeros((horizon, p)), np.ones((horizon, p)), np.full((horizon, n), 0.1), limits)
    start = time.process_time()
    still = np.zeros((horizon, n))
    problem = task.along(dynamics, x0, dynamics.rollout(x0, still), still)
    ours, _ = solve_matrix_free(problem, still)
    seconds = time.process_time() - start

    start = time.process_time()
    B = known.B.tocsr()[:, np.flatnonzero(env.actuated)]
    u, x = cvxpy.Variable((horizon, n)), cvxpy.Variable((horizon + 1, p))
    held = [x[0] == x0, u >= -1, u <= 1]
    held += [x[t + 1] == known.A @ x[t] + B @ u[t] + known.c for t in range(horizon)]
    best = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x[1:]) + 0.01 * cvxpy.sum_squares(u)), held).solve()
    theirs = time.process_time() - start
    return {
        "seconds": seconds,
        "cvxpy_seconds": theirs,
        "ratio": theirs / seconds,
        "cost_ratio": problem.cost(ours) / best,
    }


if __name__ == "__main__":
    print(json.dumps(plan_grid(*json.loads(sys.argv[1]))))
