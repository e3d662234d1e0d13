"""Runs experiments: all their cells in one queue, then their results.

Runs that the results hold under their key are not computed again, and stay where a smaller preset is asked for.
NAME.json holds every run; the CSV file, the table and the figures are made from it alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gce.errors import InputError
from gce.files import read_json
from gce.reproduce.claims import VERDICTS, claims
from gce.reproduce.control_tables import Bandwidth, Dimension, FittingNumber, GridNoise, Main
from gce.reproduce.experiment import (
    PAPER,
    PRESETS,
    Cell,
    CellPart,
    Context,
    Experiment,
    Preset,
    Queue,
    Store,
    write_file,
)
from gce.reproduce.foreign import Foreign
from gce.reproduce.leads import lead_table
from gce.reproduce.marked import fill
from gce.reproduce.picture_tables import ControlPictures, EvalTime, Weights
from gce.reproduce.prediction_tables import PredictedSteps, RecordedByOthers, SampleEfficiency
from gce.reproduce.statistics import Record, csv_text, markdown
from gce.reproduce.tuning import ActionWeight, RunningWeight

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        ActionWeight(),
        RunningWeight(),
        Main(),
        GridNoise(),
        FittingNumber(),
        PredictedSteps(),
        SampleEfficiency(),
        Bandwidth(),
        Dimension(),
        EvalTime(),
        Weights(),
        ControlPictures(),
        RecordedByOthers(),
        Foreign(),
    )
}
"""In the order of their value."""

Bar = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]

INTRODUCTION = """`gce reproduce NAME` computes an experiment; `gce reproduce report` makes every table and figure
here, this page included, from the JSON files, which hold every run with its seed. Models: `models/`, each trained for
the time that the table at the end says, by `python -m gce.reproduce.train`. Figures are mean ± standard deviation over
n systems that no model was trained on; tests are Wilcoxon's signed-rank tests on the same systems, two-sided. Verdicts
are about the *published* method, the paper's own, in its tuned preset (docs/published.md). *Reproduced*: better with p
< 0.05; *a tie*: no difference with p < 0.05; *not*: worse, or not so. *Similar* is tested as equivalence within a
fifth. What the *general* and the *structured* method reach in its place stands beside it. Costs have fixed weights of
the normalised observations and actions (docs/control.md), not the paper's of its features: only their order compares.
Control counts as unstable, the paper's NaN, where it fails or ends with more than five times the error of doing
nothing. *Structured* has the potential that is best on validation systems where there is a choice; on the grid, and
where that model is missing, it is the one that comes with the package."""

OTHERS = {
    "consistency.json": ("consistency", "predicted embeddings converge as the paper proves"),
    "theory.json": ("theory --seeds 3", "what the forms need of samples and nodes; features and distributions"),
    "control_runs_rope.json": ("control_runs --world rope --runs 8000 --systems 160", "does control always end well?"),
    "control_runs_soft.json": ("control_runs --world soft --runs 800 --systems 16", "the same"),
    "control_runs_swim.json": ("control_runs --world swim --runs 800 --systems 16", "the same"),
    "control_runs_grid.json": ("control_runs --world grid --runs 400 --systems 8", "the same"),
    **{
        f"long_rollouts_{world}.json": (f"long_rollouts --world {world}", "do predictions stay bounded?")
        for world in ("rope", "soft", "swim", "grid")
    },
    "noisy_grids.json": ("grid_noise --grids 12", "noise on the grid, ours beside the oracle"),
    "real_grids.json": ("real_grids", "six real grids, ours beside the oracle"),
}
"""Results of `python -m bench.NAME`, which are no claims of the paper."""


def experiment_named(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}; the experiments are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def reproduce(
    experiments: Sequence[Experiment],
    preset: Preset,
    context: Context,
    shard: CellPart | None,
    bar: Bar,
    minutes: float = float("inf"),
    jobs: int = 1,
    on: str | None = None,
) -> dict[str, int]:
    """Compute what is missing; without a shard, write the results too. Returns the number of failures by name.

    minutes: no cell is begun after so long; the results then hold the runs that are there.
    jobs, on: processes side by side, or a cluster (`gce.cluster.crew`).
    Shards only fill the store: bring the folders of all together, and run once more without a shard.
    """
    store = Store(context.results / ".cells")
    queue = Queue(store, shard or CellPart(), time.monotonic() + 60 * minutes)
    total = sum(len(queue.shard.part(e.cells(preset, context))) for e in experiments)
    failures, left_out = {}, []
    with bar("reproducing", total, "cells") as done:
        for experiment in experiments:
            # Asked for again: what one experiment finds, such as weights of actions, is in the settings of the next.
            context.skipped.clear()
            cells = experiment.cells(preset, context)
            left_out += [sentence for sentence in context.skipped if sentence not in left_out]
            whole = _every(experiment, cells, context)
            store.take(whole, context.records(experiment.name))
            missing = queue.missing(cells)
            done(len(queue.shard.part(cells)) - len(missing))
            run = partial(experiment.run, context=context)
            queue.run(missing, run, jobs, done, on)
            records = [record for cell in whole if (record := store.find(cell)) is not None]
            failures[experiment.name] = sum("failure" in record for record in records)
            if shard is None and records:
                write_runs(experiment, records, _smallest(experiment, records, context), context)
    context.skipped[:] = left_out
    if shard is None and any(context.records(name) for name in EXPERIMENTS):
        report(context)
    return failures


def _every(experiment: Experiment, cells: Sequence[Cell], context: Context) -> list[Cell]:
    """Some cells, and those that the largest preset has beside them."""
    largest = experiment.cells(PAPER, replace(context, skipped=[]))
    found = {cell.key: cell for cell in [*cells, *largest]}
    return sorted(found.values(), key=lambda cell: cell.seed)


def _smallest(experiment: Experiment, records: Sequence[Record], context: Context) -> str:
    """The name of the smallest preset that has all of these runs."""
    keys = {record["key"] for record in records}
    for preset in PRESETS.values():
        if keys <= {cell.key for cell in experiment.cells(preset, replace(context, skipped=[]))}:
            return preset.name
    return PAPER.name


# ---- results on disk ----


def write_runs(experiment: Experiment, records: Sequence[Record], preset: str, context: Context) -> None:
    """NAME.json: what was run, with which preset, and what was left out."""
    about = {"experiment": experiment.name, "about": experiment.about, "preset": preset, "left_out": context.skipped}
    _write_runs(context.results / f"{experiment.name}.json", about, records)


def rewrite_runs(experiment: Experiment, records: Sequence[Record], context: Context) -> None:
    """What NAME.json says beside the runs stays."""
    file = context.results / f"{experiment.name}.json"
    _write_runs(file, {k: v for k, v in read_json(file, constants=True).items() if k != "runs"}, records)


def _write_runs(file: Path, about: dict[str, Any], records: Sequence[Record]) -> None:
    lines = ",\n".join(json.dumps(record) for record in records)
    write_file(file, f'{json.dumps(about)[:-1]},\n"runs": [\n{lines}\n]}}\n')


def report(context: Context) -> list[str]:
    """Tables and figures of all experiments that have results, and the README; returns the names of those."""
    found = []
    for experiment in EXPERIMENTS.values():
        records = context.records(experiment.name)
        if records:
            render(experiment, records, context)
            found.append(experiment.name)
    if not found:
        raise InputError(f"{context.results} holds no results; run an experiment first")
    write_file(context.results / "README.md", _readme(found, context))
    fill(context.results.resolve().parent, context.results)
    return found


def render(experiment: Experiment, records: Sequence[Record], context: Context) -> None:
    text = read_json(context.results / f"{experiment.name}.json", constants=True)
    table = experiment.report(records, context.results)
    failures = [r for r in records if "failure" in r]
    lines = [
        f"# {experiment.name}: {experiment.about}",
        f"Made by `gce reproduce {experiment.name} --preset {text['preset']}` and `gce reproduce report` from "
        f"`{experiment.name}.json`: {len(records)} runs, {len(failures)} of which failed.",
        table,
    ]
    if failures:
        sentences = sorted({_place(r) + ": " + r["failure"] for r in failures})
        lines.append("Failures:\n\n" + "\n".join(f"- {sentence}" for sentence in sentences[:20]))
    if text["left_out"]:
        lines.append("Left out:\n\n" + "\n".join(f"- {sentence}" for sentence in text["left_out"]))
    write_file(context.results / f"{experiment.name}.md", "\n\n".join(line.strip() for line in lines) + "\n")
    write_file(context.results / f"{experiment.name}.csv", csv_text([experiment.columns(r) for r in records]))


def _place(record: Record) -> str:
    words = [str(value) for value in record["settings"].values() if isinstance(value, str | int | float)]
    return " ".join([*words, f"seed {record['seed']}"])


def _readme(names: Sequence[str], context: Context) -> str:
    found = claims(context)
    rows = [[c.words, c.paper, c.published, c.test, c.verdict, c.general, c.structured] for c in found]
    counts = {verdict: sum(c.verdict == verdict for c in found) for verdict in VERDICTS}
    tables = [f"- [{name}]({name}.md): {EXPERIMENTS[name].about}" for name in names]
    return "\n".join(
        [
            "# The paper's claims, run again",
            "",
            INTRODUCTION,
            "",
            ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + ".",
            "",
            markdown(["claim", "paper", "published", "paired test", "verdict", "general", "structured"], rows),
            *_lead(context),
            *_notes(context.results / "notes.md"),
            "## Tables",
            "",
            *tables,
            "",
            *_others(context.results),
            "## Training",
            "",
            _training(context),
        ]
    )


def _lead(context: Context) -> list[str]:
    table = lead_table(context)
    words = (
        "The mean of the structured method over that of the nearest other method trained as long,\n"
        "and over CKO's, on the systems that both controlled: below 1 the structured method's is lower."
    )
    return ["## Every cell of `main` and `grid_noise`", "", words, "", table] if table else []


def _others(folder: Path) -> list[str]:
    """Results beside the paper's, and what makes them."""
    there = {name: made for name, made in OTHERS.items() if (folder / name).is_file()}
    lines = [f"- {name}: {about}, `python -m bench.{command}`" for name, (command, about) in there.items()]
    return ["## Beside the paper", "", *lines, ""] if lines else []


def _notes(file: Path) -> list[str]:
    """What was written by hand about the present results: how they came about that the runs do not say."""
    return ["## About these results", "", file.read_text().strip(), ""] if file.is_file() else []


def _training(context: Context) -> str:
    """Of every model beside the tables: how long it was trained."""
    rows = []
    for file in sorted(context.models.glob("*/*/*.json")):
        about = read_json(file).get("about", {})
        asked, spent = about.get("cpu_minutes_asked"), about.get("cpu_seconds")
        error = about.get("validation_nrmse")
        rows.append(
            [
                f"{file.parents[1].name}/{file.parent.name}",
                "–" if not about.get("iterations") else f"{asked:g} min",
                "–" if spent is None else f"{spent} s",
                about.get("iterations") or "not trained",
                "–" if error is None else f"{error:.3f}",
            ]
        )
    return markdown(["model", "CPU time given", "used", "iterations", "validation NRMSE"], rows)
