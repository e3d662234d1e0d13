"""Runs experiments: all their cells in one queue, then their results.

Runs that the results hold under their key are not computed again, and stay where a smaller preset is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from gce.reproduce.cells import Cell, Queue, Shard, Store
from gce.reproduce.experiment import PAPER, PRESETS, Context, Experiment, Preset, Record
from gce.reproduce.registry import EXPERIMENTS
from gce.reproduce.report import report, write_runs

Bar = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]


def reproduce(
    experiments: Sequence[Experiment],
    preset: Preset,
    context: Context,
    shard: Shard | None,
    bar: Bar,
    minutes: float = float("inf"),
    jobs: int = 1,
) -> dict[str, int]:
    """Compute what is missing; without a shard, write the results too. Returns the number of failures by name.

    minutes: no cell is begun after so long; the results then hold the runs that are there.
    jobs: processes side by side.
    Shards only fill the store: bring the folders of all together, and run once more without a shard.
    """
    store = Store(context.results / ".cells")
    queue = Queue(store, shard or Shard(), time.monotonic() + 60 * minutes)
    total = sum(len(_mine(queue, e.cells(preset, context))) for e in experiments)
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
            done(len(_mine(queue, cells)) - len(missing))
            run = partial(experiment.run, context=context)
            if jobs == 1:
                queue.run(missing, run, done)
            elif missing:
                queue.run_side_by_side(missing, run, jobs, done)
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


def _mine(queue: Queue, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for number, cell in enumerate(cells) if queue.shard.takes(number)]
