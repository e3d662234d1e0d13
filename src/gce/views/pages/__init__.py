"""What the pages share: how a system is drawn, how charts are drawn, and the look of it all (in assets/).

Pages are plain HTML with scripts of our own, and need nothing from a network.

What a page must know to draw a system is the same for all worlds, decided by what a node's coordinates are: a node of
one point is drawn as a disk, one of several points as a polygon, and one without a place of its own by a layout of the
graph, coloured by its first coordinate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

Array = np.ndarray

MARGIN = 0.12
"""Room around what is drawn, as a share of its width."""


def asset(room: str, name: str) -> str:
    """The text of a file in the folder assets/ of a room."""
    return (resources.files("gce.views") / room / "assets" / name).read_text(encoding="utf-8")


def assets_of(room: str) -> dict[str, bytes]:
    """All files in the folder assets/ of a room."""
    return {file.name: file.read_bytes() for file in (resources.files("gce.views") / room / "assets").iterdir()}


def filled(template: str, parts: dict[str, str], data: Any) -> str:
    """A template with {{name}} replaced by text, and {{data}} by JSON that cannot end the script it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    for name, value in {**parts, "data": text}.items():
        template = template.replace("{{" + name + "}}", value)
    return template


def scene_of(
    points: Sequence[Sequence[int]],
    paths: Float[Array, "states nodes d"],
    edge_index: Int[Array, "2 edges"],
    node_type: Int[Array, " nodes"],
    actuated: Bool[Array, " nodes"],
) -> dict[str, Any]:
    """JSON values. points: the coordinates (x, y, ...) of each point of a node; paths: states that must be in view."""
    kind = ("network", "disks")[len(points)] if len(points) < 2 else "polygons"
    scene: dict[str, Any] = {
        "kind": kind,
        "edges": edge_index.T.tolist(),
        "types": node_type.tolist(),
        "actuated": actuated.tolist(),
    }
    if kind == "network":
        from gce.envs.parts import layout  # worlds are slow to import, and a page that is served waits for none

        senders, receivers = edge_index
        return {**scene, "places": np.round(layout(len(node_type), edge_index.T[senders < receivers]), 4).tolist(),
                "window": [-1.1, 1.1, -1.05, 1.0]}  # fmt: skip
    places = drawn(points, paths).reshape(*paths.shape[:2], -1, 2)
    low, high = np.nanmin(places, (0, 1, 2)), np.nanmax(places, (0, 1, 2))
    room = MARGIN * max(high - low) + 0.05 * float(high[0] - low[0] < 1e-9)
    # An actuated node that never leaves its height slides on a rail.
    heights = [float(places[0, i, 0, 1]) for i in np.flatnonzero(actuated) if np.ptp(places[:, i, :, 1]) < 0.02]
    rail = {"rail": heights[0]} if heights and kind == "disks" else {}
    window = [low[0] - room, high[0] + room, low[1] - room, high[1] + room]
    return {**scene, **rail, "window": np.round(window, 4).tolist()}


def drawn(points: Sequence[Sequence[int]], observations: Float[Array, "*batch d"]) -> Float[Array, "*batch shown"]:
    """The coordinates that a picture shows."""
    return observations[..., shown_coordinates(points)]


def shown_coordinates(points: Sequence[Sequence[int]]) -> list[int]:
    """x and y of every point in the order of a walk around them, or the first coordinate where there are no points.

    Corners of boxes are numbered in columns (lower left, upper left, lower right, upper right): a walk turns the last
    two.
    """
    if not points:
        return [0]
    around = [0, 1, 3, 2] if len(points) == 4 else range(len(points))
    return [c for k in around for c in points[k][:2]]
