"""Derivatives of implicit features against finite differences of the layer itself, and of its fast twin."""

import numpy as np
import pytest
import torch

from gce.dynamics.body_kernel import BodyStep
from gce.dynamics.body_slopes import slopes
from gce.graphs.topology import Topology
from small import recorded, system_episodes, untrained


def body(world: str, drag: bool, fast: bool = False):
    """(layer, graph, held points, coefficients, states of tied points [2, nodes, c]), in double precision.

    fast: some corners move so fast that a medium hardly resists more.
    """
    model = untrained(world, implicit=True, drag=drag, previous_action=True, late_action=True).double()
    episode = system_episodes(world)[0]
    topology = Topology.of(episode.graph)
    o = model.merge(model.normalise(torch.as_tensor(episode.observations[5:8], dtype=torch.float64)), topology)
    rng = np.random.default_rng(0)
    a = torch.as_tensor(rng.standard_normal((3, topology.num_nodes, 1)))  # of both signs: a medium asks
    x = torch.cat([o, a], dim=-1)[:2]
    layer = model.features.channels
    if fast:
        speeds = [c for point in layer.inputs.points for c in point[2:]]
        x[..., speeds] *= 10 * layer.inputs.usual_speed / (x[..., speeds] * layer.inputs.unit_std[speeds]).abs().max()
    coefficients = torch.as_tensor(rng.standard_normal((1, layer.num_channels)))
    return model, layer, topology, model.features.held_points(topology), coefficients, x


@pytest.mark.parametrize(
    ("world", "drag", "fast"),
    [
        ("soft", False, False),
        ("soft", True, False),
        ("swim", False, False),
        ("swim", True, False),
        ("swim", True, True),
    ],
)
def test_slopes_are_those_of_the_layer(world, drag, fast):
    model, layer, topology, held, coefficients, x = body(world, drag, fast)
    with torch.no_grad():
        found = slopes(layer, x, topology, held, coefficients)
    corner, size = layer._bodies(topology, held).corner, layer._bodies(topology, held).size
    points = layer.inputs.points
    places, speeds = ([c for point in points for c in point[k : k + 2]] for k in (0, 2))
    unit = layer.inputs.unit_std.numpy()

    def change(step, columns):
        """The velocity change of the corners [2 size] when corners move by d [size, 2] in these columns, or actions."""

        def f(d):
            moved = x[step].clone()
            if columns is None:
                moved[:, -1] += torch.as_tensor(d)
            else:
                by_point = d.reshape(size, 2)[corner.numpy()].reshape(len(corner), -1)
                moved[:, columns] += torch.as_tensor(by_point / unit[columns])
            with torch.no_grad():
                at = layer.combined(moved[None], topology, held, coefficients)[0].numpy() * unit[speeds]
            total = np.zeros((size, 2))
            total[corner.numpy().ravel()] = at.reshape(-1, 2)
            return total.ravel()

        return f

    for step in range(len(x)):
        for columns, by, length in (
            (places, found.by_position, 2 * size),
            (speeds, found.by_velocity, 2 * size),
            (None, found.by_action, topology.num_nodes),
        ):
            f = change(step, columns)
            for d in np.random.default_rng(1).standard_normal((4, length)):
                measured = (f(1e-6 * d) - f(-1e-6 * d)) / 2e-6
                assert np.allclose(by[step].numpy() @ d, measured, atol=1e-6 * np.abs(measured).max())


@pytest.mark.parametrize("drag", [False, True])
@pytest.mark.parametrize("world", ["soft", "swim"])
def test_the_fast_step_is_the_layers(world, drag):
    model, layer, topology, held, coefficients, x = body(world, drag)
    step = BodyStep.of(layer, topology, held, coefficients[0])
    points = layer.inputs.points
    places, speeds = ([c for point in points for c in point[k : k + 2]] for k in (0, 2))
    o = model.denormalise(x[..., : model.config.num_observations]).numpy()
    Q, V = np.zeros((2, 2, len(step.mass), 2))
    for values, columns in ((Q, places), (V, speeds)):
        values[:, step.corner.ravel()] = o[..., columns].reshape(2, -1, 2)
    with torch.no_grad():
        at = layer.combined(x, topology, held, coefficients).numpy() * layer.inputs.unit_std.numpy()[speeds]
    expected = at.reshape(2, -1, 2)
    found = step.change(Q, V, x[..., -1].numpy())[:, step.corner.ravel()]
    assert np.allclose(found, expected, atol=1e-9 * np.abs(expected).max())


def test_a_medium_that_comes_into_play_smoothly_has_slopes_of_its_own():
    model, layer, topology, held, coefficients, x = body("swim", True)
    x[..., -1] *= 0.3
    step = BodyStep.of(layer, topology, held, coefficients[0], switch=0.3)
    sharp = BodyStep.of(layer, topology, held, coefficients[0], switch=1e-6)
    places, speeds = ([c for point in layer.inputs.points for c in point[k : k + 2]] for k in (0, 2))
    o = model.denormalise(x[..., : model.config.num_observations]).numpy()
    Q, V = np.zeros((2, 2, len(step.mass), 2))
    for values, columns in ((Q, places), (V, speeds)):
        values[:, step.corner.ravel()] = o[..., columns].reshape(2, -1, 2)
    V += np.random.default_rng(1).standard_normal(V.shape)  # so that the medium is felt
    for values, columns in ((Q, places), (V, speeds)):
        seen = torch.as_tensor(values[:, step.corner.ravel()].reshape(*o.shape[:2], -1))
        x[..., columns] = (seen - model.observation_mean[columns]) / model.observation_std[columns]
    a = x[..., -1].numpy()
    with torch.no_grad():
        by_a = slopes(layer, x, topology, held, coefficients, switch=0.3).by_action.numpy()
    da = np.random.default_rng(0).standard_normal(a.shape)
    measured = (step.change(Q, V, a + 1e-6 * da) - step.change(Q, V, a - 1e-6 * da)).reshape(2, -1) / 2e-6
    assert np.allclose(np.einsum("tik,tk->ti", by_a, da), measured, atol=1e-6 * np.abs(measured).max())
    exact = BodyStep.of(layer, topology, held, coefficients[0]).change(Q, V, a)
    assert np.allclose(sharp.change(Q, V, a), exact)
    assert not np.allclose(step.change(Q, V, a), exact, rtol=1e-3)


def test_what_a_medium_does_is_bounded():
    _, layer, topology, held, coefficients, x = body("swim", True, fast=True)
    inputs = layer.inputs
    most = inputs.usual_speed**2
    felt = inputs.resistance(x).norm(dim=-1).max()
    assert 0.9 * most < felt <= most
    speeds = [c for point in inputs.points for c in point[2:]]
    faster = x.clone()
    faster[..., speeds] *= 1e3
    assert felt < inputs.resistance(faster).norm(dim=-1).max() <= most * (1 + 1e-12)


def test_a_medium_changes_the_slopes():
    """Otherwise the tests with drag could not fail."""
    _, layer, topology, held, coefficients, x = body("swim", True)
    with torch.no_grad():
        with_medium = slopes(layer, x, topology, held, coefficients)
        signals = layer.num_signals * layer.num_kinds
        without = coefficients.unflatten(1, (2, -1)).clone()
        without[..., signals:] = 0
        still = slopes(layer, x, topology, held, without.flatten(1))
    assert (with_medium.by_velocity - still.by_velocity).abs().max() > 1e-6


def test_recordings_are_of_tied_points():
    assert Topology.of(recorded("swim").group(0).graph).tied is not None
