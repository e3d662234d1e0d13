"""The paper's claims beside what the results say of them, with one word each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gce.reproduce import paper
from gce.reproduce.choices import ALIKE, CHEAPER, METHODS, chosen_cko, chosen_for_grid, chosen_potential
from gce.reproduce.experiment import Context, Record
from gce.reproduce.names import title
from gce.reproduce.statistics import Summary, is_unstable, paired, select, summarise, values_of
from gce.reproduce.studies.eval_time import RELATIONS

SIGNIFICANT = 0.05
GAUSSIAN = "ours_gaussian"


@dataclass(frozen=True)
class Claim:
    """verdict: reproduced, partly, not, or not run."""

    words: str
    paper: str
    ours: str
    test: str
    verdict: str


def claims(context: Context) -> list[Claim]:
    return [
        *_main(context.records("main"), context.records("action_weight")),
        *_grid(context.records("grid_noise"), chosen_for_grid(context.models)),
        *_fitting(context.records("fitting_number")),
        *_prediction(context.records("prediction")),
        *_samples(context.records("sample_efficiency")),
        *_best(context.records("bandwidth"), "bandwidth", 2.0, "world", "control_error"),
        *_best(context.records("dimension"), "features", 32, "process_noise", "voltage_error"),
        *_time(context.records("eval_time")),
        *_weights(context.records("weights")),
    ]


def _ours(records: Sequence[Record], name: str = GAUSSIAN) -> list[Record]:
    """Runs of the model trained as long as the others; of the package's where that one is not there."""
    return select(records, method=name) or select(records, method="ours_shipped")


def _against(words: str, published: str, ours: Summary, theirs: Summary, name: str) -> Claim:
    """Whether ours is lower than another method's on the same systems."""
    if not ours.n or not theirs.n + theirs.unstable + theirs.failed:
        return Claim(words, published, "–", "–", "not run")
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
    known = {n: paper.MAIN[world, split, n][1][0] for n in paper_methods() if n != GAUSSIAN}
    best = min(known, key=lambda n: known[n])
    words = f"{world.capitalize()}, {split}: the Gaussian potential has the lowest error of all"
    published = f"{paper.MAIN[world, split, GAUSSIAN][1][0]}; next {title(best)} {known[best]}"
    names = [n for n in values_of(records, "method") if n in {*METHODS} - {GAUSSIAN, "ours_shipped"}]
    tests = {name: paired(ours, summarise(select(records, method=name), "control_error")) for name in names}
    tests = {name: test for name, test in tests.items() if test.n}
    if not ours.n or "cko" not in tests:
        return Claim(words, published, "–", "–", "not run")
    nearest = max(tests, key=lambda n: tests[n].ratio)
    told = (
        f"{ours.mean:.3f}; nearest {title(nearest)}, {tests[nearest].ratio:.2f} of its error (of {len(tests)} others)"
    )
    lower = tests[nearest].ratio < 1 - ALIKE
    sure = tests[nearest].p < SIGNIFICANT and known.keys() <= tests.keys()
    verdict = "reproduced" if lower and sure else "partly" if lower else "not"
    return Claim(words, published, told, str(tests[nearest]), verdict)


def paper_methods() -> list[str]:
    return list(dict.fromkeys(name for _, _, name in paper.MAIN))


def _grid(records: Sequence[Record], chosen: str) -> Iterator[Claim]:
    for noise in paper.NOISES:
        mine = select(records, kind="process", noise=noise)
        best = _ours(mine, chosen)
        for place, figure, word in ((1, "voltage_error", "error"), (0, "cost", "cost")):
            ours, cko = (paper.GRID[name, noise][place] for name in (GAUSSIAN, "cko"))
            assert ours is not None and cko is not None
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


def _prediction(records: Sequence[Record]) -> Iterator[Claim]:
    for world in ("rope", "soft"):
        for noise in (0.0, 0.1):
            mine = select(records, world=world, noise=noise)
            yield _against(
                f"{world.capitalize()}, {100 * noise:g}% noise: lower NRMSE of 100 steps than CKO",
                "lower (figure)",
                summarise(_ours(mine), "mean"),
                summarise(select(mine, method="cko"), "mean"),
                "CKO",
            )


def _samples(records: Sequence[Record]) -> Iterator[Claim]:
    for world in ("rope", "soft"):
        for episodes in (1, 8, 32):
            mine = select(records, world=world, episodes=episodes)
            yield _against(
                f"{world.capitalize()}, {episodes} episodes to adapt to: lower NRMSE than CKO",
                "lower (figure)",
                summarise(_ours(mine), "mean"),
                summarise(select(mine, method="cko"), "mean"),
                "CKO",
            )


def _best(records: Sequence[Record], setting: str, best: float, by: str, figure: str) -> Iterator[Claim]:
    """One value of a setting is the best."""
    if not records:
        yield Claim(f"{setting} {best:g} is the best", f"{best:g}", "–", "–", "not run")
    for value in values_of(records, by):
        mine = select(records, **{by: value})
        means = {x: summarise(select(mine, **{setting: x}), figure).mean for x in values_of(mine, setting)}
        means = {x: mean for x, mean in means.items() if np.isfinite(mean)}
        words = f"{setting} {best:g} has the lowest error ({by.replace('_', ' ')} {value})"
        if len(means) < 2 or best not in means:
            yield Claim(words, f"{best:g}", "–", "–", "not run")
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
        yield Claim(words, "fastest (figure)", "–", "–", "not run")
        return
    side = max(values_of(done, "side"))
    kinds = RELATIONS
    seconds = {r["settings"]["form"]: r["figures"]["seconds"] for r in select(done, side=side, relations=kinds)}
    told = ", ".join(f"{form} {s:.2f} s" for form, s in seconds.items()) + f" ({side * side} nodes, {kinds} relations)"
    fastest = seconds.get("hom_mean", np.inf) <= min(s for form, s in seconds.items() if form != "tensor")
    yield Claim(words, "fastest (figure)", told, "–", "reproduced" if fastest else "not")


def _weights(records: Sequence[Record]) -> Iterator[Claim]:
    found = next((r["figures"] for r in records if "figures" in r), None)
    words = "Rope of 9 masses: learned weights are not uniform"
    if found is None:
        yield Claim(words, "not uniform (figure)", "–", "–", "not run")
        return
    largest = found["largest_difference_from_uniform"]
    own = float(np.mean([np.diag(table) for table in found["weights"]]))
    told = f"largest difference from uniform {largest:.3f}; a node weighs {own:.2f} on itself"
    # Where nearly all weight is a node's own, weights are not uniform, but neighbours do not weigh differently either.
    verdict = "not" if largest < 0.05 else "reproduced" if own < 0.9 else "partly"
    yield Claim(words, "not uniform (figure)", told, "–", verdict)
