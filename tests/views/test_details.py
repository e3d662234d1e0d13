"""What a run leaves for its report."""

import json

import numpy as np
import pytest

from gce.cli import main
from gce.errors import InputError
from gce.planning.controller import Controller
from gce.system.system import adapt
from gce.views.report import details_of_plan, read_details, write_details
from small import system_episodes, untrained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A short run of the command line on a recorded rope."""
    place = tmp_path_factory.mktemp("details")
    data = ["--episodes", "5", "--group-size", "5", "--objects", "5", "--steps", "20", "--out", str(place / "rope.h5")]
    main(["data", "rope", *data])
    main(["control", str(place / "rope.h5"), "--adapt", "4", "--horizon", "12", "--feedback", "8",
          "--out", str(place / "run")])  # fmt: skip
    return place / "run"


def test_a_run_leaves_all_that_its_report_needs(folder):
    found, figures = read_details(folder), json.loads((folder / "control.json").read_text())
    assert found.about["world"] == "rope" and found.about["versions"]["numpy"] == np.__version__
    assert found.about["settings"]["feedback"] == 8
    assert np.isclose(found.costs.sum(), figures["cost"])
    assert found.nothing.shape == found.observations.shape == (13, 5, 4)
    plans = found.plans()
    assert [at for at, _, _ in plans] == [0, 8]
    assert np.array_equal(plans[0][1][:8], found.actions[:8]) and np.array_equal(plans[1][1], found.actions[8:])
    assert np.array_equal(plans[1][2][0], found.observations[8]) and len(plans[1][2]) == 5
    assert np.allclose(found.goal, figures["goal"])
    assert found.weights.shape == (13, found.edge_index.shape[1])


def test_a_plan_without_a_simulator_leaves_the_same(tmp_path):
    from gce.control.problem import Problem

    episodes = system_episodes()
    system, first = adapt(untrained(), episodes[1:], measure=False), episodes[0]
    bound = np.where(np.arange(first.num_nodes) == 0, 2.0, 0.0)[:, None]
    problem = Problem(horizon=6, goal=first.observations[6].astype(float), low=-bound, high=bound)
    plan = Controller(system, problem, iterations=1).plan(first.observations[0].astype(float), opening=True)
    write_details(details_of_plan(plan, problem, system, episodes[1:], first, {"action_names": ["push"]}), tmp_path)
    found = read_details(tmp_path)
    assert found.about["simulated"] is False and len(found.costs) == len(found.nothing) == 0
    assert found.about["action_names"] == ["push"] and found.fit_errors.shape == (3, first.length)
    assert found.actuated.tolist() == [True] + [False] * (first.num_nodes - 1)
    assert np.array_equal(found.observations, plan.observations)


def test_other_folders_are_refused_with_a_sentence(folder, tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        read_details(tmp_path / "none")
    with pytest.raises(InputError, match=r"has no details\.npz"):
        read_details(tmp_path)
    (tmp_path / "details.npz").write_bytes((folder / "details.npz").read_bytes()[:900])
    with pytest.raises(InputError, match="is not an npz file"):
        read_details(tmp_path)
    np.savez(tmp_path / "details.npz", about="{}")
    with pytest.raises(InputError, match="lacks 'observations'"):
        read_details(tmp_path)
