"""`gce data ...`: data sets recorded, taken in, checked, replayed and shown."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import tyro

from gce.cli.common import Reads, Word, check_share, episode_of
from gce.errors import InputError
from gce.progress import counted, progress

MEGABYTE = 1_000_000


@dataclass(kw_only=True)
class _Record:
    """Record episodes of a world; an interrupted recording goes on when the same command is given again."""

    world: ClassVar[str]
    resumes: ClassVar[bool] = True

    out: Path
    """The file to write."""
    episodes: int = 500
    """How many episodes in all."""
    objects: str = "5-9"
    """How many objects a system has: a number, or a range such as 5-9."""
    group_size: int = 25
    """How many episodes of each physical system."""
    steps: int = 100
    """Steps of an episode."""
    seed: int = 0
    """Decides everything random; the same seed gives the same bytes for any number of workers."""
    workers: int = 1
    """Processes to share the work."""
    on: Word = None
    """A Dask cluster instead: dask (here, of so many workers), tcp://host:8786, or slurm (so many jobs). All machines
    see the folder of the file."""
    shard: str = "0/1"
    """Record only part i of n, as i/n with i from 0 to n-1; `gce data merge` joins the parts."""
    observation_noise: float = 0.0
    """Noise on what is observed, as a share of the world's units (0.1 is 10%)."""
    process_noise: float = 0.0
    """Noise on the state at each step, as a share of the world's units."""

    def run(self) -> None:
        check_share("--observation-noise", self.observation_noise)
        check_share("--process-noise", self.process_noise)
        objects, shard = self._objects(), parse_shard(self.shard)  # told before anything slow is imported
        from gce.envs.recording import Recording, Shard, record

        same = ("world", "episodes", "group_size", "seed", "steps", "observation_noise", "process_noise")
        given = {name: getattr(self, name) for name in same}
        recording = Recording(**given, objects=objects, settings=self._settings())
        part = Shard(*shard)
        total = sum(recording.episodes_of(g) for g in part.groups(recording))
        with progress(f"recording {recording.world}", total) as done:
            record(recording, self.out, workers=self.workers, on=self.on, shard=part, progress=done)
        print(f"{self.out}: {total} episodes of {recording.world}", file=sys.stderr)

    def _settings(self) -> dict[str, Any]:
        return {}

    def _objects(self) -> tuple[int, int]:
        return parse_objects(self.objects)


@dataclass(kw_only=True)
class RecordRope(_Record):
    """Record ropes: chains of masses whose top one is pushed along a rail."""

    world = "rope"


@dataclass(kw_only=True)
class RecordSoft(_Record):
    """Record soft robots on a fixed foot."""

    world = "soft"


@dataclass(kw_only=True)
class RecordSwim(_Record):
    """Record soft robots that swim."""

    world = "swim"


@dataclass(kw_only=True)
class RecordGrid(_Record):
    """Record power grids, random or real."""

    world = "grid"
    objects: str = "50-100"
    group_size: int = 10
    topology: Literal["erdos_renyi", "ring", "lattice", "meshed"] = "erdos_renyi"
    """The graphs: random, cycles, 2D grids, or sparse ones that resemble transmission grids."""
    case: Word = None
    """A real grid instead of random ones, such as case118 (extra `grid`); its number of nodes is its own."""

    def _settings(self) -> dict[str, Any]:
        return {"topology": self.case or self.topology}

    def _objects(self) -> tuple[int, int]:
        if self.case is None:
            return parse_objects(self.objects)
        from gce.envs.real_grids import case_parameters

        nodes = case_parameters(self.case).num_nodes
        return nodes, nodes


@dataclass(kw_only=True)
class RecordFlock(_Record):
    """Record flocks: agents that move to the weighted mean of their neighbours, some of them steered."""

    world = "flock"
    objects: str = "10-20"
    group_size: int = 12
    sharpness: float = 2.0
    """How much more agents weigh that are near: one over the bandwidth of the weights; 0 for equal weights."""

    def _settings(self) -> dict[str, Any]:
        return {"sharpness": self.sharpness}


def parse_objects(text: str) -> tuple[int, int]:
    """'7' or '5-9'."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if not match:
        raise InputError(f"--objects is {text!r}, expected a number or a range such as 5-9")
    low, high = int(match[1]), int(match[2] or match[1])
    if not 1 <= low <= high:
        raise InputError(f"--objects is {text!r}, expected at least 1 and the smaller number first, such as 5-9")
    return low, high


def parse_shard(text: str) -> tuple[int, int]:
    """'i/n'."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match:
        raise InputError(f"--shard is {text!r}, expected i/n such as 0/4")
    return int(match[1]), int(match[2])


@dataclass
class Merge:
    """Join shards of one recording, or files of one world, into one file."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """The files to join."""
    out: Path
    """The file to write."""

    def run(self) -> None:
        from gce.envs.recording import merge
        from gce.trajectory import Dataset

        if not self.files:
            raise InputError("there are no files to merge; name at least one")
        total = 0
        for file in self.files:
            with Dataset.open(file) as data:
                total += len(data)
        with progress("merging", total) as done:
            merge(self.files, self.out, done)
        print(f"{self.out}: {total} episodes", file=sys.stderr)


@dataclass
class Import:
    """Take in data recorded elsewhere: a folder of CSV or npz files, or npz files of a world."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """A folder with edges.csv and a folder episodes (or one such folder for each system in it); with --world, npz
    files with one physical system each."""
    out: Path
    """The file to write."""
    world: Word = None
    """The world that npz files are of: rope, soft, swim, grid or flock."""

    def run(self) -> None:
        if not self.files:
            raise InputError("there is nothing to import; name a folder, or npz files with --world")
        if self.world is not None:
            from gce.envs.recording import import_recordings

            with progress("importing", len(self.files), "files") as done:
                count = import_recordings(self.files, self.world, self.out, done)
            print(f"{self.out}: {count} episodes of {_count(len(self.files), 'system')}", file=sys.stderr)
            return
        if len(self.files) > 1 or self.files[0].is_file():
            raise InputError(
                f"{self.files[0]} and others are files; name one folder, or say which --world they are of"
                if len(self.files) > 1
                else f"{self.files[0]} is a file; name a folder, or say which --world it is of"
            )
        from gce.trajectory.importing import count_episodes, import_folder

        with progress("importing", count_episodes(self.files[0])) as done:
            found = import_folder(self.files[0], self.out, done)
        print(f"{self.out}: {_told(found)}", file=sys.stderr)


@dataclass
class Replay(Reads):
    """Simulate every episode's actions again and tell how far the positions differ from the recorded ones."""

    file: tyro.conf.Positional[Path]
    """A data set file."""
    json: bool = False
    """Print JSON on standard output."""

    def run(self) -> None:
        from gce import __version__
        from gce.envs.recording import position_errors
        from gce.trajectory import Dataset

        with Dataset.open(self.file) as data, progress("replaying", len(data)) as done:
            errors = position_errors(data, progress=done)
            answer = {
                "max_position_error": {str(step): error for step, error in errors.items()},
                "world": data.world,
                "episodes": len(data),
                "version": __version__,
            }
        if self.json:
            print(json.dumps(answer))
        else:
            for step, error in errors.items():
                print(f"largest position error up to step {step}: {error:.3g}")


@dataclass
class Check:
    """Read a data set file, or a folder to import, to the end: what is wrong with it, what it shows, what looks odd."""

    file: tyro.conf.Positional[Path]
    """A data set file or a folder of CSV or npz files."""
    json: bool = False
    """Print JSON on standard output."""

    def run(self) -> None:
        from gce.trajectory import Dataset, check_file

        if self.file.is_dir():
            from gce.trajectory.importing import count_episodes, read_folder

            with progress("checking", count_episodes(self.file)) as done:
                summary, data = read_folder(self.file, done)
            self._tell(data, _told(summary))
            return
        megabytes = self.file.stat().st_size // MEGABYTE if self.file.is_file() else 0
        with progress("checking", megabytes, "MB") as done:
            reached, read = counted(done), 0

            def tell(size: int) -> None:
                nonlocal read
                read += size
                reached(min(read // MEGABYTE, megabytes))

            problems = check_file(self.file, tell)
        if problems:
            raise InputError("\ngce: ".join(problems))
        with Dataset.open(self.file) as data:
            groups, lengths = len(set(data.groups.tolist())), data.lengths
            steps = _range(int(lengths.min()), int(lengths.max()))
            held = f"{len(data)} episodes of {_count(groups, 'system')}"
            self._tell(data, f"{held}, {steps} steps each, world {data.world}")

    def _tell(self, data: Any, held: str) -> None:
        from gce import __version__
        from gce.trajectory.findings import look_over, told

        structure, warned = look_over(data)
        said = told(data, structure)
        if self.json:
            answer = {
                "held": held,
                "episodes": len(data),
                "systems": len(set(data.groups.tolist())),
                "world": data.world,
                "structure": structure.described(),
                "found": said,
                "warnings": [{"what": w.what, "advice": w.advice} for w in warned],
                "version": __version__,
            }
            print(json.dumps(answer))
            return
        print(f"{self.file}: good; {held}")
        print("\n".join([f"  found: {sentence}" for sentence in said] + [f"  warning: {w}" for w in warned]))


@dataclass
class Show(Reads):
    """Draw an episode: an animation (.mp4, .gif) or a strip of pictures (.png)."""

    file: tyro.conf.Positional[Path]
    """A data set file."""
    out: Path
    """The picture to write; its ending says which kind."""
    episode: int = 0
    """Which episode, from 0."""

    def run(self) -> None:
        if self.out.suffix not in (".mp4", ".gif", ".png"):
            raise InputError(f"{self.out} must end in .mp4, .gif or .png")
        from gce.trajectory import Dataset
        from gce.views.plots import episode_frames, write_animation, write_strip

        with Dataset.open(self.file) as data:
            episode, world = episode_of(data, self.file, self.episode), data.world
            rate = 1 / data.metadata.get("dt", 1 / 50)
        strip = self.out.suffix == ".png"
        steps = [round(k * episode.length / 7) for k in range(8)] if strip else list(range(episode.length + 1))
        with progress("drawing", len(steps), "pictures") as done:
            frames = drawn_one_by_one(episode_frames(world, episode, steps), done)
            if strip:
                write_strip(list(frames), self.out)
            else:
                write_animation(frames, self.out, rate)
        print(f"{self.out}: open it in a browser or a viewer of pictures", file=sys.stderr)


@dataclass
class Data:
    """Record, import, check, replay and show data sets."""

    command: (
        Annotated[RecordRope, tyro.conf.subcommand("rope")]
        | Annotated[RecordSoft, tyro.conf.subcommand("soft")]
        | Annotated[RecordSwim, tyro.conf.subcommand("swim")]
        | Annotated[RecordGrid, tyro.conf.subcommand("grid")]
        | Annotated[RecordFlock, tyro.conf.subcommand("flock")]
        | Annotated[Merge, tyro.conf.subcommand("merge")]
        | Annotated[Import, tyro.conf.subcommand("import")]
        | Annotated[Replay, tyro.conf.subcommand("replay")]
        | Annotated[Check, tyro.conf.subcommand("check")]
        | Annotated[Show, tyro.conf.subcommand("show")]
    )

    def run(self) -> None:
        self.command.run()


def with_worlds() -> Any:
    """`gce data` with a command to record each world that a plugin registered."""
    from gce.envs import WORLDS

    commands: Any = get_type_hints(Data, include_extras=True)["command"]
    known = {kind.__metadata__[0].name for kind in get_args(commands)}
    for name, world in WORLDS.items():
        if name in known:
            continue
        low, high = world.object_range
        usual = [("objects", str, f"{low}-{high}"), ("group_size", int, world.group_size)]
        about = {"world": name, "__doc__": f"Record {name}, a world of a plugin."}
        recorder = make_dataclass(f"Record{world.__name__}", usual, bases=(_Record,), namespace=about, kw_only=True)
        commands = commands | Annotated[recorder, tyro.conf.subcommand(name)]
    return make_dataclass("Data", [("command", commands)], namespace={"run": Data.run, "__doc__": Data.__doc__})


def drawn_one_by_one(frames: Iterable[Any], done: Callable[[int], None]) -> Iterator[Any]:
    """The frames, each told of when it was drawn."""
    for frame in frames:
        yield frame
        done(1)


def _range(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}-{high}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _told(found: Any) -> str:
    """What a folder holds, in a sentence."""
    columns = found.columns
    parts = [
        f"{found.episodes} episodes of {_count(found.systems, 'system')}",
        f"{_range(*found.nodes)} nodes",
        f"{_range(*found.steps)} steps each",
        f"observations {', '.join(columns.observations)}",
        f"actions {', '.join(columns.actions) or 'none'}",
    ]
    parts += [f"exogenous {', '.join(columns.exogenous)}"] if columns.exogenous else []
    return ", ".join(parts[:3]) + "; " + "; ".join(parts[3:])
