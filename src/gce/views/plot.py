"""Plots on an axis of matplotlib: trajectories, predictions, plans, weights, spectra, the fit by episodes.

Each function takes the axis to draw on, or makes one, and returns it:

    axis = gce.plot.prediction(system, episode, coordinate=1)
    axis.figure.savefig("prediction.svg")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from gce.control.problem import Problem
from gce.errors import InputError, whole
from gce.metrics import nrmse
from gce.planning.controller import Plan
from gce.system.system import System
from gce.system.weights import weights_along
from gce.trajectory import Episode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
MOST = 6
"""Nodes drawn unless some are named."""


def trajectories(
    episode: Episode | Float[Array, "steps nodes d"],
    coordinate: int = 0,
    nodes: Sequence[int] | None = None,
    axis: Axes | None = None,
) -> Axes:
    """A coordinate of some nodes over the steps of an episode."""
    seen = _observations(episode)
    axis = _axis(axis, xlabel="step", ylabel=f"coordinate {coordinate}")
    for k, node in enumerate(_nodes(seen, coordinate, nodes)):
        axis.plot(seen[:, node, coordinate], color=f"C{k}", label=f"node {node}")
    return _legend(axis)


def prediction(
    system: System,
    episode: Episode,
    coordinate: int = 0,
    nodes: Sequence[int] | None = None,
    axis: Axes | None = None,
    level: float = 0.9,
) -> Axes:
    """An episode (full lines) beside its prediction from its first observation and its actions (dashed).

    level: of the intervals, shaded; there are none where the system was adapted without measuring.
    """
    truth = _observations(episode)
    predicted = system.predict(truth[0], episode.actions, exogenous=episode.exogenous)
    measured = len(system.spread.counts) > 0
    low, high = system.intervals(predicted, level) if measured else (predicted, predicted)
    axis = prediction_curves(truth, predicted, low, high, coordinate, _nodes(truth, coordinate, nodes), axis)
    if measured:
        axis.set_title(f"dashed: predicted; shaded: {100 * level:.0f}% intervals", fontsize=9)
    return axis


def prediction_curves(
    truth: Array,
    predicted: Array,
    low: Array,
    high: Array,
    coordinate: int,
    nodes: Sequence[int],
    axis: Axes | None,
    names: Sequence[str] | None = None,
) -> Axes:
    """Arrays [steps, nodes, d]: the truth, what was predicted of it, and the interval."""
    axis = _axis(axis, xlabel="step", ylabel=f"coordinate {coordinate}")
    for k, node in enumerate(nodes):
        colour, name = f"C{k}", f"node {node}" if names is None else names[node]
        axis.plot(truth[:, node, coordinate], color=colour, label=name)
        axis.plot(predicted[:, node, coordinate], "--", color=colour)
        band = low[:, node, coordinate], high[:, node, coordinate]
        axis.fill_between(np.arange(len(low)), *band, color=colour, alpha=0.15, linewidth=0)
    return _legend(axis)


def plan(
    plan: Plan,
    problem: Problem | None = None,
    outcome: Float[Array, "steps nodes d"] | None = None,
    coordinate: int = 0,
    nodes: Sequence[int] | None = None,
    axis: Axes | None = None,
) -> Axes:
    """What a plan expects (dashed), what happened (full lines), and where it should end (crosses)."""
    axis = _axis(axis, xlabel="step", ylabel=f"coordinate {coordinate}")
    for k, node in enumerate(_nodes(plan.observations, coordinate, nodes)):
        axis.plot(plan.observations[:, node, coordinate], "--", color=f"C{k}", label=f"node {node}")
        if outcome is not None:
            axis.plot(np.asarray(outcome)[:, node, coordinate], color=f"C{k}")
        if problem is not None:
            axis.plot(len(plan.observations) - 1, problem.goals[-1][node, coordinate], "x", color=f"C{k}")
    return _legend(axis)


def actions(plan: Plan, problem: Problem | None = None, column: int = 0, axis: Axes | None = None) -> Axes:
    """The actions of a plan, the busiest nodes first, within their bounds (dotted)."""
    axis = _axis(axis, xlabel="step", ylabel=f"action {column}")
    size = np.abs(plan.actions[..., column]).max(0)
    for k, node in enumerate(sorted(np.argsort(-size, kind="stable")[: min(MOST, int((size > 0).sum()))])):
        axis.step(np.arange(len(plan.actions)), plan.actions[:, node, column], where="post", label=f"node {node}")
        if problem is not None:
            for bound in (problem.low[node, column], problem.high[node, column]):
                if np.isfinite(bound):
                    axis.axhline(bound, color=f"C{k}", linestyle=":", linewidth=1)
    return _legend(axis)


def weights(system: System, observation: Float[Array, "nodes d"], axis: Axes | None = None) -> Axes:
    """Gibbs weights at an observation: edges as dark as their weight, nodes as dark as their weight on themselves."""
    graph = system.graph
    alpha = weights_along(system, np.asarray(observation)[None], np.zeros((0, graph.num_nodes, _actions(system))))[0]
    if not len(alpha):
        raise InputError("this model has no Gibbs weights; `gce train --method published` trains one that has")
    import networkx

    near = networkx.Graph(
        [(int(j), int(i)) for j, i in zip(graph.senders, graph.receivers, strict=True) if j != i] or [(0, 0)]
    )
    near.add_nodes_from(range(graph.num_nodes))
    place = np.array([at for _, at in sorted(networkx.kamada_kawai_layout(near).items())])
    axis = _axis(axis)
    own = graph.senders == graph.receivers
    for j, i, w in zip(graph.senders[~own], graph.receivers[~own], alpha[~own], strict=True):
        middle = place[j] + 0.55 * (place[i] - place[j])  # the half beside the receiver is the receiver's weight
        axis.plot(*np.stack([middle, place[i]]).T, color="C0", alpha=float(np.clip(w, 0.03, 1)), linewidth=3, zorder=1)
    of_self = np.zeros(graph.num_nodes)
    of_self[graph.receivers[own]] = alpha[own]
    drawn = axis.scatter(
        place[:, 0], place[:, 1], c=of_self, cmap="Blues", vmin=0, vmax=1, edgecolors="black", s=80, zorder=2
    )
    axis.figure.colorbar(drawn, ax=axis, label="weight on itself")
    axis.set(aspect="equal", xticks=[], yticks=[])
    return axis


def spectrum(system: System, observation: Float[Array, "nodes d"], axis: Axes | None = None) -> Axes:
    """Eigenvalues of the derivative of one step at an observation, in the circle that stability asks for."""
    from gce.views.report.details import step_spectrum

    eigenvalues = step_spectrum(system, np.asarray(observation, float))
    if not len(eigenvalues):
        raise InputError("there is no spectrum of a step here: the state is too large, or steps stay in features")
    axis = _axis(axis, xlabel="real part", ylabel="imaginary part")
    angle = np.linspace(0, 2 * np.pi, 200)
    axis.plot(np.cos(angle), np.sin(angle), color="grey", linewidth=1)
    axis.plot(eigenvalues.real, eigenvalues.imag, ".", color="C0")
    axis.set_aspect("equal")
    return axis


def fit(system: System, adapted: Sequence[Episode], episode: Episode, axis: Axes | None = None) -> Axes:
    """The mean error of predicting an episode after adapting to the first 1, 2, ... of some others."""
    from gce.views.report.details import fit_by_episodes

    truth, unit = _observations(episode), system.model.arrays.observation_std
    counts, errors = fit_by_episodes(system, adapted, truth, episode.actions, unit, episode.exogenous)
    nothing = nrmse(np.broadcast_to(truth[:1], truth[1:].shape), truth[1:], unit).mean()
    axis = _axis(axis, xlabel="episodes adapted to", ylabel="mean NRMSE")
    axis.plot(counts, np.nan_to_num(errors, nan=10.0).clip(max=10).mean(1), "o-", label=system.model.method)
    axis.axhline(nothing, color="grey", linestyle="--", label="nothing moves")
    axis.set_xscale("log", base=2)
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_ylim(0, None)
    return _legend(axis)


# ---- inside ----


def _axis(axis: Axes | None, **labels: str) -> Axes:
    """The axis, or a new one of a figure of its own."""
    if axis is None:
        from matplotlib import pyplot

        axis = pyplot.subplots(layout="constrained")[1]
    axis.set(**labels)
    return axis


def _legend(axis: Axes) -> Axes:
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=8)
    return axis


def _observations(episode: Episode | Array) -> Array:
    observations: Any = episode.observations if isinstance(episode, Episode) else np.asarray(episode)
    if observations.ndim != 3:
        raise InputError(
            f"observations have shape {observations.shape}, expected (steps, nodes, coordinates) or an Episode"
        )
    return observations.astype(float)


def _nodes(observations: Array, coordinate: int, nodes: Sequence[int] | None) -> Sequence[int]:
    """The nodes to draw: those asked for, or some from first to last."""
    count, coordinates = observations.shape[1:]
    if not 0 <= whole("coordinate", coordinate) < coordinates:
        raise InputError(f"there is no coordinate {coordinate}; they are numbered 0 to {coordinates - 1}")
    wrong = [node for node in nodes or () if not 0 <= node < count]
    if wrong:
        raise InputError(f"there is no node {wrong[0]}; nodes are numbered 0 to {count - 1}")
    return np.unique(np.linspace(0, count - 1, MOST).astype(int)).tolist() if nodes is None else nodes


def _actions(system: System) -> int:
    return int(system.model.config.num_actions)
