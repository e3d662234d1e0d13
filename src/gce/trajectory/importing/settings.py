"""system.toml: what the tables do not say of a system."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gce.trajectory.importing.tables import Problems

NAME = "system.toml"

STRUCTURE = ("points", "late_action", "fresh_start")

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Settings:
    """Everything optional.

    dt: seconds a step. observations, actions, exogenous: names of columns. structure: what a model should know.
    undirected: edges run both ways. actuated: nodes that take an action. action_bounds: of each action, or of all
    under the name "". parameters: anything worth keeping.
    """

    dt: float = 1.0
    observations: list[str] | None = None
    actions: list[str] | None = None
    exogenous: list[str] | None = None
    structure: dict[str, Any] = field(default_factory=dict)
    undirected: bool = False
    actuated: list[str] | None = None
    action_bounds: dict[str, Bounds] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)


def read_settings(folder: Path, problems: Problems, shared: dict[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of `Settings` that a folder's file gives, with those of the folder above, which it may override.

    shared: of the folder above. Columns, time step and structure are the same for all systems, so a system's own file
        cannot give them.
    """
    file = folder / NAME
    found = dict(shared or {})
    if not file.is_file():
        return found
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.add(file, f"this is not TOML: {error}")
        return found
    for key, value in given.items():
        if key not in READERS:
            problems.add(file, f"{key!r} means nothing here; the entries are {', '.join(READERS)}")
        elif shared is not None and key not in OF_A_SYSTEM:
            problems.add(file, f"{key} is the same for all systems; say it in the {NAME} of the folder above")
        else:
            try:
                found[key] = READERS[key](value)
            except (TypeError, ValueError) as error:
                problems.add(file, f"{key} is {value!r}, expected {error}")
    return found


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError("the seconds a step takes, such as 0.02")
    return float(value)


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError('a list of columns such as ["x", "v"]')
    return value


def _nodes(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str | int) and not isinstance(v, bool) for v in value):
        raise ValueError("a list of nodes such as [0, 3]")
    return [str(v) for v in value]


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a table of entries")
    return value


def _structure(value: Any) -> dict[str, Any]:
    points = value.get("points", []) if isinstance(value, dict) else None
    fits = isinstance(points, list) and all(isinstance(p, list) and len(p) == 4 for p in points)
    if not fits or any(key not in STRUCTURE for key in value):
        raise ValueError(
            'points = [["x", "y", "vx", "vy"]] (the columns of each point in the plane), late_action and fresh_start '
            "(true or false)"
        )
    return dict(value)


def _bounds(value: Any) -> dict[str, Bounds]:
    pairs = value if isinstance(value, dict) else {"": value}
    for pair in pairs.values():
        numbers = isinstance(pair, list) and all(isinstance(v, int | float) for v in pair)
        if not numbers or len(pair) != 2 or not pair[0] <= pair[1]:
            raise ValueError("[lowest, highest], or one such pair for each action: {torque = [-1, 1]}")
    return {name: (float(low), float(high)) for name, (low, high) in pairs.items()}


READERS: dict[str, Callable[[Any], Any]] = {
    "dt": _positive,
    "observations": _names,
    "actions": _names,
    "exogenous": _names,
    "structure": _structure,
    "undirected": _switch,
    "actuated": _nodes,
    "action_bounds": _bounds,
    "parameters": _table,
}
OF_A_SYSTEM = ("undirected", "actuated", "action_bounds", "parameters")
