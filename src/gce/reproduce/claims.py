"""The paper's claims, judged by the published method; beside each what the general and the structured method reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gce.files import read_json
from gce.reproduce import paper
from gce.reproduce.experiment import Context
from gce.reproduce.methods import title
from gce.reproduce.recipes import FORMS, GENERAL, PUBLISHED
from gce.reproduce.statistics import (
    Paired,
    Record,
    is_unstable,
    paired,
    paired_each,
    select,
    short,
    summarise,
    values_of,
)
from gce.reproduce.tuning import (
    ALIKE,
    METHODS,
    PUBLISHED_POTENTIALS,
    chosen_cko,
    chosen_for_grid,
    chosen_potential,
)

SIGNIFICANT = 0.05
SIMILAR = 0.2
"""Two methods are similar where their errors differ by less than this share of the other's mean."""
GAUSSIAN = "ours_gaussian"
WORLDS, SPLITS = ("rope", "soft", "swim"), (paper.SEEN, paper.UNSEEN)
VERDICTS = ("reproduced", "partly", "a tie", "not", "not testable", "not run")
Runs = Sequence[Record]


@dataclass(frozen=True)
class Claim:
    """published, test, verdict: the published method's figure, its paired test against the other, and a word.

    general, structured: what these methods reach in its place, each with its own test's p.
    """

    words: str
    paper: str
    published: str = "–"
    test: str = "–"
    verdict: str = "not run"
    general: str = "–"
    structured: str = "–"


def claims(context: Context) -> list[Claim]:
    main, noisy = context.records("main"), context.records("grid_noise")
    chosen = {world: chosen_potential(context.records("action_weight"), world) for world in WORLDS}
    cko = {world: chosen_cko(context.records("action_weight"), world) for world in WORLDS}
    return [
        *_main(main, chosen, cko),
        *_latent(main),
        *_grid(noisy, chosen_for_grid(context.models)),
        *_fitting(context.records("fitting_number")),
        *_predicted(context.records("prediction"), "noise", (0.0, 0.1), "{:.0%} noise: lower NRMSE of 100 steps"),
        *_predicted(
            context.records("sample_efficiency"), "episodes", (1, 8, 32), "{} episodes to adapt to: lower NRMSE"
        ),
        *_best(context.records("bandwidth"), "bandwidth", 2.0, "world", ("control_error", "cost")),
        *_best(context.records("dimension"), "features", 32, "process_noise", ("voltage_error", "cost")),
        *_time(context.records("eval_time")),
        *_weights(context),
        *_rate(context),
    ]


# ---- one method against another on the same systems ----


def _lower(
    words: str,
    known: str,
    figure: str,
    than: str,
    published: tuple[Runs, Runs],
    structured: tuple[Runs, Runs] = ((), ()),
    general: tuple[Runs, Runs] = ((), ()),
) -> Claim:
    """Each a pair: a method's runs, and those that it should be lower than, on the same systems."""
    beside = {"structured": _beside(figure, *structured), "general": _beside(figure, *general)}
    ours, theirs = (summarise(runs, figure) for runs in published)
    if not published[0] or not theirs.n + theirs.unstable + theirs.failed:
        return Claim(words, known, **beside)
    told = f"{ours}; {than} {theirs}"
    if not ours.n or ours.n <= ours.unstable + ours.failed:
        return Claim(words, known, told, "–", "not", **beside)
    if theirs.n <= theirs.unstable + theirs.failed:
        return Claim(words, known, told, "–", "reproduced", **beside)
    test = paired(ours, theirs)
    return Claim(words, known, told, str(test), _word(test), **beside)


def _word(test: Paired) -> str:
    if not test.n:
        return "not testable"
    return "a tie" if test.p >= SIGNIFICANT else "reproduced" if test.difference < 0 else "not"


def _beside(figure: str, own: Runs, theirs: Runs) -> str:
    if not own:
        return "–"
    ours = summarise(own, figure)
    test = paired(ours, summarise(theirs, figure))
    return f"{ours}, p {test.p:.2g}" if test.n else str(ours)


def _similar(words: str, known: str, figure: str, than: str, own: Runs, theirs: Runs) -> Claim:
    """Two one-sided signed-rank tests: the difference is above minus the margin, and below it."""
    ours, others = summarise(own, figure), summarise(theirs, figure)
    both = sorted(ours.values.keys() & others.values.keys())
    if not both:
        return Claim(words, known)
    differences = np.array([ours.values[s] - others.values[s] for s in both])
    margin = SIMILAR * float(np.mean([others.values[s] for s in both]))
    p = max(
        float(stats.wilcoxon(differences + margin, alternative="greater").pvalue),
        float(stats.wilcoxon(differences - margin, alternative="less").pvalue),
    )
    told = f"within {short(margin)}: p {p:.2g}, n {len(both)}"
    return Claim(words, known, f"{ours}; {than} {others}", told, "reproduced" if p < SIGNIFICANT else "not")


def _main(records: Runs, chosen: dict[str, str], cko: dict[str, str]) -> Iterator[Claim]:
    for world in WORLDS:
        for split in SPLITS:
            mine = select(records, world=world, split=split)
            place = f"{world.capitalize()}, {split}"
            theirs = select(mine, method=cko[world])
            structured = select(mine, method=chosen[world]) or select(mine, method="ours_shipped")
            for column, figure, word in ((1, "control_error", "error"), (0, "cost", "cost")):
                ours, other = (paper.MAIN[world, split, name][column] for name in (PUBLISHED, "cko"))
                yield _lower(
                    f"{place}: lower {word} than CKO",
                    f"{ours[0]} ± {ours[1]}; CKO {other[0]} ± {other[1]}",
                    figure,
                    title(cko[world]),
                    (select(mine, method=PUBLISHED), theirs),
                    (structured, theirs),
                    (select(mine, method=GENERAL), theirs),
                )
            yield _lowest(mine, world, split)
        if world in paper.COMPARABLE:
            mine = select(records, world=world, split=paper.SEEN)
            runs = select(mine, method=PUBLISHED), select(mine, method=cko[world])
            words = f"{world.capitalize()}, {paper.SEEN}: CKO's error is similar"
            yield _similar(words, "comparable (text)", "control_error", title(cko[world]), *runs)
        yield _gap(select(records, world=world), world, cko[world])
    lost = [r for r in select(records, method=f"{PUBLISHED}_mlp") if "failure" in r or is_unstable(r["figures"])]
    total = len(select(records, method=f"{PUBLISHED}_mlp"))
    verdict = "not run" if not total else "reproduced" if len(lost) > total / 2 else "partly" if lost else "not"
    yield Claim(
        "Rope: control with the MLP potential is unstable",
        "unstable (text)",
        f"{len(lost)} of {total} runs unstable" if total else "–",
        verdict=verdict,
    )


def _lowest(records: Runs, world: str, split: str) -> Claim:
    """The Gaussian potential has the lowest error of all methods and potentials."""
    known = {n: error[0] for (w, s, n), (_, error) in paper.MAIN.items() if (w, s) == (world, split) and n != PUBLISHED}
    best = min(known, key=lambda n: known[n])
    words = f"{world.capitalize()}, {split}: the Gaussian potential has the lowest error of all"
    told = f"{paper.MAIN[world, split, PUBLISHED][1][0]}; next {title(best)} {known[best]}"
    baselines = [n for n in METHODS if not n.startswith("ours")]
    published = _nearest(records, PUBLISHED, [*PUBLISHED_POTENTIALS[1:], *baselines])
    structured = _nearest(records, GAUSSIAN, [n for n in METHODS if n not in (GAUSSIAN, "ours_shipped")])
    beside = "–" if structured is None else f"{structured[0]}, p {structured[1].p:.2g}"
    if published is None:
        return Claim(words, told, structured=beside)
    return Claim(words, told, published[0], str(published[1]), _word(published[1]), structured=beside)


def _nearest(records: Runs, name: str, others: Sequence[str]) -> tuple[str, Paired] | None:
    """Which of some other methods a method's error is nearest to or furthest above, as a ratio of means."""
    ours = summarise(select(records, method=name), "control_error")
    tests = paired_each(records, ours, others, "control_error")
    if not tests:
        return None
    nearest = max(tests, key=lambda n: tests[n].ratio)
    told = (
        f"{ours.mean:.3f}; nearest {title(nearest)}, {tests[nearest].ratio:.2f} of its error (of {len(tests)} others)"
    )
    return told, tests[nearest]


def _gap(records: Runs, world: str, cko: str) -> Claim:
    """The share of CKO's error that the published method has is smaller on larger systems, by a rank-sum test."""
    words = f"{world.capitalize()}: CKO's gap is larger in few-shot"
    ratios = []
    for split in SPLITS:
        ours, theirs = (
            summarise(select(records, split=split, method=name), "control_error") for name in (PUBLISHED, cko)
        )
        both = sorted(ours.values.keys() & theirs.values.keys())
        ratios.append([ours.values[s] / theirs.values[s] for s in both])
    if not all(ratios):
        return Claim(words, "larger (text)")
    p = float(stats.mannwhitneyu(ratios[1], ratios[0]).pvalue)
    seen, unseen = (float(np.median(r)) for r in ratios)
    test = Paired(min(map(len, ratios)), unseen - seen, unseen / seen, p)
    told = f"{seen:.2f} of CKO's error, few-shot {unseen:.2f} (medians)"
    return Claim(words, "larger (text)", told, f"p {p:.2g}, n {len(ratios[0])} and {len(ratios[1])}", _word(test))


def _latent(records: Runs) -> Iterator[Claim]:
    """VAE and PCC have higher errors than the graph methods; CKO stands for these."""
    for world in WORLDS:
        for split in SPLITS:
            mine = select(records, world=world, split=split)
            graph = summarise(select(mine, method="cko"), "control_error")
            tests = paired_each(mine, graph, ("vae", "pcc"), "control_error")
            words = f"{world.capitalize()}, {split}: VAE and PCC have higher errors than CKO"
            if len(tests) < 2:
                yield Claim(words, "higher (table)")
                continue
            each = [_word(test) for test in tests.values()]
            verdict = each[0] if each[0] == each[1] else "partly" if "reproduced" in each else "not"
            told = "; ".join(f"CKO has {test.ratio:.2f} of {title(name)}'s" for name, test in tests.items())
            p = ", ".join(f"p {test.p:.2g}" for test in tests.values())
            yield Claim(words, "higher (table)", told, f"{p}, n {min(t.n for t in tests.values())}", verdict)


def _grid(records: Runs, chosen: str) -> Iterator[Claim]:
    for kind, where in (("process", "the state"), ("observation", "what is observed")):
        for noise in paper.NOISES if kind == "process" else paper.NOISES[1:]:
            mine = select(records, kind=kind, noise=noise)
            theirs = select(mine, method="cko")
            for place, figure, word in ((1, "voltage_error", "error"), (0, "cost", "cost")):
                ours, cko = (paper.GRID[name, noise][place] for name in (PUBLISHED, "cko"))
                known = f"{ours[0]} ± {ours[1]}; CKO {cko[0]} ± {cko[1]}"
                yield _lower(
                    f"Grid, {100 * noise:g}% noise on {where}: lower {word} than CKO",
                    known if kind == "process" else "robust (text)",
                    figure,
                    "CKO",
                    (select(mine, method=PUBLISHED), theirs),
                    (select(mine, method=chosen), theirs),
                    (select(mine, method=GENERAL), theirs),
                )
    for name in ("kpm", "graph_ode"):
        noisy = [r for r in select(records, kind="process", method=name) if r["settings"]["noise"] > 0.02]
        total = len(noisy)
        lost = sum("failure" in r or is_unstable(r["figures"]) for r in noisy)
        verdict = "not run" if not total else "reproduced" if lost > total / 2 else "partly" if lost else "not"
        told = f"{lost} of {total} runs unstable" if total else "–"
        yield Claim(f"Grid: {title(name)} is unstable above 2% noise", "NaN", told, "–", verdict)


def _fitting(records: Runs) -> Iterator[Claim]:
    """Published: a model trained with each form. Structured: one encoder for all."""
    for place, figure, word in ((1, "control_error", "error"), (0, "cost", "cost")):
        for episodes in paper.FITTING_NUMBERS:
            mine = select(records, episodes=episodes)
            for other in FORMS:
                ours, theirs = (paper.FITTING[form, episodes][place] for form in ("hom_mean", other))
                yield _lower(
                    f"Rope, {episodes} episodes to adapt to: Hom+Mean has a lower {word} than {other.capitalize()}",
                    f"{ours[0]} ± {ours[1]}; {theirs[0]} ± {theirs[1]}",
                    figure,
                    other,
                    (select(mine, published="hom_mean"), select(mine, published=other)),
                    (select(mine, form="hom_mean"), select(mine, form=other)),
                )
    most = select(records, episodes=max(paper.FITTING_NUMBERS))
    words = "Rope, 32 episodes to adapt to: Dense's error is similar to Hom+Mean's"
    yield _similar(
        words, "similar (text)", "control_error", "hom_mean", select(most, published="dense"),
        select(most, published="hom_mean"),
    )  # fmt: skip


def _predicted(records: Runs, setting: str, values: Sequence[float], words: str) -> Iterator[Claim]:
    """words: with a place for the value of the setting."""
    for world in ("rope", "soft"):
        for value in values:
            mine = select(records, world=world, **{setting: value})
            theirs = select(mine, method="cko")
            yield _lower(
                f"{world.capitalize()}, {words.format(value)} than CKO",
                "lower (figure)",
                "mean",
                "CKO",
                *((select(mine, method=name), theirs) for name in (PUBLISHED, GAUSSIAN, GENERAL)),
            )


def _best(records: Runs, setting: str, best: float, by: str, figures: tuple[str, str]) -> Iterator[Claim]:
    """One value of a setting is the best. Models of the structured method alone were trained with each value."""
    for value in values_of(records, by) or [None]:
        mine = select(records, **{by: value})
        for figure, word in zip(figures, ("error", "cost"), strict=True):
            means = {x: summarise(select(mine, **{setting: x}), figure).mean for x in values_of(mine, setting)}
            means = {x: mean for x, mean in means.items() if np.isfinite(mean)}
            words = f"{setting} {best:g} has the lowest {word} ({by.replace('_', ' ')} {value})"
            if len(means) < 2 or best not in means:
                yield Claim(words, f"{best:g}")
                continue
            lowest = min(means, key=lambda x: means[x])
            told = f"{lowest:g} ({short(means[lowest])}); at {best:g} {short(means[best])}"
            alike = np.ptp(list(means.values())) < ALIKE
            yield Claim(words, f"{best:g}", structured=f"all alike ({short(means[best])})" if alike else told)


def _time(records: Runs) -> Iterator[Claim]:
    """The same for all methods: the form decides."""
    words = "Hom+Mean predicts fastest of Dense, Hom and Hom+Mean"
    cells: dict[tuple[int, int], dict[str, float]] = {}
    for r in records:
        if "figures" in r:
            s = r["settings"]
            cells.setdefault((s["side"] ** 2, s["relations"]), {})[s["form"]] = r["figures"]["seconds"]
    whole = {place: times for place, times in cells.items() if {"hom_mean", *FORMS} <= times.keys()}
    if not whole:
        yield Claim(words, "fastest (figure)")
        return
    ratios = {place: times["hom_mean"] / min(times[form] for form in FORMS) for place, times in whole.items()}
    told = ", ".join(f"{n} nodes, {kinds} relations: {ratio:.2f}" for (n, kinds), ratio in ratios.items())
    fastest = sum(ratio <= 1 for ratio in ratios.values())
    verdict = "reproduced" if fastest == len(ratios) else "partly" if fastest else "not"
    yield Claim(words, "fastest (figure)", f"time over that of the faster other: {told}", verdict=verdict)


def _weights(context: Context) -> Iterator[Claim]:
    words = "Rope: learned weights are not uniform"
    structured = next((r["figures"] for r in context.records("weights") if "figures" in r), None)
    beside = "–"
    if structured is not None:
        own = float(np.mean([np.diag(table) for table in structured["weights"]]))
        beside = f"a node weighs {own:.2f} on itself"
    file = context.results / "published.json"
    found = read_json(file).get(f"rope, {paper.SEEN}, published", {}) if file.is_file() else {}
    if "self" not in found:
        yield Claim(words, "not uniform (figure)", structured=beside)
        return
    own, spread = found["self"][0], found["effective_neighbours"][0]
    # Where nearly all weight is a node's own, weights are not uniform, but neighbours do not weigh differently either.
    told = f"a node weighs {own:.3f} on itself; {spread:.2f} effective neighbours (n {found['n']})"
    yield Claim(words, "not uniform (figure)", told, verdict="reproduced" if own < 0.9 else "partly", structured=beside)


def _rate(context: Context) -> Iterator[Claim]:
    """On a system whose operator is known (docs/notes/theory.md)."""
    words = "the error falls as one over the square root of the samples (Hom+Mean)"
    file = context.results / "theory.json"
    found = read_json(file) if file.is_file() else {}
    slopes = [found[name]["slope_in_T"] for name in found if "fixed, hom_mean, error" in name and "node" not in name]
    if not slopes:
        yield Claim(words, "-0.5 (theorem)")
        return
    near = all(-0.6 < slope < -0.4 for slope in slopes)
    told = "slopes " + ", ".join(f"{slope:.2f}" for slope in slopes)
    yield Claim(words, "-0.5 (theorem)", told, "–", "reproduced" if near else "not")
