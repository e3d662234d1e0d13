"""Features and reach of networks whose lines conduct."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.dynamics.anchored import AnchoredDynamics, linear
from gce.errors import InputError
from gce.features.network import Reach, conductance, line_unit
from gce.graphs.topology import Topology
from gce.model.files import load_model, save_model
from gce.planning.controller import dynamics_of
from gce.system.system import adapt
from gce.training.learning import train
from gce.training.preparation import config_for
from small import close, recorded, system_episodes, untrained

pytestmark = pytest.mark.filterwarnings("ignore:.*samples for.*regressors")


def network():
    return untrained("grid", network=True, **{"features": 0, "linear_features": 0})


def test_a_spread_signal_is_what_an_implicit_step_makes_of_it():
    model, (first, *_) = network(), system_episodes("grid")
    torch.nn.init.normal_(model.features.spreading.theta, generator=torch.Generator().manual_seed(0))
    topology = Topology.of(first.graph)
    spread, R = (found.detach() for found in model.features.spreading.weights(topology, model.features.inputs)[0])
    assert torch.allclose(R.sum(1), torch.ones(len(R)), atol=1e-5)  # a mean over the network
    assert bool((R > 0).all())
    # (diag(s) + L) R = diag(s), with L from the lines of the graph
    n, L = len(R), torch.zeros(len(R), len(R))
    for i, j, b in zip(first.graph.receivers, first.graph.senders, first.graph.edge_attributes[:, 0], strict=True):
        if i != j:
            L[i, j] -= float(b)
            L[i, i] += float(b)
    flowing, left = L @ R, torch.eye(n) - R
    s = flowing.diagonal() / left.diagonal()
    assert bool((s > 0).all()) and torch.allclose(flowing, s[:, None] * left, atol=1e-4 * float(s.max()))
    x = torch.randn(n, 2, 3, generator=torch.Generator().manual_seed(1))
    unit = line_unit(model.features.inputs) * model.features.spreading.theta.exp().sum(1).mean().detach()
    assert torch.allclose(spread * s, unit * R, atol=1e-4 * float(unit))
    once = torch.einsum("ij,jbd->ibd", spread, x)
    expected = torch.cat([x, once, torch.einsum("ij,jbd->ibd", R, once)], dim=-1)
    assert torch.allclose(model.features.spreading.on(topology, model.features.inputs)(x).detach(), expected, atol=1e-5)


def test_graphs_of_a_union_do_not_hear_of_each_other():
    model, graphs = network(), [system_episodes("grid", k)[0].graph for k in (0, 1)]
    inputs = model.features.inputs
    alone = [model.features.spreading.weights(Topology.of(graph), inputs)[0] for graph in graphs]
    together = model.features.spreading.weights(Topology.of(graphs), inputs)
    for mine, of_union in zip(alone, together, strict=True):
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(mine, of_union, strict=True))


def test_lines_of_negative_conductance_leave_it_invertible():
    model, (first, *_) = network(), system_episodes("grid")
    topology = Topology.of(first.graph)
    sign = torch.ones_like(topology.edge_attributes)
    sign[0] = -1
    topology = replace(topology, edge_attributes=sign * topology.edge_attributes)
    ((_, R),) = model.features.spreading.weights(topology, model.features.inputs)
    assert bool(torch.isfinite(R).all()) and float(R.abs().sum(1).max()) <= 1 + 1e-5


def test_features_are_products_of_what_is_known_at_a_node():
    model, (first, *_) = network(), system_episodes("grid")
    topology, inputs = Topology.of(first.graph), model.features.inputs
    x = torch.randn(first.graph.num_nodes, 2, generator=torch.Generator().manual_seed(0))
    phi = model.features.phi(x, topology)
    assert phi.shape == (len(x), model.features.num_phi) == (len(x), 13 * 14 // 2 - 3)
    b = conductance(topology) / line_unit(inputs)
    flows = torch.zeros_like(x).index_add(
        0, topology.receivers, b[:, None] * (x[topology.senders] - x[topology.receivers])
    )
    attributes = (topology.node_attributes - inputs.attribute_mean[:8]) / inputs.attribute_std[:8]
    for product in (flows[:, 0], x[:, 0] * flows[:, 0], x[:, 1].square(), attributes[:, 3], attributes[:, 4] * x[:, 0]):
        assert (phi - product[:, None]).abs().max(0).values.min() < 1e-5
    for known in (x[:, 0], x[:, 1], torch.ones(len(x))):  # regressors already
        assert (phi - known[:, None]).abs().max(0).values.min() > 1e-3


def test_a_plan_sees_the_derivative_of_a_step():
    model = network()
    system = adapt(model, system_episodes("grid"), measure=False)
    controls = np.ones((system.graph.num_nodes, 1), bool)
    assert isinstance(dynamics_of(system, controls), AnchoredDynamics)
    x, a = torch.zeros(1, system.graph.num_nodes, 2), torch.zeros(1, system.graph.num_nodes, 1)
    A, B, c = system.linearise(x, a)
    found = linear(system)
    dense = found.A if isinstance(found.A, np.ndarray) else found.A.toarray()
    assert close(dense, A[0].double(), 1e-4) and close(found.B.toarray(), B[0].double(), 1e-4)
    assert close(found.c, c[0].double(), 1e-4)


def test_training_learns_the_reach_alone_and_files_keep_it(tmp_path):
    found = train(recorded("grid"), iterations=3, horizon=4, model={"network": True}, training={"fit_steps": 8})
    assert [name for name, _ in found.model.named_parameters()] == ["features.spreading.theta"]
    assert bool(found.model.features.spreading.theta.abs().max() > 0)
    save_model(found.model, tmp_path)
    assert torch.equal(load_model(tmp_path).features.spreading.theta, found.model.features.spreading.theta)


def test_what_is_no_network_is_refused():
    with pytest.raises(InputError, match="first attribute"):
        config_for(recorded("rope"), network=True)
    with pytest.raises(InputError, match="both or neither"):
        config_for(recorded("grid"), form="local")
    assert Reach(2, 3).theta.shape == (2, 4)
