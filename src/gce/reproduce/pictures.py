"""Figures of the tables by matplotlib: curves with their spread."""

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
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})
