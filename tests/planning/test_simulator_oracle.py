"""The planner that may try its actions on the true simulator."""

import numpy as np

from gce.envs import Protocol, world_named
from gce.planning.closed_loop import problem_for
from gce.planning.simulator_oracle import Budget, best_on_simulator


def test_it_finds_better_actions_than_none_within_bounds():
    env = world_named("rope")(objects=3)
    env.reset(seed=2)
    goal = env.run(env.excitation(np.random.default_rng(0), 8), 8)[0][-1]
    p = env.recipe.protocol
    problem = problem_for(env, goal, Protocol(8, 8, p.state_cost, p.terminal_cost, p.action_cost))
    found = best_on_simulator(env, problem, seed=2, budget=Budget(rounds=4, samples=12))
    nothing = best_on_simulator(env, problem, seed=2, budget=Budget(rounds=1, samples=1))
    assert found.cost < nothing.cost
    assert found.episodes == 48
    assert (np.abs(found.actions) <= problem.high).all()
    env.reset(seed=2, options={"parameters": env.parameters})
    again, _ = env.run(lambda t: found.actions[t], 8)
    np.testing.assert_allclose(again, found.observations, atol=1e-12)
