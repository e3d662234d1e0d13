"""Operators of single pairs, eliminated, are those of one regression with a column for every pair."""

import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.graphs.graph import Graph, erdos_renyi
from gce.graphs.topology import Topology
from gce.operators import Shape, make_form
from gce.operators.regression import Moments, Regression, solve
from gce.potentials import gibbs_weights, make_potential

F, A, M, ROWS, RIDGE = 3, 2, 2, 40, 0.03
SHAPE = Shape(F, A, num_relations=3, num_node_types=2)


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def graph_of(nodes: int = 6, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    pairs = erdos_renyi(nodes, 0.4, rng)
    kinds = rng.integers(0, 2, len(pairs))
    return Graph.from_edges(nodes, pairs, edge_type=kinds, undirected=True, self_type=2, node_type=np.arange(nodes) % 2)


def rows_of(form, psi, actions, topology):
    weights = gibbs_weights(make_potential("gaussian", F, 2.0), psi, topology) if form.weighted else None
    return form.regressors(psi, actions, weights, topology)


def fitted(name, topology, psi, actions, Y, joint=True, acting=None, systems=1):
    form = make_form(name, SHAPE, own_block=False)
    regression = Regression(form, torch.zeros(2, M, dtype=torch.bool), acting=acting)
    sums = regression.sums(rows_of(form, psi, actions, topology), Y, topology, systems=systems)
    return regression.fit_all(sums, topology, RIDGE, joint)


def near_of(topology, name):
    near = torch.ones(topology.num_nodes, topology.num_nodes, dtype=torch.bool)
    if name.endswith("edges"):
        near[:] = False
        near[topology.receivers, topology.senders] = True
    return near


def explicit(name, topology, psi, actions, Y):
    """One regression with the columns (i, j, action) at node i."""
    form = make_form(name, SHAPE, own_block=False)
    X, n = rows_of(form, psi, actions, topology), topology.num_nodes
    history = form.num_state_regressors(topology)
    everyone = actions.transpose(0, 1).flatten(1)
    table = torch.zeros(n, ROWS, n, n, A, dtype=torch.float64)
    for i in range(n):
        table[i, :, i] = everyone.unflatten(1, (n, A)) * near_of(topology, name)[i, None, :, None]
    X = torch.cat([X[..., :history], table.flatten(2), X[..., history + A :]], dim=-1)
    penalty = torch.full((X.shape[-1],), RIDGE, dtype=torch.float64)
    penalty[-2:] = 0
    C = solve(Moments.of(X.flatten(0, 1), Y.flatten(0, 1)), penalty).coefficients
    return C[:history], C[history:-2].unflatten(0, (n, n * A)), C[-2:]


@pytest.mark.parametrize("name", ["hom_mean_pairs", "hom_mean_edges", "hom_pairs", "hom_edges"])
def test_elimination_is_one_large_regression(name):
    topology = Topology.of(graph_of())
    psi, actions, Y = draws(6, ROWS, F), draws(6, ROWS, A, seed=1), draws(6, ROWS, M, seed=2)
    (operator,) = fitted(name, topology, psi, actions, Y)
    C, B, constants = explicit(name, topology, psi, actions, Y)
    torch.testing.assert_close(operator.coefficients[: len(C)], C, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(operator.pairs.operators, B, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(operator.coefficients[-2:], constants, rtol=1e-8, atol=1e-10)
    assert not operator.coefficients[len(C) : len(C) + A].any()


@pytest.mark.parametrize("name", ["hom_mean_pairs", "hom_mean_edges"])
def test_graphs_of_a_union_and_systems_of_a_batch_have_their_own(name):
    graphs = [graph_of(5, 1), graph_of(7, 2)]
    psi, actions, Y = draws(12, ROWS, F), draws(12, ROWS, A, seed=1), draws(12, ROWS, M, seed=2)
    together = fitted(name, Topology.of(graphs), psi, actions, Y)
    for operator, graph, part in zip(together, graphs, (slice(0, 5), slice(5, 12)), strict=True):
        (alone,) = fitted(name, Topology.of(graph), psi[part], actions[part], Y[part])
        torch.testing.assert_close(operator.pairs.operators, alone.pairs.operators)
        torch.testing.assert_close(operator.coefficients, alone.coefficients)
    topology, half = Topology.of(graphs[0]), slice(0, ROWS // 2)
    both = fitted(name, topology, psi[:5], actions[:5], Y[:5], systems=2)
    (first,) = fitted(name, topology, psi[:5, half], actions[:5, half], Y[:5, half])
    torch.testing.assert_close(both[0].pairs.operators, first.pairs.operators)


def test_inputs_that_no_node_of_a_type_has_need_no_columns():
    topology = Topology.of(graph_of())
    psi, actions, Y = draws(6, ROWS, F), draws(6, ROWS, A, seed=1), draws(6, ROWS, M, seed=2)
    acting = torch.tensor([[True, False], [False, False]])
    actions = actions * acting[topology.node_type].unsqueeze(1)
    (whole,), (some,) = (fitted("hom_mean_pairs", topology, psi, actions, Y, acting=a) for a in (None, acting))
    assert some.pairs.columns.tolist() == [0, 4, 8] and len(whole.pairs.columns) == 12
    torch.testing.assert_close(some.coefficients, whole.coefficients)
    torch.testing.assert_close(some.pairs.push(actions), whole.pairs.push(actions))


def test_neighbour_by_neighbour_each_action_is_regressed_alone():
    """C_{O^i|A^j} = C_{O^i A^j} (C_{A^j A^j} + ridge)^-1, and C on the mean field alone (appendix)."""
    topology = Topology.of(graph_of())
    psi, actions, Y = draws(6, ROWS, F), draws(6, ROWS, A, seed=1), draws(6, ROWS, M, seed=2)
    (operator,) = fitted("hom_mean_pairs", topology, psi, actions, Y, joint=False)
    form = make_form("hom_mean_pairs", SHAPE, own_block=False)
    field = rows_of(form, psi, actions, topology)[..., :F].flatten(0, 1)
    expected = torch.linalg.solve(
        field.T @ field / len(field) + RIDGE * torch.eye(F), field.T @ Y.flatten(0, 1) / len(field)
    )
    torch.testing.assert_close(operator.coefficients[:F], expected, rtol=1e-8, atol=1e-10)
    for i, j in ((0, 0), (2, 5), (4, 1)):
        a = actions[j]
        expected = torch.linalg.solve(a.T @ a / ROWS + RIDGE * torch.eye(A), a.T @ Y[i] / ROWS)
        torch.testing.assert_close(operator.pairs.operators[i, j * A : (j + 1) * A], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["dense", "hom_average"])
def test_neighbour_by_neighbour_each_history_is_regressed_alone(name):
    topology = Topology.of(graph_of())
    psi, actions, Y = draws(6, ROWS, F), draws(6, ROWS, A, seed=1), draws(6, ROWS, M, seed=2)
    (operator,) = fitted(name, topology, psi, actions, Y, joint=False)
    C = operator.coefficients
    width, degree = topology.max_degree * F, topology.max_degree
    for edge in (0, 3, 7):
        i, j, k = (int(part[edge]) for part in (topology.receivers, topology.senders, topology.slots))
        target = Y.mean(0) if name == "hom_average" else Y[i]
        x, a = psi[j], actions[j]
        expected = torch.linalg.solve(x.T @ x / ROWS + RIDGE * torch.eye(F), x.T @ target / ROWS)
        torch.testing.assert_close(C[i, k * F : (k + 1) * F], expected, rtol=1e-8, atol=1e-10)
        expected = torch.linalg.solve(a.T @ a / ROWS + RIDGE * torch.eye(A), a.T @ Y[i] / ROWS)
        torch.testing.assert_close(C[i, width + k * A : width + (k + 1) * A], expected, rtol=1e-8, atol=1e-10)
    assert degree > 1


def test_sums_of_pairs_add_up():
    topology = Topology.of(graph_of())
    psi, actions, Y = draws(6, ROWS, F), draws(6, ROWS, A, seed=1), draws(6, ROWS, M, seed=2)
    form = make_form("hom_mean_edges", SHAPE, own_block=False)
    regression = Regression(form, torch.zeros(2, M, dtype=torch.bool))
    X = rows_of(form, psi, actions, topology)
    (early,), (late,), (whole,) = (
        regression.sums(X[:, s], Y[:, s], topology) for s in (slice(15), slice(15, None), slice(None))
    )
    one, all_at_once = (regression.fit(s, topology, RIDGE) for s in (early + late, whole))
    torch.testing.assert_close(one.pairs.operators, all_at_once.pairs.operators)
    again = regression.fit(whole - late, topology, RIDGE)
    torch.testing.assert_close(again.pairs.operators, regression.fit(early, topology, RIDGE).pairs.operators)


def test_held_targets_do_not_go_with_pairs():
    topology, form = Topology.of(graph_of()), make_form("hom_mean_pairs", SHAPE, own_block=False)
    held = torch.tensor([[True, False], [False, False]])
    X = rows_of(form, draws(6, ROWS, F), draws(6, ROWS, A, seed=1), topology)
    with pytest.raises(InputError, match="none is held"):
        Regression(form, held).sums(X, draws(6, ROWS, M), topology)
