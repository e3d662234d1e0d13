"""The worlds, by name, and their Gymnasium names: gce/Rope-v0, Soft-v0, Swim-v0, PowerGrid-v0 and Flock-v0.

gce/PaddedRope-v0 and so on are the same in boxes of one size, for vector environments and libraries without graphs.
"""

from __future__ import annotations

from typing import Any, TypeVar

import gymnasium as gym

from gce.envs.base import GraphEnv, Policy, Protocol, Recipe
from gce.envs.flock import Flock
from gce.envs.grid import PowerGrid
from gce.envs.padded import PaddedEnv
from gce.envs.rope import Rope
from gce.envs.soft import Soft
from gce.envs.swim import Swim
from gce.errors import InputError

__all__ = [
    "WORLDS",
    "Flock",
    "GraphEnv",
    "PaddedEnv",
    "Policy",
    "PowerGrid",
    "Protocol",
    "Recipe",
    "Rope",
    "Soft",
    "Swim",
    "register_world",
    "world_named",
]

WORLDS: dict[str, type[GraphEnv]] = {}
World = TypeVar("World", bound=type[GraphEnv])
RESERVED = ("own",)
"""What commands call data of no known world."""


def world_named(name: Any) -> type[GraphEnv]:
    if not isinstance(name, str) or name not in WORLDS:
        raise InputError(
            f"there is no world {name!r}; the worlds are {', '.join(WORLDS)}; `gce.register` adds one, or the module "
            "given to --plugin"
        )
    return WORLDS[name]


def register_world(world: World) -> World:
    """Make a world known to all commands under its name, and to Gymnasium; may stand above the class as a decorator.

    A class that lacks part of the contract of `GraphEnv` is refused.
    """
    if missing := _missing(world):
        raise InputError(f"the world {world.__name__} has no {', '.join(missing)}; define each in its class")
    if not isinstance(world.recipe, Recipe):
        raise InputError(f"the recipe of {world.__name__} is {world.recipe!r}, expected a gce.envs.Recipe")
    name = world.world
    if not (isinstance(name, str) and name.isidentifier()) or name in RESERVED:
        raise InputError(f"{world.__name__} cannot have the name {name!r}; choose one word, not {RESERVED[0]}")
    for taken, other in WORLDS.items():
        if taken == name or other.__name__ == world.__name__:
            raise InputError(
                f"{world.__name__} with the name {name!r} would hide {other.__name__} with the name {taken!r}; "
                "choose other names"
            )
    WORLDS[name] = world
    gym.register(f"gce/{world.__name__}-v0", entry_point=f"{world.__module__}:{world.__name__}", max_episode_steps=1000)
    gym.register(
        f"gce/Padded{world.__name__}-v0",
        entry_point="gce.envs.padded:make_padded",
        kwargs={"world": name},
        max_episode_steps=1000,
    )
    return world


def _missing(world: type[GraphEnv]) -> list[str]:
    """What `GraphEnv` declares and a class neither sets nor inherits: constants without a value, abstract methods."""
    constants = [name for name, kind in GraphEnv.__annotations__.items() if str(kind).startswith("ClassVar")]
    unset = [name for name in constants if not hasattr(world, name)]
    return unset + [name for name in dir(world) if getattr(getattr(world, name), "__isabstractmethod__", False)]


for _world in (Rope, Soft, Swim, PowerGrid, Flock):
    register_world(_world)
