"""Noise that lasts and differs between nodes: what is found of it, and what fits gain."""

import numpy as np
import pytest
import torch

from gce.graphs.topology import Topology
from gce.operators import Operator
from gce.operators.prior import ColouredNoise
from gce.system.evidence import see, total
from gce.system.files import load_system, save_system
from gce.system.system import adapt
from small import system_episodes, untrained

pytestmark = pytest.mark.filterwarnings("ignore:.*samples for.*regressors")


def lasting(r, size, steps, rng, episodes=4):
    """Episodes of noise e_t = r e_{t-1} + size n_t from its stationary law, [steps, nodes, 1]."""
    found = []
    for _ in range(episodes):
        e = [rng.standard_normal(len(size)) * size / np.sqrt(1 - r**2)]
        for _ in range(steps - 1):
            e.append(r * e[-1] + size * rng.standard_normal(len(size)))
        found.append(torch.as_tensor(np.stack(e))[..., None])
    return found


def test_correlation_and_sizes_are_found():
    size = np.array([0.1, 1.0, 30.0])
    found = ColouredNoise.of(lasting(0.9, size, 4000, np.random.default_rng(0)))
    assert found.correlation == pytest.approx(0.9, abs=0.02)
    np.testing.assert_allclose(
        (found.size / found.size[2]).numpy(), np.maximum(size / 30, 0.01 / np.sqrt(3)), rtol=0.05
    )


def test_white_noise_of_one_size_changes_nothing():
    found = ColouredNoise.of(lasting(0.0, np.ones(5), 4000, np.random.default_rng(1)))
    assert found.correlation < 0.02 and float((found.size - 1).abs().max()) < 0.05


def test_whitened_noise_is_white():
    size = np.array([0.5, 2.0])
    (e,) = lasting(0.8, size, 20_000, np.random.default_rng(2), episodes=1)
    new = ColouredNoise(0.8, torch.as_tensor(size)).whitened(e)[..., 0]
    np.testing.assert_allclose(new.std(0).numpy(), 1, rtol=0.03)
    assert abs(float((new[1:] * new[:-1]).mean())) < 0.03


def test_a_slope_behind_lasting_noise_is_found_where_least_squares_is_wrong():
    """y = x' - x = -0.2 x + e: noise has moved x, so least squares takes it for dynamics."""
    rng = np.random.default_rng(3)
    (e,) = lasting(0.95, np.ones(1), 40_000, rng, episodes=1)
    x = [np.zeros(1)]
    for t in range(len(e)):
        x.append(0.8 * x[-1] + e[t, :, 0].numpy())
    X = torch.as_tensor(np.stack(x))[..., None]
    Y, X = X[1:] - X[:-1], X[:-1]

    def slope(X, Y):
        return float((X * Y).sum() / (X * X).sum())

    colour = ColouredNoise(0.95, torch.ones(1, dtype=torch.float64))
    assert slope(X, Y) > -0.05
    assert slope(colour.whitened(X), colour.whitened(Y)) == pytest.approx(-0.2, abs=0.02)


def test_an_operator_comes_back_in_plain_units():
    """Rows of half the size under a ridge are rows of full size under four times the ridge."""
    model, episodes = untrained("grid", network=True, features=0, linear_features=0), system_episodes("grid")
    graph = episodes[0].graph
    plain = torch.ones(graph.num_nodes, dtype=torch.float64)

    def fit(size, ridge) -> Operator:
        evidence = total(see(model, episodes, graph, ColouredNoise(0.0, size)))
        return evidence.operator(model, Topology.of(graph), ridge)

    one, other = fit(plain, 1.0), fit(2 * plain, 0.25)
    torch.testing.assert_close(one.coefficients, other.coefficients)
    torch.testing.assert_close(one.constants, other.constants)
    assert float(one.constants.abs().max()) > 1e-3
    lasting_noise = ColouredNoise(0.6, plain).restored(one)
    torch.testing.assert_close(lasting_noise.residual, one.residual / 0.64)


def test_noise_is_uneven_where_one_node_has_it():
    assert ColouredNoise(0.5, torch.ones(20, dtype=torch.float64)).uneven == pytest.approx(1)
    assert ColouredNoise(0.5, torch.eye(20, dtype=torch.float64)[0]).uneven == pytest.approx(20)


def test_a_network_is_adapted_to_uneven_noise_and_stays_so_on_disk(tmp_path, monkeypatch):
    model, episodes = untrained("grid", network=True, features=0, linear_features=0), system_episodes("grid")
    assert adapt(model, episodes, measure=False).evidence.coloured is None  # of nodes that are alike
    monkeypatch.setattr("gce.system.system.UNEVEN", 0.0)
    system = adapt(model, episodes, measure=False)
    assert system.evidence.coloured is not None
    save_system(system, tmp_path / "system")
    again = load_system(tmp_path / "system")
    torch.testing.assert_close(again.operator.constants, system.operator.constants)
    torch.testing.assert_close(again.operator.coefficients, system.operator.coefficients)
    assert again.evidence.coloured.correlation == system.evidence.coloured.correlation


def test_other_models_are_fitted_as_before():
    assert adapt(untrained("grid"), system_episodes("grid"), measure=False).evidence.coloured is None
