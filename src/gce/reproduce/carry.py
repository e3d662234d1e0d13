"""Kept runs under the keys of present cells, where a sample of them computed again has the same figures.

A key may change where no number does. Runs are matched to cells by settings and seed, and grouped by experiment, world
and method. Some runs of a group are computed again: if all of them agree, every run of the group takes the key of its
cell; otherwise the group stays as it is. Times are not compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gce.envs import world_named
from gce.errors import InputError
from gce.files import read_json
from gce.reproduce.experiment import PRESETS, Cell, Context, Experiment, compute, write_file
from gce.reproduce.runner import rewrite_runs
from gce.reproduce.statistics import Record, markdown

TOLERANCE = 1e-5
"""Relative to a figure's size, of runs in no world; a world's own is its recipe's."""
CHAOTIC = 5
"""Runs sampled in a chaotic world, at least."""
ROUNDED = 1e-3
"""Of lists, which are kept with four digits."""
UNLIKE = 1.0
"""The relative difference of what are not two finite numbers, unless they are the same."""
EXACT = ("trained_minutes",)
COMPARED, TABLE = "carried.json", "carried.md"
WORDS = """Runs that were kept under other keys, and now have those of present cells. Of each experiment, world and
method the sample was computed again; the difference is the largest of its figures, relative to the figure's size.
In a chaotic world (Soft) a run near a fold does not repeat even under one and the same code; of five runs sampled
there most must agree. Times are not compared, so of `eval_time` only the sizes of its graphs are. Lists are kept
rounded: they may differ by 0.001."""

Comparison = dict[str, Any]


@dataclass(frozen=True)
class RunGroup:
    """runs: records whose key is another than that of the present cell."""

    experiment: Experiment
    world: str | None
    method: str | None
    runs: list[tuple[Record, Cell]]

    @property
    def name(self) -> str:
        return " ".join(word for word in (self.experiment.name, self.world, self.method) if word)

    @property
    def tolerance(self) -> float:
        return TOLERANCE if self.world is None else world_named(self.world).recipe.repeats

    @property
    def chaotic(self) -> bool:
        """Whether single runs may not repeat at all: most of a sample count then."""
        return self.tolerance > TOLERANCE

    def sample(self, count: int) -> list[tuple[Record, Cell]]:
        """The quickest run, if possible one that did not fail, and others from the whole list."""
        first = min(self.runs, key=lambda run: ("failure" in run[0], run[0]["cpu_seconds"]))
        others = [run for run in self.runs if run is not first]
        places = np.linspace(0, len(others) - 1, min(count - 1, len(others))).round().astype(int)
        return [first, *(others[k] for k in places)]


def carry(
    experiments: Sequence[Experiment],
    context: Context,
    sample: int = 1,
    minutes: float = float("inf"),
    say: Callable[[str], None] = print,
) -> list[str]:
    """Returns the names of the groups that do not agree. sample: runs of a group to compute again.

    minutes: no run is begun after so long. A group is written as soon as it agrees.
    """
    deadline = time.monotonic() + 60 * minutes
    kept = {experiment.name: context.records(experiment.name) for experiment in experiments}
    groups = [group for e in experiments for group in _groups(e, kept[e.name], context, say)]
    if not groups:
        say("nothing to carry: no run has another key than its cell")
    refused = []
    for number, group in enumerate(groups):
        compared = _compare(group, sample, context, deadline)
        if compared is None:
            say(f"time is up: {len(groups) - number} of {len(groups)} groups are left; the same command goes on")
            break
        _note(compared, context.results)
        if compared["agreed"]:
            for record, cell in group.runs:
                record["key"] = cell.key
            rewrite_runs(group.experiment, kept[group.experiment.name], context)
        else:
            refused.append(group.name)
        say(_sentence(group, compared))
    return refused


def _groups(
    experiment: Experiment, records: Sequence[Record], context: Context, say: Callable[[str], None]
) -> list[RunGroup]:
    if not records:
        return []
    cells: dict[str, Cell] = {}
    for preset in PRESETS.values():  # the largest last: what it leaves out no other has
        asked = replace(context, skipped=[])
        cells |= {_place(cell.settings, cell.seed): cell for cell in experiment.cells(preset, asked)}
    groups: dict[tuple[str | None, str | None], RunGroup] = {}
    unmatched = 0
    for record in records:
        settings = record["settings"]
        match = cells.get(_place(settings, record["seed"]))
        if match is None:
            unmatched += 1
        elif match.key != record.get("key"):
            place = settings.get("world"), settings.get("method")
            groups.setdefault(place, RunGroup(experiment, *place, [])).runs.append((record, match))
    if unmatched:
        say("; ".join([f"{experiment.name}: {unmatched} runs are of no present cell and are left", *asked.skipped]))
    return list(groups.values())


def _place(settings: dict[str, Any], seed: int) -> str:
    return json.dumps([settings, seed], sort_keys=True)


def _compare(group: RunGroup, sample: int, context: Context, deadline: float) -> Comparison | None:
    """None where time is up."""
    sampled = []
    for record, cell in group.sample(max(sample, CHAOTIC) if group.chaotic else sample):
        if time.monotonic() > deadline:
            return None
        again = json.loads(json.dumps(compute(cell, partial(group.experiment.run, context=context))))
        figure, difference, agrees = compare(record, again, group.tolerance)
        place = {"settings": cell.settings, "seed": cell.seed}
        sampled.append({**place, "difference": difference, "figure": figure, "agreed": agrees})
    agreed = [bool(run["agreed"]) for run in sampled]
    return {
        "experiment": group.experiment.name,
        "world": group.world,
        "method": group.method,
        "runs": len(group.runs),
        "sampled": sampled,
        "tolerance": group.tolerance,
        "agreed": 2 * sum(agreed) > len(agreed) if group.chaotic else all(agreed),
    }


def compare(before: Record, after: Record, tolerance: float) -> tuple[str, float, bool]:
    """The figure that is furthest from agreeing, its relative difference, and whether it agrees."""
    if "failure" in before or "failure" in after:
        same = before.get("failure") == after.get("failure")
        return "failure", 0.0 if same else UNLIKE, same
    old, new = before["figures"], after["figures"]
    names = [name for name in {**old, **new} if "seconds" not in name]
    apart = {name: _apart(old[name], new[name]) if name in old and name in new else UNLIKE for name in names}
    allowed = {name: _allowed(name, old.get(name), tolerance) for name in names}
    figure = max(names, key=lambda name: apart[name] / (allowed[name] or tolerance), default="none to compare")
    difference = apart.get(figure, UNLIKE)
    return figure, difference, difference <= allowed.get(figure, 0.0)


def _allowed(name: str, value: Any, tolerance: float) -> float:
    return 0.0 if name in EXACT else max(tolerance, ROUNDED) if isinstance(value, list) else tolerance


def _apart(old: Any, new: Any) -> float:
    """max |old - new| over the largest number of both."""
    try:
        a, b = np.asarray(old, dtype=float), np.asarray(new, dtype=float)
    except (TypeError, ValueError):
        return 0.0 if old == new else UNLIKE
    if a.shape != b.shape:
        return UNLIKE
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return UNLIKE
    size = np.abs(np.stack([a[finite], b[finite]])).max(initial=0.0)
    return float(np.abs(a - b)[finite].max() / size) if size else 0.0


def _note(compared: Comparison, results: Path) -> None:
    """Beside what was compared before; a group compared again replaces what was said of it."""
    file, group = results / COMPARED, ("experiment", "world", "method")
    try:
        known: list[Comparison] = read_json(file, constants=True) if file.is_file() else []
        known = [one for one in known if any(one[name] != compared[name] for name in group)]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{file} does not say what was carried; remove it, and give the command again") from None
    known.append(compared)
    write_file(file, "[\n" + ",\n".join(json.dumps(one) for one in known) + "\n]\n")
    rows = []
    for one in known:
        worst = _worst(one)
        difference = [len(one["sampled"]), f"{worst['difference']:.1g}", worst["figure"], f"{one['tolerance']:g}"]
        rows.append([*(one[name] or "–" for name in group), one["runs"], *difference, "yes" if one["agreed"] else "no"])
    header = [*group, "runs", "sampled", "largest difference", "of", "tolerance", "carried"]
    write_file(results / TABLE, f"# Runs carried to new keys\n\n{WORDS}\n\n{markdown(header, rows)}")


def _worst(compared: Comparison) -> dict[str, Any]:
    runs: list[dict[str, Any]] = compared["sampled"]
    return max(runs, key=lambda run: (not run["agreed"], run["difference"]))


def _sentence(group: RunGroup, compared: Comparison) -> str:
    worst = _worst(compared)
    told = f"largest difference {worst['difference']:.1g} ({worst['figure']}, seed {worst['seed']})"
    if compared["agreed"]:
        return f"{group.name}: {len(group.runs)} runs carried; {told}"
    return f"{group.name}: {len(group.runs)} runs left, computed again they differ; {told}"
