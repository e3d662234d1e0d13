"""Tables in README and in the docs that are written from the results, so that no figure there is older than its run.

    <!-- table: NAME -->
    <!-- end of table -->

`gce reproduce report` writes what stands between two such lines; a test fails where a page says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gce.errors import InputError
from gce.files import read_json
from gce.reproduce import paper
from gce.reproduce.experiment import records_in, write_file
from gce.reproduce.foreign import ADAPTED, TITLES, errors_of
from gce.reproduce.methods import title
from gce.reproduce.statistics import Record, markdown, select, short, summarise

MARK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def pages(root: Path) -> list[Path]:
    """README and the docs, where they have marked tables."""
    return [page for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if _marked(page)]


def _marked(page: Path) -> bool:
    return page.is_file() and MARK.search(page.read_text()) is not None


def filled(text: str, results: Path) -> str:
    """A page with its tables as the results have them."""

    def table(match: re.Match[str]) -> str:
        opening, name, _, end = match.groups()
        if name not in TABLES:
            raise InputError(f"there is no table {name!r} to write; the tables are {', '.join(TABLES)}")
        return f"{opening}{TABLES[name](results)}{end}"

    return MARK.sub(table, text)


def fill(root: Path, results: Path) -> None:
    for page in pages(root):
        write_file(page, filled(page.read_text(), results))


def control(results: Path) -> str:
    """Control error of `main`: the same systems in each column, of which the paper's method may have had the first."""
    records, shipped = records_in(results, "main"), read_json(results / "published.json")
    columns = [(world, split) for world in ("rope", "soft", "swim") for split in (paper.SEEN, paper.UNSEEN)]
    rows = [
        ["doing nothing", *(_mean(select(records, method=BEST, world=w, split=s), "nothing") for w, s in columns)],
        *(
            [words, *(_mean(select(records, method=name, world=w, split=s)) for w, s in columns)]
            for words, name in (
                ("**structured**", BEST),
                ("general", "general"),
                ("CKO of Li et al., trained here", "cko"),
            )
            if select(records, method=name)
        ),
        ["published", *(_shipped(shipped[f"{w}, {s}, published"]) for w, s in columns)],
        ["the paper, its own systems", *(f"{paper.MAIN[w, s, 'published'][1][0]}" for w, s in columns)],
    ]
    return markdown([f"control error, n {ALL} a cell", *(f"{w.capitalize()}, {s}" for w, s in columns)], rows)


BEST, ALL = "ours_shipped", 48


def _mean(records: Sequence[Record], figure: str = "control_error") -> str:
    found = summarise(records, figure)
    return "–" if not found.n else short(found.mean) + ("" if found.n == ALL else f" (n {found.n})")


def _shipped(figures: dict[str, Any]) -> str:
    return short(figures["control_error"][0]) + ("" if figures["n"] == ALL else f" (n {figures['n']})")


def recorded(results: Path) -> str:
    """Control error and prediction on the recorded groups of Li et al. that are here."""
    records = records_in(results, "recorded")
    worlds = ("rope", "soft", "swim")
    rows: list[list[Any]] = [
        ["control error, doing nothing", *(_four(records, BEST, w, "nothing") for w in worlds)],
        ["&nbsp; structured", *(_four(records, BEST, w, "control_error") for w in worlds)],
        ["&nbsp; Li et al., published models", *(short(_group_mean(w, 0)) for w in worlds)],
        ["prediction, mean NRMSE over 100 steps, structured", *(_four(records, BEST, w, "nrmse_mean") for w in worlds)],
        ["&nbsp; Li et al., published models", *(short(_group_mean(w, 2)) for w in worlds)],
    ]
    return markdown(["four recorded groups (n 4)", *(w.capitalize() for w in worlds)], rows)


def _four(records: Sequence[Record], method: str, world: str, figure: str) -> str:
    return short(summarise(select(records, method=method, world=world), figure).mean)


def _group_mean(world: str, figure: int) -> float:
    return float(np.mean(paper.PUBLISHED_GROUPS[world][figure]))


def grids(results: Path) -> str:
    """The share of the voltage error that two plans leave on standard test cases."""
    cases = read_json(results / "real_grids.json")["cases"]
    rows = [
        [words, *(f"{case['methods'][name]['error']:.3f}" for case in cases.values())]
        for words, name in (("doing nothing", "nothing"), ("**structured**", "ours"), ("oracle", "oracle"))
    ]
    stresses = next(iter(cases.values()))["seeds"]
    return markdown([f"voltage error left, n {stresses}", *cases], rows)


def published(results: Path) -> str:
    """What the shipped models of the paper's method reach, and others beside them."""
    rows = []
    for name, figures in read_json(results / "published.json").items():
        world, split, label = name.split(", ")
        known = paper.MAIN.get((world, split, label))
        if "voltage_error" in figures:
            known = paper.GRID["published", 0.0]
        told = {k: f"{v[0]:.3f} +- {v[1]:.3f}" for k, v in figures.items() if isinstance(v, list)}
        error = told.get("voltage_error", told["control_error"])
        rows.append(
            [
                f"{world.capitalize()}, {split}" + f", {title(label)}" * (label != "published"),
                figures["n"],
                told["nrmse"],
                told.get("identity", "–").split(" ")[0],
                error,
                "1" if "voltage_error" in told else told["nothing"].split(" ")[0],
                "–" if known is None else known[1][0],
                told.get("self", "–").split(" ")[0],
            ]
        )
    header = ["world, sizes", "n", "NRMSE, mean of 100 steps", "identity", "control error", "nothing", "the paper"]
    return markdown([*header, "self-weight"], rows)


def foreign(results: Path) -> str:
    """Means over systems of others, and on how many of them `general` is below DMDc and the tuned network."""
    records, rows = records_in(results, "foreign"), []
    for kind, acted in sorted({(r["settings"]["kind"], r["settings"].get("actions", "")) for r in records}):
        mine = [r for r in select(records, kind=kind) if r["settings"].get("actions", "") == acted]
        ours = [errors_of(mine, "general", k) for k in ADAPTED]
        for method in ("persistence", "dmdc", "gns_tuned", "structured", "general"):
            each = [errors_of(mine, method, k) for k in ADAPTED]
            if not any(each):
                continue
            cells = [short(float(np.mean(list(e.values())))) if e else "–" for e in each]
            if method in ("dmdc", "gns_tuned"):
                both = [(sum(o[g] < e[g] for g in o.keys() & e.keys()), e) for o, e in zip(ours, each, strict=True)]
                cells = [f"{c} ({won})" if e else c for c, (won, e) in zip(cells, both, strict=True)]
            words = TITLES.get(method, method)
            name = f"{kind}{', ' * bool(acted)}{acted}" if method == "persistence" else ""
            rows.append([name, max(map(len, each)), f"**{words}**" if method == "general" else words, *cells])
    return markdown(["", "n", "NRMSE after so many episodes", *map(str, ADAPTED)], rows)


def published_ledger(results: Path) -> str:
    """What single changes of the tuned preset bring on Rope."""
    rows = [
        [
            name,
            row["n"],
            *(f"{row[figure]:.3f}" for figure in ("nrmse", "control_error", "control_std")),
            f"{row['self']:.3f}" if "self" in row else "–",
        ]
        for name, row in read_json(results / "published_ledger.json").items()
    ]
    return markdown(["what is changed", "n", "NRMSE", "control error", "its std", "self-weight"], rows)


def flock(results: Path) -> str:
    """What published models find where Gibbs weights are the truth, by sharpness."""
    runs: dict[float, dict[str, list[dict[str, float]]]] = {}
    for name, run in read_json(results / "flock.json").items():
        sharpness, kind, iterations = name.removeprefix("sharpness ").split(", ")
        if iterations == "1000 iterations":
            runs.setdefault(float(sharpness), {})[kind] = run["systems"]

    def of(systems: list[dict[str, float]], figure: str) -> str:
        return f"{np.mean([row[figure] for row in systems]):.3f}"

    learned = "gibbs learned"
    rows = [
        [
            f"{sharpness:g}",
            *(of(kinds[kind], "nrmse") for kind in (learned, "gibbs", "hom", "identity")),
            *(of(kinds[learned], figure) for figure in ("control_error_along", "control_error")),
            *(of(kinds[kind], "control_error") for kind in ("hom", "identity")),
            of(kinds[learned], "nothing"),
            of(kinds[learned], "off"),
        ]
        for sharpness, kinds in sorted(runs.items())
    ]
    header = ["sharpness", "NRMSE: sigma learned", "sigma 2", "Hom", "identity", "control: along", "frozen"]
    return markdown([*header, "Hom", "identity", "nothing", "off"], rows)


TABLES: dict[str, Callable[[Path], str]] = {
    "control": control,
    "recorded": recorded,
    "grids": grids,
    "published": published,
    "foreign": foreign,
    "published_ledger": published_ledger,
    "flock": flock,
}
"""The tables by name."""
