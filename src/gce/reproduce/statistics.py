"""Means, spreads and paired tests of runs, and how tables, CSV files and charts show them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from gce.files import guarded
from gce.views.style import BAND, lines, panels, save

Record = dict[str, Any]
"""Of one cell: settings, seed, key, figures or failure, cpu_seconds."""
Point = tuple[float, float, float, int]
"""(x, mean, std, n)."""
Series = Mapping[str, Sequence[Point]]
"""By name."""

UNSTABLE = 5.0
"""Times the error of doing nothing, beyond which control counts as unstable (the paper's NaN)."""


@dataclass(frozen=True)
class RunSummary:
    """Of the runs of one cell: by seed the figures that count, and how many failed or were unstable."""

    values: dict[int, float]
    failed: int
    unstable: int

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values()))) if self.values else float("nan")

    @property
    def std(self) -> float:
        return float(np.std(list(self.values.values()), ddof=1)) if self.n > 1 else float("nan")

    def __str__(self) -> str:
        lost = self.failed + self.unstable
        words = [f"n {self.n}"]
        if self.failed:
            words.append(f"{self.failed} failed")
        if self.unstable:
            words.append(f"{self.unstable} unstable")
        if not self.n + lost:
            return "–"
        if not self.n or lost > self.n:
            return f"NaN ({', '.join(words)})"
        return f"{short(self.mean)} ± {short(self.std)} ({', '.join(words)})"


def short(value: float) -> str:
    """Three significant digits, or whole where it is large."""
    if not np.isfinite(value):
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def summarise(records: Sequence[Record], name: str) -> RunSummary:
    """A figure over the runs of a cell."""
    values, failed, unstable = {}, 0, 0
    for record in records:
        figures = record.get("figures")
        if figures is None:
            failed += 1
        elif is_unstable(figures) or not np.isfinite(_number(figures.get(name))):
            unstable += 1
        else:
            values[record["seed"]] = float(figures[name])
    return RunSummary(values, failed, unstable)


def is_unstable(figures: dict[str, Any]) -> bool:
    """Control that ends, beyond doubt, worse than doing nothing."""
    share = _number(figures.get("voltage_error", figures.get("control_error_over_nothing", 0.0)))
    return not np.isfinite(share) or share > UNSTABLE


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


@dataclass(frozen=True)
class Paired:
    """Two methods on the same systems: mean difference (first - second), ratio of the means (first / second) and
    Wilcoxon's signed-rank p-value."""

    n: int
    difference: float
    ratio: float
    p: float

    def __str__(self) -> str:
        return "–" if self.n == 0 else f"{self.difference:+.3g}, p {self.p:.2g}, n {self.n}"


def paired(first: RunSummary, second: RunSummary) -> Paired:
    both = sorted(first.values.keys() & second.values.keys())
    if not both:
        return Paired(0, float("nan"), float("nan"), float("nan"))
    one, other = (np.array([summary.values[s] for s in both]) for summary in (first, second))
    p = float(stats.wilcoxon(one - other).pvalue) if np.any(one != other) else 1.0
    ratio = float(one.mean() / other.mean()) if other.mean() else float("nan")
    return Paired(len(both), float((one - other).mean()), ratio, p)


def paired_each(records: Sequence[Record], ours: RunSummary, names: Sequence[str], figure: str) -> dict[str, Paired]:
    """A method against others, by name, where there are systems that both controlled."""
    tests = {name: paired(ours, summarise(select(records, method=name), figure)) for name in names}
    return {name: test for name, test in tests.items() if test.n}


def select(records: Sequence[Record], **settings: Any) -> list[Record]:
    return [r for r in records if all(r["settings"].get(name) == value for name, value in settings.items())]


def values_of(records: Sequence[Record], name: str) -> list[Any]:
    """The values a setting takes, in the order they come."""
    return list(dict.fromkeys(r["settings"].get(name) for r in records))


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(value) for value in line) + " |" for line in lines) + "\n"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: guarded(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows)
    return text.getvalue()


def grid_table(
    records: Sequence[Record],
    row: str,
    column: str,
    figure: str,
    row_title: Callable[[Any], str] = str,
    column_title: Callable[[Any], str] = str,
    beside: Callable[[Any, Any], str] = lambda row, column: "",
) -> str:
    """A figure by two settings; `beside` adds the paper's."""
    columns = values_of(records, column)
    rows = []
    for r in values_of(records, row):
        cells = [f"{summarise(select(records, **{row: r, column: c}), figure)}{beside(r, c)}" for c in columns]
        rows.append([row_title(r), *cells])
    return markdown(["", *(column_title(c) for c in columns)], rows)


def series(records: Sequence[Record], setting: str, figure: str) -> list[Point]:
    """(setting, mean, std, n) of each value, in order."""
    summaries = {value: summarise(select(records, **{setting: value}), figure) for value in values_of(records, setting)}
    most = {value: s for value, s in summaries.items() if s.n > s.failed + s.unstable}
    return [point_of(float(value), most[value]) for value in sorted(most)]


def point_of(x: float, summary: RunSummary) -> Point:
    return x, summary.mean, 0.0 if np.isnan(summary.std) else summary.std, summary.n


def curves(series: Series, path: Path, x_label: str, y_label: str, log: bool = False) -> None:
    """Lines with a band of one standard deviation; nothing is drawn where there is no point."""
    if not any(series.values()):
        return
    figure, axis = panels(6.4, 4.2)
    lines(axis, series, log)
    axis.set(xlabel=x_label, ylabel=y_label, ylim=(0, None))
    axis.set_title(BAND, fontsize=8)
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    save(figure, path)
