"""Graph controllable embeddings: learn the dynamics of many interacting objects from recordings, and control them.

Names are looked up when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Graph": "gce.graph",
    "Dataset": "gce.trajectory",
    "Episode": "gce.trajectory",
    "Normalisation": "gce.trajectory",
    "control_limits": "gce.trajectory",
    "InputError": "gce.errors",
    "Recording": "gce.recording",
    "record": "gce.recording",
    "Model": "gce.model",
    "Controller": "gce.controller",
    "Plan": "gce.plans",
    "Problem": "gce.control.problem",
    "System": "gce.system",
    "adapt": "gce.system",
    "train": "gce.learning",
    "Regressor": "gce.interop.estimator",
    "load_model": "gce.files",
    "load_system": "gce.files",
    "save_model": "gce.files",
    "save_system": "gce.files",
    "shipped": "gce.files",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gce' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
