"""A linear stochastic system on a ring, whose operators and noise are known."""

import numpy as np

from gce.graphs.graph import Graph, ring
from gce.trajectory import Episode

NOISE = 0.05
NODES = 8
P, Q = np.array([[0.7, 0.2], [-0.2, 0.7]]), np.array([[0.1, 0.0], [0.05, 0.1]])
PUSH = np.array([[0.3, 0.5]])


def linear_episodes(count: int, seed: int, exogenous: bool = False, steps: int = 5) -> list[Episode]:
    """x_i' = P x_i + Q (sum of both neighbours) + B a_i + E e_i + noise on a ring."""
    rng = np.random.default_rng(seed)
    graph = Graph.from_edges(NODES, ring(NODES), undirected=True)
    made = []
    for _ in range(count):
        actions, known = rng.normal(size=(steps, NODES, 1)), rng.normal(size=(steps, NODES, 1))
        x = [rng.normal(size=(NODES, 2))]
        for t in range(steps):
            mean = linear_step(x[-1], actions[t], known[t] if exogenous else None)
            x.append(mean + NOISE * rng.normal(size=mean.shape))
        made.append(Episode(graph, np.stack(x), actions, known if exogenous else None))
    return made


def linear_step(x: np.ndarray, a: np.ndarray, e: np.ndarray | None = None) -> np.ndarray:
    neighbours = np.roll(x, 1, axis=0) + np.roll(x, -1, axis=0)
    return x @ P.T + neighbours @ Q.T + a @ PUSH + (0 if e is None else e @ np.array([[0.4, 0.0]]))
