"""Every cell of the tables of control: the structured method beside the nearest other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gce.reproduce import paper
from gce.reproduce.experiment import Context
from gce.reproduce.methods import title
from gce.reproduce.statistics import Record, markdown, paired_each, select, summarise
from gce.reproduce.tuning import CHEAPER, METHODS, chosen_for_grid, chosen_potential


def lead_table(context: Context) -> str:
    """The structured method beside the nearest other, in error and in cost.

    Two methods are compared on the systems that both controlled, by the ratio of their means: below 1 the structured
    method's is lower.
    Others are those trained as long. Runs of theirs that failed or were unstable are left out, which favours
    them.
    """
    rows = [*_worlds(context), *_grids(context)]
    header = ["cell", "row", "error: nearest other", "cost: nearest other", "error: CKO", "cost: CKO"]
    return markdown(header, rows) if rows else ""


def _worlds(context: Context) -> Iterator[list[str]]:
    records, tuned = context.records("main"), context.records("action_weight")
    for world in ("rope", "soft", "swim"):
        for split in (paper.SEEN, paper.UNSEEN):
            mine = select(records, world=world, split=split)
            for name in (chosen_potential(tuned, world), CHEAPER):
                if select(mine, method=name):
                    yield [f"{world.capitalize()}, {split}", title(name), *_ratios(mine, name, "control_error")]


def _grids(context: Context) -> Iterator[list[str]]:
    records, name = context.records("grid_noise"), chosen_for_grid(context.models)
    for kind, words in (("process", "the state"), ("observation", "what is observed")):
        for noise in paper.NOISES:
            mine = select(records, kind=kind, noise=noise)
            if select(mine, method=name):
                cell = f"Grid, {100 * noise:g}% on {words}" if noise else "Grid, no noise"
                yield [cell, title(name), *_ratios(mine, name, "voltage_error")]


def _ratios(records: Sequence[Record], name: str, error: str) -> list[str]:
    others = [other for other in METHODS if not other.startswith("ours") and select(records, method=other)]
    found = []
    for figure in (error, "cost"):
        found.append(paired_each(records, summarise(select(records, method=name), figure), others, figure))
    told = []
    for tests in found:
        nearest = max(tests, key=lambda other: tests[other].ratio, default=None)
        told.append("–" if nearest is None else f"{tests[nearest].ratio:.2f} {title(nearest)}, n {tests[nearest].n}")
    return told + [f"{tests['cko'].ratio:.2f}" if "cko" in tests else "–" for tests in found]
