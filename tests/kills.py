"""Kills and ends long jobs at random moments, and gives them again: `python -m kills --kills 200 --terms 100`.

A process that has imported everything forks each job into a session of its own, so that a job is cheap and whatever
outlives it is found. After a signal nothing of the session is left after 5 s, and files at their final names are whole;
the same command given again ends well, with the bytes of a run that nobody stopped, and sweeps what was left.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np

from gce.reproduce.experiment import Cell, Context, Experiment

OWN = re.compile(r'"(cpu_)?seconds": [0-9.e-]+|"minutes": [0-9.e-]+')
"""Times among other figures."""
ORPHAN_SECONDS = 5.0


class Cells(Experiment):
    """Cells of some hundredths of a second."""

    name, about = "cells", "numbers drawn"

    def cells(self, preset, context):
        return [Cell(self.name, {"number": k}, k, self.version) for k in range(30)]

    def run(self, cell, context: Context):
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return {"drawn": float(np.random.default_rng(cell.seed).random())}

    def report(self, records, folder):
        return json.dumps([record["figures"]["drawn"] for record in records])


def gce(*arguments) -> None:
    from gce.cli import main

    main([str(argument) for argument in arguments])


def materials(folder: Path) -> None:
    from gce.envs.recording import Recording, record
    from general import pendulums

    record(Recording("rope", 24, (4, 5), 3, seed=1, steps=40), folder / "rope.h5")
    record(Recording("flock", 12, (4, 5), 3, seed=1, steps=30), folder / "flock.h5")
    pendulums().save(folder / "own.h5")
    for k in range(3):
        gce("data", "rope", "--episodes", 60, "--group-size", 4, "--steps", 40, "--shard", f"{k}/3",
            "--out", folder / f"part{k}.h5")  # fmt: skip
    gce("train", "own", "--data", folder / "own.h5", "--out", folder / "general", "--iterations", 4)
    gce("control", "rope", "--objects", 4, "--horizon", 6, "--adapt", 2, "--out", folder / "run")


def jobs(good: Path) -> dict:
    """Commands by name; `{out}` is where each writes."""
    record = ["data", "rope", "--episodes", 150, "--group-size", 5, "--steps", 60, "--out", "{out}/x.h5"]
    return {
        "record": record,
        "record --workers 2": [*record, "--workers", 2],
        "merge": ["data", "merge", *(good / f"part{k}.h5" for k in range(3)), "--out", "{out}/x.h5"],
        "train structured": ["train", "rope", "--data", good / "rope.h5", "--out", "{out}/m", "--iterations", 12,
                             "--features", 4, "--validation", 0.4],
        "train general": ["train", "own", "--data", good / "own.h5", "--out", "{out}/m", "--iterations", 6],
        "train published": ["train", "flock", "--method", "published", "--data", good / "flock.h5",
                            "--out", "{out}/m", "--iterations", 3, "--validation", 0.4],
        "adapt": ["adapt", good / "rope.h5", "--episodes", 2, "--out", "{out}/s"],
        "adapt general": ["adapt", good / "own.h5", "--episodes", 3, "--model", good / "general", "--out", "{out}/s"],
        "control": ["control", "rope", "--objects", 4, "--horizon", 6, "--adapt", 2, "--out", "{out}/run"],
        "report": ["report", good / "run", "--out", "{out}/page.html"],
        "reproduce --jobs 2": ["reproduce", "cells", "--jobs", 2, "--results", "{out}/results"],
    }  # fmt: skip


SHARES = {"record": 3, "record --workers 2": 3, "merge": 2, "adapt": 2}


def forked(command, out: Path, said: Path) -> int:
    child = os.fork()
    if child:
        return child
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("ignore")
    status = 0
    with said.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        os.dup2(file.fileno(), 2)
        try:
            gce(*(str(part).replace("{out}", str(out)) for part in command))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 99
        file.flush()
    os._exit(status)


def session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, of = entry.joinpath("stat").read_text().rsplit(")", 1)[1].split()[:4]
            except OSError:
                continue
            if int(of) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def used(leader: int) -> float:
    """CPU seconds of the living processes of a session."""
    ticks = 0
    for pid in session(leader):
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def digests(out: Path) -> dict[str, str]:
    """Of every file at its final name, but for times."""
    found = {}
    for file in sorted(out.rglob("*")):
        name = str(file.relative_to(out))
        aside = any(word in name for word in ("timings", "tfevents", ".cells"))
        if file.is_file() and not aside and not hidden(file, out):
            content = file.read_bytes()
            if file.suffix in (".json", ".jsonl", ".csv", ".md", ".html"):
                content = OWN.sub("", content.decode()).encode()
            found[name] = hashlib.sha256(content).hexdigest()
    return found


def hidden(file: Path, out: Path) -> bool:
    return any(part.startswith(".") or part.endswith(".parts") for part in file.relative_to(out).parts)


def leftovers(out: Path) -> list[str]:
    names = (str(file.relative_to(out)) for file in out.rglob("*"))
    return [name for name in names if name.endswith((".tmp", ".lock", ".parts")) or ".tmp/" in name]


def writes_once(name: str) -> bool:
    """Trainings and experiments write their files again and again."""
    return not name.startswith(("train", "reproduce"))


def half_written(out: Path, whole: dict[str, str], once: bool) -> list[str]:
    """Files at final names that are not those of a whole run; of a job that writes more than once, that are broken."""
    if once:
        return [name for name, digest in digests(out).items() if whole.get(name) != digest]
    wrong = []
    for file in sorted(out.rglob("*.json*")):
        if not hidden(file, out):
            try:
                for part in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
                    json.loads(part)
            except ValueError:
                wrong.append(str(file.relative_to(out)))
    return wrong


def trial(name: str, command, number: int, whole: dict[str, str], seconds: float, rng, folder: Path) -> list[str]:
    """What is wrong after a signal at a random moment and the same command given again."""
    out, said, wrong = folder / "out", folder / "said", []
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    child = forked(command, out, said)
    time.sleep(seconds * rng.random())
    os.kill(child, number)
    status = ended(child)
    until = time.monotonic() + ORPHAN_SECONDS
    spent = used(child)
    while session(child) and (time.monotonic() < until or used(child) - spent < ORPHAN_SECONDS):
        time.sleep(0.02)  # on a busy machine, until it had that time
    for orphan in session(child):
        wrong.append("a process is left")
        os.kill(orphan, signal.SIGKILL)
    expected = (-number, 0) if number == signal.SIGKILL else (2, 0, -number)
    if status not in expected or "Traceback" in said.read_text():
        wrong.append(f"status {status}: {said.read_text()[-300:]}")
    if number == signal.SIGTERM and status == 2 and leftovers(out) and "parts" not in str(leftovers(out)):
        wrong.append(f"left by SIGTERM: {leftovers(out)}")
    wrong += [f"half-written {part}" for part in half_written(out, whole, writes_once(name))]
    status = ended(forked(command, out, said))
    done = name == "merge" and digests(out) == whole and "exists" in said.read_text()  # it was, before the signal
    if status and not done:
        wrong.append(f"given again: status {status}: {said.read_text()[-300:]}")
    elif digests(out) != whole:
        differ = sorted(k for k in whole.keys() | digests(out).keys() if whole.get(k) != digests(out).get(k))
        wrong.append(f"given again: {differ} differ")
    if leftovers(out):
        wrong.append(f"left: {leftovers(out)}")
    return wrong


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--kills", type=int, default=200)
    asked.add_argument("--terms", type=int, default=100)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--job", help="this alone")
    asked.add_argument("--minutes", type=float, default=np.inf, help="no signal is sent after so many")
    asked = asked.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    import torch

    from gce.reproduce.runner import EXPERIMENTS

    torch.set_num_threads(1)
    EXPERIMENTS["cells"] = Cells()
    rng, failures, counts = np.random.default_rng(asked.seed), 0, Counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "good").mkdir()
        said = io.StringIO()
        try:
            with redirect_stderr(said), redirect_stdout(said):
                if asked.job not in ("record", "record --workers 2"):
                    materials(folder / "good")
        except SystemExit:
            sys.exit(said.getvalue())
        known = {k: v for k, v in jobs(folder / "good").items() if asked.job in (None, k)}
        whole, seconds = {}, {}
        for name, command in known.items():
            found = []
            for _ in range(2):
                shutil.rmtree(folder / "out", ignore_errors=True)
                (folder / "out").mkdir()
                began = time.monotonic()
                status = ended(forked(command, folder / "out", folder / "said"))
                seconds[name] = time.monotonic() - began
                assert status == 0, (name, (folder / "said").read_text())
                found.append(digests(folder / "out"))
            whole[name] = found[0]
            if found[0] != found[1]:
                failures += 1
                print(name, "two equal runs differ in", [k for k in found[0] if found[0][k] != found[1].get(k)])
        shares = np.array([SHARES.get(name, 1) for name in known], float)
        for k in rng.permutation(asked.kills + asked.terms):
            if time.monotonic() > end:
                break
            number = signal.SIGKILL if k < asked.kills else signal.SIGTERM
            name = str(rng.choice(list(known), p=shares / shares.sum()))
            wrong = trial(name, known[name], number, whole[name], seconds[name], rng, folder)
            counts[name, number.name] += 1
            counts[name, "failures"] += bool(wrong)
            failures += bool(wrong)
            if wrong:
                print(name, number.name, *wrong, sep="; ", flush=True)
            if sum(v for k, v in counts.items() if k[1] != "failures") % 25 == 0:
                print(f"{sum(v for k, v in counts.items() if k[1] != 'failures')} signals", flush=True)
        for name in known:
            told = ", ".join(f"{counts[name, what]} {what}" for what in ("SIGKILL", "SIGTERM", "failures"))
            print(f"{name:20s} {seconds[name]:5.1f} s: {told}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    import kills

    kills.main()
