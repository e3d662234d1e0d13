"""A run's details as one HTML file: figures, an animation to step through, charts, and how it was made."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gce.errors import InputError
from gce.files import border, finite, read_json, written
from gce.views.pages import asset, drawn, filled, scene_of
from gce.views.report.details import Details, read_details

Array = np.ndarray

FIGURES, TIMINGS = "control.json", "timings.json"
LARGEST = 4000
"""Edges that a page draws; of a larger graph those with most weight."""


def write_report(folder: Path, file: Path) -> None:
    """The report of a run's folder, whole or not at all."""
    details, figures = read_details(folder), read_figures(folder)
    with border(folder, "the folder of a run", f"run `gce control ... --out {folder}` again"):
        text = page(details, figures)
    with written(file, "give another place with --out") as place:
        place.write_text(text, encoding="utf-8")


def read_figures(folder: Path) -> dict[str, Any]:
    file = folder / FIGURES
    figures = read_json(file, f"run `gce control ... --out {folder}` again", constants=True)
    if not isinstance(figures, dict):
        raise InputError(f"{file} is not a table of figures; run `gce control ... --out {folder}` again")
    if (folder / TIMINGS).is_file():
        figures |= dict(read_json(folder / TIMINGS))
    return {name: value for name, value in finite(figures).items() if name != "goal"}


def page(details: Details, figures: dict[str, Any]) -> str:
    """The HTML text."""
    styles = asset("pages", "style.css")
    scripts = "\n".join([asset("pages", "scene.js"), asset("pages", "chart.js"), asset("report", "report.js")])
    parts = {"title": html.escape(_title(details)), "style": styles, "script": scripts, "warnings": _box(figures)}
    return filled(asset("report", "report.html"), parts, data_of(details, figures))


def _box(figures: dict[str, Any]) -> str:
    """Why the run is not to be trusted, before anything that it shows."""
    told = figures.get("warnings") or []
    lines = "".join(f"<li>{html.escape(str(sentence))}</li>" for sentence in told)
    return f'<div class="alarm" id="warnings"><ul>{lines}</ul></div>' if lines else ""


def data_of(details: Details, figures: dict[str, Any]) -> dict[str, Any]:
    """What the page's script shows, as JSON values."""
    d, about = details, details.about
    points = about["points"]
    shown = np.concatenate([d.observations, d.goal[None], d.nothing])
    busy = np.flatnonzero(d.actuated)
    limit = np.maximum(np.abs(d.low), np.abs(d.high)).max(-1)
    limit = np.where(np.isfinite(limit) & (limit > 0), limit, np.abs(d.actions).max() or 1.0)
    plans = d.plans()
    edges = drawn_edges(d)
    return {
        "title": _title(d),
        "simulated": about["simulated"],
        "dt": about["dt"],
        "words": words_of(d),
        "scene": {
            **scene_of(points, shown, d.edge_index, d.node_type, d.actuated),  # laid out by all edges
            "edges": d.edge_index.T[edges].tolist(),
        },
        "edges_left_out": d.edge_index.shape[1] - len(edges),
        "frames": _places(points, d.observations),
        "goal": _places(points, d.goal),
        "plans": [
            {"at": at, "frames": _places(points, observations), "actions": _numbers(actions[:, busy])}
            for at, actions, observations in plans
        ],
        "actions": _numbers(d.actions[:, busy]),
        "pushes": _numbers(d.actions[..., 0] / limit, 3),
        "busy": busy.tolist(),
        "nodes": about.get("node_names") or [str(k) for k in range(len(d.goal))],
        "bounds": [_numbers(d.low[busy]), _numbers(d.high[busy])],
        "action_names": about.get("action_names") or [f"action {k}" for k in range(d.actions.shape[2])],
        "weights": _numbers(d.weights[:, edges] if d.weights.shape[1] else d.weights, 3),
        "distances": [
            {
                "name": name,
                "real": _numbers(distance(d.observations, d, which)),
                "plans": [_numbers(distance(observations, d, which)) for _, _, observations in plans],
                "nothing": _numbers(distance(d.nothing, d, which)) if len(d.nothing) else [],
            }
            for name, which in coordinates_of(d)
        ],
        "costs": _numbers(d.costs),
        "spectra": {"operator": _eigenvalues(d.operator_spectrum), "step": _eigenvalues(d.step_spectrum)},
        "fit": {"counts": d.fit_counts.tolist(), "errors": _numbers(d.fit_errors)},
        "figures": figures,
        "mean_field": about.get("mean_field"),
        "settings": about["settings"],
        "model": about["model"],
        "versions": about["versions"],
    }


def drawn_edges(details: Details) -> Int[Array, " drawn"]:
    """All edges, or the `LARGEST` of most weight along the run, in their order."""
    count = details.edge_index.shape[1]
    if count <= LARGEST:
        return np.arange(count)
    most = details.weights.mean(0) if details.weights.shape[1] else np.zeros(count)
    return np.sort(np.argsort(-most, kind="stable")[:LARGEST])


def coordinates_of(details: Details) -> list[tuple[str, Array]]:
    """(name, mask) of the coordinates whose distance from the goal is shown: positions first, where they are known."""
    d = details.goal.shape[-1]
    every = [("all coordinates", np.ones(d, bool))]
    positions = np.array(details.about.get("positions") or [True] * d)
    return every if positions.all() else [(words_of(details)[2], positions), *every]


def words_of(details: Details) -> list[str]:
    """What an object is called, several of them, and their positions; the unit of these."""
    return list(details.about.get("words") or ("object", "objects", "positions", ""))


def distance(observations: Array, details: Details, which: Array) -> Float[Array, " states"]:
    """Root mean square over nodes and some coordinates that have a goal of (o - goal) / unit, at each step."""
    away = (observations - details.goal)[..., which] / details.unit[which]
    return np.sqrt(np.square(away[:, np.isfinite(details.goal[..., which])]).mean(-1))


def _title(details: Details) -> str:
    world, nodes = details.about["world"] or "A system", len(details.goal)
    acted = "a controlled run" if details.about["simulated"] else "a plan"
    case = details.about["settings"].get("case")
    what = f"{world.capitalize()} of {nodes}" if case is None else f"{case}, {nodes}"
    return f"{what} {words_of(details)[1]}: {acted} of {len(details.actions)} steps"


def _places(points: Any, observations: Array) -> Any:
    return _numbers(drawn(points, observations), 4)


def _eigenvalues(values: Array) -> list[list[float]]:
    """Those that differ at the precision shown, the upper half of conjugate pairs mirrored by the page."""
    pairs = np.round(np.stack([values.real, np.abs(values.imag)], axis=-1), 3)
    return np.unique(pairs, axis=0).tolist() if len(pairs) else []


def _numbers(values: Array, decimals: int | None = None) -> Any:
    """Nested lists short enough for a page: five digits, or so many decimals; what is not finite becomes null."""
    if decimals is None:
        size = np.abs(np.where(np.isfinite(values) & (values != 0), values, 1.0))
        factor = 10.0 ** (4 - np.floor(np.log10(size)))
        values = np.round(values * factor) / factor
    else:
        values = np.round(values, decimals)
    finite = np.isfinite(values)
    if not finite.all():
        values = values.astype(object)
        values[~finite] = None
    return values.tolist()
