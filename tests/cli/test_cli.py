"""The command line as a person uses it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import gce
from gce.cli import COMMANDS, main
from gce.graphs.graph import Graph
from gce.trajectory import Dataset, Episode


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "gce", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "rope.h5"
    main(["data", "rope", "--episodes", "4", "--group-size", "2", "--steps", "30", "--seed", "3", "--out", str(file)])
    return file


def test_help_explains_itself():
    printed = run("--help")
    assert printed.returncode == 0
    assert "data" in printed.stdout
    assert "recordings" in printed.stdout
    for command in ("rope", "soft", "swim", "grid", "flock", "merge", "import", "replay", "check", "show"):
        assert command in run("data", "--help").stdout


def test_version_and_wrong_commands(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"gce {gce.__version__}\n"
    listed = run("--help").stdout
    assert all(f" {command} " in listed for command in COMMANDS)
    with pytest.raises(SystemExit, match="2"):
        main(["contrl", "rope"])
    assert "there is no command 'contrl' (did you mean 'control'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("control rope --nois .1", "no option '--nois' (did you mean '--noise'?); see gce control --help"),
        ("control rope --xyzzy", "no option '--xyzzy'; see gce control --help"),
        ("--nois", "no option '--nois'; see gce --help"),
    ],
)
def test_an_option_that_a_command_does_not_have_gets_a_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments.split())
    said = capsys.readouterr().err
    assert end.value.code == 2 and said == f"gce: there is {words}\n"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["control", "rpe"], "'rpe' (did you mean 'rope'?) is neither a world"),
        (["control", "rope", "--noise", "10"], "--noise is 10, expected a share of the units from 0 to 1; 10% is 0.1"),
        (["data", "rope", "--out", "x.h5", "--observation-noise", "5"], "--observation-noise is 5, expected a share"),
    ],
)
def test_near_misses_are_told(command, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(command)
    assert sentence in capsys.readouterr().err


def test_help_shows_no_type_of_python():
    for command in ("control", "train", "predict", "reproduce"):
        assert "None" not in run(command, "--help").stdout, command


def test_check_tells_what_is_in_a_good_file(rope, capsys):
    main(["data", "check", str(rope)])
    assert "good; 4 episodes of 2 systems, 30 steps each, world rope" in capsys.readouterr().out


def test_replay_prints_json_alone(rope):
    done = run("data", "replay", rope, "--json")
    answer = json.loads(done.stdout)
    assert set(answer["max_position_error"]) == {"10", "50", "100"}
    assert answer["max_position_error"]["100"] < 1e-6


@pytest.mark.parametrize("kind", ["gif", "png", "mp4"])
def test_show_writes_each_kind(rope, tmp_path, kind):
    out = tmp_path / f"x.{kind}"
    main(["data", "show", str(rope), "--episode", "1", "--out", str(out)])
    assert [p.name for p in tmp_path.iterdir()] == [f"x.{kind}"]
    if kind == "gif":
        with Image.open(out) as picture:
            assert picture.n_frames > 25
    elif kind == "mp4":
        import imageio_ffmpeg

        frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(out))
        assert frames == 31
        assert seconds == pytest.approx(31 / 50, abs=0.05)
    else:
        with Image.open(out) as picture:
            assert picture.size[0] == 4 * 480


def test_data_of_no_known_world_is_shown_as_a_network(tmp_path):
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], undirected=True)
    episode = Episode(graph, rng.random((4, 6, 2)), rng.random((3, 6, 1)))
    Dataset.from_episodes([episode]).save(tmp_path / "x.h5")
    main(["data", "show", str(tmp_path / "x.h5"), "--out", str(tmp_path / "x.png")])
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_import_and_replay(recordings, tmp_path):
    out = tmp_path / "x.h5"
    done = run("data", "import", recordings / "rope_0.npz", recordings / "rope_2.npz", "--world", "rope", "--out", out)
    assert done.returncode == 0, done.stderr
    answer = json.loads(run("data", "replay", out, "--json").stdout)
    assert answer["max_position_error"]["100"] < 1e-6
    with Dataset.open(out) as data:
        assert data.groups.tolist() == [0] * 9 + [1] * 9


def test_the_demo_controls_a_rope_and_shows_it(tmp_path):
    main(["demo", "--out", str(tmp_path / "demo")])
    told = json.loads((tmp_path / "demo" / "control.json").read_text())
    assert told["status"] == "solved"
    assert told["control_error"] < 0.5 * told["nothing"]
    with Image.open(tmp_path / "demo" / "control.gif") as picture:
        assert picture.n_frames > 40


BAD = {
    "no objects": (["data", "rope", "--objects", "0", "--out", "{tmp}/o.h5"], "--objects is '0'"),
    "odd objects": (["data", "rope", "--objects", "many", "--out", "{tmp}/o.h5"], "expected a number or a range"),
    "shard out of range": (["data", "rope", "--shard", "4/4", "--out", "{tmp}/o.h5"], "shard 4/4 is out of range"),
    "odd shard": (["data", "rope", "--shard", "half", "--out", "{tmp}/o.h5"], "expected i/n"),
    "no folder": (["data", "rope", "--episodes", "1", "--out", "{tmp}/none/o.h5"], "none"),
    "not a file": (["data", "check", "{tmp}/none.h5"], "is not a file"),
    "foreign file": (["data", "check", "{tmp}/text.h5"], "is not an HDF5 file"),
    "no such episode": (["data", "show", "{rope}", "--episode", "9", "--out", "{tmp}/x.gif"], "episodes 0 to 3"),
    "odd picture": (["data", "show", "{rope}", "--out", "{tmp}/x.bmp"], "must end in .mp4, .gif or .png"),
    "unknown world": (["data", "import", "{tmp}/text.h5", "--world", "sea", "--out", "{tmp}/o.h5"], "no world 'sea'"),
    "not npz": (["data", "import", "{tmp}/text.h5", "--world", "rope", "--out", "{tmp}/o.h5"], "is not an npz file"),
    "empty npz": (
        ["data", "import", "{tmp}/empty.npz", "--world", "rope", "--out", "{tmp}/o.h5"],
        "has no observations",
    ),
    "nan in npz": (["data", "import", "{tmp}/nan.npz", "--world", "rope", "--out", "{tmp}/o.h5"], "hold nan at step 1"),
    "unknown option": (["data", "rope", "--colour", "red", "--out", "{tmp}/o.h5"], "--colour"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_a_sentence_status_2_and_no_output(case, rope, tmp_path, capsys):
    (tmp_path / "text.h5").write_text("a,b\n1,2\n")
    np.savez(tmp_path / "empty.npz", x=np.zeros(3))
    system = {"num_masses": 3, "init_x": 0.0, "stiffness": 900.0, "damping": 45.0, "gravity": -5.0}
    observations = np.zeros((1, 4, 3, 4))
    observations[0, 1, 0, 0] = np.nan
    np.savez(tmp_path / "nan.npz", observations=observations, actions=np.zeros((1, 3, 3, 1)), **system)
    before = sorted(p.name for p in tmp_path.iterdir())
    arguments, message = BAD[case]
    with pytest.raises(SystemExit) as stop:
        main([a.format(tmp=tmp_path, rope=rope) for a in arguments])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert message in printed.err + printed.out
    assert "Traceback" not in printed.err
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_commands_leave_numpy_one_thread_unless_told_otherwise(monkeypatch, rope):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    main(["data", "check", str(rope)])
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    main(["data", "check", str(rope)])
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
