"""The four worlds, and their Gymnasium names gce/Rope-v0, gce/Soft-v0, gce/Swim-v0 and gce/PowerGrid-v0.

gce/PaddedRope-v0 and so on are the same in boxes of one size, for vector environments and libraries without graphs.
"""

from __future__ import annotations

import gymnasium as gym

from gce.envs.base import GraphEnv, Policy
from gce.envs.grid import PowerGrid
from gce.envs.padded import PaddedEnv
from gce.envs.real_grids import CASES, MESHED
from gce.envs.rope import Rope
from gce.envs.soft import Soft
from gce.envs.swim import Swim
from gce.errors import InputError

__all__ = [
    "WORLDS",
    "GraphEnv",
    "PaddedEnv",
    "Policy",
    "PowerGrid",
    "Rope",
    "Soft",
    "Swim",
    "model_of_grid",
    "usual_model",
    "world_named",
]

WORLDS: dict[str, type[GraphEnv]] = {world.world: world for world in (Rope, Soft, Swim, PowerGrid)}


def world_named(name: str) -> type[GraphEnv]:
    if name not in WORLDS:
        raise InputError(f"there is no world {name!r}; the worlds are {', '.join(WORLDS)}")
    return WORLDS[name]


LARGEST_NETWORK = 1000
"""Nodes of a grid whose model has network features, which take the square of them."""


def model_of_grid(topology: str | None, nodes: int) -> str:
    """The name of the model that comes with the package for grids of a kind.

    Small ones have models with network features, by topology; rings, lattices and large ones have that of the world,
    which passes messages and takes memory in proportion to lines.
    """
    if nodes > LARGEST_NETWORK or topology not in ("erdos_renyi", MESHED, *CASES):
        return PowerGrid.world
    return topology if topology == "erdos_renyi" else MESHED


def usual_model(world: str) -> str:
    """The name of the model that comes with the package for what a world draws unless asked for something else."""
    return model_of_grid("erdos_renyi", PowerGrid.object_range[1]) if world == PowerGrid.world else world


for _world in WORLDS.values():
    gym.register(
        f"gce/{_world.__name__}-v0", entry_point=f"{_world.__module__}:{_world.__name__}", max_episode_steps=1000
    )
    gym.register(
        f"gce/Padded{_world.__name__}-v0",
        entry_point="gce.envs.padded:make_padded",
        kwargs={"world": _world.world},
        max_episode_steps=1000,
    )
