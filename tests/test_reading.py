"""Files are written whole or not at all, and what is read passes one border."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
import zipfile

import numpy as np
import pytest

from gce.errors import Doubt, InputError, warn
from gce.files import (
    border,
    check_cap,
    check_packed,
    guarded,
    locked,
    parsed_json,
    read_bytes,
    read_json,
    read_npy,
    read_npz,
    unguarded,
    written,
    written_together,
)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "x"
    with written(file) as place:
        place.write_text("first")
    with pytest.raises(KeyboardInterrupt), written(file) as place:
        place.write_text("sec")
        raise KeyboardInterrupt
    with pytest.raises(InputError, match="cannot write .*x: No space left"), written(file) as place:
        place.write_text("sec")
        raise OSError(28, os.strerror(28))
    assert file.read_text() == "first" and list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match="cannot write"), written(tmp_path / "none" / "x"):
        pass


def test_files_are_written_together_or_none_is(tmp_path):
    folder = tmp_path / "new"
    with pytest.raises(ValueError), written_together(folder) as place:
        (place / "a").write_text("1")
        raise ValueError
    assert not folder.exists()
    with written_together(folder) as place:
        (place / "a").write_text("1")
        (place / "b").write_text("2")
    assert sorted(file.name for file in folder.iterdir()) == ["a", "b"]


HOLD = """
import sys, time
from pathlib import Path
from gce.files import written
with written(Path(sys.argv[1])) as place:
    place.write_text("half")
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "x")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_on_one_output_is_refused_and_a_dead_one_holds_nothing(holder, tmp_path):
    with pytest.raises(InputError, match="another process writes .*x; wait"), locked(tmp_path / "x"):
        pass
    with locked(tmp_path / "y"):  # another output beside it
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert len(list(tmp_path.iterdir())) == 2  # what a killed process leaves: its temporary file, and its lock
    with written(tmp_path / "x") as place:
        place.write_text("whole")
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_a_border_tells_what_where_and_what_to_do(tmp_path):
    with pytest.raises(InputError, match="x.json is not JSON: odd; mend it"), border("x.json", "JSON", "mend it"):
        raise ValueError("odd")
    with pytest.raises(InputError, match="needs more memory"), border("x", "y"):
        raise MemoryError
    with pytest.raises(InputError, match="^x: inner$"), border("x", "y"):
        raise InputError("inner")
    with pytest.raises(NameError), border("x", "y"):  # a mistake of ours is no file's fault
        raise NameError
    with pytest.raises(InputError, match="cannot read .*none: No such file"), border(tmp_path / "none", "JSON"):
        read_bytes(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is not a file"):
        read_json(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested"),
        ("[" * 80 + "]" * 80, "nested deeper than 60"),
        ("9" * 5000, "digits"),
        ("9" * 20, "more than 64 bits"),
        ("NaN", "NaN"),
        ("{", "Expecting"),
    ],
)
def test_json_is_neither_deep_nor_endless(text, told, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=told):
        read_json(tmp_path / "x.json")


def test_a_cap_can_be_raised(monkeypatch):
    with pytest.raises(InputError, match="rows: 11, more than 10; .*set GCE_CAPS=10"):
        check_cap(11, 10, "rows")
    monkeypatch.setenv("GCE_CAPS", "2")
    check_cap(11, 10, "rows")
    check_packed(10**12, 10**10, "rows")
    monkeypatch.setenv("GCE_CAPS", "many")
    with pytest.raises(InputError, match="GCE_CAPS is 'many'"):
        check_cap(11, 10, "rows")


def npz_of(path, header, content=b""):
    """An archive of one array whose header says what it likes."""
    raw = (str(header) + " " * 200).encode()[:118] + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("observations.npy", b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw + content)


@pytest.mark.parametrize(
    "header",
    [
        {"descr": "<f8", "fortran_order": False, "shape": (10**12,)},
        {"descr": "<f8", "fortran_order": False, "shape": (-1,)},
        {"descr": "|O", "fortran_order": False, "shape": (1,)},
        {"descr": "<f8", "fortran_order": False},
        "((((",
    ],
)
def test_an_archive_whose_arrays_are_not_as_they_say_is_refused(tmp_path, header):
    npz_of(tmp_path / "x.npz", header, b"\0" * 8)
    with pytest.raises(InputError, match="x.npz"):
        read_npz(tmp_path / "x.npz")


def test_archives_come_back(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.ones((2, 2), int)), "c": np.array("text")}
    arrays["d"] = np.zeros((0, 3))
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    found = read_npz(tmp_path / "x.npz")
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    np.save(tmp_path / "x.npy", arrays["a"])
    assert np.array_equal(read_npy(tmp_path / "x.npy"), arrays["a"])
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[60] ^= 4
    (tmp_path / "x.npz").write_bytes(bytes(content))
    with pytest.raises(InputError, match="x.npz is not an npz file"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize("word", ["=1+1", "+x", "-x", "@x", "\tx"])
def test_words_that_a_spreadsheet_would_run_are_marked_and_come_back(word, tmp_path):
    assert guarded(word) == "'" + word and unguarded(guarded(word)) == word
    from gce.trajectory.importing.tables import Problems, read_table

    (tmp_path / "x.csv").write_text(f"node,{guarded(word)}\n{guarded(word)},1\n")
    table = read_table(tmp_path / "x.csv", Problems(tmp_path), ["node"])
    assert table.text["node"] == [word.strip()] or word.startswith("\t")
    assert [guarded(cell) for cell in ("-1.5", "+3", "x", "'x")] == ["-1.5", "+3", "x", "'x"]


def test_json_values_pass():
    value = {"a": [1, 2.5, None, "x"], "b": {"c": True}}
    assert parsed_json(json.dumps(value)) == value


def test_a_warning_is_told_where_it_was_asked_for():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn("odd")
    assert told[0].category is Doubt and told[0].filename == __file__


COMMAND = textwrap.dedent("""
    import multiprocessing, time
    from gce.progress import in_words, workers
    if __name__ == "__main__":
        with in_words("gce", True), workers(2) as submit:
            futures = [submit(time.sleep, 60), submit(time.sleep, 60)]
            while len(multiprocessing.active_children()) < 2: time.sleep(0.01)
            print(*(p.pid for p in multiprocessing.active_children()), flush=True)
            futures[0].result()
""")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="tells processes apart by /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 2), (signal.SIGINT, 2), (signal.SIGKILL, -9)])
@pytest.mark.parametrize("wait", [0.0, 4.0], ids=["while workers start", "while they work"])
def test_no_worker_outlives_its_parent(tmp_path, number, status, wait):
    (tmp_path / "command.py").write_text(COMMAND)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "command.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    pids = process.stdout.readline().split()
    time.sleep(wait)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == status and "Traceback" not in said
    assert ("the same command goes on from here" in said) == (status == 2)
    until = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(map(alive, pids))
