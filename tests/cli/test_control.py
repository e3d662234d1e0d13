"""`gce control`, as a user would run it."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from gce.cli import main
from gce.cli.common import read_cost
from gce.cli.control import _advise
from gce.control.tracking import Status
from gce.errors import InputError
from gce.trajectory import Dataset


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    file = tmp_path_factory.mktemp("control") / "rope.h5"
    main(
        ["data", "rope", "--episodes", "5", "--group-size", "5", "--objects", "5", "--steps", "20", "--out", str(file)]
    )
    return file


def told(capsys, *arguments):
    capsys.readouterr()
    main(["control", *map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_recorded_system_is_controlled(recording, capsys):
    answer = told(capsys, recording, "--adapt", "4", "--goal-step", "12", "--feedback", "12")
    assert answer["status"] == "solved"
    assert len(answer["plan_seconds"]) == 1
    assert answer["control_error"] < 0.5 * answer["nothing"]
    assert answer["control_error_positions"] >= 0
    again = told(capsys, recording, "--adapt", "4", "--goal-step", "12", "--feedback", "12")
    assert again["control_error"] == answer["control_error"]


def test_without_json_it_says_in_words_what_was_reached(recording, capsys):
    main(["control", str(recording), "--adapt", "4", "--goal-step", "12", "--feedback", "12"])
    first, blank, *rest = capsys.readouterr().out.splitlines()
    left = float(first.split(": ")[1].split("%")[0])
    words = (
        r".*% of the error of doing nothing is left after 12 steps. The last plan promised an error of [\d.e-]+; it is "
    )
    assert re.match(words, first) and blank == ""
    shares = [float(line.split()[1]) for line in rest if line.startswith("control_error_over_nothing")]
    assert left == pytest.approx(100 * shares[0], rel=0.01)


def test_a_goal_from_a_file_and_a_folder_of_results(recording, capsys, tmp_path):
    with Dataset.open(recording) as data:
        goal = data[0].observations[12]
    np.savetxt(tmp_path / "goal.csv", goal, delimiter=",")
    answer = told(
        capsys, recording, "--adapt", "3", "--goal", tmp_path / "goal.csv", "--horizon", "12", "--out", tmp_path / "run"
    )
    assert answer["horizon"] == 12
    with Image.open(tmp_path / "run" / "control.gif") as picture:
        assert picture.n_frames > 12
    assert (tmp_path / "run" / "control.svg").stat().st_size > 5000
    kept = json.loads((tmp_path / "run" / "control.json").read_text())
    assert kept["control_error"] == answer["control_error"]
    with Dataset.open(tmp_path / "run" / "episode.h5") as data:
        assert data[0].length == 12


BAD = {
    "no such world": (["pendulum"], "neither a world"),
    "goal out of reach": (["{file}", "--adapt", "2", "--goal-step", "90"], "has 20 steps"),
    "no such episode": (["{file}", "--episode", "9"], "episodes 0 to 4"),
    "feedback": (["{file}", "--feedback", "0"], "--feedback is 0"),
    "no goal file": (["{file}", "--adapt", "2", "--goal", "{tmp}/none.csv"], "cannot read"),
    "odd goal file": (["{file}", "--adapt", "2", "--goal", "{tmp}/goal.txt"], "not a goal file"),
    "a goal that is words": (["{file}", "--adapt", "2", "--goal", "{tmp}/words.csv"], "not a table of numbers"),
    "a goal of another system": (["{file}", "--adapt", "2", "--goal", "{tmp}/small.csv"], "the goal"),
    "noise": (["{file}", "--noise", "-1"], "--noise is -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_a_sentence_and_status_2(name, recording, tmp_path, capsys):
    (tmp_path / "goal.txt").write_text("1 2 3")
    (tmp_path / "words.csv").write_text("up,down\n")
    (tmp_path / "small.csv").write_text("1,2\n3,4\n")
    arguments, words = BAD[name]
    arguments = [a.format(file=recording, tmp=tmp_path) for a in arguments]
    with pytest.raises(SystemExit) as end:
        main(["control", *arguments, "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_plan_that_is_not_solved_comes_with_its_status_and_its_own_advice(capsys):
    for status in Status:
        _advise({"status": status})
        words = "" if status.ok else f"the planner ended early ({status}); its best plan is used. {status.advice}\n"
        assert capsys.readouterr().err == words


def test_what_is_no_cost_is_refused_by_its_flag(tmp_path):
    np.save(tmp_path / "q.npy", np.diag([1.0, -1.0]))
    for flag, text, said in (
        ("--q2", "-1", "--q2 is negative"),
        ("--q1", str(tmp_path / "q.npy"), "--q1 is not positive semi-definite"),
    ):
        with pytest.raises(InputError, match=said):
            read_cost(flag, text)
