"""Graph controllable embeddings: learn the dynamics of many interacting objects from recordings, and control them.

Names and rooms (`gce.interop.pyg`) are looked up when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from gce.names import lazy

__version__ = "0.2.0"

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
    "Plan": "gce.planning.controller",
    "Problem": "gce.control.problem",
    "Status": "gce.control.tracking",
    "System": "gce.system.system",
    "adapt": "gce.system.system",
    "run": "gce.planning.closed_loop",
    "Filter": "gce.planning.observer",
    "train": "gce.training.learning",
    "register": "gce.names",
    "plot": "gce.views.plot",
    "Regressor": "gce.interop.estimator",
    "load_model": "gce.model.files",
    "load_system": "gce.system.files",
    "save_model": "gce.model.files",
    "save_system": "gce.system.files",
    "shipped": "gce.model.files",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604

__getattr__, __dir__ = lazy(__name__, {**_HOMES, "__version__": __name__})
