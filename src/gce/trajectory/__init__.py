"""Recorded motion of many objects: episodes, data sets, normalisation, windows, and the file they live in."""

from gce.trajectory.dataset import Dataset, Group
from gce.trajectory.episode import Episode, Limits, Normalisation, Sizes, check_one_system, control_limits
from gce.trajectory.problems import check_file
from gce.trajectory.storage import Writer

__all__ = [
    "Dataset",
    "Episode",
    "Group",
    "Limits",
    "Normalisation",
    "Sizes",
    "Writer",
    "check_file",
    "check_one_system",
    "control_limits",
]
