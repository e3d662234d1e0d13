"""Speed of the power grid's simulator: node-steps per CPU second, one core, load noise included."""

from __future__ import annotations

import time

import numpy as np

from gce.envs.grid import GridBatch, PowerGrid


def bench_grid(batch: int = 64, steps: int = 200, repeats: int = 3) -> dict[str, float]:
    """Random actions on Erdos-Renyi grids of 50-100 nodes: one batch, and a single grid as an environment.

    The best of a few repeats counts, since anything else on the machine only slows a run down. CPU time adds up
    over threads, so extra BLAS threads do not flatter the figure.
    """
    rng = np.random.default_rng(0)
    env = PowerGrid(objects=PowerGrid.object_range)
    grids = [env.draw_parameters(rng, int(rng.integers(50, 101))) for _ in range(batch)]
    together = GridBatch(grids)
    actions = rng.uniform(-0.5, 0.5, (steps, together.num_nodes))
    fastest = np.inf
    for _ in range(repeats):
        together.reset([np.random.default_rng(seed) for seed in range(batch)])
        start = time.process_time()
        together.run(actions)
        fastest = min(fastest, time.process_time() - start)

    env.reset(seed=0, options={"parameters": grids[0]})
    policy = env.excitation(rng, steps)
    alone = np.inf
    for _ in range(repeats):
        start = time.process_time()
        env.run(policy, steps)
        alone = min(alone, time.process_time() - start)
    return {
        "grids": batch,
        "nodes": together.num_nodes,
        "steps": steps,
        "batch_node_steps_per_second": steps * together.num_nodes / fastest,
        "single_node_steps_per_second": steps * grids[0].num_nodes / alone,
    }
