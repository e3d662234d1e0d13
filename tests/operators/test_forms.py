import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.graphs.graph import Graph, erdos_renyi, ring
from gce.graphs.topology import Topology
from gce.model.files import load_model, save_model
from gce.operators import FORMS, PAPER_FORMS, Form, Shape, make_form, register_form
from gce.operators.regression import Moments, moments_of, solve
from gce.potentials import gibbs_weights, make_potential
from gce.system.stability import certificate
from gce.system.system import adapt
from gce.views.report.details import operator_spectrum
from small import system_episodes, untrained

F, A = 3, 2


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mixed_graph(nodes: int = 6, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    pairs = erdos_renyi(nodes, 0.4, rng)
    kinds = rng.integers(0, 2, len(pairs))
    return Graph.from_edges(nodes, pairs, edge_type=kinds, undirected=True, self_type=2, node_type=np.arange(nodes) % 2)


def regressors(form, psi, actions, topology):
    weights = gibbs_weights(make_potential("gaussian", F, 2.0), psi, topology) if form.weighted else None
    return form.regressors(psi, actions, weights, topology)


def penalty(form, topology, ridge: float) -> torch.Tensor:
    D = form.num_regressors(topology)
    found = torch.full((D,), ridge, dtype=torch.float64)
    found[D - form.num_constants(topology) :] = 0
    return found


@pytest.mark.parametrize("own_block", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_regressors_are_as_many_as_the_form_says(name, own_block):
    topology = Topology.of(mixed_graph())
    form = make_form(name, Shape(F, A, num_relations=3, num_node_types=2), own_block)
    X = regressors(form, draws(6, 5, F), draws(6, 5, A, seed=1), topology)
    assert X.shape == (6, 5, form.num_regressors(topology))
    constants = torch.zeros if form.averaged else torch.ones
    assert torch.equal(X[..., X.shape[-1] - form.num_constants(topology) :].sum(-1), constants(6, 5).double())


@pytest.mark.parametrize("name", [name for name in FORMS if FORMS[name].controllable])
def test_history_comes_first_and_actions_enter_linearly_after_it(name):
    topology = Topology.of(mixed_graph())
    form = make_form(name, Shape(F, A, 3, 2))
    psi, a, b = draws(6, F), draws(6, A, seed=1), draws(6, A, seed=2)
    at = [regressors(form, psi, actions, topology) for actions in (0 * a, a, b, a + b)]
    assert torch.allclose(at[3] - at[0], at[1] + at[2] - 2 * at[0], atol=1e-13)
    changed = (at[1] != at[0]).any(0).nonzero().flatten()
    assert changed.min() >= form.num_state_regressors(topology)
    assert changed.max() < form.num_regressors(topology) - form.num_constants(topology)


def test_only_the_tensor_form_entangles_history_and_action():
    assert [name for name, form in FORMS.items() if not form.controllable] == ["tensor"]


def test_literal_hom_mean_on_a_regular_graph_is_hom_with_another_ridge():
    """One relation, constant weights 1/d: the mean is the sum over d, so ridge on means is d^2 ridge on sums."""
    topology = Topology.of(Graph.from_edges(7, ring(7), undirected=True, self_type=0))
    degree, ridge, shape = 3, 0.05, Shape(F, A, 1, 1)
    psi, actions, Y = draws(7, 20, F), draws(7, 20, A, seed=1), draws(7, 20, 2, seed=2)
    mean, total = make_form("hom_mean", shape, own_block=False), make_form("hom", shape)
    even = gibbs_weights(make_potential("constant", F), psi, topology)
    X_mean, X_total = mean.regressors(psi, actions, even, topology), total.regressors(psi, actions, None, topology)
    assert torch.allclose(X_total[..., :F], degree * X_mean[..., :F], atol=1e-13)
    scaled = penalty(total, topology, ridge)
    scaled[:F] *= degree**2
    (moments_mean,), (moments_total,) = moments_of(mean, X_mean, Y, topology), moments_of(total, X_total, Y, topology)
    C_mean = solve(moments_mean, penalty(mean, topology, ridge)).coefficients
    C_total = solve(moments_total, scaled).coefficients
    assert torch.allclose(X_mean @ C_mean, X_total @ C_total, atol=1e-11)


def test_dense_on_one_node_is_ordinary_ridge():
    topology = Topology.of(Graph.from_edges(1, []))
    form = make_form("dense", Shape(F, A, 1, 1))
    psi, actions, Y = draws(1, 30, F), draws(1, 30, A, seed=1), draws(1, 30, 2, seed=2)
    (moments,) = moments_of(form, regressors(form, psi, actions, topology), Y, topology)
    found = solve(moments, penalty(form, topology, 0.1)).coefficients[0]
    X = torch.cat([psi[0], actions[0], torch.ones(30, 1).double()], dim=1)
    expected = solve(Moments.of(X, Y[0]), torch.tensor([0.1] * (F + A) + [0.0]).double()).coefficients
    assert torch.allclose(found, expected, atol=1e-13)


def test_the_tensor_form_without_actions_is_dense():
    topology, shape = Topology.of(mixed_graph()), Shape(F, 0, 3, 2)
    psi, none = draws(6, 5, F), torch.zeros(6, 5, 0).double()
    tensor, dense = make_form("tensor", shape), make_form("dense", shape)
    assert torch.equal(regressors(tensor, psi, none, topology), regressors(dense, psi, none, topology))


def test_the_tensor_form_at_one_action_is_affine_in_the_features():
    topology, form = Topology.of(mixed_graph()), make_form("tensor", Shape(F, A, 3, 2))
    psi, other, a = draws(6, F), draws(6, F, seed=3), draws(6, A, seed=1)
    middle = (regressors(form, psi, a, topology) + regressors(form, other, a, topology)) / 2
    assert torch.allclose(regressors(form, (psi + other) / 2, a, topology), middle, atol=1e-13)


@pytest.mark.parametrize("name", FORMS)
def test_relabelling_nodes_permutes_predictions(name):
    graph, order = mixed_graph(), np.array([3, 0, 5, 1, 4, 2])
    form = make_form(name, Shape(F, A, 3, 2))
    psi, actions, Y = draws(6, 40, F), draws(6, 40, A, seed=1), draws(6, 40, 2, seed=2)

    def predicted(graph: Graph, psi, actions, Y):
        topology = Topology.of(graph)
        X = regressors(form, psi, actions, topology)
        (moments,) = moments_of(form, X, Y, topology)
        C = solve(moments, penalty(form, topology, 0.01)).coefficients
        return X @ C if C.ndim == 2 else torch.einsum("ntd,ndm->ntm", X, C)

    here = predicted(graph.permute(order), psi[order], actions[order], Y[order])
    assert torch.allclose(here, predicted(graph, psi, actions, Y)[order], atol=1e-10)


@pytest.mark.parametrize("name", FORMS)
def test_a_union_of_graphs_has_the_sums_of_each(name):
    graphs = [mixed_graph(5, 1), mixed_graph(7, 2)]
    form, union = make_form(name, Shape(F, A, 3, 2)), Topology.of(graphs)
    psi, actions, Y = draws(12, 40, F), draws(12, 40, A, seed=1), draws(12, 40, 2, seed=2)
    X = regressors(form, psi, actions, union)
    for k, (graph, part) in enumerate(zip(graphs, (slice(0, 5), slice(5, 12)), strict=True)):
        alone = Topology.of(graph)
        X_alone = regressors(form, psi[part], actions[part], alone)
        fits = []
        for topology, rows, moments in (
            (union, X[part], moments_of(form, X, Y, union)[k]),
            (alone, X_alone, moments_of(form, X_alone, Y[part], alone)[0]),
        ):
            C = solve(moments, penalty(form, topology, 0.01)).coefficients
            fits.append(rows @ C if C.ndim == 2 else torch.einsum("ntd,ndm->ntm", rows, C))
        assert torch.allclose(*fits, atol=1e-10)


def test_what_is_no_form_is_told():
    with pytest.raises(InputError, match="there is no form 'sparse'; there are tensor, dense, hom, hom_mean"):
        make_form("sparse", Shape(F, A, 1, 1))
    with pytest.raises(InputError, match=".gce.register. adds one, or the module given to --plugin"):
        make_form("sparse", Shape(F, A, 1, 1))


@pytest.mark.parametrize("own_block", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_blocks_put_together_are_the_operator(name, own_block):
    topology, form = Topology.of(mixed_graph()), make_form(name, Shape(F, A, 3, 2), own_block)
    psi, actions = draws(6, F), draws(6, A, seed=1)
    C = draws(form.num_regressors(topology), 4, seed=2)
    parts = form.blocks(C, F)
    assert (parts is None) == (not form.shared or form.hyper)  # fields of hyperedges are no sums over neighbours
    if parts is None:
        return
    X = regressors(form, psi, actions, topology)
    if form.weighted:
        weights = gibbs_weights(make_potential("gaussian", F, 2.0), psi, topology)
        fields = [topology.weighted_sum(weights, psi)]
    else:
        fields = [
            topology.sum(topology.sent(psi) * (topology.edge_type == r)[:, None]) for r in range(len(parts.fields))
        ]
    put_together = psi @ parts.own + X[:, form.num_state_regressors(topology) :] @ parts.rest
    put_together = put_together + sum(field @ block for field, block in zip(fields, parts.fields, strict=True))
    assert torch.allclose(X @ C, put_together, atol=1e-12)
    assert bool(parts.own.any()) == (name == "local" or (name.startswith("hom_mean") and own_block))


@pytest.fixture
def table():
    """The forms, put back after a test."""
    known = dict(FORMS)
    yield FORMS
    FORMS.clear()
    FORMS.update(known)


class Summed(Form):
    """A node's own features and the sum of its neighbours', whatever their relation."""

    name, shared = "summed", True

    def num_state_regressors(self, topology):
        return 2 * self.shape.num_features

    def num_regressors(self, topology):
        return 2 * self.shape.num_features + self.shape.num_actions + self.shape.num_node_types

    def state_regressors(self, features, actions, weights, topology):
        return torch.cat([features, topology.sum(topology.sent(features))], dim=-1)

    def action_regressors(self, actions, topology):
        return actions


def test_a_form_of_ones_own_is_a_class_and_a_registration(table, tmp_path):
    assert register_form(Summed) is Summed and "summed" not in PAPER_FORMS
    episodes = system_episodes("rope")
    system = adapt(untrained("rope", form="summed"), episodes[:3])
    assert np.isfinite(system.predict(episodes[3].observations[0], episodes[3].actions[:5])).all()
    with pytest.raises(InputError, match="a certificate needs shared blocks"):
        certificate(system.model, system.operator)
    assert len(operator_spectrum(system, np.ones(system.graph.num_edges))) == 0
    save_model(system.model, tmp_path)
    del table["summed"]
    with pytest.raises(InputError, match="model.json: there is no form 'summed'.*gce.register"):
        load_model(tmp_path)


def test_registration_names_what_a_form_is_missing(table):
    class Undecided(Form):
        name = "undecided"

        def num_regressors(self, topology):
            return 1

    class Taken(Summed):
        name = "hom"

    for cls, words in (
        (Undecided, "Undecided cannot be .* no shared, no action_regressors, no num_state_regressors, no state_reg"),
        (type("Nameless", (Summed,), {}), "Nameless cannot be registered as a form: it has no name"),
        (Taken, "there is a form 'hom' already, HomForm; give Taken another name"),
        (Shape, "Shape cannot be registered as a form: it is not a class derived from gce.operators.forms.Form"),
    ):
        with pytest.raises(InputError, match=words):
            register_form(cls)
