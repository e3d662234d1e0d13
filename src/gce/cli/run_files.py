"""What `gce control --out` leaves: runs on a simulator, and plans for systems without one."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gce.cli.labels import Labels
from gce.errors import InputError

FIGURES = "control.json"


@contextmanager
def written_together(folder: Path) -> Iterator[Path]:
    """A folder to write files to; they get to `folder` when all are complete, and none does where one fails."""
    temporary = folder / f".{os.getpid()}.tmp"
    made = not folder.exists()
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in sorted(temporary.iterdir()):
            os.replace(file, folder / file.name)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}; give another place with --out") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if made and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def write_run(folder: Path, env: Any, run: Any, answer: dict[str, Any], details: Any) -> None:
    """The episode, its figures, its animation, a chart and what a report needs."""
    from gce.trajectory import Writer
    from gce.views.plots import control_chart, write_animation
    from gce.views.report.details import write_details

    with written_together(folder) as place:
        with Writer(place / "episode.h5", {**env.describe(), "control": answer}) as writer:
            group = writer.add_group(env.graph, dataclasses.asdict(env.parameters))
            writer.add_episode(group, run.observations, run.actions)
        (place / FIGURES).write_text(json.dumps({**answer, "goal": run.goal.tolist()}, indent=2) + "\n")
        last = len(run.actions) - 1
        frames = [env.draw(o, run.actions[min(t, last)], run.goal) for t, o in enumerate(run.observations)]
        write_animation([*frames, *[frames[-1]] * 15], place / "control.gif", min(30.0, 1 / env.dt))
        control_chart(run, env.observation_std, place / "control.png")
        write_details(details, place)
    _say(folder, "episode.h5, control.json, control.gif, control.png")


def write_plan(folder: Path, plan: Any, labels: Labels, answer: dict[str, Any], details: Any) -> None:
    """Actions and expected observations as tables in the names of the system, figures, and what a report needs."""
    from gce.views.report.details import write_details

    with written_together(folder) as place:
        _write_table(place / "plan.csv", labels.nodes, labels.actions, plan.actions)
        _write_table(place / "predicted.csv", labels.nodes, labels.observations, plan.observations)
        (place / FIGURES).write_text(json.dumps(answer, indent=2) + "\n")
        write_details(details, place)
    _say(folder, "plan.csv, predicted.csv, control.json")


def _write_table(file: Path, nodes: Sequence[str], columns: Sequence[str], values: Any) -> None:
    """A row a step and node."""
    with open(file, "w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened, lineterminator="\n")
        table.writerow(["step", "node", *columns])
        for step, rows in enumerate(values):
            table.writerows([step, node, *(f"{v:.9g}" for v in row)] for node, row in zip(nodes, rows, strict=True))


def _say(folder: Path, files: str) -> None:
    print(f"{folder}: {files}; `gce report {folder}` makes a page of it", file=sys.stderr)
