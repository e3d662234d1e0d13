"""What a planner that may try its actions on the true simulator reaches: a comparison, never a method.

The cross-entropy method (Rubinstein 1999): draw sequences of actions around a mean, simulate them, move mean and spread
to the best of them, again and again. The budget is rounds x samples simulated episodes. It is a sampler: what it finds
is an upper bound of the best cost, not the best cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gce.control.problem import Problem
from gce.envs import GraphEnv

Array = np.ndarray


@dataclass(frozen=True)
class Budget:
    """rounds x samples episodes are simulated; `kept`: the share of a round that the next one is drawn around."""

    rounds: int = 30
    samples: int = 50
    kept: float = 0.15


@dataclass(frozen=True)
class Found:
    actions: Float[Array, "M nodes a"]
    observations: Float[Array, "M_plus_1 nodes d"]
    cost: float
    episodes: int


def best_on_simulator(
    env: GraphEnv,
    problem: Problem,
    seed: int,
    budget: Budget = Budget(),  # noqa: B008
    start: Float[Array, "M nodes a"] | None = None,
) -> Found:
    """The best actions found for a problem from the start of `env` with `seed`; start: the first mean, 0 by default."""
    rng = np.random.default_rng([seed, 7])
    shape = (problem.horizon, *problem.low.shape)
    mean = np.zeros(shape) if start is None else start.astype(float)
    spread = np.broadcast_to((problem.high - problem.low) / 4, shape).copy()
    best: tuple[float, Array, Array] = (np.inf, mean, np.empty(0))
    for _ in range(budget.rounds):
        drawn = mean + spread * rng.standard_normal((budget.samples, *shape))
        drawn[0] = mean
        drawn = np.clip(drawn, problem.low, problem.high)
        tried = [(_simulate(env, problem, actions, seed), actions) for actions in drawn]
        tried.sort(key=lambda pair: pair[0][0])
        (cost, path), actions = tried[0]
        if cost < best[0]:
            best = (cost, actions, path)
        elite = np.stack([a for _, a in tried[: max(2, round(budget.kept * budget.samples))]])
        mean, spread = elite.mean(0), 0.7 * elite.std(0) + 0.3 * spread * 0.9
    return Found(best[1], best[2], best[0], budget.rounds * budget.samples)


def _simulate(env: GraphEnv, problem: Problem, actions: Array, seed: int) -> tuple[float, Array]:
    env.reset(seed=seed, options={"parameters": env.parameters})
    observations, _ = env.run(lambda t: actions[t], problem.horizon)
    miss = np.square((observations[1:] - problem.goals) / problem.unit).sum((1, 2))
    effort = np.square(actions / problem.action_unit).sum()
    state, terminal, action = (
        float(np.mean(c)) for c in (problem.state_cost, problem.terminal_cost, problem.action_cost)
    )
    return float(state * miss.sum() + terminal * miss[-1] + action * effort), observations
