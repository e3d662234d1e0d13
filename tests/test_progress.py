"""Long jobs tell how far they are, without a terminal too, and commands end with a sentence."""

import io
import json
import os
import re
import signal
import sys
import time

import pytest
from bench.lines import Lines

from gce import progress as telling
from gce.errors import InputError
from gce.progress import counted, duration, in_words, planning, progress, run_module


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr(telling.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_line_now_and_then_says_the_time_left(clock, capsys):
    with progress("training", 100, "iterations") as done:
        for _ in range(41):
            clock[0] += 2
            done(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: 5/100 iterations, 3 min left" and len(lines) == 8
    assert lines[-1] == "training: 40/100 iterations, 2 min left"


def test_what_was_there_before_does_not_count_as_quick(clock, capsys):
    with progress("training", 100, "iterations") as done:
        done(90)
        for _ in range(6):
            clock[0] += 2
            done(1)
    assert capsys.readouterr().err == "training: 95/100 iterations, 10 s left\n"


def test_work_that_has_not_ended_a_unit_is_heard_of(clock, capsys):
    with progress("controlling", 64, "steps") as done:
        clock[0] += 11
        done(0)
    assert capsys.readouterr().err == "controlling: 0/64 steps\n"


def test_a_terminal_gets_a_bar_with_time_left(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("recording", 4) as done:
        done(1)
        done(3)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stderr.getvalue())
    assert "recording" in shown and "4/4 episodes" in shown and "left" in shown


def test_a_plan_is_counted_in_percent(capsys):
    with planning("planning") as tell:
        tell(0, 0.0)
        tell(1, 0.4)
    assert capsys.readouterr().err == "planning: 100/100 percent\n"
    told = []
    reached = counted(told.append)
    for count in (3, 3, 7):
        reached(count)
    assert told == [3, 0, 4]
    assert [duration(s) for s in (40, 700, 12600)] == ["40 s", "12 min", "3.5 h"]


@pytest.mark.parametrize(
    ("error", "resumes", "words"),
    [
        (InputError("the file is empty"), True, "gce: the file is empty"),
        (KeyboardInterrupt(), True, "the same command goes on from here"),
        (KeyboardInterrupt(), False, "the same command begins anew"),
    ],
)
def test_what_ends_a_command_is_a_sentence(error, resumes, words, capsys):
    with pytest.raises(SystemExit) as end, in_words("gce", resumes):
        raise error
    assert end.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("fails", [False, True], ids=["went on", "failed for it"])
def test_an_interrupt_within_a_finaliser_is_not_lost(number, fails, capsys):
    class Clearing:
        def __del__(self):
            os.kill(os.getpid(), number)
            time.sleep(0.01)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with pytest.raises(SystemExit) as end, in_words("gce", True):
            clearing = Clearing()
            del clearing
            if fails:
                raise RuntimeError("a callback did not do its part")
            for _ in range(500):
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    told = capsys.readouterr().err
    assert end.value.code == 2 and told.startswith("gce: stopped") and "Traceback" not in told


def test_a_module_is_a_command(monkeypatch, capsys, tmp_path):
    from bench.real_grids import RealGrids

    (tmp_path / "file").write_text("")
    monkeypatch.setattr("sys.argv", ["real_grids", "--out", str(tmp_path / "file" / "out")])
    with pytest.raises(SystemExit) as end:
        run_module(RealGrids)
    assert end.value.code == 2 and "give another folder with --out" in capsys.readouterr().err


def test_a_line_cut_off_by_a_stop_is_done_again(tmp_path):
    lines = Lines(tmp_path / "out" / "x.jsonl")
    lines.add({"run": 0})
    lines.add({"run": 1})
    with lines.file.open("a") as file:
        file.write('{"run": 2, "err')
    again = Lines(lines.file)
    assert again.records == [{"run": 0}, {"run": 1}]
    again.add({"run": 2})
    assert [json.loads(line)["run"] for line in again.file.read_text().splitlines()] == [0, 1, 2]
    lines.file.write_text("precious\n")
    with pytest.raises(InputError, match="is not a file of results"):
        Lines(lines.file)
