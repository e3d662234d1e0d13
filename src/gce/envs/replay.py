"""Replay: simulate recorded actions again, to see that data and simulator agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gce.envs import GraphEnv, world_named
from gce.errors import InputError
from gce.trajectory import Dataset, Episode, Writer


def replay_episode(env: GraphEnv, episode: Episode, options: dict[str, Any]) -> np.ndarray:
    """The observations that an episode's actions, unclipped, lead to from its recorded parameters."""
    env.reset(seed=episode.seed or 0, options={"parameters": episode.parameters, **options})
    if env.graph.num_nodes != episode.num_nodes:
        raise InputError(f"the episode has {episode.num_nodes} nodes, its parameters give {env.graph.num_nodes}")
    actions = episode.actions.astype(np.float64)
    observations, _ = env.run(lambda t: actions[t], episode.length)
    return observations


def position_errors(
    data: Dataset, until: Sequence[int] = (10, 50, 100), progress: Callable[[int], None] = lambda episodes: None
) -> dict[int, float]:
    """The largest position error over all episodes of a data set, up to each of some steps."""
    if data.world is None:
        raise InputError(
            "the file does not say which world it was recorded in, so it cannot be replayed; give one that "
            "`gce data` recorded"
        )
    env = world_named(data.world)()
    recording = data.metadata.get("recording", {})
    noise = {name: recording.get(name, 0.0) for name in ("observation_noise", "process_noise")}
    worst = dict.fromkeys(until, 0.0)
    for episode in data:
        wrong = np.abs(replay_episode(env, episode, noise) - episode.observations)[..., env.positions]
        by_step = np.maximum.accumulate(wrong.max(axis=(1, 2)))
        for step in until:
            worst[step] = max(worst[step], float(by_step[min(step, episode.length)]))
        progress(1)
    return worst


def import_recordings(
    files: Sequence[Path | str], world: str, out: Path | str, progress: Callable[[int], None] = lambda files: None
) -> int:
    """Recordings of one world as npz, one group a file, into a data set file; returns the number of episodes.

    A file holds `observations` [episodes, T+1, nodes, coordinates] and `actions` [episodes, T or T+1, nodes, action]
    in physical units (a last action that leads nowhere is dropped), the world's parameters by name, and optionally
    `relation_type` [nodes, nodes] (receiver, sender), which must be the world's.
    """
    env = world_named(world)()
    count = 0
    metadata = {**env.describe(), "seed": None, "imported": [Path(file).name for file in files]}
    with Writer(out, metadata, np.float64) as writer:
        for file in files:
            arrays = _load(Path(file))
            names = [field.name for field in dataclasses.fields(env.Parameters)]
            missing = [name for name in ("observations", "actions", *names) if name not in arrays]
            if missing:
                raise InputError(f"{file} has no {', '.join(missing)}; it holds {', '.join(arrays) or 'nothing'}")
            try:
                env.reset(seed=0, options={"parameters": {name: arrays[name].tolist() for name in names}})
            except InputError as error:
                raise InputError(f"{file}: {error}") from None
            relations = arrays.get("relation_type")
            if relations is not None and not np.array_equal(relations, env.graph.relations()):
                raise InputError(
                    f"{file}: relation_type is not that of a {world} with these parameters; correct one of the two"
                )
            observations, actions = arrays["observations"].astype(float), arrays["actions"].astype(float)
            if observations.ndim != 4 or actions.ndim != 4 or len(observations) != len(actions):
                raise InputError(
                    f"{file}: observations have shape {observations.shape} and actions {actions.shape}; expected "
                    "[episodes, steps, nodes, coordinates] for both"
                )
            if actions.shape[1] == observations.shape[1]:
                actions = actions[:, :-1]
            group = writer.add_group(env.graph, dataclasses.asdict(env.parameters))
            for k in range(len(observations)):
                try:
                    writer.add_episode(group, observations[k], actions[k])
                except InputError as error:
                    raise InputError(f"{file}: {error}") from None
                count += 1
            progress(1)
    return count


def _load(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise InputError(f"{path} is not a file; name npz files")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, AttributeError) as error:
        cause = str(error).splitlines()[0]
        raise InputError(f"{path} is not an npz file of plain arrays: {cause}; write it with numpy.savez") from None
