import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gce.envs.recording import Recording, Shard, merge, position_errors, record
from gce.errors import InputError
from gce.trajectory import Dataset, check_file

SMALL = Recording(world="rope", episodes=7, objects=(3, 5), group_size=2, seed=4, steps=12)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("gce.envs.recording.EPISODES_PER_PART", 2)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_recording_is_what_was_asked_for(tmp_path):
    record(SMALL, tmp_path / "x.h5")
    assert check_file(tmp_path / "x.h5") == []
    assert [p.name for p in tmp_path.iterdir()] == ["x.h5"]
    with Dataset.open(tmp_path / "x.h5") as data:
        assert data.groups.tolist() == [0, 0, 1, 1, 2, 2, 3]
        assert set(data.lengths) == {12}
        assert {e.num_nodes for e in data} <= {3, 4, 5}
        assert data.metadata["world"] == "rope"
        assert data.metadata["recording"]["seed"] == 4
        assert data[0].parameters == data[1].parameters != data[2].parameters
        assert not np.array_equal(data[0].actions, data[1].actions)


@pytest.mark.parametrize("world", ["rope", "soft", "swim", "grid", "flock"])
def test_what_was_recorded_replays_exactly(tmp_path, world):
    recording = dataclasses.replace(SMALL, world=world, objects=(5, 6), episodes=3, process_noise=0.02, steps=60)
    record(recording, tmp_path / "x.h5")
    with Dataset.open(tmp_path / "x.h5") as data:
        # Only the rounding to single precision is left.
        assert position_errors(data)[100] < 1e-6


def test_two_workers_record_the_same_bytes_as_one(tmp_path):
    record(SMALL, tmp_path / "one.h5")
    record(SMALL, tmp_path / "two.h5", workers=2)
    assert digest(tmp_path / "one.h5") == digest(tmp_path / "two.h5")


def test_merged_shards_are_the_whole_in_any_order(tmp_path):
    record(SMALL, tmp_path / "whole.h5")
    for k in range(3):
        record(SMALL, tmp_path / f"{k}.h5", shard=Shard(k, 3))
    merge([tmp_path / "2.h5", tmp_path / "0.h5", tmp_path / "1.h5"], tmp_path / "merged.h5")
    assert digest(tmp_path / "merged.h5") == digest(tmp_path / "whole.h5")


def test_interrupted_work_goes_on_where_it_stopped(tmp_path):
    record(SMALL, tmp_path / "whole.h5")
    counted = []

    def stop_after_two(episodes):
        counted.append(episodes)
        if len(counted) == 2:
            raise KeyboardInterrupt

    out = tmp_path / "x.h5"
    with pytest.raises(KeyboardInterrupt):
        record(SMALL, out, progress=stop_after_two)
    assert not out.exists()
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "x.h5.parts").glob("groups-*.h5")}
    assert len(kept) == 2
    done = []
    record(SMALL, out, progress=done.append)
    assert sum(done) == 7
    assert digest(out) == digest(tmp_path / "whole.h5")
    assert not (tmp_path / "x.h5.parts").exists()


def test_a_killed_recording_goes_on(tmp_path):
    out = tmp_path / "x.h5"
    command = [
        sys.executable,
        "-m",
        "gce",
        "data",
        "rope",
        "--episodes",
        "3000",
        "--group-size",
        "10",
        "--out",
        str(out),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    parts = tmp_path / "x.h5.parts"
    while not list(parts.glob("groups-*.h5")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    kept = len(list(parts.glob("groups-*.h5")))
    assert 1 <= kept < 12
    subprocess.run(command, check=True, capture_output=True)
    assert check_file(out) == []
    with Dataset.open(out) as data:
        assert len(data) == 3000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_with_a_sentence_status_2_and_no_output(tmp_path, number):
    out = tmp_path / "x.h5"
    arguments = ["data", "rope", "--episodes", "20000", "--workers", "2", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gce", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Started in the background of a shell, the tests themselves may be told to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list((tmp_path / "x.h5.parts").glob("groups-*.h5")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "stopped" in printed
    assert "Traceback" not in printed
    assert not out.exists()
    assert not list((tmp_path / "x.h5.parts").glob(".*.tmp"))


def test_a_finished_recording_is_not_done_again(tmp_path):
    record(SMALL, tmp_path / "x.h5")
    before = (tmp_path / "x.h5").stat().st_mtime_ns
    record(SMALL, tmp_path / "x.h5")
    assert (tmp_path / "x.h5").stat().st_mtime_ns == before


def test_other_files_and_other_unfinished_work_are_left_alone(tmp_path):
    (tmp_path / "x.h5").write_text("precious")
    with pytest.raises(InputError, match="exists and is not this recording"):
        record(SMALL, tmp_path / "x.h5")
    (tmp_path / "y.h5.parts").mkdir()
    (tmp_path / "y.h5.parts" / "mine").touch()
    with pytest.raises(InputError, match="unfinished work of another recording"):
        record(SMALL, tmp_path / "y.h5")
    os.mkfifo(tmp_path / "y.h5.parts" / "recording.json")  # which would be waited for without end
    with pytest.raises(InputError, match="is not a file"):
        record(SMALL, tmp_path / "y.h5")
    assert (tmp_path / "x.h5").read_text() == "precious" and (tmp_path / "y.h5.parts" / "mine").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episodes": 0}, "episodes is 0"),
        ({"objects": (0, 3)}, "objects is 0-3"),
        ({"steps": 0}, "steps is 0"),
        ({"world": "sea"}, "there is no world 'sea'; the worlds are rope, soft, swim, grid, flock"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_impossible_recordings_are_told(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(SMALL, **change)


@pytest.mark.parametrize("index", [-1, 3, 4])
def test_a_shard_out_of_range_is_told(index):
    with pytest.raises(InputError, match="out of range"):
        Shard(index, 3)


def test_too_many_shards_and_workers_are_told(tmp_path):
    with pytest.raises(InputError, match="only 4 groups to share"):
        record(SMALL, tmp_path / "x.h5", shard=Shard(0, 9))
    with pytest.raises(InputError, match="workers is 0"):
        record(SMALL, tmp_path / "x.h5", workers=0)


def test_missing_and_foreign_shards_are_told(tmp_path):
    for k in range(2):
        record(SMALL, tmp_path / f"{k}.h5", shard=Shard(k, 3))
    with pytest.raises(InputError, match="2/3"):
        merge([tmp_path / "0.h5", tmp_path / "1.h5"], tmp_path / "m.h5")
    record(dataclasses.replace(SMALL, seed=5), tmp_path / "other.h5", shard=Shard(2, 3))
    with pytest.raises(InputError, match="shard of another recording"):
        merge([tmp_path / "0.h5", tmp_path / "1.h5", tmp_path / "other.h5"], tmp_path / "m.h5")
    assert not (tmp_path / "m.h5").exists()


def test_files_of_one_world_merge_and_of_two_do_not(tmp_path):
    record(SMALL, tmp_path / "a.h5")
    record(dataclasses.replace(SMALL, seed=5), tmp_path / "b.h5")
    record(dataclasses.replace(SMALL, world="swim", objects=(5, 5)), tmp_path / "c.h5")
    merge([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "ab.h5")
    with Dataset.open(tmp_path / "ab.h5") as data:
        assert len(data) == 14
        assert len(set(data.groups.tolist())) == 8
    with pytest.raises(InputError, match="world"):
        merge([tmp_path / "a.h5", tmp_path / "c.h5"], tmp_path / "ac.h5")
