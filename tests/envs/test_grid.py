"""The power grid as a world: random instances, the environment, its linear model, its parameters."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from gce.envs.grid import NODE_ATTRIBUTES, GridBatch, GridParameters, PowerGrid
from gce.envs.grid_batch import GridEquations
from gce.errors import InputError
from grids import QUIET, drawn, generators, rms

# ---- random instances ----


@pytest.mark.parametrize(("topology", "strength"), [("erdos_renyi", 8), ("lattice", 16), ("ring", 32)])
def test_drawn_grids_are_as_specified(topology: str, strength: float) -> None:
    for seed, nodes in enumerate((23, 50, 61)):
        grid = drawn(seed, nodes, topology)
        g, offset = np.array(grid.is_generator), np.array(grid.offset)
        assert 2 * sum(grid.susceptance) / nodes == pytest.approx(strength, rel=1e-12)
        assert 0.18 < g.mean() < 0.52
        assert abs(offset[g].mean()) < 1e-12
        assert not offset[~g].any()
        assert np.array(grid.inertia)[~g].min() >= 0.02 * 0.8
        assert np.array(grid.damping)[~g].max() <= 0.3 * 1.2
        equilibrium = GridEquations.of(grid).equilibrium()
        assert equilibrium is not None
        assert 0.055 <= rms(equilibrium) <= 0.075


def test_severity_is_the_target_drawn() -> None:
    # The target is the last number that the drawing takes from its generator.
    class Last(np.random.Generator):
        def uniform(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            self.last = super().uniform(*args, **kwargs)
            return self.last

    for seed in range(5):
        rng = Last(np.random.PCG64(seed))
        equilibrium = GridEquations.of(PowerGrid().draw_parameters(rng, 60)).equilibrium()
        assert equilibrium is not None
        assert rms(equilibrium) == pytest.approx(rng.last, abs=1e-9)


@pytest.mark.parametrize("nodes", [1, 2, 3, 6])
def test_tiny_grids_work(nodes: int) -> None:
    env = PowerGrid(objects=nodes)
    env.reset(seed=nodes)
    env.step(np.full((nodes, 1), 0.3))
    assert np.isfinite(env.observe()).all()


def test_behaviour_without_and_with_random_actions(sixteen: list[GridParameters]) -> None:
    batch = GridBatch(sixteen)
    batch.reset(generators(16))
    v = batch.run(np.zeros((100, batch.num_nodes)))[:, :, 0]
    deviations = np.array([rms(v[:, part]) for part in batch.parts])
    # Targets are uniform in 5.5-7.5%: the mean of 16 has a standard error of 0.15%, some more with the load noise.
    assert 0.060 < deviations.mean() < 0.070
    assert deviations.min() > 0.04
    assert deviations.max() < 0.09
    worst = np.array([np.abs(v[:, part] - 1).max() for part in batch.parts])
    assert 0.09 < worst.mean() < 0.15
    assert worst.min() > 0.06
    assert worst.max() < 0.23
    drift = np.array([rms(v[-1, part]) / rms(v[0, part]) for part in batch.parts])
    assert drift.mean() == pytest.approx(1, abs=0.1)
    assert drift.min() > 0.6
    assert drift.max() < 1.4

    batch.reset(generators(16))
    v = batch.run(np.random.default_rng(0).uniform(-0.5, 0.5, (1000, batch.num_nodes)))[:, :, 0]
    assert v.min() > 0.7
    assert v.max() < 1.3


# ---- environment ----


def test_same_seed_same_path_and_drawn_or_given_parameters() -> None:
    def path(seed: int, **options: Any) -> np.ndarray:
        env = PowerGrid(objects=20)
        env.reset(seed=seed, options=options)
        return env.run(env.excitation(np.random.default_rng(0), 30), 30)[0]

    env = PowerGrid(objects=20)
    env.reset(seed=3)
    np.testing.assert_array_equal(path(3), path(3))
    np.testing.assert_array_equal(path(3), path(3, parameters=env.parameters))
    assert not np.array_equal(path(3, parameters=env.parameters), path(4, parameters=env.parameters))


def test_steps_equal_a_run() -> None:
    env = PowerGrid(objects=15)
    env.reset(seed=0)
    policy = env.excitation(np.random.default_rng(0), 20)
    recorded, actions = env.run(policy, 20)
    env.reset(seed=0)
    for t in range(20):
        instance, *_ = env.step(actions[t])
        np.testing.assert_array_equal(instance.nodes, recorded[t + 1])


def test_graph_says_what_the_parameters_say() -> None:
    env = PowerGrid(objects=20)
    env.reset(seed=1)
    graph, p = env.graph, env.parameters
    g, table = np.array(p.is_generator), dict(zip(NODE_ATTRIBUTES, graph.node_attributes.T, strict=True))
    np.testing.assert_array_equal(graph.node_type, ~g)
    np.testing.assert_array_equal(env.actuated, g)
    columns = ("is_generator", "gain", "inertia", "damping", "load", "stress", "offset")
    for name, field in zip([*NODE_ATTRIBUTES[:5], *NODE_ATTRIBUTES[6:]], columns, strict=True):
        np.testing.assert_array_equal(table[name], getattr(p, field))
    H = GridEquations.of(p).H.toarray()
    np.testing.assert_allclose(table["total_susceptance"], np.diag(H) + p.capacitor * np.array(p.load), rtol=1e-12)
    links = graph.senders != graph.receivers
    receivers, senders = graph.receivers[links], graph.senders[links]
    np.testing.assert_allclose(graph.edge_attributes[links, 0], -H[receivers, senders])
    np.testing.assert_array_equal(graph.edge_type[links], 2 * ~g[receivers] + ~g[senders])
    np.testing.assert_array_equal(graph.edge_type[~links], 4 + ~g)
    assert not graph.edge_attributes[~links].any()
    assert len(receivers) == 2 * len(p.lines)


def test_recorded_actions_are_held_rounded_and_at_generators() -> None:
    env = PowerGrid(objects=60)
    env.reset(seed=2)
    policy = env.excitation(np.random.default_rng(0), 100)
    actions = np.stack([policy(t) for t in range(100)])[:, :, 0]
    assert not actions[:, ~env.actuated].any()
    assert np.abs(actions).max() <= 0.5
    np.testing.assert_array_equal(actions, actions.astype(np.float32))
    changes = (np.diff(actions[:, env.actuated], axis=0) != 0).sum(axis=0)
    assert set(changes.tolist()) == {99, 19, 9, 3}


def test_cost_is_the_voltage_miss_and_a_hundredth_of_the_action() -> None:
    env = PowerGrid(objects=10)
    env.reset(seed=0)
    observation, action = np.tile([1.1, 7.0], (10, 1)), np.full((10, 1), 0.4)
    effort = 0.01 * env.actuated.sum() * 0.16
    assert env.stage_cost(observation, None, action) == pytest.approx(10 * 0.01 + effort)
    assert env.stage_cost(observation, observation, action) == pytest.approx(effort)
    reward = env.step(action)[1]
    assert reward == pytest.approx(-env.stage_cost(env.observe(), None, action))


def test_linear_model_is_the_derivative_of_a_step() -> None:
    n = 12
    env = PowerGrid(objects=n)
    env.reset(seed=5, options={"parameters": QUIET})
    A, B, c = env.linearised()

    def step(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        batch = GridBatch([env.parameters])
        batch.reset(generators(1))
        batch.v, batch.w = x[:n].copy(), x[n:].copy()
        batch.step(u)
        return np.concatenate([batch.v, batch.w])

    x, zero = np.concatenate([np.ones(n), np.zeros(n)]), np.zeros(n)
    np.testing.assert_allclose(A @ x + c, step(x, zero), atol=1e-14)
    for column in range(2 * n):
        move = 1e-5 * np.eye(2 * n)[column]
        np.testing.assert_allclose(A[:, column], (step(x + move, zero) - step(x - move, zero)) / 2e-5, atol=1e-8)
    for column in range(n):
        move = 1e-5 * np.eye(n)[column]
        np.testing.assert_allclose(B[:, column], (step(x, move) - step(x, -move)) / 2e-5, atol=1e-8)
    assert np.abs(np.linalg.eigvals(A)).max() < 1


@pytest.mark.parametrize("nodes", [1, 30, 200])
def test_picture(nodes: int) -> None:
    env = PowerGrid(objects=nodes, topology="lattice", render_mode="rgb_array")
    env.reset(seed=0)
    env.step(np.full((nodes, 1), 0.5))
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.shape[1:] == (640, 3)
    np.testing.assert_array_equal(picture, env.render())


# ---- parameters ----


def test_parameters_survive_json() -> None:
    grid = drawn(11, 20)
    again = GridParameters(**json.loads(json.dumps(dataclasses.asdict(grid))))
    assert again == grid
    assert hash(again) == hash(grid)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lines": ((0, 1), (1, 9))}, "joins nodes 1 and 9 but there are 3 nodes"),
        ({"lines": ((0, 1), (1, 0))}, "comes twice"),
        ({"lines": ((0, 1), (2, 2))}, "to itself"),
        ({"lines": ((0, 1),), "susceptance": (1.0,)}, "do not connect"),
        ({"susceptance": (1.0,)}, "1 susceptance values for 2 lines"),
        ({"susceptance": (1.0, -1.0)}, "expected positive"),
        ({"load": (0.2, 0.2)}, "load has 2 values for 3 nodes"),
        ({"inertia": (0.1, 0.1, 0.0)}, "inertia holds 0.0"),
        ({"damping": (0.1, 0.1, -0.5)}, "damping holds -0.5"),
        ({"stress": (0.1, float("nan"), 0.0)}, "stress holds nan"),
        ({"is_generator": (False, False, False)}, "no generator"),
        ({"zip_shares": (0.5, 0.5, 0.5)}, "add up to 1"),
        ({"offset": (0.0, 0.1, 0.0)}, "offset is not 0 at a load"),
        ({"noise_time": 0.0}, "noise_time holds 0.0"),
    ],
)
def test_bad_parameters_are_refused_with_advice(change: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {
        "lines": ((0, 1), (1, 2)),
        "susceptance": (8.0, 8.0),
        "is_generator": (True, False, False),
        "gain": (1.2, 0, 0),
        "inertia": (0.07, 0.02, 0.02),
        "damping": (0.8, 0.3, 0.3),
        "load": (0.2, 0.2, 0.2),
        "stress": (0, 0, 0),
        "offset": (0, 0, 0),
    }
    GridParameters(**good)
    with pytest.raises(InputError, match=sentence):
        GridParameters(**good | change)


def test_other_bad_input_is_refused_with_advice() -> None:
    with pytest.raises(InputError, match="topology is 'star'"):
        PowerGrid(topology="star")
    with pytest.raises(InputError, match="at least one grid"):
        GridBatch([])
    with pytest.raises(InputError, match="give one each"):
        GridBatch([drawn(0, 5)]).reset([])
    collapsed = drawn(0, 5, stress=(40.0,) * 5)
    with pytest.raises(InputError, match="no equilibrium"):
        GridBatch([collapsed]).reset(generators(1))
