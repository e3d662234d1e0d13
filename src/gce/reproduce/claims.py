"""The paper's claims beside what the results say of them, with one word each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gce.reproduce import paper
from gce.reproduce.experiment import Context
from gce.reproduce.methods import title
from gce.reproduce.picture_tables import RELATIONS
from gce.reproduce.statistics import (
    Paired,
    Record,
    RunSummary,
    is_unstable,
    markdown,
    paired,
    select,
    summarise,
    values_of,
)
from gce.reproduce.tuning import ALIKE, CHEAPER, METHODS, chosen_cko, chosen_for_grid, chosen_potential

SIGNIFICANT = 0.05
GAUSSIAN = "ours_gaussian"


@dataclass(frozen=True)
class Claim:
    """verdict: reproduced, partly, not, or not run."""

    words: str
    paper: str
    ours: str = "–"
    test: str = "–"
    verdict: str = "not run"


def claims(context: Context) -> list[Claim]:
    return [
        *_main(context.records("main"), context.records("action_weight")),
        *_grid(context.records("grid_noise"), chosen_for_grid(context.models)),
        *_fitting(context.records("fitting_number")),
        *_predicted(context.records("prediction"), "noise", (0.0, 0.1), "{:.0%} noise: lower NRMSE of 100 steps"),
        *_predicted(
            context.records("sample_efficiency"), "episodes", (1, 8, 32), "{} episodes to adapt to: lower NRMSE"
        ),
        *_best(context.records("bandwidth"), "bandwidth", 2.0, "world", "control_error"),
        *_best(context.records("dimension"), "features", 32, "process_noise", "voltage_error"),
        *_time(context.records("eval_time")),
        *_weights(context.records("weights")),
    ]


def _ours(records: Sequence[Record], name: str = GAUSSIAN) -> list[Record]:
    """Runs of the model trained as long as the others; of the package's where that one is not there."""
    return select(records, method=name) or select(records, method="ours_shipped")


def _against(words: str, published: str, ours: RunSummary, theirs: RunSummary, name: str) -> Claim:
    """Whether ours is lower than another method's on the same systems."""
    if not ours.n or not theirs.n + theirs.unstable + theirs.failed:
        return Claim(words, published)
    told = f"{ours}; {name} {theirs}"
    if theirs.n <= theirs.unstable + theirs.failed:
        return Claim(words, published, told, "–", "reproduced")
    test = paired(ours, theirs)
    lower = test.n > 0 and test.difference < 0
    verdict = "reproduced" if lower and test.p < SIGNIFICANT else "partly" if lower else "not"
    return Claim(words, published, told, str(test), verdict)


def _main(records: Sequence[Record], tuned: Sequence[Record]) -> Iterator[Claim]:
    for world in ("rope", "soft", "swim"):
        chosen, best_cko = chosen_potential(tuned, world), chosen_cko(tuned, world)
        for split in (paper.SEEN, paper.UNSEEN):
            mine = select(records, world=world, split=split)
            nearest = _ours(mine, chosen)
            cheaper = select(mine, method=CHEAPER) or nearest
            for place, figure, word, runs in ((1, "control_error", "error", nearest), (0, "cost", "cost", cheaper)):
                ours, cko = (paper.MAIN[world, split, name][place] for name in (GAUSSIAN, "cko"))
                yield _against(
                    f"{world.capitalize()}, {split}: lower {word} than CKO ({_row(runs)})",
                    f"{ours[0]} ± {ours[1]}; CKO {cko[0]} ± {cko[1]}",
                    summarise(runs, figure),
                    summarise(select(mine, method=best_cko), figure),
                    title(best_cko),
                )
            yield _lowest(mine, world, split)


def _row(records: Sequence[Record]) -> str:
    names = values_of(records, "method")
    return title(names[0]) if names else title(GAUSSIAN)


def _lowest(records: Sequence[Record], world: str, split: str) -> Claim:
    """The Gaussian potential has the lowest error of all methods and potentials."""
    ours = summarise(_ours(records), "control_error")
    known = {n: error[0] for (w, s, n), (_, error) in paper.MAIN.items() if (w, s) == (world, split) and n != GAUSSIAN}
    best = min(known, key=lambda n: known[n])
    words = f"{world.capitalize()}, {split}: the Gaussian potential has the lowest error of all"
    published = f"{paper.MAIN[world, split, GAUSSIAN][1][0]}; next {title(best)} {known[best]}"
    names = [n for n in values_of(records, "method") if n in {*METHODS} - {GAUSSIAN, "ours_shipped"}]
    tests = _tests(records, ours, names, "control_error")
    if not ours.n or "cko" not in tests:
        return Claim(words, published)
    nearest = max(tests, key=lambda n: tests[n].ratio)
    told = (
        f"{ours.mean:.3f}; nearest {title(nearest)}, {tests[nearest].ratio:.2f} of its error (of {len(tests)} others)"
    )
    lower = tests[nearest].ratio < 1 - ALIKE
    sure = tests[nearest].p < SIGNIFICANT and known.keys() <= tests.keys()
    verdict = "reproduced" if lower and sure else "partly" if lower else "not"
    return Claim(words, published, told, str(tests[nearest]), verdict)


def _tests(records: Sequence[Record], ours: RunSummary, names: Sequence[str], figure: str) -> dict[str, Paired]:
    """Ours against other methods, by name, where there are systems that both controlled."""
    tests = {name: paired(ours, summarise(select(records, method=name), figure)) for name in names}
    return {name: test for name, test in tests.items() if test.n}


def _grid(records: Sequence[Record], chosen: str) -> Iterator[Claim]:
    for noise in paper.NOISES:
        mine = select(records, kind="process", noise=noise)
        best = _ours(mine, chosen)
        for place, figure, word in ((1, "voltage_error", "error"), (0, "cost", "cost")):
            ours, cko = (paper.GRID[name, noise][place] for name in (GAUSSIAN, "cko"))
            yield _against(
                f"Grid, {100 * noise:g}% noise on the state: lower {word} than CKO ({_row(best)})",
                f"{ours[0]} ± {ours[1]}; CKO {cko[0]} ± {cko[1]}",
                summarise(best, figure),
                summarise(select(mine, method="cko"), figure),
                "CKO",
            )
    for name in ("kpm", "graph_ode"):
        noisy = [r for r in select(records, kind="process", method=name) if r["settings"]["noise"] > 0.02]
        total = len(noisy)
        lost = sum("failure" in r or is_unstable(r["figures"]) for r in noisy)
        verdict = "not run" if not total else "reproduced" if lost > total / 2 else "partly" if lost else "not"
        told = f"{lost} of {total} runs unstable" if total else "–"
        yield Claim(f"Grid: {title(name)} is unstable above 2% noise", "NaN", told, "–", verdict)


def _fitting(records: Sequence[Record]) -> Iterator[Claim]:
    for episodes in paper.FITTING_NUMBERS:
        for other in ("hom", "dense"):
            ours, theirs = (paper.FITTING[form, episodes][1] for form in ("hom_mean", other))
            mine = select(records, episodes=episodes)
            yield _against(
                f"Rope, {episodes} episodes to adapt to: Hom+Mean has a lower error than {other.capitalize()}",
                f"{ours[0]} ± {ours[1]}; {theirs[0]} ± {theirs[1]}",
                summarise(select(mine, form="hom_mean"), "control_error"),
                summarise(select(mine, form=other), "control_error"),
                other,
            )


def _predicted(records: Sequence[Record], setting: str, values: Sequence[float], words: str) -> Iterator[Claim]:
    """words: with a place for the value of the setting."""
    for world in ("rope", "soft"):
        for value in values:
            mine = select(records, world=world, **{setting: value})
            yield _against(
                f"{world.capitalize()}, {words.format(value)} than CKO",
                "lower (figure)",
                summarise(_ours(mine), "mean"),
                summarise(select(mine, method="cko"), "mean"),
                "CKO",
            )


def _best(records: Sequence[Record], setting: str, best: float, by: str, figure: str) -> Iterator[Claim]:
    """One value of a setting is the best."""
    if not records:
        yield Claim(f"{setting} {best:g} is the best", f"{best:g}")
    for value in values_of(records, by):
        mine = select(records, **{by: value})
        means = {x: summarise(select(mine, **{setting: x}), figure).mean for x in values_of(mine, setting)}
        means = {x: mean for x, mean in means.items() if np.isfinite(mean)}
        words = f"{setting} {best:g} has the lowest error ({by.replace('_', ' ')} {value})"
        if len(means) < 2 or best not in means:
            yield Claim(words, f"{best:g}")
            continue
        if np.ptp(list(means.values())) < ALIKE:
            yield Claim(words, f"{best:g}", f"all alike ({means[best]:.3f})", "–", "not")
            continue
        lowest = min(means, key=lambda x: means[x])
        near = means[best] <= 1.1 * means[lowest]
        told = f"{lowest:g} ({means[lowest]:.3f}); at {best:g} {means[best]:.3f}"
        yield Claim(words, f"{best:g}", told, "–", "reproduced" if lowest == best else "partly" if near else "not")


def _time(records: Sequence[Record]) -> Iterator[Claim]:
    words = "Hom+Mean predicts fastest of Dense, Hom and Hom+Mean"
    done = [r for r in records if "figures" in r]
    if not done:
        yield Claim(words, "fastest (figure)")
        return
    side, kinds = max(values_of(done, "side")), RELATIONS
    seconds = {r["settings"]["form"]: r["figures"]["seconds"] for r in select(done, side=side, relations=kinds)}
    told = ", ".join(f"{form} {s:.2f} s" for form, s in seconds.items()) + f" ({side * side} nodes, {kinds} relations)"
    fastest = seconds.get("hom_mean", np.inf) <= min(s for form, s in seconds.items() if form != "tensor")
    yield Claim(words, "fastest (figure)", told, "–", "reproduced" if fastest else "not")


def _weights(records: Sequence[Record]) -> Iterator[Claim]:
    found = next((r["figures"] for r in records if "figures" in r), None)
    words = "Rope of 9 masses: learned weights are not uniform"
    if found is None:
        yield Claim(words, "not uniform (figure)")
        return
    largest = found["largest_difference_from_uniform"]
    own = float(np.mean([np.diag(table) for table in found["weights"]]))
    told = f"largest difference from uniform {largest:.3f}; a node weighs {own:.2f} on itself"
    # Where nearly all weight is a node's own, weights are not uniform, but neighbours do not weigh differently either.
    verdict = "not" if largest < 0.05 else "reproduced" if own < 0.9 else "partly"
    yield Claim(words, "not uniform (figure)", told, "–", verdict)


# ---- every cell of the tables of control ----


def lead_table(context: Context) -> str:
    """Ours beside the nearest other method, in error and in cost.

    Two methods are compared on the systems that both controlled, by the ratio of their means: below 1 ours is lower.
    Others are those trained as long as ours. Runs of theirs that failed or were unstable are left out, which favours
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
        found.append(_tests(records, summarise(select(records, method=name), figure), others, figure))
    told = []
    for tests in found:
        nearest = max(tests, key=lambda other: tests[other].ratio, default=None)
        told.append("–" if nearest is None else f"{tests[nearest].ratio:.2f} {title(nearest)}, n {tests[nearest].n}")
    return told + [f"{tests['cko'].ratio:.2f}" if "cko" in tests else "–" for tests in found]
