"""`gce control` on systems of one's own: recorded, or adapted to and kept."""

import csv
import json

import numpy as np
import pytest

from gce.cli import main
from gce.cli.beside import plan_warnings
from gce.cli.common import Labels
from gce.cli.own_plan import limited, read_exogenous, read_goal, read_limits, read_start
from gce.errors import InputError
from gce.model.files import save_model
from gce.system.files import about_system, load_system, save_system
from gce.training.preparation import config_for, prepare
from gce.trajectory import Dataset
from gce.views.report import read_details
from small import TINY

START = (0.3, 0.2, 0.2)
LABELS = Labels(("upper", "middle", "lower"), ("level", "heat"), ("pump",), ("rain",))


def tanks(start, pumped):
    """The levels of three tanks in a row, the first fed by a pump."""
    levels = [np.array(start)]
    for push in pumped:
        flow = 0.3 * (levels[-1][:-1] - levels[-1][1:])
        levels.append(levels[-1] + 0.2 * np.array([push - flow[0], flow[0] - flow[1], flow[1] - 0.4 * levels[-1][2]]))
    return np.stack(levels)


def recorded(rng):
    pumped = np.repeat(rng.uniform(0, 1, 4), 5)
    return tanks(rng.uniform(0, 1, 3), pumped)[:, :, None], pumped[:, None, None] * [[1], [0], [0]]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """own.h5, a model that has only seen its units, and the system adapted to seven of its nine episodes."""
    folder = tmp_path_factory.mktemp("own")
    episodes = [recorded(rng) for rng in np.random.default_rng(0).spawn(9)]
    data = Dataset.from_arrays(
        *zip(*episodes, strict=True),
        [[0, 1], [1, 2]],
        undirected=True,
        action_bounds=(0, 1),
        node_names=LABELS.nodes,
        observation_names=["level"],
        action_names=["pump"],
    )
    data.save(folder / "own.h5")
    save_model(prepare(config_for(data, **TINY), data).eval(), folder / "model")
    main(["adapt", str(folder / "own.h5"), "--episodes", "7", "--model", str(folder / "model"),
          "--out", str(folder / "adapted")])  # fmt: skip
    upper, middle, _ = tanks(START, np.full(15, 0.6))[-1]
    (folder / "goal.csv").write_text(f"node,level\nupper,{upper}\nmiddle,{middle}\nlower,\n")
    (folder / "start.csv").write_text("node,level\nlower,0.2\nmiddle,0.2\nupper,0.3\n")
    return folder


def told(capsys, *arguments):
    capsys.readouterr()
    main(["control", *map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def table(file):
    with open(file, newline="") as opened:
        header, *rows = csv.reader(opened)
    return header, rows


def test_an_adapted_system_reaches_its_goal_in_the_users_names(place, capsys, tmp_path):
    plan = [place / "adapted", "--start", place / "start.csv", "--goal", place / "goal.csv", "--horizon", 15]
    answer = told(capsys, *plan, "--out", tmp_path / "plan")
    assert answer["status"] == "solved" and answer["horizon"] == 15
    header, rows = table(tmp_path / "plan" / "plan.csv")
    assert header == ["step", "node", "pump"] and len(rows) == 15 * 3
    acted = {node: [float(row[2]) for row in rows if row[1] == node] for node in LABELS.nodes}
    assert any(acted["upper"]) and all(0 <= a <= 1 for a in acted["upper"])
    assert not any(acted["middle"]) and not any(acted["lower"])
    header, rows = table(tmp_path / "plan" / "predicted.csv")
    assert header == ["step", "node", "level"] and len(rows) == 16 * 3
    assert rows[0] == ["0", "upper", "0.3"]
    goal = np.array([float(row[1]) for row in table(place / "goal.csv")[1][:2]])  # the third is free
    expected, came = np.array([float(row[2]) for row in rows[-3:-1]]), tanks(START, acted["upper"])[-1, :2]
    error = np.linalg.norm(expected - goal) / np.linalg.norm(goal)
    assert answer["predicted_control_error"] == pytest.approx(error, rel=1e-4)
    assert np.linalg.norm(came - goal) < 0.05 * np.linalg.norm(goal)  # carried out on the true tanks
    found = read_details(tmp_path / "plan")
    assert np.isnan(found.goal[2]) and len(found.fit_counts) == 0 and found.about["node_names"] == list(LABELS.nodes)


def test_a_plan_from_the_folder_is_that_from_the_data(place, capsys):
    """Adapted to the same episodes, from the same start to the same goal."""
    asked = ["--episode", 8, "--goal-step", 10, "--action-cost", 0.01]
    kept = told(capsys, place / "adapted", "--start", place / "own.h5", *asked)
    anew = told(capsys, place / "own.h5", "--adapt", 7, "--model", place / "model", *asked)
    assert kept["predicted_cost"] == pytest.approx(anew["predicted_cost"], rel=1e-5)
    assert kept["horizon"] == anew["horizon"] == 10


def test_references_stand_beside_a_plan(place, capsys, tmp_path):
    """Tanks are linear, and the model was never trained: DMDc is better, and that is said."""
    plan = [place / "own.h5", "--model", place / "model", "--adapt", 7, "--goal-step", 15]
    answer = told(capsys, *plan, "--out", tmp_path / "plan")
    beside = answer["prediction"]
    assert beside.keys() == {"model", "persistence", "dmdc"}
    assert beside["dmdc"] < 0.1 * beside["persistence"]
    assert answer["predicted_distance"] < answer["start_distance"]
    expected = "does not beat" in "".join(answer["warnings"])
    assert expected == (not beside["model"] < min(beside["persistence"], beside["dmdc"]))
    main(["control", *map(str, plan)])
    printed = capsys.readouterr()
    assert "prediction: model " in printed.out and ", DMDc " in printed.out and "warnings" not in printed.out
    assert ("warning: the model does not beat" in printed.err) == expected
    folder = told(capsys, place / "adapted", "--start", place / "start.csv", "--goal", place / "goal.csv")
    assert folder["prediction"] is None


def test_a_plan_that_ends_no_nearer_is_warned_of():
    assert plan_warnings(0.5, 0.2, None) == plan_warnings(0.0, 0.0, None) == []
    (sentence,) = plan_warnings(0.5, 0.6, None)
    assert "no nearer than the start (0.5)" in sentence
    assert len(plan_warnings(0.5, 0.6, {"model": 0.9, "persistence": 0.8, "dmdc": None})) == 2
    assert plan_warnings(0.5, 0.2, {"model": 0.1, "persistence": 0.8, "dmdc": 0.2}) == []


def test_limits_come_from_a_file_or_from_arguments(place, capsys, tmp_path):
    plan = [place / "adapted", "--start", place / "start.csv", "--goal", place / "goal.csv", "--horizon", 8]
    (tmp_path / "limits.toml").write_text('actuated = ["upper", "lower"]\naction_bounds = {pump = [-0.25, 0.5]}\n')
    for more in (
        ["--limits", tmp_path / "limits.toml"],
        ["--actuated", "upper", "lower", "--bounds", "-0.25", "0.5"],
    ):
        told(capsys, *plan, *more, "--out", tmp_path / "plan")
        found = read_details(tmp_path / "plan")
        np.testing.assert_array_equal(found.low[:, 0], [-0.25, 0, -0.25])
        np.testing.assert_array_equal(found.high[:, 0], [0.5, 0, 0.5])


BAD = {
    "no start": (["--goal", "{place}/goal.csv"], "where is the system now? give --start"),
    "no goal": (["--start", "{place}/start.csv"], "give --goal with a file such as goal.csv: a header node,level"),
    "free start": (["--start", "{place}/goal.csv", "--goal", "{place}/goal.csv"], "does not say level of node lower"),
    "no such node": (["--goal", "{tmp}/node.csv"], "row 2, column node: there is no node 'attic'"),
    "no such column": (["--goal", "{tmp}/column.csv"], "column hope: the system has no such coordinate"),
    "not a number": (["--goal", "{tmp}/words.csv"], "row 2, column level: 'high' is not a number"),
    "twice": (["--goal", "{tmp}/twice.csv"], "row 3: node upper was given in row 2 already"),
    "nothing said": (["--goal", "{tmp}/empty.csv"], "says no goal at all"),
    "nan": (["--goal", "{tmp}/nan.npy"], "is not a number for node middle, level"),
    "a path that is too short": (["--goal", "{tmp}/path.csv", "--horizon", "9"], "a path of 2 steps, the horizon 9"),
    "no such actuator": (["--goal", "{place}/goal.csv", "--actuated", "attic"], "no node 'attic' to act"),
    "crossed": (["--goal", "{place}/goal.csv", "--bounds", "1", "-1"], "give the smaller bound first"),
    "nobody acts": (["--goal", "{place}/goal.csv", "--bounds", "0", "0"], "no node takes an action"),
    "noise": (["--goal", "{place}/goal.csv", "--noise", "0.1"], "leave out --noise"),
    "horizon": (["--goal", "{place}/goal.csv", "--horizon", "0"], "--horizon is 0"),
    "no such episode": (["--start", "{place}/own.h5", "--episode", "90"], "has the episodes 0 to 8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_a_sentence_and_status_2(name, place, tmp_path, capsys):
    for file, text in (
        ("node.csv", "node,level\nattic,1\n"),
        ("column.csv", "node,hope\nupper,1\n"),
        ("words.csv", "node,level\nupper,high\n"),
        ("twice.csv", "node,level\nupper,1\nupper,2\n"),
        ("empty.csv", "node,level\nupper,\n"),
        ("path.csv", "step,node,level\n1,upper,1\n2,upper,1\n"),
    ):
        (tmp_path / file).write_text(text)
    np.save(tmp_path / "nan.npy", [[1.0], [np.nan], [1.0]])
    arguments, words = BAD[name]
    arguments = [a.format(place=place, tmp=tmp_path) for a in arguments]
    if "--start" not in arguments and name != "no start":
        arguments += ["--start", str(place / "start.csv")]
    with pytest.raises(SystemExit) as end:
        main(["control", str(place / "adapted"), *arguments, "--out", str(tmp_path / "plan")])
    said = capsys.readouterr().err
    assert end.value.code == 2 and words in said and said.startswith("gce: ")
    assert not (tmp_path / "plan").exists()


def test_folders_that_hold_no_adapted_system_are_refused(place, tmp_path, capsys):
    def refused(folder):
        with pytest.raises(SystemExit) as end:
            main(["control", str(folder), "--start", str(place / "start.csv"), "--goal", str(place / "goal.csv")])
        assert end.value.code == 2
        return capsys.readouterr().err

    assert "not adapted to any system; make one with `gce adapt" in refused(place / "model")
    assert "holds no adapted system" in refused(tmp_path)
    save_system(load_system(place / "adapted"), tmp_path / "bare")
    assert "does not say between which bounds" in refused(tmp_path / "bare")


def test_nothing_is_left_where_writing_fails(place, tmp_path, capsys, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gce.views.report.details.write_details", full)
    asked = ["control", place / "adapted", "--start", place / "start.csv", "--goal", place / "goal.csv", "--horizon", 4]
    with pytest.raises(SystemExit) as end:
        main([*map(str, asked), "--out", str(tmp_path / "plan")])
    assert end.value.code == 2 and "No space left on device; give another place" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_kept_system_says_names_bounds_and_length(place):
    about = about_system(place / "adapted")
    assert about["names"] == {"nodes": list(LABELS.nodes), "observation_names": ["level"], "action_names": ["pump"]}
    assert about["low"] == [[0], [0], [0]] and about["high"] == [[1], [0], [0]] and about["steps"] == 20


# ---- files ----


def test_a_path_and_inputs_have_a_row_a_step_and_node(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("step,node,heat\n3,upper,1\n4,upper,2\n")
    goal = read_goal(file, LABELS)
    assert goal.values.shape == (2, 3, 2) and goal.values[:, 0, 1].tolist() == [1, 2]
    assert goal.tracked.tolist() == [[False, True], [False, False], [False, False]]
    file.write_text("step,node,rain\n" + "".join(f"{t},{n},{t}\n" for t in range(3) for n in LABELS.nodes))
    assert read_exogenous(file, LABELS, 2)[:, 0, 0].tolist() == [0, 1]
    with pytest.raises(InputError, match="at each of the 4 steps"):
        read_exogenous(file, LABELS, 4)
    with pytest.raises(InputError, match="has no such coordinate"):
        read_start(file, LABELS)


def test_limits_say_who_acts_and_how_far(tmp_path):
    low, high = np.array([[0.0], [0.0], [0.0]]), np.array([[1.0], [0.0], [0.0]])
    file = tmp_path / "limits.toml"

    def found():
        return limited(*read_limits(file), LABELS, low, high)

    file.write_text('actuated = ["upper", "lower"]\n')
    np.testing.assert_array_equal(found()[1][:, 0], [1, 0, 1])
    file.write_text("dt = 0.1\naction_bounds = [0, 0.5]\n")  # a folder's system.toml will do
    np.testing.assert_array_equal(found()[1][:, 0], [0.5, 0, 0])
    for text, words in (
        ("actuated = [7]", "there is no node '7'"),
        ("action_bounds = 3", "expected"),
        ("action_bounds = {valve = [0, 1]}", "there is no action 'valve'"),
        ("bounds = [0, 1]", "it may say"),
        ("actuated = [", "not a TOML file"),
        ("action_bounds = ['a', 'b']", "expected"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=words):
            found()


def test_a_plan_is_exported_as_c_and_says_what_it_promises(place, capsys, tmp_path):
    asked = ["control", str(place / "adapted"), "--start", str(place / "start.csv"), "--goal", str(place / "goal.csv")]
    main([*asked, "--horizon", "6", "--export", str(tmp_path / "act.c"), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert "#define GCE_STEPS 6" in (tmp_path / "act.c").read_text()
    promised = answer["expected_error"]
    assert promised["low"] <= promised["error"] <= promised["high"]
    assert promised["worth"] == (promised["error"] < promised["nothing"])
    for given, told in (
        (["--export", "act.py"], "ends in .c"),
        (["--export", "a.c", "--env", "m:f"], "leave --env out"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*asked, *given])
        assert ended.value.code == 2 and told in capsys.readouterr().err
