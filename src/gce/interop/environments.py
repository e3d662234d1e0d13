"""Gymnasium and dm_control environments as steps of `gce.run`, by a mapping of their flat arrays to nodes.

    link = Environment(env, Mapping(observations=[[0, 4], [1, 5]], actions=[[0], [-1]]))
    ran = gce.run(link, controller, link.reset(seed=0))

A mapping in a file (TOML) holds data only; an environment's module is named on the command line.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gce.errors import InputError, table
from gce.files import border, read_toml

Array = np.ndarray
EXAMPLE = "observations = [[0, 4], [1, 5]]"


@dataclass(frozen=True, eq=False)
class Mapping:
    """observations [nodes, d], actions [nodes, a]: places in the environment's flat arrays, a row a node.

    -1: an action that the environment does not have. goal [nodes, d]: what to reach, if it says so. keys: of an
    observation that is a dictionary, in the order they are joined in; by default all, as they come.
    """

    observations: Any
    actions: Any
    goal: Any = None
    keys: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, least in (("observations", 0), ("actions", -1)):
            value = table(f"the mapping of {name}", getattr(self, name))
            if value.ndim != 2 or (value != np.rint(value)).any() or (value < least).any():
                raise InputError(
                    f"the mapping of {name} is {getattr(self, name)}; give a row a node of places in the flat array, "
                    f"counted from 0, such as {EXAMPLE}"
                )
            object.__setattr__(self, name, value.astype(int))
        if len(self.observations) != len(self.actions):
            raise InputError(
                f"the mapping has {len(self.observations)} nodes with observations and {len(self.actions)} with "
                "actions; give one row a node in both, -1 for no action"
            )
        used = self.actions[self.actions >= 0]
        if len(np.unique(used)) < len(used):
            raise InputError("the mapping names one action of the environment twice; each belongs to one node")
        if self.goal is not None:
            object.__setattr__(self, "goal", table("the goal of the mapping", self.goal))
            if self.goal.shape != self.observations.shape:
                raise InputError(f"the goal of the mapping has shape {self.goal.shape}, its observations {self.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.observations.shape

    @staticmethod
    def read(path: Path) -> Mapping:
        told = read_toml(path)
        known = {"observations", "actions", "goal", "keys"}
        if not {"observations", "actions"} <= set(told) <= known:
            raise InputError(
                f"{path} says {', '.join(told) or 'nothing'}; a mapping says observations and actions, and may say "
                f"goal and keys: {EXAMPLE}"
            )
        keys = told.get("keys")
        if keys is not None and not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
            raise InputError(f"{path}: keys is {keys!r}, expected names in quotes")
        try:
            return Mapping(
                told["observations"], told["actions"], told.get("goal"), None if keys is None else tuple(keys)
            )
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


class Environment:
    """A step: carries actions [nodes, a] out and answers with the observation [nodes, d] and what acted."""

    def __init__(self, env: Any, mapping: Mapping) -> None:
        self.env, self.mapping, self._ended = env, mapping, ""
        self.control_suite = hasattr(env, "action_spec")
        space = env.action_spec() if self.control_suite else getattr(env, "action_space", None)
        low, high = (getattr(space, a, getattr(space, b, None)) for a, b in (("low", "minimum"), ("high", "maximum")))
        if space is None or low is None or high is None:
            raise InputError(
                f"the environment is {type(env).__name__} with actions in {space}; give a Gymnasium environment with a "
                "Box of actions, or a dm_control one"
            )
        with border("the environment's space of actions", "a Box with bounds of its shape", "correct the environment"):
            self.low, self.high = (np.broadcast_to(table("a bound", side, False), space.shape) for side in (low, high))
        if mapping.actions.max() >= self.low.size:
            raise InputError(
                f"the mapping names action {mapping.actions.max()}, the environment has {self.low.size}, counted from 0"
            )

    def reset(self, seed: int | None = None) -> Float[Array, "nodes d"]:
        """Begin an episode; dm_control takes its seed where the environment is made."""
        self._ended = ""
        return self._observed(self.env.reset().observation if self.control_suite else self.env.reset(seed=seed)[0])

    @property
    def bounds(self) -> tuple[Float[Array, "nodes a"], Float[Array, "nodes a"]]:
        """The lowest and highest action of every node."""
        there = self.mapping.actions >= 0
        low, high = (np.where(there, side.reshape(-1)[self.mapping.actions], 0.0) for side in (self.low, self.high))
        return low, high

    def __call__(self, action: Float[Array, "nodes a"]) -> tuple[Array, Array]:
        if self._ended:
            raise StopIteration(self._ended)
        there = self.mapping.actions >= 0
        given = np.zeros(self.low.size)
        given[self.mapping.actions[there]] = action[there]
        given = np.clip(given, self.low.reshape(-1), self.high.reshape(-1))
        acted = np.zeros_like(action)
        acted[there] = given[self.mapping.actions[there]]
        if self.control_suite:
            after = self.env.step(given.reshape(self.low.shape))
            seen, over = after.observation, after.last()
        else:
            space = self.env.action_space
            seen, _, ended, cut, _ = self.env.step(given.reshape(self.low.shape).astype(space.dtype))
            over = ended or cut
        if over:
            self._ended = "the environment ended its episode"
        return self._observed(seen), acted

    def _observed(self, seen: Any) -> Float[Array, "nodes d"]:
        if isinstance(seen, dict):
            missing = [key for key in self.mapping.keys or () if key not in seen]
            if missing:
                raise InputError(f"the environment observes {', '.join(seen)}, not {missing[0]}; correct the keys")
            seen = np.concatenate([np.ravel(seen[key]) for key in self.mapping.keys or seen])
        flat = table("what the environment observes", seen, finite=None).reshape(-1)
        if self.mapping.observations.max() >= flat.size:
            raise InputError(
                f"the mapping names observation {self.mapping.observations.max()}, the environment has {flat.size}, "
                "counted from 0"
            )
        return flat[self.mapping.observations]


def made_by(name: str, mapping: Mapping | None) -> Environment:
    """The environment that `module:factory` makes, or it and its `Mapping`; modules are found from this folder too."""
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise InputError(f"--env is {name!r}, expected module:factory, such as my_robot:make")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made: Any = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError) as error:
        raise InputError(f"--env {name}: {error}; give the module and a function in it without arguments") from None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        made, mapping = made[0], mapping or made[1]
    if mapping is None:
        raise InputError(
            f"--env {name} does not say which of its numbers belong to which node; give --mapping FILE.toml with "
            f"{EXAMPLE} and actions, or return (environment, Mapping)"
        )
    return Environment(made, mapping)
