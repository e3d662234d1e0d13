"""Runs trials and judges them.

A process that has imported everything forks workers; a worker takes trials until one goes wrong, and each trial in a
folder of its own. What goes wrong there, or ends the worker, runs again in a process of its own, which decides; what is
wrong only after other trials is told as well.
"""

import gc
import io
import json
import os
import resource
import select
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gce.errors import InputError

CORPUS = Path(__file__).with_name("corpus.json")
SECONDS, BYTES = 10, 1_000_000_000
CLOCK = 30 * SECONDS
"""Seconds of the clock without an answer: the machine may be busy."""
BATCH = 1000


@dataclass(frozen=True)
class Outcome:
    """status: of the trial; seconds, bytes: what it took; wrong: why it failed, or nothing; said: what it printed."""

    status: int
    seconds: float
    bytes: int
    wrong: str = ""
    said: str = ""


class Harness:
    def __init__(self, folder: Path) -> None:
        import torch

        from fuzz.families import Materials
        from fuzz.newer import FAMILIES

        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        self.families, self.folder = FAMILIES, folder
        (folder / "good").mkdir()
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            self.good = Materials(folder / "good")
        self.right: dict[str, str] = {}
        """Answers of unchanged files, by family and what is asked."""
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in FAMILIES}
        gc.collect()
        gc.freeze()

    def draw(self, trials, seed, family=None):
        names = family.split(",") if family else list(self.families)
        shares = np.array([self.families[name][1] for name in names], float)
        rng = np.random.default_rng(seed)
        for _ in range(trials):
            yield str(rng.choice(names, p=shares / shares.sum())), int(rng.integers(2**40))

    def run(self, trials):
        """Pairs of a trial and its outcome, in order."""
        waiting = list(trials)
        while waiting:
            done = 0
            for outcome in self._forked(waiting[:BATCH]):
                trial = waiting[done]
                done += 1
                if outcome.wrong:
                    alone = next(self._forked([trial]))
                    outcome = alone if alone.wrong else Outcome(**{**asdict(outcome), "wrong": outcome.wrong + AFTER})
                self._count(trial[0], outcome)
                yield trial, outcome
            waiting = waiting[done:]

    def _count(self, name: str, outcome: Outcome) -> None:
        count = self.counts[name]
        count["trials"] += 1
        count["refused"] += outcome.status == 2
        count["failures"] += bool(outcome.wrong)
        count["most MB"] = max(count["most MB"], outcome.bytes // 10**6)
        count["most ms"] = max(count["most ms"], int(1000 * outcome.seconds))

    def table(self) -> str:
        return table(self.counts)

    def _forked(self, trials):
        """Outcomes of a worker, until one is wrong or all are there."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                self._work(trials, writer)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(99)
        os.close(writer)
        with os.fdopen(reader, "rb", buffering=0) as lines:  # what is read ahead would not be waited for
            for _ in trials:
                heard = select.select([lines], [], [], CLOCK)[0]
                line = lines.readline() if heard else ""
                if not line:
                    os.kill(child, signal.SIGKILL)
                    _, status, used = os.wait4(child, 0)
                    spent = used.ru_utime + used.ru_stime
                    why = f"ended with {os.waitstatus_to_exitcode(status)}" if heard else "hangs"
                    yield Outcome(os.waitstatus_to_exitcode(status), spent, used.ru_maxrss * 1024, why)
                    return
                outcome = Outcome(**json.loads(line))
                yield outcome
                if outcome.wrong:
                    break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    # ---- within a worker ----

    def _work(self, trials, writer: int) -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for k, (name, number) in enumerate(trials):
            place = self.folder / f"trial{k}"
            outcome = self._trial(name, number, place)
            shutil.rmtree(place, ignore_errors=True)
            os.write(writer, (json.dumps(asdict(outcome)) + "\n").encode())

    def _trial(self, name: str, number: int, place: Path) -> Outcome:
        from fuzz import mutations

        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        ask, only_bytes = self.families[name][0](self.good, place, np.random.default_rng(number))
        outcome, answer = _judged(ask)
        if outcome.wrong or not only_bytes or outcome.status:
            return outcome
        key = f"{name} {ask.__code__.co_firstlineno}"
        if key not in self.right:  # the answer of the unchanged file, asked the same
            spoil, mutations.spoil_bytes = mutations.spoil_bytes, lambda path, rng: _drawn(spoil, path, rng)
            try:
                shutil.rmtree(place)
                place.mkdir()
                ask, _ = self.families[name][0](self.good, place, np.random.default_rng(number))
            finally:
                mutations.spoil_bytes = spoil
            self.right[key] = _judged(ask)[1].replace(str(place), "")
        if self.right[key] == answer.replace(str(place), ""):
            return outcome
        return Outcome(**{**asdict(outcome), "wrong": "its answer is not that of the unchanged file"})


AFTER = " (after other trials; not alone)"


def _drawn(spoil, path, rng):
    """The same draws, and nothing spoiled."""
    content = path.read_bytes()
    spoil(path, rng)
    path.write_bytes(content)


def _judged(ask):
    out, trouble, status = io.StringIO(), io.StringIO(), 0
    Path("/proc/self/clear_refs").write_text("5")  # the most memory so far is forgotten
    signal.setitimer(signal.ITIMER_PROF, 2 * SECONDS)
    began = _spent()
    with redirect_stdout(out), redirect_stderr(trouble):
        try:
            ask()
        except InputError as error:
            print(f"gce: {error}", file=sys.stderr)
            status = 2
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
            status = 99
    seconds = _spent() - began
    signal.setitimer(signal.ITIMER_PROF, 0)
    said = trouble.getvalue()
    if "Traceback" in said:
        status = 99
    size = _most()
    wrong = ""
    if seconds > SECONDS:
        wrong = f"{seconds:.0f} s"
    elif size > BYTES:
        wrong = f"{size // 10**6} MB"
    elif status not in (0, 2):
        wrong = f"status {status}: {said.strip().splitlines()[-1:]}"
    elif status == 2 and not said.strip():
        wrong = "status 2 without a sentence"
    return Outcome(status, seconds, size, wrong, said[-3000:] if wrong else said[-200:]), out.getvalue()


def _spent() -> float:
    both = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def _most() -> int:
    """Bytes of memory at the most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def table(counts: dict[str, Counter[str]]) -> str:
    names = ("trials", "refused", "failures", "most MB", "most ms")
    rows = [["family", *names], *([family, *(str(count[name]) for name in names)] for family, count in counts.items())]
    rows.append(["all", *(str(sum(c[n] for c in counts.values())) if n in names[:3] else "" for n in names)])
    return "\n".join("  ".join(f"{cell:>14}" for cell in row) for row in rows)
