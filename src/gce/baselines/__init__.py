"""Seven other methods behind one interface: train, adapt, predict, and what a planner needs."""

from gce.baselines.base import Adapted, Baseline, adapt
from gce.baselines.controller import BaselineController, BaselineDynamics
from gce.baselines.folder import BASELINES, load, save, train

__all__ = [
    "BASELINES",
    "Adapted",
    "Baseline",
    "BaselineController",
    "BaselineDynamics",
    "adapt",
    "load",
    "save",
    "train",
]
