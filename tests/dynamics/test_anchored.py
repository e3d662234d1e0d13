"""Dynamics around one state: the model's derivative there, through sparse products."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.control.matrix_free import solve_matrix_free
from gce.control.settle import Task, settle
from gce.control.tracking import ControlLimits
from gce.dynamics.anchored import AnchoredDynamics, coloured, linear, reach
from gce.dynamics.message import around
from gce.envs.grid import PowerGrid
from gce.graphs.graph import Graph, lattice
from gce.graphs.topology import Topology
from gce.planning.closed_loop import problem_for
from gce.planning.controller import Controller, dynamics_of
from gce.planning.oracle import linear_oracle
from gce.system.system import adapt
from small import close, system_episodes, untrained

pytestmark = pytest.mark.filterwarnings("ignore:.*samples for.*regressors")


def small_system(world="grid", **overrides):
    episodes = system_episodes(world)
    return adapt(untrained(world, **overrides), episodes[1:]), episodes


@pytest.mark.parametrize(
    ("world", "overrides"), [("grid", {}), ("rope", {}), ("grid", {"potential": "laplace"}), ("rope", {"history": 2})]
)
def test_it_is_the_derivative_at_the_mean(world, overrides, monkeypatch):
    """Whether a step is known by hand or not."""
    monkeypatch.setattr("gce.dynamics.message.NOISY", np.inf)
    system, _ = small_system(world, **overrides)
    c, N = system.model.config, system.graph.num_nodes
    A, B, constant = system.linearise(torch.zeros(1, N, c.num_state), torch.zeros(1, N, c.num_actions))
    found = linear(system)
    assert close(found.A if isinstance(found.A, np.ndarray) else found.A.toarray(), A[0].detach())
    assert close(found.B.toarray(), B[0].detach())
    assert close(found.c, constant[0].detach())


def test_under_noise_it_is_the_mean_derivative_about_the_mean(monkeypatch):
    monkeypatch.setattr("gce.dynamics.message.NOISY", 0.0)
    system, _ = small_system("grid")
    c, N = system.model.config, system.graph.num_nodes
    states = torch.as_tensor(around(system)).movedim(1, 0)
    assert len(states) > 1
    assert float(states.mean(0).abs().max()) < 1e-6
    A, _, _ = system.linearise(states, torch.zeros(len(states), N, c.num_actions))
    found = linear(system).A
    assert close(found if isinstance(found, np.ndarray) else found.toarray(), A.detach().mean(0))


def test_colours_keep_reaches_apart():
    pairs = lattice(7, 7)
    near = reach(Topology.of(Graph.from_edges(49, np.concatenate([pairs, pairs[:, ::-1]]))), 2)
    colours = coloured(near)
    for colour in range(colours.max() + 1):
        assert (near.toarray()[colours == colour].sum(0) <= 1).all()
    assert near.toarray()[24].sum() == 13  # a diamond of radius 2
    assert colours.max() < 30


def test_products_are_adjoint_and_plans_are_solved():
    system, episodes = small_system()
    actuated = np.any([episode.actions.any((0, 2)) for episode in episodes], axis=0)
    dynamics = AnchoredDynamics(system, actuated[:, None])
    x0 = dynamics.reduced(system.state(episodes[0].observations[0].astype(float), True))
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, (6, int(actuated.sum())))
    along = dynamics.rollout(x0, u)
    path = dynamics.path(x0, along, u)
    w = rng.standard_normal(along.shape)
    assert (path.forward(u, affine=False) * w).sum() == pytest.approx((u * path.adjoint(w)).sum(), rel=1e-9)
    p = dynamics.outputs(along).shape[1]
    limits = ControlLimits(np.full_like(u, -0.3), np.full_like(u, 0.3))
    task = Task(np.full((6, p), 0.2), np.ones((6, p)), np.full_like(u, 0.1), limits)
    assert settle(dynamics, task, x0, u, solve_matrix_free).status == "solved"


def test_large_graphs_are_planned_around_one_state(monkeypatch):
    system, _ = small_system()
    controls = np.ones((system.graph.num_nodes, 1), bool)
    assert not isinstance(dynamics_of(system, controls), AnchoredDynamics)
    monkeypatch.setattr("gce.features.base.MANY_NODES", 2)
    assert isinstance(dynamics_of(system, controls), AnchoredDynamics)


def test_rates_and_soft_limits_hold_on_large_graphs():
    system, _ = small_system()
    env = PowerGrid(64, topology="lattice")
    env.reset(seed=1)
    system = replace(system, graph=env.graph, operator=replace(system.operator, constants=None))
    goal = np.tile([1.0, 0.0], (64, 1))
    protocol = replace(env.recipe.protocol, horizon=12)
    problem = problem_for(env, goal, protocol)
    still = problem_for(env, goal, replace(protocol, state_cost=1e-6, terminal_cost=1e-6))
    band = {"soft_low": goal - [0.01, np.inf], "soft_high": goal + [0.01, np.inf], "soft_cost": 100.0}
    rated = replace(problem, rate=np.full(problem.low.shape, 0.02))

    def planned(problem):
        plan = Controller(system, problem).plan(env.observe(), opening=True)
        return plan, np.diff(plan.actions, axis=0, prepend=0.0)

    free, jumps = planned(problem)
    slow, steps = planned(rated)
    assert free.status == slow.status == "solved"
    assert np.abs(jumps).max() > 0.1
    assert np.abs(steps).max() <= 0.02 + 1e-9
    assert slow.cost > free.cost
    idle, held = planned(still)[0], planned(replace(still, **band))[0]
    assert held.status == "solved"

    def beyond(plan):
        return np.square(np.clip(np.abs(plan.observations[1:, :, 0] - 1) - 0.01, 0, None)).sum()

    assert beyond(held) < 0.9 * beyond(idle)


def test_an_oracle_within_its_limit_reaches_the_least_cost():
    rng = np.random.default_rng(0)
    A, B, c = 0.9 * np.eye(3), rng.standard_normal((3, 2)), 0.1 * rng.standard_normal(3)
    weight, goal, x = np.ones((8, 3)), np.ones(3), rng.standard_normal(3)
    oracle = linear_oracle(A, B, c, goal, weight, 0.5, limit=100.0)
    u = oracle.plan(0, x)

    def cost(u):
        total, at = 0.25 * np.square(u).sum(), x
        for one in u:
            at = A @ at + B @ one + c
            total += np.square(at - goal).sum()
        return total

    assert cost(u) == pytest.approx(oracle.gains.cost(x))
    assert cost(u + 1e-3 * rng.standard_normal(u.shape)) > cost(u)
    assert np.allclose(oracle.plan(3, x)[0], oracle.act(3, x))
    assert np.abs(linear_oracle(A, B, c, goal, weight, 0.5, limit=0.1).plan(0, x)).max() <= 0.1
