"""Runs a trial in a process of its own, and judges it."""

import io
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gce.errors import InputError

CORPUS = Path(__file__).with_name("corpus.json")
SECONDS, BYTES = 10, 1_000_000_000


@dataclass(frozen=True)
class Outcome:
    """status: of the process; answer: what it printed; wrong: why the trial failed, or nothing."""

    status: int
    answer: str
    seconds: float
    bytes: int
    wrong: str = ""


class Harness:
    def __init__(self, folder: Path) -> None:
        import torch

        from fuzz.families import FAMILIES, Materials

        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        self.families, self.folder = FAMILIES, folder
        (folder / "good").mkdir()
        with redirect_stderr(io.StringIO()):
            self.good = Materials(folder / "good")
        self.right: dict[str, str] = {}
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in FAMILIES}

    def draw(self, trials, seed, family=None):
        names = [family] if family else list(self.families)
        shares = np.array([self.families[name][1] for name in names], float)
        rng = np.random.default_rng(seed)
        for _ in range(trials):
            yield str(rng.choice(names, p=shares / shares.sum())), int(rng.integers(2**40))

    def run(self, name: str, number: int, show: bool = False) -> Outcome:
        place = self.folder / "trial"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        rng = np.random.default_rng(number)
        prepare, _ = self.families[name]
        ask, only_bytes = prepare(self.good, place, rng)
        outcome = self._forked(ask, place, show)
        wrong = outcome.wrong
        if not wrong and only_bytes and outcome.status == 0:
            wrong = self._changed(name, number, outcome.answer)
        found = Outcome(outcome.status, outcome.answer, outcome.seconds, outcome.bytes, wrong)
        count = self.counts[name]
        count["trials"] += 1
        count["refused"] += found.status == 2
        count["failures"] += bool(wrong)
        count["most MB"] = max(count["most MB"], found.bytes // 10**6)
        count["most ms"] = max(count["most ms"], int(1000 * found.seconds))
        return found

    def table(self) -> str:
        return table(self.counts)

    def _changed(self, name: str, number: int, answer: str) -> str:
        """Whether an answer is another than that of the unchanged file, asked the same."""
        from fuzz import mutations

        spoil = mutations.spoil_bytes
        place = self.folder / "trial"
        shutil.rmtree(place)
        place.mkdir()
        mutations.spoil_bytes = lambda path, rng: _drawn(spoil, path, rng)
        try:
            ask, _ = self.families[name][0](self.good, place, np.random.default_rng(number))
        finally:
            mutations.spoil_bytes = spoil
        right = self._forked(ask, place, False)
        return "" if right.answer == answer else "its answer is not that of the unchanged file"

    def _forked(self, ask, place: Path, show: bool) -> Outcome:
        said = place / "said"
        began, child = time.monotonic(), os.fork()
        if child == 0:
            os._exit(_child(ask, said))
        while True:
            ended, status, used = os.wait4(child, os.WNOHANG)
            seconds = time.monotonic() - began
            if ended:
                break
            if seconds > 20 * SECONDS:  # of the clock: the machine may be busy
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        size, spent = used.ru_maxrss * 1024, used.ru_utime + used.ru_stime
        code = os.waitstatus_to_exitcode(status)
        parts = said.read_text(errors="replace").split("\x1e") if said.is_file() else [""]
        if show:
            print(*parts, sep="\n")
        wrong = ""
        if spent > SECONDS or code == -signal.SIGKILL:
            wrong = f"{spent:.0f} s of {seconds:.0f} s"
        elif size > BYTES:
            wrong = f"{size // 10**6} MB"
        elif code not in (0, 2):
            wrong = f"status {code}: {parts[-1].strip().splitlines()[-1:]}"
        return Outcome(code, parts[0], spent, size, wrong)


def _drawn(spoil, path, rng):
    """The same draws, and nothing spoiled."""
    content = path.read_bytes()
    spoil(path, rng)
    path.write_bytes(content)


def _child(ask, said: Path) -> int:
    out, trouble, status = io.StringIO(), io.StringIO(), 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * SECONDS, 2 * SECONDS))
    with redirect_stdout(out), redirect_stderr(trouble):
        try:
            ask()
        except InputError as error:
            print(f"gce: {error}", file=sys.stderr)
            status = 2
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 99
    if "Traceback" in trouble.getvalue():
        status = 99
    said.write_text(out.getvalue() + "\x1e" + trouble.getvalue(), errors="replace")
    sys.stdout.flush()
    return status


def table(counts: dict[str, Counter[str]]) -> str:
    names = ("trials", "refused", "failures", "most MB", "most ms")
    rows = [["family", *names], *([family, *(str(count[name]) for name in names)] for family, count in counts.items())]
    rows.append(["all", *(str(sum(c[n] for c in counts.values())) if n in names[:3] else "" for n in names)])
    return "\n".join("  ".join(f"{cell:>14}" for cell in row) for row in rows)
