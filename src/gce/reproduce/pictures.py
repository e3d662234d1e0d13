"""Figures of the tables by matplotlib: curves with their spread, and one figure against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Series = Mapping[str, Sequence[tuple[float, float, float]]]
"""By name: (x, mean, std)."""


def curves(series: Series, path: Path, x_label: str, y_label: str, log: bool = False) -> None:
    """Lines with a band of one standard deviation; nothing is drawn where there is no point."""
    from matplotlib.figure import Figure

    if not any(series.values()):
        return
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axis = figure.subplots()
    for name, points in series.items():
        if not points:
            continue
        x, mean, std = np.array(points).T
        (line,) = axis.plot(x, mean, "o-" if len(x) < 20 else "-", label=name)
        axis.fill_between(x, mean - std, mean + std, color=line.get_color(), alpha=0.12, linewidth=0)
    if log:
        axis.set_xscale("log")
    axis.set(xlabel=x_label, ylabel=y_label, ylim=(0, None))
    axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})


Point = tuple[float, float]


def trade_offs(
    panels: Mapping[str, tuple[Sequence[Point], Mapping[str, Point]]], path: Path, labels: tuple[str, str]
) -> None:
    """A panel a world: a curve (x, y) and single points beside it, by name; nearer the lower left is better in both."""
    from matplotlib.figure import Figure

    if not panels:
        return
    figure = Figure(figsize=(4.2 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, (curve, points)) in zip(axes, panels.items(), strict=True):
        axis.plot(*np.array(curve).T, "o-", color="C0", label="ours, by running weight")
        for k, (other, (x, y)) in enumerate(points.items(), start=1):
            axis.plot(x, y, "s", color=f"C{k}", label=other)
        axis.set(title=name, xlabel=labels[0], ylabel=labels[1], xlim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})
