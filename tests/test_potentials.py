from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.graphs.graph import Graph, erdos_renyi
from gce.graphs.topology import Topology
from gce.model.files import load_model, save_model
from gce.potentials import (
    POTENTIALS,
    Gaussian,
    Potential,
    gibbs_weights,
    make_potential,
    mean_field,
    register_potential,
)
from gce.system.system import adapt
from small import system_episodes, untrained


def graph(nodes: int = 7) -> Graph:
    return Graph.from_edges(nodes, erdos_renyi(nodes, 0.4, np.random.default_rng(0)), undirected=True)


def features(nodes: int = 7, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(nodes, 2, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_the_constant_potential_gives_the_mean_of_the_neighbours():
    g, psi = graph(), features()
    topology = Topology.of(g)
    field = mean_field(gibbs_weights(make_potential("constant", 5), psi, topology), psi, topology)
    for node in range(7):
        assert torch.allclose(field[node], psi[g.neighbours(node)].mean(0), atol=1e-6)


@pytest.mark.parametrize("name", POTENTIALS)
def test_weights_are_positive_and_add_up_to_one(name):
    topology, psi = Topology.of(graph()), features()
    weights = gibbs_weights(make_potential(name, 5, 2.0), psi, topology)
    totals = topology.sum(weights)
    assert bool((weights >= 0).all()) and (name == "identity" or bool((weights > 0).all()))
    assert torch.allclose(totals, torch.ones_like(totals), atol=1e-6)


@pytest.mark.parametrize("value", [1e-30, 1e-6, 1e6])
@pytest.mark.parametrize("scale", [1.0, 1e6])
@pytest.mark.parametrize("name", POTENTIALS)
def test_weights_stay_weights_at_extreme_scales(name, scale, value):
    topology, psi = Topology.of(graph()), features(scale=scale)
    value = 3.0 if name == "attention" else value  # a number of heads
    weights = gibbs_weights(make_potential(name, 5, value), psi, topology)
    totals = topology.sum(weights)
    assert torch.allclose(totals, torch.ones_like(totals), atol=1e-6)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_a_tiny_bandwidth_leaves_a_node_to_itself_and_a_huge_one_is_constant(name):
    topology, psi = Topology.of(graph()), features()
    own = (topology.senders == topology.receivers).float()[:, None].expand(-1, 2)
    assert torch.allclose(gibbs_weights(make_potential(name, 5, 1e-6), psi, topology), own)
    even = gibbs_weights(make_potential("constant", 5), psi, topology)
    assert torch.allclose(gibbs_weights(make_potential(name, 5, 1e6), psi, topology), even, atol=1e-4)


def test_identity_leaves_a_node_its_own_features():
    topology, psi = Topology.of(graph()), features()
    field = mean_field(gibbs_weights(make_potential("identity", 5), psi, topology), psi, topology)
    assert torch.allclose(field, psi, atol=1e-6)


@pytest.mark.parametrize("name", POTENTIALS)
def test_relabelling_nodes_relabels_weights(name):
    g, psi, order = graph(), features(), np.random.default_rng(3).permutation(7)
    potential = make_potential(name, 5, 2.0)
    topology, renamed = Topology.of(g), Topology.of(g.permute(order))
    there = torch.zeros(7, 7, *gibbs_weights(potential, psi, topology).shape[1:])
    here = torch.zeros_like(there)
    there[topology.receivers, topology.senders] = gibbs_weights(potential, psi, topology)
    here[renamed.receivers, renamed.senders] = gibbs_weights(potential, psi[order], renamed)
    assert torch.allclose(here, there[order][:, order], atol=1e-6)


@pytest.mark.parametrize("name", POTENTIALS)
def test_gradients_are_finite(name):
    topology = Topology.of(graph())
    psi = features().requires_grad_()
    potential = make_potential(name, 5, 2.0)
    mean_field(gibbs_weights(potential, psi, topology), psi, topology).square().sum().backward()
    assert bool(torch.isfinite(psi.grad).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in potential.parameters())


def test_hyper_parameters_are_learned_only_where_asked():
    assert not any(p.requires_grad for p in make_potential("gaussian", 5, 2.0, learned=False).parameters())
    assert make_potential("gaussian", 5, 2.0).value.item() == pytest.approx(2.0)


def test_what_is_no_potential_is_told():
    with pytest.raises(InputError, match="there is no potential 'square'; there are gaussian"):
        make_potential("square", 5)
    with pytest.raises(InputError, match="must be positive, got 0"):
        make_potential("gaussian", 5, 0.0)
    with pytest.raises(InputError, match=".gce.register. adds one, or the module given to --plugin"):
        make_potential("square", 5)


@pytest.mark.parametrize("name", POTENTIALS)
def test_the_concentration_says_whether_f_is_a_square_of_the_distance(name):
    potential, psi = make_potential(name, 5, 1.0 if name == "attention" else 0.7), features()
    c = potential.concentration
    assert (c is None) == (name in ("laplace", "vmf", "mlp", "identity", "attention"))
    if c is not None:
        assert torch.allclose(potential(psi, psi.flip(0)), -c * (psi - psi.flip(0)).square().sum(-1), rtol=1e-5)


def of_attention(potential, psi, topology, seen):
    """Its scores by the formula, head by head."""
    received, sent = (psi[end] for end in (topology.receivers, topology.senders))
    query, key = seen[topology.receivers] @ potential.query.weight.T + potential.query.bias, seen[topology.senders]
    key = key @ potential.key.weight.T
    near = (received - sent).square().sum(-1)
    for h in range(potential.heads):
        rows = slice(8 * h, 8 * h + 8)
        yield 100 * (query[..., rows] * key[..., rows]).sum(-1) / 8**0.5 - near / (2 * 20**2)


@pytest.mark.parametrize("heads", [1, 3])
def test_each_head_of_attention_has_weights_and_a_mean_field_of_its_own(heads):
    topology, psi = Topology.of(graph()), features()
    potential = make_potential("attention", 5, heads)
    weights = gibbs_weights(potential, psi, topology)
    field = mean_field(weights, psi, topology)
    assert field.shape == (7, 2, 5 * heads)
    scores = of_attention(potential, psi, topology, psi / 50)
    for h, (weight, score) in enumerate(zip(weights.reshape(len(weights), 2, -1).unbind(-1), scores, strict=True)):
        assert torch.allclose(weight, topology.softmax(score), atol=1e-5)
        assert torch.allclose(field[..., 5 * h : 5 * h + 5], mean_field(weight, psi, topology), atol=1e-6)


def test_without_attributes_the_first_of_several_heads_begins_as_a_gaussian():
    topology, psi = Topology.of(graph()), features()
    potential = make_potential("attention", 5, 2)
    potential.measure(torch.zeros(0), torch.ones(0))
    scores = potential.on(topology)(psi)
    assert torch.allclose(scores[..., 0], make_potential("gaussian", 5, 2.0).on(topology)(psi), atol=1e-5)
    assert not torch.allclose(scores[..., 1], scores[..., 0], atol=0.1)


def test_attention_sees_the_attributes_of_nodes_in_their_units():
    attributes = 3 + 5 * torch.randn(7, 2)
    topology, psi = replace(Topology.of(graph()), node_attributes=attributes), features()
    potential = make_potential("attention", 5, 2, num_attributes=2)
    assert make_potential("gaussian", 5, 2, num_attributes=2).value == 2
    potential.measure(torch.full((2,), 3.0), torch.full((2,), 5.0))
    beside = ((attributes - 3) / 5).unsqueeze(1).expand(-1, psi.shape[1], -1)
    scores = torch.stack([*of_attention(potential, psi, topology, torch.cat([psi / 50, beside], -1))], -1)
    assert torch.allclose(potential.on(topology)(psi), scores, atol=1e-5)
    average = replace(topology, node_attributes=torch.full((7, 2), 3.0))
    ends = psi[topology.receivers], psi[topology.senders]
    assert torch.allclose(potential(*ends), potential.on(average)(psi), atol=1e-5)


def test_attention_tells_who_heeds_whom_which_distance_cannot():
    """Weights of a pair need not be alike in both directions."""
    topology = Topology.of(Graph.from_edges(2, [(0, 1)], undirected=True))
    psi = features(2)
    for name, alike in (("gaussian", True), ("attention", False)):
        score = make_potential(name, 5, 1.0).on(topology)(psi)
        there, back = (score[(topology.senders == j) & (topology.receivers == 1 - j)] for j in (0, 1))
        assert torch.allclose(there, back) == alike


@pytest.mark.parametrize("heads", [0, 1.5, 65, -1])
def test_a_number_of_heads_is_whole(heads):
    with pytest.raises(InputError, match="expected a whole number from 1 to 64"):
        make_potential("attention", 5, heads)


@pytest.fixture
def table():
    """The potentials, put back after a test."""
    known = dict(POTENTIALS)
    yield POTENTIALS
    POTENTIALS.clear()
    POTENTIALS.update(known)


def test_a_potential_of_ones_own_is_a_class_and_a_registration(table, tmp_path):
    @register_potential
    class Cauchy(Potential):
        """f = -log(1 + |psi_i - psi_j|^2)."""

        name, at_most_own = "cauchy", True

        def forward(self, receivers, senders):
            return -(receivers - senders).square().sum(-1).log1p()

    episodes = system_episodes("rope")
    system = adapt(untrained("rope", potential="cauchy"), episodes[:3])
    predicted = system.predict(episodes[3].observations[0], episodes[3].actions[:5])
    assert np.isfinite(predicted).all()
    save_model(system.model, tmp_path)
    assert isinstance(load_model(tmp_path).potential, Cauchy)
    del table["cauchy"]
    with pytest.raises(InputError, match="model.json: there is no potential 'cauchy'.*gce.register"):
        load_model(tmp_path)


def test_registration_names_what_a_potential_is_missing(table):
    class Silent(Potential):
        name = "silent"

    class Nameless(Gaussian):
        pass

    class Taken(Gaussian):
        name = "vmf"

    for cls, words in (
        (Silent, "Silent cannot be registered as a potential: it has no forward"),
        (Nameless, "Nameless cannot be registered as a potential: it has no name of its own"),
        (Taken, "there is a potential 'vmf' already, VonMisesFisher; give Taken another name"),
        (torch.nn.Linear, "Linear cannot .* it is not a class derived from gce.potentials.Potential"),
        (Gaussian(), "is not a class derived from"),
    ):
        with pytest.raises(InputError, match=words):
            register_potential(cls)
    assert register_potential(Gaussian) is Gaussian
