"""Small recordings and tiny models for the tests."""

import tempfile
from functools import cache
from pathlib import Path

import torch

from gce.envs.recording import Recording, record
from gce.training.preparation import config_for, prepare
from gce.trajectory import Dataset

TINY = {"features": 4, "linear_features": 2, "node_width": 8, "edge_width": 8, "rounds": 2}
OBJECTS = {"rope": (4, 5), "soft": (4, 4), "swim": (4, 4), "grid": (4, 5), "flock": (4, 5)}


@cache
def recorded(world: str = "rope", episodes: int = 12, group_size: int = 4, steps: int = 20) -> Dataset:
    """Some episodes of a world, in memory."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.h5"
        record(Recording(world, episodes, OBJECTS[world], group_size, seed=3, steps=steps), file)
        with Dataset.open(file) as data:
            return Dataset.from_episodes(list(data), data.groups.tolist(), data.metadata)


def untrained(world: str = "rope", **overrides):
    """A tiny model in the units of the recording."""
    data = recorded(world)
    return prepare(config_for(data, **{**TINY, **overrides}), data).eval()


def system_episodes(world: str = "rope", group: int = 0):
    data = recorded(world)
    return [data[int(k)] for k in data.group(group).episodes]


def close(left, right, tolerance: float = 1e-5) -> bool:
    """Equal up to a share of the largest number."""
    left, right = torch.as_tensor(left), torch.as_tensor(right)
    return left.shape == right.shape and bool((left - right).abs().max() <= tolerance * right.abs().max())
