"""How figures look: one colour a method, form or world everywhere, vector files, and ticks that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gce.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "structured (the package's model)": "#0b3c6f", "structured (Laplace)": "#5b9bd5", "structured (MLP)": "#8fbce6",
    "structured (vMF)": "#2e8b8b", "structured (Gaussian), cheaper plans": "#7a55c7",
    "structured, hom_mean": "#1f5fa8", "structured, hom": "#e07b00", "structured, dense": "#d1495b",
    "structured": "#1f5fa8",
    "published, hom_mean": "#b8860b", "published, hom": "#d9a520", "published, dense": "#8b6508",
    "published (vMF)": "#d9a520", "published (Laplace)": "#8b6508", "published (MLP)": "#e8c872",
    "published": "#b8860b", "general": "#0a8f6a",
    "CKO, planned in features": "#eda2ab", "CKO": "#d1495b", "KPM": "#8c6d31", "VAE": "#66994d", "PCC": "#e07b00",
    "GraphODE": "#8e6c8a",
    "hom_mean": "#1f5fa8", "hom": "#e07b00", "dense": "#d1495b", "tensor": "#66994d",
    "oracle": "#22262b", "nothing": "#a3a9b0",
    "rope": "#1f5fa8", "soft": "#e07b00", "swim": "#66994d", "grid": "#d1495b", "flock": "#7a55c7",
}  # fmt: skip
"""By the name, or how it begins."""
BAND = "bands: one standard deviation over systems on either side"
AS_TEXT: Any = {"svg.fonttype": "none", "svg.hashsalt": "gce"}
"""Words of vector files stay words; equal figures are equal files."""


def colour_of(name: str) -> str:
    """The colour of a method, form or world; grey for others."""
    return next((colour for known, colour in COLOURS.items() if name.startswith(known)), "#6b7480")


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **more: Any) -> tuple[Figure, Any]:
    """A figure in inches and its axes, as many as asked for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **more)


def read_on_log(axis: Axes, values: Sequence[float], base: float = 2) -> None:
    """A logarithmic x axis whose ticks are the values themselves: 1 2 4 8 16 32."""
    axis.set_xscale("log", base=base)
    axis.set_xticks(list(values), [f"{value:,g}" for value in values])
    axis.minorticks_off()


def lines(
    axis: Axes, series: Mapping[str, Sequence[tuple[float, float, float, int]]], log: bool = False, banded: bool = True
) -> None:
    """A line each of (x, mean, std, n) with a band; how many systems a mean is of stands in the legend."""
    for name, points in series.items():
        if not points:
            continue
        x, mean, std, n = np.array(points).T
        told = f"{n.min():.0f}" if n.min() == n.max() else f"{n.min():.0f} to {n.max():.0f}"
        axis.plot(
            x, mean, "o-" if len(x) < 20 else "-", color=colour_of(name), label=f"{name} (n {told})", markersize=4
        )
        if banded:
            axis.fill_between(x, mean - std, mean + std, color=colour_of(name), alpha=0.12, linewidth=0)
    if log:
        read_on_log(axis, sorted({point[0] for points in series.values() for point in points}))
    axis.grid(alpha=0.3)


def save(figure: Figure, path: Path | str) -> None:
    """By the ending of the path, .svg if it may; the same bytes for the same figure."""
    import matplotlib

    dated: Any = {".svg": {"Date": None}, ".png": {"Software": None}, ".pdf": {"CreationDate": None}}
    try:
        with matplotlib.rc_context(AS_TEXT):
            figure.savefig(path, dpi=160, metadata=dated.get(Path(path).suffix))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give another place") from None
