"""A system that nobody wrote physics for: coupled pendulums, by cosine, sine and rate of their angles."""

from functools import cache

import numpy as np

import gce
from gce.training.learning import train

TINY_GENERAL = {"width": 16, "rounds": 2, "channels": 2, "latent": 2}


@cache
def pendulums(systems: int = 4, episodes: int = 6, steps: int = 40) -> gce.Dataset:
    """Pendulums in a row with springs between them; the first is pushed. Each system has its own springs."""
    rng, rows, acted, edges, groups = np.random.default_rng(0), [], [], [], []
    for g in range(systems):
        n, spring, dt = 3 + g % 2, rng.uniform(1, 3), 0.05
        for _ in range(episodes):
            angle, rate = rng.uniform(-1, 1, n), np.zeros(n)
            push = np.repeat(rng.uniform(-3, 3, steps // 8 + 1), 8)[:steps]
            seen = [np.stack([np.cos(angle), np.sin(angle), rate], 1)]
            for t in range(steps):
                for _ in range(10):
                    turn = -4 * np.sin(angle) - 0.2 * rate
                    turn[1:] += spring * np.sin(angle[:-1] - angle[1:])
                    turn[:-1] += spring * np.sin(angle[1:] - angle[:-1])
                    turn[0] += push[t]
                    rate = rate + dt / 10 * turn
                    angle = angle + dt / 10 * rate
                seen.append(np.stack([np.cos(angle), np.sin(angle), rate], 1))
            rows.append(np.stack(seen))
            acted.append(np.zeros((steps, n, 1)))
            acted[-1][:, 0, 0] = push
            edges.append(np.stack([np.arange(n - 1), np.arange(1, n)]))
            groups.append(g)
    return gce.Dataset.from_arrays(
        rows, acted, edges, groups=groups, undirected=True, dt=0.05, action_bounds=(-3, 3), actuated=[0]
    )


@cache
def trained():
    return train(pendulums(), iterations=150, model=TINY_GENERAL, tell=lambda now: None)
