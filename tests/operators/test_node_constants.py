"""Constants of single nodes beside a shared operator."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.graphs.topology import Topology
from gce.operators import Operator
from gce.system.files import load_system, save_system
from gce.system.system import adapt
from small import close, system_episodes, untrained

pytestmark = pytest.mark.filterwarnings("ignore:.*samples for.*regressors")
KAPPA = 5.0


def test_they_are_a_penalised_regression_on_node_indicators():
    model = untrained("grid", node_constants=KAPPA)
    topology = Topology.of([system_episodes("grid", g)[0].graph for g in (0, 1)])  # a union: sums of each graph
    rng = torch.Generator().manual_seed(0)
    D = model.form.num_regressors(topology)
    X = torch.randn(30, topology.num_nodes, D, generator=rng)
    Y = (
        torch.randn(30, topology.num_nodes, model.features.num_targets, generator=rng)
        + torch.arange(topology.num_nodes)[:, None]
    )
    first = topology.splits[0]
    operator = model.fit(model.sums(X, Y, Y[..., : model.config.num_state], topology)[0], topology)
    x, y = X[:, :first].double(), Y[:, :first].double()
    rows = 30 * first
    indicators = torch.eye(first).double().expand(30, first, first)
    full = torch.cat([x, indicators], dim=-1).flatten(0, 1)
    penalty = torch.full((D + first,), rows * model.config.ridge).double()
    penalty[D - model.form.num_constants(topology) : D] = 0
    penalty[D:] = KAPPA
    expected = torch.linalg.solve(full.T @ full + torch.diag(penalty), full.T @ y.flatten(0, 1))
    assert close(operator.coefficients, expected[:D], 1e-8)
    assert close(operator.constants, expected[D:], 1e-8)


def test_adapting_in_two_steps_and_files_keep_them(tmp_path):
    episodes = system_episodes("grid")
    model = untrained("grid", node_constants=KAPPA)
    at_once, later = adapt(model, episodes[:3]), adapt(model, episodes[:2]).update(episodes[2])
    assert close(at_once.operator.constants, later.operator.constants)
    save_system(at_once, tmp_path)
    assert close(load_system(tmp_path).operator.constants, at_once.operator.constants)


def test_predictions_take_them_in():
    episodes = system_episodes("grid")
    system = adapt(untrained("grid", node_constants=KAPPA), episodes[1:])
    operator: Operator = system.operator
    shifted = replace(system, operator=replace(operator, constants=operator.constants + 0.1))
    o, actions = episodes[0].observations[0].astype(float), episodes[0].actions[:1]
    moved = shifted.predict(o, actions)[1] - system.predict(o, actions)[1]
    unit = system.model.observation_std.double().numpy()
    assert np.allclose(moved / unit, 0.1, atol=1e-5)
