"""Graph controllable embeddings: learn the dynamics of many interacting objects from recordings, and control them.

Names are looked up when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Graph": "gce.graphs.graph",
    "Dataset": "gce.trajectory",
    "Episode": "gce.trajectory",
    "Normalisation": "gce.trajectory",
    "control_limits": "gce.trajectory",
    "InputError": "gce.errors",
    "Recording": "gce.envs.recording",
    "record": "gce.envs.recording",
    "Model": "gce.model.model",
    "Controller": "gce.planning.controller",
    "Plan": "gce.planning.plans",
    "Problem": "gce.control.problem",
    "System": "gce.system.system",
    "adapt": "gce.system.system",
    "train": "gce.training.learning",
    "Regressor": "gce.interop.estimator",
    "load_model": "gce.model.files",
    "load_system": "gce.system.files",
    "save_model": "gce.model.files",
    "save_system": "gce.system.files",
    "shipped": "gce.model.files",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gce' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
