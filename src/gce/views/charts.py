"""Charts by matplotlib: predictions beside the truth, and how a controlled run went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gce.errors import InputError
from gce.planning.closed_loop import Run
from gce.system.evaluation import Prediction


def prediction_chart(
    result: Prediction,
    truth: Float[np.ndarray, "steps nodes d"],
    path: Path | str,
    nodes: Sequence[str] | None = None,
    coordinates: Sequence[str] | None = None,
) -> None:
    """A panel for each of the first coordinates: truth and prediction of some nodes with intervals, and the error.

    nodes, coordinates: their names, by default numbers.
    """
    from matplotlib.figure import Figure

    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"{path} must end in .png, .svg or .pdf")
    shown = np.unique(np.linspace(0, truth.shape[1] - 1, 3).astype(int))
    panels = range(min(4, truth.shape[2]))
    figure = Figure(figsize=(4 * (len(panels) + 1), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels) + 1)
    steps = np.arange(len(truth))
    for coordinate, axis in zip(panels, axes, strict=False):
        for k, node in enumerate(shown):
            colour, name = f"C{k}", f"node {node}" if nodes is None else nodes[node]
            axis.plot(steps, truth[:, node, coordinate], color=colour, label=name)
            axis.plot(steps, result.predicted[:, node, coordinate], "--", color=colour)
            low, high = result.low[:, node, coordinate], result.high[:, node, coordinate]
            axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set(title=f"coordinate {coordinate}" if coordinates is None else coordinates[coordinate], xlabel="step")
    axes[0].legend(title="truth; dashed: predicted", fontsize=8)
    axes[-1].plot(steps[1:], result.nrmse, color="black")
    axes[-1].set(title=f"NRMSE, mean {result.nrmse.mean():.3f}", xlabel="step", ylim=(0, None))
    _save(figure, path)


def control_chart(run: Run, unit: Float[np.ndarray, " d"], path: Path | str) -> None:
    """How far the run is from its goal at each step, what each plan expected, and the actions taken."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    away, acted = figure.subplots(1, 2)

    def distance(observations: np.ndarray) -> np.ndarray:
        return np.sqrt(np.square((observations - run.goal) / unit).mean((-1, -2)))

    away.plot(distance(run.observations), color="black", label="what happened")
    shown = list(zip(run.plans, run.planned_at, strict=True))
    for plan, start in shown[:: max(1, len(shown) // 4)]:
        steps = np.arange(start, start + len(plan.observations))
        away.plot(steps, distance(plan.observations), "--", label=f"planned at {start}")
    away.set(title="distance from the goal", xlabel="step", ylabel="rms, units of each coordinate", ylim=(0, None))
    away.legend(fontsize=8)
    busy = np.flatnonzero(np.abs(run.actions).max((0, 2)) > 0)
    for node in busy[np.unique(np.linspace(0, max(0, len(busy) - 1), 6).astype(int))] if len(busy) else []:
        acted.step(np.arange(len(run.actions)), run.actions[:, node, 0], where="post", label=f"node {node}")
    acted.set(title="actions", xlabel="step")
    if len(busy):
        acted.legend(fontsize=8)
    _save(figure, path)


def _save(figure: Any, path: Path | str) -> None:
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give another place") from None
