"""Pieces of work on real schedulers and workers: equal results, also after kills; refusals in a sentence."""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

import gce
from gce.cluster.crew import crew, key_of
from gce.envs.recording import Recording, record
from gce.errors import InputError
from gce.reproduce.experiment import Cell, Queue, Store

pytest.importorskip("distributed")
SMALL = Recording(world="rope", episodes=9, objects=(3, 5), group_size=2, seed=4, steps=12)
LONG = ["data", "rope", "--episodes", "2500", "--group-size", "25", "--steps", "100"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def started(*command, **settings):
    settings.setdefault("env", {**os.environ, "OMP_NUM_THREADS": "1"})
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Started in the background of a shell, the tests themselves may be told to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **settings,
    )


def worker(address, **settings):
    """One process, without a nanny, so that a kill is a kill."""
    command = ("distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard")
    quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    return subprocess.Popen(
        [sys.executable, "-m", *command], **quiet, **{"env": {**os.environ, "OMP_NUM_THREADS": "1"}, **settings}
    )


def scheduler(port):
    command = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    return subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@contextmanager
def cluster(tmp_path, workers=2):
    """(address, the scheduler's process, the workers')."""
    address = f"tcp://127.0.0.1:{(port := free_port())}"
    with ExitStack() as stack:

        def kept(process):
            stack.callback(lambda: (process.kill(), process.wait()))
            return process

        head = kept(scheduler(port))
        yield address, head, [kept(worker(address, cwd=tmp_path)) for _ in range(workers)]


def wait_for(seen, process=None, seconds=90):
    until = time.monotonic() + seconds
    while not seen():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.02)


def parts(out):
    return sorted(out.with_name(out.name + ".parts").glob("groups-*.h5"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The long recording by one process."""
    out = tmp_path_factory.mktemp("plain") / "x.h5"
    subprocess.run([sys.executable, "-m", "gce", *LONG, "--out", str(out)], check=True, capture_output=True)
    return digest(out)


def test_a_cluster_here_records_the_same_bytes_and_counts_its_work(tmp_path, monkeypatch):
    monkeypatch.setattr("gce.envs.recording.EPISODES_PER_PART", 2)
    record(SMALL, tmp_path / "one.h5")
    done = []
    record(SMALL, tmp_path / "dask.h5", workers=2, on="dask", progress=done.append)
    assert digest(tmp_path / "one.h5") == digest(tmp_path / "dask.h5")
    assert sum(done) == 9 and len(done) == 5
    assert {p.name for p in tmp_path.iterdir()} == {"one.h5", "dask.h5"}


def test_a_worker_killed_inside_a_part_changes_nothing(tmp_path, plain):
    with cluster(tmp_path) as (address, _, workers):
        out = tmp_path / "x.h5"
        process = started("gce", *LONG, "--out", out, "--on", address)
        wait_for(lambda: parts(out), process)
        workers[0].send_signal(signal.SIGKILL)
        _, printed = process.communicate(timeout=120)
        assert process.returncode == 0, printed
        assert digest(out) == plain and [p.name for p in tmp_path.glob("*.h5*")] == ["x.h5"]


def test_a_scheduler_killed_is_told_and_the_same_command_goes_on(tmp_path, plain):
    out = tmp_path / "x.h5"
    with cluster(tmp_path) as (address, head, _):
        process = started("gce", *LONG, "--out", out, "--on", address)
        wait_for(lambda: parts(out), process)
        head.send_signal(signal.SIGKILL)
        _, printed = process.communicate(timeout=60)
        assert process.returncode == 2 and "Traceback" not in printed
        assert "is gone; what is done is kept" in printed and not out.exists()
    kept = {p.name: p.stat().st_mtime_ns for p in parts(out)}
    assert kept
    with cluster(tmp_path) as (address, _, _):
        process = started("gce", *LONG, "--out", out, "--on", address)
        wait_for(lambda: len(parts(out)) > len(kept) or out.exists(), process)
        now = {p.name: p.stat().st_mtime_ns for p in parts(out)}
        assert out.exists() or kept.items() <= now.items()
        assert process.wait(timeout=120) == 0
        assert digest(out) == plain


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stop_keeps_what_is_done_and_leaves_no_process(tmp_path, plain, number):
    out = tmp_path / "x.h5"
    process = started("gce", *LONG, "--out", out, "--on", "dask", "--workers", "2")
    wait_for(lambda: parts(out), process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    if number == signal.SIGKILL:
        process.send_signal(number)
    else:
        os.killpg(process.pid, number)
    _, printed = process.communicate(timeout=60)
    assert "Traceback" not in printed
    assert number == signal.SIGKILL or (process.returncode == 2 and "stopped" in printed)
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert parts(out) and not out.exists()
    subprocess.run([sys.executable, "-m", "gce", *LONG, "--out", str(out)], check=True, capture_output=True)
    assert digest(out) == plain


def square(cell):
    return {"square": cell.settings["number"] ** 2, "process": os.getpid()}


def test_cells_are_computed_on_a_cluster(tmp_path):
    cells, done = [Cell("squares", {"number": k}, k) for k in range(7)], []
    store = Store(tmp_path / "cells")
    Queue(store).run(cells, square, 2, done.append, "dask")
    found = [store.find(cell)["figures"] for cell in cells]
    assert [one["square"] for one in found] == [k**2 for k in range(7)] and done == [1] * 7
    assert os.getpid() not in {one["process"] for one in found}
    Queue(store, deadline=0.0).run([Cell("squares", {"number": 9}, 9)], square, 2, done.append, "dask")
    assert len(done) == 7  # none is begun after the deadline


def test_a_key_is_of_the_version_too(monkeypatch):
    before = key_of({"seed": 1})
    assert key_of({"seed": 2}) != before == key_of({"seed": 1})
    monkeypatch.setattr(gce, "__version__", "0.0.1")
    assert key_of({"seed": 1}) != before


# ---- refused ----


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("tcp://127.0.0.1:9", "no Dask scheduler answers at tcp://127.0.0.1:9; start one"),
        ("cloud", "--on is 'cloud', expected dask, slurm or the address"),
        ("slurm", "the options of --on slurm: .* docs/cluster.md"),
    ],
)
def test_a_scheduler_that_is_not_there_is_told(tmp_path, monkeypatch, on, words):
    monkeypatch.setattr("gce.cluster.crew.PATIENCE", 2.0)
    with pytest.raises(InputError, match=words):
        record(SMALL, tmp_path / "x.h5", on=on)
    assert list(tmp_path.iterdir()) == []


def test_a_scheduler_without_workers_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("gce.cluster.crew.PATIENCE", 5.0)
    with (
        cluster(tmp_path, workers=0) as (address, _, _),
        pytest.raises(InputError, match=f"the scheduler at {address} has no workers; start some"),
    ):
        record(SMALL, tmp_path / "x.h5", on=address)


def test_workers_with_another_source_are_refused_also_when_they_come_late(tmp_path):
    other = tmp_path / "other"
    shutil.copytree(Path(gce.__file__).parent, other / "gce", ignore=shutil.ignore_patterns("shipped", "__pycache__"))
    (other / "gce" / "errors.py").open("a").write("# changed\n")
    env = {**os.environ, "PYTHONPATH": str(other), "OMP_NUM_THREADS": "1"}
    out = tmp_path / "x.h5"
    with cluster(tmp_path, workers=0) as (address, _, _):
        changed = worker(address, env=env, cwd=tmp_path)
        try:
            with pytest.raises(InputError, match=r"the worker \S+ has gce .*its keys would differ; install the same"):
                record(SMALL, out, on=address)
            assert not out.exists() and not parts(out)
        finally:
            changed.kill()
            changed.wait()
        honest = worker(address, cwd=tmp_path)
        process = started("gce", *LONG, "--out", out, "--on", address)
        wait_for(lambda: parts(out), process)
        late = worker(address, env=env, cwd=tmp_path)
        _, printed = process.communicate(timeout=120)
        for one in (honest, late):
            one.kill()
            one.wait()
        assert process.returncode == 2 and "install the same there" in printed
        assert parts(out)


def test_a_full_disk_on_one_worker_is_told_and_nothing_is_lost(tmp_path, plain):
    """A limit on the size of files stands for the disk: the system refuses the write."""
    full = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
    full += "sys.argv = sys.argv[1:]; runpy.run_module('distributed.cli.dask_worker', run_name='__main__')"
    out = tmp_path / "x.h5"
    with cluster(tmp_path, workers=1) as (address, _, _):
        process = started("gce", *LONG, "--out", out, "--on", address)
        wait_for(lambda: parts(out), process)
        options = ["x", address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
        small = subprocess.Popen(
            [sys.executable, "-c", full, *options], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, printed = process.communicate(timeout=120)
        small.kill()
        small.wait()
        assert process.returncode == 2 and "Traceback" not in printed
        assert "cannot write" in printed and "told by the worker tcp://" in printed
        assert parts(out) and not out.exists()
        assert started("gce", *LONG, "--out", out, "--on", address).wait(timeout=120) == 0
        assert digest(out) == plain


def test_work_of_a_crew_that_fails_ends_it(tmp_path):
    with pytest.raises(ZeroDivisionError), crew(1, "dask") as team:
        team.submit(divmod, 1, 0).result()
