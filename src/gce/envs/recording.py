"""Recording: worlds and their action generators into data set files, in parallel, in shards, and again after a stop.

Recordings made elsewhere are taken in, and any are replayed: recorded actions are simulated again, to see that data and
simulator agree.

A recording is a list of groups (physical systems), each with its own seeds derived from the recording's seed and the
group's number. So a group is the same whoever records it, and a file has the same bytes for any number of workers
and any division into shards. Work is kept in parts of a few groups beside the output file until all are there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gce.cluster.crew import crew, key_of
from gce.envs import GraphEnv, world_named
from gce.errors import InputError, real, said_of, whole
from gce.files import locked, read_bytes, read_npz, writable, write_text
from gce.names import some
from gce.trajectory import Dataset, Episode, Limits, Writer

Progress = Callable[[int], None]
"""Told how many more episodes, or files, are done."""

EPISODES_PER_PART = 250


@dataclass(frozen=True)
class Recording:
    """What to record: everything that decides the data.

    objects: the smallest and largest number of objects; each group draws its own.
    group_size: episodes of one physical system.
    settings: arguments of the world beside the number of objects.
    """

    world: str
    episodes: int
    objects: tuple[int, int]
    group_size: int
    seed: int = 0
    steps: int = 100
    observation_noise: float = 0.0
    process_noise: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world_named(self.world)
        for name in ("episodes", "group_size", "steps"):
            whole(name, getattr(self, name), 1)
        for name in ("observation_noise", "process_noise"):
            real(name, getattr(self, name), 0)
        if not 1 <= self.objects[0] <= self.objects[1]:
            raise InputError(f"objects is {self.objects[0]}-{self.objects[1]}, expected a range such as 5-9, from 1 up")
        whole("seed", self.seed)

    @property
    def num_groups(self) -> int:
        return -(-self.episodes // self.group_size)

    def episodes_of(self, group: int) -> int:
        """All groups are full but the last, which takes what remains."""
        return min(self.group_size, self.episodes - group * self.group_size)

    def metadata(self) -> dict[str, Any]:
        about = world_named(self.world).describe()
        return {**about, "seed": self.seed, "recording": dataclasses.asdict(self)}


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 0) of `count` of a recording: a run of its groups."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise InputError(
                f"shard {self.index}/{self.count} is out of range; of n shards give 0/n, 1/n, ... up to n-1/n"
            )

    def groups(self, recording: Recording) -> range:
        total = recording.num_groups
        return range(self.index * total // self.count, (self.index + 1) * total // self.count)


def record_groups(recording: Recording, groups: Iterable[int], writer: Writer) -> None:
    """Simulate whole groups and append them to a file."""
    env = world_named(recording.world)(objects=recording.objects, **recording.settings)
    noise = {"observation_noise": recording.observation_noise, "process_noise": recording.process_noise}
    for group in groups:
        count = recording.episodes_of(group)
        system_seed, *episode_seeds = np.random.SeedSequence([recording.seed, group]).generate_state(count + 1).tolist()
        env.reset(seed=system_seed)
        parameters = env.parameters
        number = writer.add_group(env.graph, dataclasses.asdict(parameters), Limits(*env.action_bounds))
        for seed in episode_seeds:
            recorded = excited(env, seed, {"parameters": parameters, **noise}, steps=recording.steps)
            writer.add_episode(number, *recorded, seed=seed)


def excited(
    env: GraphEnv, seed: int, options: Mapping[str, Any], rng: np.random.Generator | None = None, steps: int = 100
) -> tuple[np.ndarray, np.ndarray]:
    """Observations and actions of the world's kind of actions, drawn by the generator, or else by the seed too."""
    env.reset(seed=seed, options=options)
    rng = np.random.default_rng([seed, 1]) if rng is None else rng
    return env.run(env.excitation(rng, steps), steps)


def record_system(
    env: GraphEnv, seed: int, count: int, steps: int, noise: float = 0.0, tell: Progress = lambda episodes: None
) -> list[Episode]:
    """Episodes of an environment's system, with noise on what is observed but in the first; tells how many are done."""
    parameters, recorded = env.parameters, []
    for k in range(count):
        tell(k)
        options = {"parameters": parameters, "observation_noise": noise if k else 0.0}
        episode = excited(env, 1000 * (seed + 1) + k, options, np.random.default_rng([seed, k]), steps)
        recorded.append(Episode(env.graph, *episode, parameters=dataclasses.asdict(parameters)))
    tell(count)
    return recorded


def record(
    recording: Recording,
    out: Path | str,
    *,
    workers: int = 1,
    on: str | None = None,
    shard: Shard | None = None,
    progress: Progress = lambda episodes: None,
) -> None:
    """Record to a file; after an interruption the same call goes on where it stopped. on: as of `gce.cluster.crew`."""
    out, shard = Path(out), shard or Shard()
    groups = shard.groups(recording)
    if workers < 1:
        raise InputError(f"workers is {workers}, expected at least 1")
    if len(groups) == 0:
        raise InputError(
            f"shard {shard.index}/{shard.count} is empty: only {recording.num_groups} groups to share; use fewer shards"
        )
    metadata = recording.metadata() | ({} if shard.count == 1 else {"shard": [shard.index, shard.count]})
    if not out.parent.is_dir():
        raise InputError(f"cannot write beside {out}: {out.parent} is not a folder; make it, or give another place")
    with writable(out), locked(out):
        _record(recording, out, metadata, groups, workers, on, progress)


def _record(
    recording: Recording,
    out: Path,
    metadata: dict[str, Any],
    groups: range,
    workers: int,
    on: str | None,
    progress: Progress,
) -> None:
    if out.exists():
        _refuse_to_overwrite(out, metadata)
        folder, note = _parts_of(out)
        if not note.exists() or read_bytes(note) == json.dumps(metadata, sort_keys=True).encode():
            shutil.rmtree(folder, ignore_errors=True)  # what a kill left after the file had got its name
        return progress(sum(recording.episodes_of(g) for g in groups))
    folder = _parts_folder(out, metadata)
    parts = list(_parts(recording, metadata, groups, folder.resolve()))
    for part, path in parts:
        if path.exists():
            progress(sum(recording.episodes_of(g) for g in part))
    waiting = [(part, path) for part, path in parts if not path.exists()]
    try:
        for part in _run(recording, metadata, waiting, min(workers, max(1, len(waiting))), on):
            progress(sum(recording.episodes_of(g) for g in part))
    except BaseException:
        _sweep(folder)
        if not any(path.exists() for _, path in parts):
            shutil.rmtree(folder)
        raise

    concatenate([path for _, path in parts], out, metadata)
    shutil.rmtree(folder)


def merge(files: Sequence[Path | str], out: Path | str, progress: Progress = lambda episodes: None) -> None:
    """One file from several of one world: shards in the order of their numbers, others in the order given."""
    paths = [Path(file) for file in files]
    if Path(out).exists():
        raise InputError(f"{out} exists; choose another name or remove it first")
    with ExitStack() as stack:
        metadata = [stack.enter_context(Dataset.open(path)).metadata for path in paths]
    merged = dict(metadata[0])
    shards = [tuple(m.get("shard", ())) for m in metadata]
    if all(shards):
        for path, other in zip(paths, metadata, strict=True):
            if {**other, "shard": None} != {**merged, "shard": None}:
                raise InputError(f"{path} is a shard of another recording than {paths[0]}; merge shards of one only")
        count = shards[0][1]
        expected = {(index, count) for index in range(min(count, len(shards) + 9))}
        if set(shards) != expected or len(shards) != count:
            missing = some(sorted(f"{i}/{n}" for i, n in expected - set(shards)))
            raise InputError(f"the shards {missing or 'given twice'} stand in the way; give each one once")
        paths = [path for _, path in sorted(zip(shards, paths, strict=True))]
        del merged["shard"]
    else:
        for path, other in zip(paths, metadata, strict=True):
            for key in ("world", "dt"):
                if other.get(key) != merged.get(key):
                    raise InputError(
                        f"{path} has {key} {other.get(key)!r}, {paths[0]} has {merged.get(key)!r}; merge "
                        "files of one world"
                    )
        merged = {k: v for k, v in merged.items() if all(m.get(k) == v for m in metadata)}
        merged["merged"] = [path.name for path in paths]
    concatenate(paths, out, merged, progress)


def concatenate(
    files: Sequence[Path], out: Path | str, metadata: dict[str, Any], progress: Progress = lambda episodes: None
) -> None:
    """All groups and episodes of some files, in order, as one file."""
    with Dataset.open(files[0]) as data:
        limited, dtype = data.limited, data[0].observations.dtype
    for path in files[1:]:
        with Dataset.open(path) as data:
            limited = limited and data.limited
    with Writer(out, metadata, dtype) as writer:
        for path in files:
            with Dataset.open(path) as data:
                episodes = data if limited else (dataclasses.replace(episode, limits=None) for episode in data)
                writer.add_all(episodes, data.groups.tolist())
                progress(len(data))


def replay_episode(env: GraphEnv, episode: Episode, options: dict[str, Any]) -> np.ndarray:
    """The observations that an episode's actions, unclipped, lead to from its recorded parameters."""
    env.reset(seed=episode.seed or 0, options={"parameters": episode.parameters, **options})
    if env.graph.num_nodes != episode.num_nodes:
        raise InputError(f"the episode has {episode.num_nodes} nodes, its parameters give {env.graph.num_nodes}")
    actions = episode.actions.astype(np.float64)
    observations, _ = env.run(lambda t: actions[t], episode.length)
    return observations


def position_errors(
    data: Dataset, until: Sequence[int] = (10, 50, 100), progress: Progress = lambda episodes: None
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
    files: Sequence[Path | str], world: str, out: Path | str, progress: Progress = lambda files: None
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
            arrays = read_npz(Path(file))
            names = [field.name for field in dataclasses.fields(env.Parameters)]
            missing = [name for name in ("observations", "actions", *names) if name not in arrays]
            if missing:
                raise InputError(f"{file} has no {', '.join(missing)}; it holds {', '.join(arrays) or 'nothing'}")
            with said_of(file):
                env.reset(seed=0, options={"parameters": {name: arrays[name].tolist() for name in names}})
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
            with said_of(file):
                for seen, acted in zip(observations, actions, strict=True):
                    writer.add_episode(group, seen, acted)
            count += len(observations)
            progress(1)
    return count


# ---- parts ----


def _parts_of(out: Path) -> tuple[Path, Path]:
    """The folder of finished parts beside an output, and its note of what is recorded."""
    return (folder := out.with_name(out.name + ".parts")), folder / "recording.json"


def _parts_folder(out: Path, metadata: dict[str, Any]) -> Path:
    """The folder of finished parts beside the output; one of another recording is left alone."""
    (folder, note), text = _parts_of(out), json.dumps(metadata, sort_keys=True)
    if folder.exists():
        _sweep(folder)
        if any(folder.iterdir()) and (not note.exists() or read_bytes(note) != text.encode()):
            raise InputError(f"{folder} holds unfinished work of another recording; finish it or remove the folder")
        if note.exists():
            return folder
    try:
        folder.mkdir(exist_ok=True)
        write_text(note, text)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise InputError(f"cannot write beside {out}: {os.strerror(error.errno or 0)}; give another place") from None
    return folder


def _sweep(folder: Path) -> None:
    """Remove what workers that were killed left."""
    for stray in folder.glob(".*"):
        stray.unlink(missing_ok=True)


def _parts(recording: Recording, metadata: dict[str, Any], groups: range, folder: Path) -> Iterator[tuple[range, Path]]:
    """A part's file is named by all that decides it."""
    size = max(1, EPISODES_PER_PART // recording.group_size)
    for start in range(groups.start, groups.stop, size):
        part = range(start, min(start + size, groups.stop))
        key = key_of({"recording": metadata, "groups": [part.start, part.stop]})
        yield part, folder / f"groups-{start:08d}-{key}.h5"


def _run(
    recording: Recording,
    metadata: dict[str, Any],
    parts: Sequence[tuple[range, Path]],
    workers: int,
    on: str | None,
) -> Iterator[range]:
    """Record parts here, in worker processes or on a cluster; yields each as it is done."""
    if workers == 1 and on is None:
        for part, path in parts:
            _record_part(recording, metadata, part, path)
            yield part
        return
    if not parts:
        return
    with crew(workers, on) as team:
        futures = {team.submit(_record_part, recording, metadata, part, path): (part, path) for part, path in parts}
        for future in as_completed(futures):
            name, (part, path) = future.result(), futures[future]
            if not path.exists():
                raise InputError(f"{name} was written, but not to {path.parent} here; let all workers see one folder")
            yield part


def _record_part(recording: Recording, metadata: dict[str, Any], groups: range, path: Path) -> str:
    """The name of the file, which may be there: of work that was thought lost."""
    if not path.exists():
        with Writer(path, metadata) as writer:
            record_groups(recording, groups, writer)
    return path.name


def _refuse_to_overwrite(out: Path, metadata: dict[str, Any]) -> None:
    """A finished file of the same recording is fine; anything else is not touched."""
    with suppress(InputError), Dataset.open(out) as existing:
        if existing.metadata == json.loads(json.dumps(metadata)):
            return
    raise InputError(f"{out} exists and is not this recording; choose another name or remove it first")
