"""Real grids: the environment agrees with AC power flow, whatever the units of its equations."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import pytest

from gce.cli import main
from gce.envs import PowerGrid, Rope
from gce.envs.grid import stressed
from gce.envs.grid_batch import GridBatch, GridEquations, GridParameters
from gce.envs.real_grids import (
    CASES,
    MESHED,
    case_parameters,
    draw_meshed,
    parameters_of,
    power_flow,
    reduced,
    short_lines,
)
from gce.errors import InputError

needs_pandapower = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("pandapower"), reason="real grids come with pandapower (extra grid)"
)
QUIET = {"noise_std": 0.0, "common_noise_std": 0.0, "start_std": 0.0}


def meshed(seed: int = 0, nodes: int = 20) -> GridParameters:
    rng = np.random.default_rng(seed)
    return dataclasses.replace(stressed(draw_meshed(nodes, rng), rng), **QUIET)


def solved(case: str, constant_power: bool = True, reactive_load: float = 1.0):
    flow = reduced(power_flow(case, reactive_load))
    parameters = parameters_of(flow)
    return flow, dataclasses.replace(parameters, zip_shares=(0, 0, 1)) if constant_power else parameters


# ---- against power flow ----


@needs_pandapower
@pytest.mark.parametrize("case", ["case14", "case39", "case118", "case300"])
def test_the_power_flow_is_the_steady_state(case):
    flow, parameters = solved(case)
    equations = GridEquations.of(parameters)
    # What the power flow says is injected, instead of what the network says is needed.
    source = flow.generation / np.array(parameters.scale) + equations.droop
    found = dataclasses.replace(equations, source=source).equilibrium()
    assert np.abs(found - 1).max() < 1e-9


@needs_pandapower
@pytest.mark.parametrize(("case", "within"), [("case14", 7e-4), ("case118", 5e-4), ("case145", 1.1e-3)])
def test_more_reactive_load_moves_voltages_as_power_flow_says(case, within):
    # Power flow holds the voltages of generators and moves the angles; the environment the other way round.
    flow, parameters = solved(case)
    more = reduced(power_flow(case, reactive_load=1.2))
    stress = np.divide(more.demand, flow.demand, out=np.ones_like(flow.demand), where=flow.demand != 0) - 1
    stiff = dataclasses.replace(parameters, stress=stress, gain=1e9 * flow.is_generator)
    equations = GridEquations.of(stiff)
    v = np.ones(len(stress))
    for _ in range(20):  # equilibrium() stops by the force, whose rounding is large here
        v = v - np.linalg.solve(equations.slope(v).toarray(), equations.force(v))
    moved = np.abs(more.voltage) - np.abs(flow.voltage)
    assert np.abs(v * np.abs(flow.voltage) - np.abs(more.voltage)).max() < within
    assert np.abs(moved).max() > 4 * within


@needs_pandapower
def test_eliminating_a_node_without_injection_changes_no_flow():
    flow = power_flow("case300")
    assert (np.diag(flow.network()) <= 0).sum() == 1
    fewer = reduced(flow)
    gone = np.flatnonzero(np.diag(flow.network()) <= 0)[0]
    injected = flow.voltage * np.conj(flow.admittance @ flow.voltage)
    left = fewer.voltage * np.conj(fewer.admittance @ fewer.voltage)
    np.testing.assert_allclose(left, np.delete(injected, gone), atol=1e-8)
    assert len(left) == 299 and (np.diag(fewer.network()) > 0).all()


@needs_pandapower
@pytest.mark.parametrize("case", CASES)
def test_actions_shift_set_points_alike_on_every_grid(case):
    parameters = case_parameters(case)
    gain = np.array(parameters.gain)[list(parameters.is_generator)]
    np.testing.assert_allclose(PowerGrid.action_limit / gain, 0.4)
    own, scale = np.array(parameters.damping) * np.array(parameters.scale), np.array(parameters.scale)
    g = np.array(parameters.is_generator)
    assert own[~g].sum() == pytest.approx((np.array(parameters.gain) * scale).sum())  # 1 s times sum K


@needs_pandapower
def test_a_stressed_case_starts_away_from_its_references_and_is_stable():
    env = PowerGrid(topology="case39")
    env.reset(seed=0)
    start = env._observation()[:, 0]
    assert 0.05 < np.sqrt(np.mean((start - 1) ** 2)) < 0.08
    assert np.abs(np.linalg.eigvals(env.linearised()[0])).max() < 1
    assert env.graph.num_nodes == 39 and env.actuated.sum() == 10


# ---- identities that need no data ----


def test_units_of_a_node_do_not_change_its_voltage():
    grid = meshed()
    c = np.array(grid.scale)
    i, j = np.array(grid.lines).T
    per_node = ("gain", "inertia", "damping", "load", "offset", "shunt")
    own = dataclasses.replace(
        grid,
        **{name: np.array(getattr(grid, name)) * c for name in per_node},
        susceptance=np.array(grid.susceptance) * c[i],
        back_susceptance=np.array(grid.back_susceptance) * c[j],
        scale=(),
    )
    paths = []
    for parameters in (grid, own):
        batch = GridBatch([parameters])
        batch.reset([np.random.default_rng(0)])
        batch.v[:] = 1.0
        paths.append(batch.run(np.zeros((40, 20))))
    np.testing.assert_allclose(paths[0], paths[1], atol=1e-10)
    np.testing.assert_allclose(own.susceptance, own.back_susceptance)  # b_ij = b_ji in the grid's own units


def test_edges_carry_what_the_receiver_feels():
    grid = meshed()
    graph, H = PowerGrid().build_graph(grid), GridEquations.of(grid).H.toarray()
    off = graph.senders != graph.receivers
    felt = -H[graph.receivers[off], graph.senders[off]]
    np.testing.assert_allclose(graph.edge_attributes[off, 0], felt)


@pytest.mark.parametrize("implicitness", [0.5, 0.75, 1.0])
def test_every_integrator_settles_where_newton_says(implicitness):
    grid = dataclasses.replace(meshed(3), implicitness=implicitness)
    batch = GridBatch([grid])
    batch.reset([np.random.default_rng(0)])
    batch.v[:] = 1.0
    batch.run(np.zeros((2500, 20)))
    np.testing.assert_allclose(batch.v, GridEquations.of(grid).equilibrium(), atol=1e-7)


@pytest.mark.parametrize("implicitness", [0.5, 1.0])
def test_the_linear_model_is_the_derivative_of_the_step(implicitness):
    grid = dataclasses.replace(meshed(1, 12), implicitness=implicitness)
    env = PowerGrid()
    env.reset(seed=0, options={"parameters": grid})
    A, B, c = env.linearised()
    rng = np.random.default_rng(0)
    dx, u = 1e-5 * rng.standard_normal(24), 1e-5 * rng.standard_normal(12) * env.actuated

    def step(sign):
        env._batch.v, env._batch.w = 1 + sign * dx[:12], sign * dx[12:]
        env._advance(sign * u[:, None])
        return env._observation().T.reshape(-1)

    np.testing.assert_allclose((step(1) - step(-1)) / 2, A @ dx + B @ u, atol=1e-11)


def test_random_grids_resemble_transmission_grids():
    for seed in range(3):
        grid = meshed(seed, 60)
        assert 1.9 < 2 * len(grid.lines) / 60 < 5
        demand = np.array(grid.load) * grid.scale
        assert abs(demand.sum()) < 0.31 * (np.array(grid.gain) * grid.scale).sum()
    places = np.random.default_rng(0).uniform(0, 1, (30, 2))
    tree = short_lines(places, extra=0)
    assert len(tree) == 29 and len(short_lines(places, extra=5)) == 34


# ---- what a person may get wrong ----


def test_a_grid_that_does_not_exist_lists_those_that_do(capsys):
    for command in (["control", "grid", "--case", "case99"], ["data", "grid", "--case", "case99", "--out", "no.h5"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert "case99" in told and "case118" in told and "illinois200" in told


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["control", "rope", "--case", "case14"], "rope has none"),
        (["control", "grid", "--case", "case14", "--objects", "20"], "leave --objects out"),
        (["control", "some.h5", "--case", "case14"], "says by itself"),
    ],
)
def test_a_case_that_does_not_fit_is_explained(command, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2 and told in capsys.readouterr().err


def test_without_pandapower_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandapower", None)
    with pytest.raises(InputError, match=r"pip install pandapower"):
        power_flow("case14", reactive_load=0.9)  # not solved before


# ---- the commands ----


@needs_pandapower
def test_a_case_is_recorded_and_controlled(tmp_path, capsys):
    file = tmp_path / "case14.h5"
    main(["data", "grid", "--case", "case14", "--episodes", "3", "--group-size", "3", "--out", str(file)])
    main(["data", "replay", str(file), "--json"])
    assert max(json.loads(capsys.readouterr().out)["max_position_error"].values()) < 1e-6
    main(["control", str(file), "--adapt", "2", "--horizon", "10", "--json"])
    assert json.loads(capsys.readouterr().out)["objects"] == 14


def test_meshed_is_a_topology():
    env = PowerGrid(objects=15, topology=MESHED)
    env.reset(seed=2)
    assert env.graph.num_nodes == 15 and np.isfinite(env.observe()).all()


def test_grids_have_models_by_their_graph():
    def model(topology, nodes):
        return PowerGrid.model_for({"topology": topology}, [10, nodes])

    assert model("erdos_renyi", 150) == PowerGrid.usual_model() == "erdos_renyi"
    assert model("meshed", 150) == model("case118", 118) == "meshed"
    assert model("erdos_renyi", 10_000) == model("lattice", 100) == PowerGrid.model_for({}, [10]) == "grid"
    env = PowerGrid(objects=15, topology=MESHED)
    env.reset(seed=2)
    assert env.shipped_model() == "meshed"
    assert Rope.usual_model() == "rope"
