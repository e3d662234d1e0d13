"""Data sets as Minari data sets, for offline reinforcement learning: nodes padded to one number, with a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from gce.errors import InputError
from gce.trajectory import Dataset, Episode

if TYPE_CHECKING:
    from minari import MinariDataset

Array = np.ndarray
Reward = Callable[[Episode], Float[Array, " steps"]]


def export(
    dataset: Dataset, dataset_id: str, *, max_nodes: int | None = None, reward: Reward | None = None, **about: Any
) -> MinariDataset:
    """Write a Minari data set called `dataset_id`, such as "own/tanks-v0", where Minari keeps its data sets.

    An observation is that of `PaddedEnv`: `nodes` [max_nodes, d], `relations` [max_nodes, max_nodes] (entry (receiver,
    sender) is the relation type, -1 where there is none) and `mask` [max_nodes], 1 for nodes that are real. Actions are
    [max_nodes, a] in physical units. The `group` of each episode is in its infos, the last step is truncated.

    max_nodes: by default the largest number of nodes. reward: the rewards of an episode's steps; 0 by default, since
    recordings have none. about: further arguments of `minari.create_dataset_from_buffers`, such as author.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError:
        raise InputError("writing Minari data sets needs the extra `minari`: pip install 'minari[hdf5]'") from None
    from gymnasium.spaces import Box, Dict, MultiBinary

    graphs = [dataset.group(int(g)).graph for g in np.unique(dataset.groups)]
    largest = max(graph.num_nodes for graph in graphs)
    size = largest if max_nodes is None else max_nodes
    if size < largest:
        raise InputError(f"a system has {largest} nodes, more than max_nodes = {size}; leave it out or give more")
    first = dataset[0]
    kinds = max(int(graph.edge_type.max()) for graph in graphs)
    low, high = _action_range(dataset)
    width = first.observations.shape[2]
    spaces = Dict(
        nodes=Box(-np.inf, np.inf, (size, width), dtype=first.observations.dtype.type),
        relations=Box(-1, kinds, (size, size), dtype=np.int16),
        mask=MultiBinary(size),
    )
    actions = Box(np.tile(low, (size, 1)), np.tile(high, (size, 1)), dtype=first.actions.dtype.type)

    def buffers() -> Iterator[Any]:
        for k, (episode, group) in enumerate(zip(dataset, dataset.groups.tolist(), strict=True)):
            rewards = np.zeros(episode.length) if reward is None else np.asarray(reward(episode), dtype=np.float64)
            if rewards.shape != (episode.length,):
                raise InputError(f"episode {k} has rewards of shape {rewards.shape}, expected ({episode.length},)")
            yield EpisodeBuffer(
                id=k,
                seed=episode.seed,
                observations=padded(episode, size),
                actions=_pad(episode.actions, size),
                rewards=rewards,
                terminations=np.zeros(episode.length, bool),
                truncations=np.arange(episode.length) == episode.length - 1,
                infos={"group": np.full(episode.length + 1, group)},
            )

    try:
        return minari.create_dataset_from_buffers(
            dataset_id, buffers(), observation_space=spaces, action_space=actions, **about
        )
    except InputError:
        minari.delete_dataset(dataset_id)
        raise
    except (ValueError, TypeError) as error:
        raise InputError(f"Minari does not write {dataset_id!r}: {error}") from None


def padded(episode: Episode, size: int) -> dict[str, Array]:
    """The observations of an episode as `PaddedEnv` gives them, [T+1, ...] each."""
    count, steps = episode.num_nodes, episode.length + 1
    relations = episode.graph.relations(size).astype(np.int16)
    mask = (np.arange(size) < count).astype(np.int8)
    return {
        "nodes": _pad(episode.observations, size),
        "relations": np.broadcast_to(relations, (steps, size, size)).copy(),
        "mask": np.tile(mask, (steps, 1)),
    }


def _pad(values: Array, size: int) -> Array:
    """Zeros for nodes that are not there, on the second axis."""
    return np.pad(values, ((0, 0), (0, size - values.shape[1]), (0, 0)))


def _action_range(dataset: Dataset) -> tuple[Array, Array]:
    """The lowest and the highest action of any node, recorded or allowed."""
    low, high = [], []
    for episode in dataset:
        low.append(episode.actions.min(axis=(0, 1)))
        high.append(episode.actions.max(axis=(0, 1)))
        if episode.limits is not None:
            low.append(episode.limits.low.min(axis=0))
            high.append(episode.limits.high.max(axis=0))
    return np.min(low, axis=0), np.max(high, axis=0)
