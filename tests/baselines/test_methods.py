"""What is true of one baseline and not of the others."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

import gce.baselines.controller as room
from gce.baselines import BaselineController, adapt, train
from gce.baselines.base import configure
from gce.baselines.cko import Cko, CkoConfig, fitted, rolled_out
from gce.baselines.gns import Gns, GnsConfig
from gce.baselines.graph_ode import GraphOde, GraphOdeConfig
from gce.baselines.koopman import RelationBlocks
from gce.baselines.kpm import Kpm, KpmConfig
from gce.baselines.padded import Normal, PaddedConfig
from gce.baselines.pcc import Pcc, PccConfig
from gce.baselines.vae import Vae
from gce.control.problem import Problem
from gce.envs import world_named
from gce.features.base import StateShape
from gce.graphs.graph import Graph, ring
from gce.graphs.topology import Topology
from gce.operators.regression import Moments, solve
from gce.training.batches import Recorded
from gce.trajectory import Dataset, Episode
from small import recorded, system_episodes


def linear_episodes(count: int = 4, steps: int = 40) -> list[Episode]:
    """o_i' = S o_i + sum over neighbours T o_j + b a_i + k on a ring: what KPM can express."""
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(5, ring(5), undirected=True)
    graph = Graph(
        graph.edge_index,
        (graph.senders == graph.receivers).astype(np.int64),
        graph.node_type,
        graph.node_attributes,
        graph.edge_attributes,
    )
    S, T, b = np.array([[0.7, 0.1], [-0.2, 0.6]]), np.array([[0.05, 0.02], [-0.03, 0.05]]), np.array([0.3, -0.2])
    neighbours = np.zeros((5, 5))
    neighbours[graph.receivers, graph.senders] = graph.senders != graph.receivers
    episodes = []
    for _ in range(count):
        actions = rng.standard_normal((steps, 5, 1))
        path = [rng.standard_normal((5, 2))]
        for a in actions:
            path.append(path[-1] @ S.T + neighbours @ path[-1] @ T.T + a * b + 0.1)
        episodes.append(Episode(graph, np.array(path), actions))
    return episodes


def test_kpm_is_exact_on_a_linear_system():
    episodes = linear_episodes()
    data = Dataset.from_episodes(episodes, [0] * len(episodes))
    model = Kpm(configure(KpmConfig, data, ridges=(1e-12,)))
    model.set_units(data)
    predicted = adapt(model, episodes[1:]).predict(episodes[0].observations[0], episodes[0].actions)
    assert np.abs(predicted - episodes[0].observations).max() < 1e-5


def test_kpm_features_are_the_observation_and_products():
    model = Kpm(configure(KpmConfig, recorded("rope"), order=2))
    graph = system_episodes()[0].graph
    psi = model.features(torch.tensor([[1.0, 2.0, 3.0, 5.0]] * graph.num_nodes), Topology.of(graph))
    assert psi[0].tolist() == [1, 2, 3, 5, 1, 2, 3, 5, 4, 6, 10, 9, 15, 25]
    soft = Kpm(configure(KpmConfig, recorded("soft"), order=2))
    # Places and velocities of a box are averaged apart: 16 coordinates and the 10 products of 4 means.
    assert soft.blocks.features == 26
    assert soft.averaged == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]


@pytest.mark.parametrize("world", ["rope", "soft", "grid"])
def test_the_assembled_system_is_the_composed_operator(world):
    graph = system_episodes(world)[0].graph
    config, topology = configure(StateShape, recorded(world)), Topology.of(graph)
    blocks = RelationBlocks(config, num_features=3, num_static=2, num_edge=2)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    z, inputs, static = draw(graph.num_nodes, 3 + blocks.carried), draw(graph.num_nodes, 1), draw(graph.num_nodes, 2)
    edge = draw(graph.num_edges, 2)
    X = blocks.regressors(z, inputs, topology, static, edge)
    C = draw(X.shape[-1], 3)
    A, B, c = blocks.assemble(C, topology, static, edge)
    following = torch.cat([X @ C, inputs[:, : blocks.carried]], dim=-1)
    assert torch.allclose(following.flatten(), A @ z.flatten() + B @ inputs.flatten() + c)


def test_relations_that_a_graph_lacks_change_nothing():
    """The fit on the regressors in use is ridge regression on all of them."""
    graph = system_episodes("rope")[0].graph
    config, topology = configure(StateShape, recorded("rope")), Topology.of(graph)
    blocks = RelationBlocks(config, num_features=3)
    generator = torch.Generator().manual_seed(0)
    z, inputs, psi = (torch.randn(30, graph.num_nodes, k, generator=generator).double() for k in (3, 1, 3))
    inputs[:, 1:] = 0  # only the first mass acts
    X = blocks.regressors(z, inputs, topology)
    (regression,) = blocks.regressions(X, psi, topology)
    assert 0 < (~regression.used).sum() < len(regression.used)
    penalty = torch.full((X.shape[-1],), 0.1, dtype=torch.float64)
    penalty[-config.num_node_types :] = 0
    expected = solve(Moments.of(X.flatten(0, 1), psi.flatten(0, 1)), penalty).coefficients
    assert torch.allclose(regression.solve(0.1), expected)


def union(world: str, *, shared: bool = False) -> Topology:
    """Two graphs, of two sizes; shared: all relations are one, in which nodes of all types receive."""
    graphs = []
    for objects in ((4, 4), (5, 5)):
        env = world_named(world)(objects=objects)
        env.reset(seed=0)
        graphs.append(env.graph)
    if shared:
        graphs = [dataclasses.replace(g, edge_type=np.zeros_like(g.edge_type)) for g in graphs]
    return Topology.of(graphs)


@pytest.mark.parametrize("world, shared", [("rope", False), ("rope", True), ("soft", False), ("swim", False)])
def test_operators_fitted_by_type_are_those_fitted_at_once(world, shared):
    topology, config = union(world, shared=shared), configure(StateShape, recorded(world))
    blocks = RelationBlocks(config, num_features=3)
    generator = torch.Generator().manual_seed(0)
    sizes = (3 + blocks.carried, 1, 3)
    z, inputs, psi = (torch.randn(30, topology.num_nodes, k, generator=generator).double() for k in sizes)
    X = blocks.regressors(z, inputs, topology)
    whole = [regression.solve(0.1) for regression in blocks.regressions(X, psi, topology)]
    assert all(torch.allclose(*pair) for pair in zip(fitted(blocks, X, psi, topology, 0.1), whole, strict=True))


@pytest.mark.parametrize("world", ["rope", "soft"])
def test_a_rollout_of_all_graphs_at_once_takes_the_composed_steps(world):
    topology, config = union(world), configure(StateShape, recorded(world))
    assert len(set(topology.splits)) == 2  # the smaller one is filled up
    blocks = RelationBlocks(config, num_features=3)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, topology.num_nodes, 3 + blocks.carried, generator=generator)
    inputs = torch.randn(2, 4, topology.num_nodes, 1, generator=generator)
    D = blocks.regressors(z, inputs[:, 0], topology).shape[-1]
    C = [0.1 * torch.randn(D, 3, generator=generator) for _ in topology.splits]
    path = rolled_out(blocks, C, z, inputs, topology)
    for t in range(4):
        rows = blocks.regressors(z, inputs[:, t], topology).split(topology.splits, dim=-2)
        psi = torch.cat([x @ c for x, c in zip(rows, C, strict=True)], dim=-2)
        z = torch.cat([psi, inputs[:, t, :, : blocks.carried]], dim=-1)
        assert torch.allclose(path[:, t], z, atol=1e-5)


def test_cko_adapts_with_the_ridge_that_predicts_its_episodes_best():
    def fitted(*factors):
        torch.manual_seed(0)
        config = configure(CkoConfig, recorded("rope"), features=4, node_width=8, edge_width=4, ridge_factors=factors)
        return Cko(config).fit(system_episodes())

    each = {factor: fitted(factor) for factor in (1.0, 1e3, 1e6)}
    seen = Recorded.of(each[1.0].model, system_episodes())
    best = min(each, key=lambda factor: each[factor].miss(seen.states, seen.inputs))
    assert torch.equal(fitted(*each).A, each[best].A)
    assert not torch.equal(each[1.0].A, each[1e6].A)


def test_kl_and_entropy_agree_with_samples():
    left = Normal(torch.tensor([0.3, -1.0]), torch.tensor([0.1, -0.5]))
    right = Normal(torch.tensor([0.0, 0.5]), torch.tensor([0.4, 0.2]))
    many = Normal(left.mean.expand(200_000, 2), left.logvar.expand(200_000, 2))
    z = many.sample(torch.Generator().manual_seed(0))
    assert torch.isclose(left.divergence(right), (left.log_density(z) - right.log_density(z)).mean(), atol=0.02)
    assert torch.isclose(left.entropy(), -left.log_density(z).mean(), atol=0.02)
    assert left.divergence(left) == 0


def test_the_latent_dynamics_of_vae_have_an_inverse():
    model = Vae(configure(PaddedConfig, recorded("rope"), latent=5, width=16, max_nodes=5)).double()
    with torch.no_grad():
        model.transition[-1].weight.mul_(40)  # far from the identity
        z, u = torch.randn(50, 5).double(), torch.randn(50, 5).double()
        v, r, B, c = model.linear(z)
        A = torch.eye(5) + v.unsqueeze(-1) * r.unsqueeze(-2)
        assert (torch.linalg.det(A) > 0.09).all()
        assert (((v * r).sum(-1)).abs() > 0.5).any()
        expected = (A @ z.unsqueeze(-1) + B @ u.unsqueeze(-1)).squeeze(-1) + c
        assert torch.allclose(model.advance(z, u), expected)


def test_curvature_is_zero_where_the_latent_dynamics_are_linear():
    model = Pcc(configure(PccConfig, recorded("rope"), latent=5, width=16, max_nodes=5)).double()
    z, u = torch.randn(8, 5).double(), torch.randn(8, 5).double()
    with torch.no_grad():
        assert (model.bend(z, u, torch.Generator().manual_seed(0)) > 1e-9).all()
    model.transition.net = torch.nn.Linear(10, 10).double()
    with torch.no_grad():
        assert (model.bend(z, u, torch.Generator().manual_seed(0)) < 1e-20).all()


def test_nodes_that_are_not_there_do_not_count():
    model = Vae(configure(PaddedConfig, recorded("rope"), latent=5, width=16, max_nodes=6))
    states = torch.randn(3, 4, 4)
    x = model.padded(states)
    assert x.shape == (3, 6 * 4 + 6)
    assert torch.equal(x[0, 24:], torch.tensor([1.0, 1, 1, 1, 0, 0]))
    present = model.pad(torch.ones_like(states))
    z = torch.randn(3, 5)
    moved = x.clone()
    moved[:, 16:24] = 7.0
    assert torch.equal(model.likelihood(x, z, present), model.likelihood(moved, z, present))


def test_a_large_graph_is_linearised_at_some_rows(monkeypatch):
    episodes = system_episodes("rope")
    small = configure(GraphOdeConfig, recorded("rope"), features=8, node_width=12, edge_width=8)
    adapted = GraphOde(small).double().adapted(episodes[0].graph)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4 * adapted.graph.num_nodes)))
    inputs = torch.zeros(9, adapted.graph.num_nodes, 1).double()
    whole = adapted.slopes(x, inputs)
    monkeypatch.setattr("gce.baselines.trainable.SLOPES", 3 * x.shape[1] * adapted.graph.num_edges)
    for every, some in zip(whole, adapted.slopes(x, inputs), strict=True):
        assert torch.allclose(some, every[[2, 2, 2, 2, 4, 4, 6, 6, 6]])


def test_impulse_responses_plan_as_matrices_do(monkeypatch):
    """On a small system both ways of planning with a linear method find the same actions."""
    episodes = system_episodes("rope")
    adapted = adapt(train("kpm", recorded("rope")), episodes)
    goal = episodes[0].observations[12].astype(float)
    high = np.zeros((len(goal), 1))
    high[0] = 2.0
    problem = Problem(12, goal, -high, high, state_cost=0.1, action_cost=0.01)
    start = episodes[0].observations[0].astype(float)
    plans = []
    for large in (10**6, 0):
        monkeypatch.setattr(room, "LARGE_STATE", large)
        plans.append(BaselineController(adapted, problem).plan(start))
    assert np.allclose(plans[0].actions, plans[1].actions, atol=1e-3)
    assert plans[1].cost == pytest.approx(plans[0].cost, rel=1e-4)
    assert np.allclose(plans[0].observations, plans[1].observations, atol=1e-3)


# ---- DMDc ----


def linear_system(episodes=8, noise=0.0, second=False, seed=0):
    """A stable linear map of three nodes of two coordinates; second: of which only the first is seen."""
    rng = np.random.default_rng(seed)
    A = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0] * 0.95
    B = np.random.default_rng(2).normal(size=(6, 3))
    observed, acted = [], []
    for _ in range(episodes):
        x, u = rng.normal(size=6), rng.normal(size=(30, 3))
        path = [x, *(x := A @ x + B @ a for a in u)]
        seen = np.stack(path).reshape(31, 3, 2) + noise * rng.normal(size=(31, 3, 2))
        observed.append(seen[..., :1] if second else seen)
        acted.append(u[..., None])
    return Dataset.from_arrays(observed, acted, np.array([[0, 1], [1, 2]]))


def test_dmdc_finds_a_linear_system_and_its_matrices():
    data = linear_system()
    adapted = adapt(train("dmdc", data), [data[k] for k in range(1, 8)])
    assert adapted.history == 1 and adapted.ridge == 1e-8
    predicted = adapted.predict(data[0].observations[0], data[0].actions)
    assert np.allclose(predicted, data[0].observations, atol=1e-4)


def test_dmdc_takes_a_larger_ridge_where_rollouts_ask_for_it():
    noisy = linear_system(episodes=3, noise=1.0)
    assert adapt(train("dmdc", noisy), list(noisy)).ridge > 1e-4


def test_dmdc_remembers_where_the_past_tells_more():
    half = linear_system(episodes=40, second=True)
    adapted = adapt(train("dmdc", half), list(half))
    assert adapted.history == 2
    x = adapted.start(half[0].observations[0])
    assert x.unflatten(-1, (3, 2))[:, 0].tolist() == x.unflatten(-1, (3, 2))[:, 1].tolist()


def test_dmdc_adapts_to_a_single_episode():
    data = linear_system(episodes=3)
    adapted = adapt(train("dmdc", data), [data[1]])
    predicted = adapted.predict(data[0].observations[0], data[0].actions)
    assert np.abs(predicted - data[0].observations).max() < 0.1


# ---- GNS ----


def even(rate: float, seed: int, episodes: int = 9) -> Dataset:
    """Levels on a ring that even out at a rate, and are pumped."""
    rng, ring = np.random.default_rng(seed), np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    observed, acted = [], []
    for _ in range(episodes):
        x, u = rng.normal(size=4), 0.3 * rng.normal(size=(20, 4))
        path = [x, *(x := x + rate * (np.roll(x, 1) + np.roll(x, -1) - 2 * x) + a for a in u)]
        observed.append(np.stack(path)[..., None])
        acted.append(u[..., None])
    return Dataset.from_arrays(observed, acted, ring, undirected=True)


def test_gns_learns_to_predict_and_tuning_helps_on_another_system():
    short = {"iterations": 200, "validate_every": 200, "horizons": (2, 4)}
    model = train("gns", even(0.2, 0), model={"width": 16}, schedule=short, validation_systems=1)
    other = even(0.05, 1)
    untuned, tuned = copy.deepcopy(model).double().adapted(other[0].graph), adapt(model, list(other[1:]))

    def error(one, episode):
        return np.abs(one.predict(episode.observations[0], episode.actions) - episode.observations).mean()

    same, still = even(0.2, 2)[0], np.abs(other[0].observations - other[0].observations[0]).mean()
    assert error(untuned, same) < 0.5 * np.abs(same.observations - same.observations[0]).mean()
    assert error(tuned, other[0]) < min(0.9 * error(untuned, other[0]), still)


def test_gns_hears_neighbours_but_not_itself():
    model, graph = Gns(configure(GnsConfig, recorded())), system_episodes()[0].graph
    assert (graph.edge_index[0] == graph.edge_index[1]).any()
    topology = Topology.of(graph)
    state, inputs = torch.randn(graph.num_nodes, 4), torch.randn(graph.num_nodes, 1)
    with torch.no_grad():
        plain = model.advance(state, inputs, topology)
        own = topology.senders == topology.receivers
        without = dataclasses.replace(
            topology,
            senders=topology.senders[~own],
            receivers=topology.receivers[~own],
            edge_type=topology.edge_type[~own],
            edge_attributes=topology.edge_attributes[~own],
        )
        assert torch.equal(plain, model.advance(state, inputs, without))
        alone = dataclasses.replace(topology, senders=topology.receivers)  # every edge is of a node to itself
        assert not torch.allclose(plain, model.advance(state, inputs, alone))
