"""A world in boxes of one size, for libraries that know nothing of graphs."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary

from gce.envs.base import GraphEnv
from gce.errors import InputError


class PaddedEnv(gym.Wrapper[Any, np.ndarray, Any, np.ndarray]):
    """Observations and actions padded with zeros to `max_objects` rows, with a mask of the rows that are real.

    observation: `nodes` [max_objects, coordinates], `relations` [max_objects, max_objects] (entry (receiver, sender)
        is the relation type, -1 where there is none) and `mask` [max_objects].
    action: [max_objects, action coordinates] scaled to +-1 of the action bound; padded rows are ignored.
    """

    def __init__(self, env: gym.Env[Any, np.ndarray], max_objects: int) -> None:
        super().__init__(env)
        inner = env.unwrapped
        if not isinstance(inner, GraphEnv):
            raise InputError(f"PaddedEnv wraps the worlds of gce, got {type(inner).__name__}; make one of these first")
        if inner.objects[1] > max_objects:
            raise InputError(
                f"the world has up to {inner.objects[1]} objects, more than max_objects = {max_objects}; give more room"
            )
        self.inner, self.max_objects = inner, max_objects
        coordinates, actions = len(inner.observation_names), len(inner.action_names)
        self.observation_space = Dict(
            nodes=Box(-np.inf, np.inf, (max_objects, coordinates), dtype=np.float64),
            relations=Box(-1, inner.num_relations - 1, (max_objects, max_objects), dtype=np.int64),
            mask=MultiBinary(max_objects),
        )
        self.action_space = Box(-1.0, 1.0, (max_objects, actions), dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        if self.inner.graph.num_nodes > self.max_objects:
            raise InputError(
                f"the system has {self.inner.graph.num_nodes} objects, more than max_objects = {self.max_objects}; "
                "give more room, or parameters of a smaller system"
            )
        return self._padded(observation.nodes), info

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], SupportsFloat, bool, bool, dict[str, Any]]:
        real = np.asarray(action)[: self.inner.graph.num_nodes] * self.inner.action_limit
        observation, reward, terminated, truncated, info = self.env.step(real)
        return self._padded(observation.nodes), reward, terminated, truncated, info

    def _padded(self, nodes: np.ndarray) -> dict[str, np.ndarray]:
        count, missing = len(nodes), self.max_objects - len(nodes)
        return {
            "nodes": np.pad(nodes, ((0, missing), (0, 0))),
            "relations": self.inner.graph.relations(self.max_objects),
            "mask": (np.arange(self.max_objects) < count).astype(np.int8),
        }


def make_padded(
    world: str, objects: int | tuple[int, int] = 7, max_objects: int | None = None, **settings: Any
) -> PaddedEnv:
    """A world by name in boxes of one size, by default that of its largest systems; for `gymnasium.make_vec`."""
    from gce.envs import world_named

    env = world_named(world)(objects=objects, **settings)
    return PaddedEnv(env, env.objects[1] if max_objects is None else max_objects)
