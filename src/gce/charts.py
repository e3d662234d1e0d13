"""Charts by matplotlib: predictions beside the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from gce.errors import InputError
from gce.evaluation import Prediction


def prediction_chart(result: Prediction, truth: Float[np.ndarray, "steps nodes d"], path: Path | str) -> None:
    """A panel for each of the first coordinates: truth and prediction of some nodes with intervals, and the error."""
    from matplotlib.figure import Figure

    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"{path} must end in .png, .svg or .pdf")
    nodes = np.unique(np.linspace(0, truth.shape[1] - 1, 3).astype(int))
    coordinates = range(min(4, truth.shape[2]))
    figure = Figure(figsize=(4 * (len(coordinates) + 1), 3.2), layout="constrained")
    axes = figure.subplots(1, len(coordinates) + 1)
    steps = np.arange(len(truth))
    for coordinate, axis in zip(coordinates, axes, strict=False):
        for k, node in enumerate(nodes):
            colour = f"C{k}"
            axis.plot(steps, truth[:, node, coordinate], color=colour, label=f"node {node}")
            axis.plot(steps, result.predicted[:, node, coordinate], "--", color=colour)
            low, high = result.low[:, node, coordinate], result.high[:, node, coordinate]
            axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set(title=f"coordinate {coordinate}", xlabel="step")
    axes[0].legend(title="truth; dashed: predicted", fontsize=8)
    axes[-1].plot(steps[1:], result.nrmse, color="black")
    axes[-1].set(title=f"NRMSE, mean {result.nrmse.mean():.3f}", xlabel="step", ylim=(0, None))
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
