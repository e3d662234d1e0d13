"""Every command that writes, on disks that are full or cannot be written: `python -m disks` in tests/ (Linux, root).

A small file system in memory is left with less room than the output takes, at some places, and then made read-only. A
command must end with status 2 and a sentence, without a traceback; nothing is left, or files as of a run with room.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from kills import digests, ended, forked, gce, half_written, jobs, leftovers, materials, writes_once

ROOM = 64 << 20
SHARES = (0.0, 0.3, 0.8)
"""Of the room that the output takes."""


def more(good: Path) -> dict:
    return {
        "show": ["data", "show", good / "rope.h5", "--out", "{out}/x.gif"],
        "import": ["data", "import", good / "tables", "--out", "{out}/x.h5"],
        "control own": ["control", good / "own.h5", "--model", good / "general", "--adapt", 2, "--horizon", 3,
                        "--out", "{out}/run"],
        "demo": ["demo", "--out", "{out}/demo"],
        "acting": ["control", good / "system", "--env", "disks:Still", "--mapping", good / "mapping.toml", "--goal",
                   good / "goal.npy", "--horizon", 3, "--out", "{out}/ran"],
        "record --on dask": ["data", "rope", "--episodes", 60, "--group-size", 5, "--steps", 60, "--on", "dask",
                             "--workers", 2, "--out", "{out}/x.h5"],
    }  # fmt: skip


class Still:
    """An environment of three nodes in which nothing moves."""

    def __init__(self) -> None:
        self.low, self.high, self.shape, self.dtype = -np.ones(1), np.ones(1), (1,), np.dtype("f4")
        self.action_space = self

    def reset(self, seed=None):
        return np.tile([1.0, 0.0, 0.0], 3), {}

    def step(self, action):
        return np.tile([1.0, 0.0, 0.0], 3), 0.0, False, False, {}


def acted_on(good: Path) -> None:
    """A system adapted to, a goal of it, and which of the environment's numbers are of which node."""
    gce("adapt", good / "own.h5", "--episodes", 3, "--model", good / "general", "--out", good / "system")
    np.save(good / "goal.npy", np.tile([1.0, 0.0, 0.0], (3, 1)))
    (good / "mapping.toml").write_text(
        "observations = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]\nactions = [[0], [-1], [-1]]\n"
    )


def tables(folder: Path) -> None:
    (folder / "episodes").mkdir(parents=True)
    (folder / "edges.csv").write_text("sender,receiver\na,b\nb,a\n")
    rows = "".join(f"{t},{n},{0.1 * t}\n" for t in range(300) for n in "ab")
    for k in range(9):
        (folder / "episodes" / f"{k}.csv").write_text("step,node,x\n" + rows)


def run(
    command, disk: Path, said: Path, whole: dict[str, str] | None = None, once: bool = True
) -> tuple[int, list[str]]:
    """(status, what is wrong)."""
    out = disk / "out"
    status = ended(forked(command, out, said))
    text, wrong = said.read_text(), []
    if whole is None:
        return status, [] if status == 0 else [text[-300:]]
    if status != 2 or "Traceback" in text or not text.strip():
        wrong.append(f"status {status}: {text.strip()[-400:]}")
    wrong += [f"half-written {part}" for part in half_written(out, whole, once)]
    wrong += [f"left: {name}" for name in leftovers(out) if ".parts" not in name]
    return status, wrong


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--job", help="this alone")
    asked = asked.parse_args()
    import torch

    from gce.reproduce.runner import EXPERIMENTS
    from kills import Cells

    torch.set_num_threads(1)
    EXPERIMENTS["cells"] = Cells()
    failures = count = 0
    with tempfile.TemporaryDirectory() as place:
        good, disk, said = (Path(place) / name for name in ("good", "disk", "said"))
        good.mkdir()
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            materials(good)
            acted_on(good)
        tables(good / "tables")
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "gce", disk], check=True)
        try:
            for name, command in {**jobs(good), **more(good)}.items():
                if asked.job not in (None, name):
                    continue
                (disk / "out").mkdir()
                once = writes_once(name)
                wrong = run(command, disk, said)[1]
                whole = digests(disk / "out")
                size = ROOM - shutil.disk_usage(disk).free
                found = [("with room", wrong)]
                for share in SHARES:
                    shutil.rmtree(disk / "out")
                    (disk / "out").mkdir()
                    (disk / "fill").write_bytes(
                        b"x" * (shutil.disk_usage(disk).free - int(share * size) // 4096 * 4096)
                    )
                    found.append((f"room for {share:.0%}", run(command, disk, said, whole, once)[1]))
                    (disk / "fill").unlink()
                shutil.rmtree(disk / "out")
                (disk / "out").mkdir()
                subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
                found.append(("read-only", run(command, disk, said, whole, once)[1]))
                subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
                shutil.rmtree(disk / "out")
                for when, wrong in found:
                    count += 1
                    failures += bool(wrong)
                    if wrong:
                        print(f"{name}, {when}:", *wrong, sep="\n    ", flush=True)
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
    print(f"{count} runs, {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    import disks

    disks.main()
