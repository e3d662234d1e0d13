"""Derivatives of implicit features against autograd through the layer itself, and the layer against its fast twin."""

import numpy as np
import pytest
import torch

from gce.dynamics.bodies import BodyStep
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


def columns(layer):
    """Of places and velocities in the observation."""
    return ([c for point in layer.inputs.points for c in point[k : k + 2]] for k in (0, 2))


def corners(model, step: BodyStep, x):
    """(Q, V, a) behind states of tied points, as a step takes them."""
    o = model.denormalise(x[..., : model.config.num_observations]).numpy()
    Q, V = np.zeros((2, len(x), len(step.mass), 2))
    for values, at in zip((Q, V), columns(model.features.channels), strict=True):
        values[:, step.corner.ravel()] = o[..., at].reshape(len(x), -1, 2)
    return Q, V, x[..., -1].numpy()


def points(model, x):
    """(Q, V, a) of all nodes' points, as slopes take them."""
    o = model.denormalise(x[..., : model.config.num_observations]).numpy()
    Q, V = (o[..., at].reshape(len(x), -1, 2) for at in columns(model.features.channels))
    return Q, V, x[..., -1].numpy()


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
    step = BodyStep.of(layer, topology, held, coefficients[0])
    found = slopes(step, *points(model, x))
    corner, size, unit = torch.as_tensor(step.corner), len(step.mass), layer.inputs.unit_std
    places, speeds = columns(layer)
    one_point = torch.as_tensor(np.unique(step.corner, return_index=True)[1])  # at each corner, where all move alike

    def change(state):
        """The velocity change of the corners when these and the actions move by (dQ, dV, da)."""

        def f(dQ, dV, da):
            o, by_point = state[:, :-1], (len(corner), -1)
            o = o.index_add(1, torch.tensor(places), dQ[corner].reshape(by_point) / unit[places])
            o = o.index_add(1, torch.tensor(speeds), dV[corner].reshape(by_point) / unit[speeds])
            moved = torch.cat([o, state[:, -1:] + da[:, None]], dim=-1)
            at = layer.combined(moved[None], topology, held, coefficients)[0] * unit[speeds]
            return at.reshape(-1, 2)[one_point]

        return f

    still = torch.zeros(size, 2, dtype=x.dtype)
    for t in range(len(x)):
        exact = torch.autograd.functional.jacobian(change(x[t]), (still, still, still.new_zeros(len(corner))))
        for by, expected in zip((found.by_position, found.by_velocity, found.by_action), exact, strict=True):
            expected = expected.reshape(2 * size, -1).numpy()
            assert np.allclose(by[t], expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("drag", [False, True])
@pytest.mark.parametrize("world", ["soft", "swim"])
def test_the_fast_step_is_the_layers(world, drag):
    model, layer, topology, held, coefficients, x = body(world, drag)
    step = BodyStep.of(layer, topology, held, coefficients[0])
    _, speeds = columns(layer)
    with torch.no_grad():
        at = layer.combined(x, topology, held, coefficients).numpy() * layer.inputs.unit_std.numpy()[speeds]
    expected = at.reshape(2, -1, 2)
    found = step.change(*corners(model, step, x))[:, step.corner.ravel()]
    assert np.allclose(found, expected, atol=1e-9 * np.abs(expected).max())


def test_a_medium_that_comes_into_play_smoothly_has_slopes_of_its_own():
    model, layer, topology, held, coefficients, x = body("swim", True)
    exact, step, sharp = (BodyStep.of(layer, topology, held, coefficients[0], switch) for switch in (0, 0.3, 1e-6))
    Q, V, a = corners(model, step, x)
    V, a = V + np.random.default_rng(1).standard_normal(V.shape), 0.3 * a  # so that the medium is felt
    everywhere = step.corner.ravel()
    found = slopes(step, Q[:, everywhere], V[:, everywhere], a)
    rng = np.random.default_rng(0)
    for k, by in enumerate((found.by_position, found.by_velocity, found.by_action)):
        d = [np.zeros_like(Q), np.zeros_like(V), np.zeros_like(a)]
        d[k] = rng.standard_normal(d[k].shape)
        up, down = (
            step.change(Q + size * d[0], V + size * d[1], a + size * d[2]).reshape(2, -1) for size in (1e-6, -1e-6)
        )
        measured = (up - down) / 2e-6
        assert np.allclose(
            np.einsum("tik,tk->ti", by, d[k].reshape(2, -1)), measured, atol=1e-6 * np.abs(measured).max()
        )
    assert np.allclose(sharp.change(Q, V, a), exact.change(Q, V, a))
    assert not np.allclose(step.change(Q, V, a), exact.change(Q, V, a), rtol=1e-3)


def test_slopes_of_many_steps_are_those_of_each():
    model, layer, topology, held, coefficients, x = body("swim", True)
    step = BodyStep.of(layer, topology, held, coefficients[0], 0.3)
    Q, V, a = points(model, x)
    some = np.arange(2).repeat(20)  # more than are worked out together
    many, few = slopes(step, Q[some], V[some], a[some]), slopes(step, Q, V, a)
    assert np.allclose(many.by_position, few.by_position[some])
    assert np.allclose(many.by_action, few.by_action[some])


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
    model, layer, topology, held, coefficients, x = body("swim", True)
    signals = layer.num_signals * layer.num_kinds
    without = coefficients[0].unflatten(0, (2, -1)).clone()
    without[:, signals:] = 0
    steps = (BodyStep.of(layer, topology, held, channels) for channels in (coefficients[0], without.flatten()))
    with_medium, still = (slopes(step, *points(model, x)) for step in steps)
    assert np.abs(with_medium.by_velocity - still.by_velocity).max() > 1e-6


def test_recordings_are_of_tied_points():
    assert Topology.of(recorded("swim").group(0).graph).tied is not None
