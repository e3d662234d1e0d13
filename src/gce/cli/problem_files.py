"""Parts of a control problem that people write in files: goals and limits."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from gce.errors import InputError


def read_limits(path: Path, low: Any, high: Any) -> tuple[Any, Any]:
    """The bounds of a system's actions as a TOML file has them; what it leaves out is as it was."""
    import numpy as np

    from gce.trajectory import Limits

    try:
        told = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    for name in told:
        if name not in ("actuated", "action_bounds"):
            raise InputError(f"{path} says {name!r}; it may say actuated and action_bounds")
    bounds = told.get("action_bounds", [low.min(axis=0).tolist(), high.max(axis=0).tolist()])
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise InputError(f"{path}: action_bounds is {bounds!r}, expected [lowest, highest]")
    acting = told.get("actuated", np.flatnonzero((low < high).any(axis=1)).tolist())
    try:
        limits = Limits.of(low.shape[0], low.shape[1], acting, (bounds[0], bounds[1]))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (TypeError, ValueError):
        raise InputError(f"{path}: actuated holds numbers of nodes, action_bounds numbers; found {told}") from None
    return limits.low, limits.high


def read_goal(path: Path, shape: tuple[int, ...]) -> Any:
    """A goal's table: JSON (nested lists), .npy, or CSV with one row a node."""
    import numpy as np

    try:
        if path.suffix == ".json":
            goal = np.array(json.loads(path.read_text()), dtype=np.float64)
        elif path.suffix == ".npy":
            goal = np.load(path, allow_pickle=False).astype(np.float64)
        elif path.suffix == ".csv":
            goal = np.loadtxt(path, delimiter=",", ndmin=2, comments="#")
        else:
            raise InputError(f"{path} is not a goal file; give .json, .npy or .csv with one row a node")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a table of numbers with one row a node: {error}") from None
    if goal.ndim not in (2, 3) or goal.shape[-2:] != shape:
        raise InputError(
            f"the goal in {path} has shape {goal.shape}, expected {shape}: a row a node, a column a coordinate"
        )
    return goal
