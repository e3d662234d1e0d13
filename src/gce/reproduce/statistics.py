"""Means, spreads and paired tests of runs, and how a table writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

Record = dict[str, Any]

UNSTABLE = 5.0
"""Times the error of doing nothing, beyond which control counts as unstable (the paper's NaN)."""


@dataclass(frozen=True)
class Summary:
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


def summarise(records: Sequence[Record], name: str) -> Summary:
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
    return Summary(values, failed, unstable)


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


def paired(first: Summary, second: Summary) -> Paired:
    both = sorted(first.values.keys() & second.values.keys())
    if not both:
        return Paired(0, float("nan"), float("nan"), float("nan"))
    one, other = (np.array([summary.values[s] for s in both]) for summary in (first, second))
    p = float(stats.wilcoxon(one - other).pvalue) if np.any(one != other) else 1.0
    ratio = float(one.mean() / other.mean()) if other.mean() else float("nan")
    return Paired(len(both), float((one - other).mean()), ratio, p)


def select(records: Sequence[Record], **settings: Any) -> list[Record]:
    return [r for r in records if all(r["settings"].get(name) == value for name, value in settings.items())]


def values_of(records: Sequence[Record], name: str) -> list[Any]:
    """The values a setting takes, in the order they come."""
    return list(dict.fromkeys(r["settings"].get(name) for r in records))


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(value) for value in line) + " |" for line in lines) + "\n"


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
