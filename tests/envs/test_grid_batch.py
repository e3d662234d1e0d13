"""The power grid's equations: equilibrium, integrator, noise, many grids at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from gce.envs.grid import GridBatch, GridParameters, PowerGrid
from gce.envs.grid_batch import DENSE_UP_TO, NOISE_CHUNK, GridEquations, solver
from grids import QUIET, drawn, generators, rms

# ---- equilibrium ----


def test_reference_is_an_equilibrium_without_stress() -> None:
    calm = drawn(0, 40, stress=(0.0,) * 40, offset=(0.0,) * 40, **QUIET)
    assert np.abs(GridEquations.of(calm).force(np.ones(40))).max() < 1e-14
    batch = GridBatch([calm])
    batch.reset(generators(1))
    observations = batch.run(np.zeros((50, 40)))
    assert np.abs(observations - [1, 0]).max() < 1e-12


@pytest.mark.parametrize("topology", ["erdos_renyi", "ring", "lattice"])
def test_integrator_settles_where_newton_says(topology: str) -> None:
    grid = drawn(1, 30, topology, **QUIET)
    equilibrium = GridEquations.of(grid).equilibrium()
    assert equilibrium is not None
    batch = GridBatch([grid])
    batch.reset(generators(1))
    batch.v[:], batch.w[:] = 1.0, 0.0
    batch.run(np.zeros((1500, 30)))
    np.testing.assert_allclose(batch.v, equilibrium, atol=1e-9)
    np.testing.assert_allclose(batch.w, 0, atol=1e-9)


def test_slope_is_the_derivative_of_the_force() -> None:
    equations, rng = GridEquations.of(drawn(2, 15)), np.random.default_rng(0)
    v, along = 1 + 0.1 * rng.standard_normal(15), rng.standard_normal(15)
    difference = (equations.force(v + 1e-6 * along) - equations.force(v - 1e-6 * along)) / 2e-6
    np.testing.assert_allclose(equations.slope(v) @ along, difference, rtol=1e-7, atol=1e-8)


def test_network_matrix_is_the_laplacian_less_the_capacitors() -> None:
    grid = drawn(3, 12)
    H = np.diag(-grid.capacitor * np.array(grid.load))
    for (i, j), b in zip(grid.lines, grid.susceptance, strict=True):
        H[[i, j], [i, j]] += b
        H[i, j] -= b
        H[j, i] -= b
    np.testing.assert_allclose(GridEquations.of(grid).H.toarray(), H, atol=1e-13)


# ---- integrator and noise ----


@pytest.mark.parametrize("topology", ["erdos_renyi", "lattice", "ring"])
def test_midpoint_follows_radau(topology: str) -> None:
    n, steps, hold = 24, 60, 10
    grid = drawn(4, n, topology, **QUIET)
    equations = GridEquations.of(grid)
    actions = np.repeat(np.random.default_rng(0).uniform(-0.5, 0.5, (steps // hold, n)), hold, axis=0)
    batch = GridBatch([grid])
    batch.reset(generators(1))
    v = batch.run(actions)[:, :, 0]

    def slope(_: float, x: np.ndarray) -> np.ndarray:
        pull = equations.slope(x[:n]).toarray() / equations.inertia[:, None]
        return np.block([[np.zeros((n, n)), np.eye(n)], [pull, -np.diag(equations.damping / equations.inertia)]])

    x, worst = np.concatenate([v[0], np.zeros(n)]), 0.0
    for k in range(0, steps, hold):

        def rate(_: float, x: np.ndarray, u: np.ndarray = actions[k]) -> np.ndarray:
            force = equations.force(x[:n], u) - equations.damping * x[n:]
            return np.concatenate([x[n:], force / equations.inertia])

        times = PowerGrid.dt * np.arange(hold + 1)
        path = solve_ivp(rate, (0, times[-1]), x, method="Radau", jac=slope, t_eval=times, rtol=1e-6, atol=1e-8).y
        worst, x = max(worst, np.sqrt(np.mean((v[k : k + hold + 1] - path[:n].T) ** 2))), path[:, -1]
    assert worst < 1e-3


def test_load_noise_is_stationary_with_the_given_spread() -> None:
    batch = GridBatch([drawn(5, 50, noise_time=0.2)] * 20)
    batch.reset(generators(20))
    first, own, common, lagged = batch.xi.reshape(20, 50), [], [], []
    for _ in range(200):
        before = batch.xi
        batch.step(np.zeros(batch.num_nodes))
        values = batch.xi.reshape(20, 50)
        own.append(np.mean(values.var(axis=1, ddof=1)))
        common.append(np.mean(values.mean(axis=1) ** 2))
        lagged.append(np.mean(before * batch.xi))
    total = 0.06**2 + 0.015**2
    assert np.mean(first**2) == pytest.approx(total, rel=0.2)
    assert np.sqrt(np.mean(own)) == pytest.approx(0.06, rel=0.01)
    # 20 common parts with 50 correlation times each: a variance to about 6%, the own parts' mean on top.
    assert np.mean(common) == pytest.approx(0.015**2 + 0.06**2 / 50, rel=0.2)
    assert np.mean(lagged) == pytest.approx(total * np.exp(-PowerGrid.dt / 0.2), rel=0.05)


def test_process_noise_kicks_the_state_in_its_units() -> None:
    calm = drawn(6, 60, stress=(0.0,) * 60, offset=(0.0,) * 60, **QUIET)
    batch = GridBatch([calm] * 30)
    batch.reset(generators(30), process_noise=0.1)
    batch.step(np.zeros(batch.num_nodes))
    # One kick from rest at the equilibrium.
    spread = (batch.observe() - [1, 0]).std(axis=0)
    np.testing.assert_allclose(spread, 0.1 * PowerGrid.observation_std, rtol=0.06)


def test_loads_do_not_depend_on_the_process_noise() -> None:
    grid, paths = drawn(6, 20), []
    for share in (0.0, 0.2):
        batch = GridBatch([grid])
        batch.reset(generators(1), process_noise=share)
        batch.run(np.zeros((20, 20)))
        paths.append(batch.xi)
    np.testing.assert_array_equal(paths[0], paths[1])


def test_actions_are_clipped_and_ignored_at_loads() -> None:
    grid = drawn(7, 20)
    g = np.array(grid.is_generator)
    ends = []
    for actions in (np.where(g, 0.5, 0.0), np.where(g, 3.0, -2.0)):
        batch = GridBatch([grid])
        batch.reset(generators(1))
        ends.append(batch.run(np.tile(actions, (5, 1))))
    np.testing.assert_array_equal(ends[0], ends[1])


# ---- batching ----


def test_a_grid_does_not_notice_its_batch(sixteen: list[GridParameters]) -> None:
    steps = 2 * NOISE_CHUNK + 3
    grids = [*sixteen[:5], sixteen[2], drawn(8, DENSE_UP_TO + 20, "lattice"), sixteen[6]]
    batch = GridBatch(grids)
    actions = np.random.default_rng(1).uniform(-0.5, 0.5, (steps, batch.num_nodes))
    batch.reset(generators(len(grids), first=100), process_noise=0.05)
    together = batch.run(actions)
    for k, (grid, part) in enumerate(zip(grids, batch.parts, strict=True)):
        single = GridBatch([grid])
        single.reset(generators(1, first=100 + k), process_noise=0.05)
        np.testing.assert_array_equal(single.run(actions[:, part]), together[:, part])


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for chunk in (1, 7, NOISE_CHUNK):
        monkeypatch.setattr("gce.envs.grid_batch.NOISE_CHUNK", chunk)
        batch = GridBatch([drawn(9, 20)])
        batch.reset(generators(1))
        paths.append(np.concatenate([batch.run(np.zeros((11, 20))), batch.run(np.zeros((9, 20)))]))
    np.testing.assert_array_equal(paths[0], paths[1])
    np.testing.assert_array_equal(paths[0], paths[2])


def test_inverse_and_sparse_factors_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = GridEquations.of(drawn(10, 80)).step_matrix()
    right = np.random.default_rng(0).standard_normal(80)
    dense = solver(matrix)(right)
    monkeypatch.setattr("gce.envs.grid_batch.DENSE_UP_TO", 10)
    np.testing.assert_allclose(solver(matrix)(right), dense, rtol=1e-11)
    np.testing.assert_allclose(matrix @ dense, right, rtol=1e-11)


def test_ten_thousand_nodes() -> None:
    env = PowerGrid(objects=10_000, topology="lattice")
    env.reset(seed=0)
    observations, _ = env.run(lambda t: np.zeros((10_000, 1)), 3)
    assert rms(observations[-1, :, 0]) < 0.1
    assert len(env.parameters.lines) == 2 * 100 * 99
