"""`gce data rope` and the other worlds: data sets recorded."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gce.errors import InputError
from gce.progress import progress


@dataclass(kw_only=True)
class _Record:
    """Record episodes of a world; an interrupted recording goes on when the same command is given again."""

    resumes = True

    out: Path
    """The file to write."""
    episodes: int
    """How many episodes in all."""
    objects: str
    """How many objects a system has: a number, or a range such as 5-9."""
    group_size: int
    """How many episodes of each physical system."""
    steps: int = 100
    """Steps of an episode."""
    seed: int = 0
    """Decides everything random; the same seed gives the same bytes for any number of workers."""
    workers: int = 1
    """Processes to share the work."""
    shard: str = "0/1"
    """Record only part i of n, as i/n with i from 0 to n-1; `gce data merge` joins the parts."""
    observation_noise: float = 0.0
    """Noise on what is observed, as a share of the world's units (0.1 is 10%)."""
    process_noise: float = 0.0
    """Noise on the state at each step, as a share of the world's units."""

    def run(self) -> None:
        objects, shard = self._objects(), parse_shard(self.shard)
        from gce.envs.recording import Recording, Shard, record

        recording = Recording(
            world=self._world(),
            episodes=self.episodes,
            objects=objects,
            group_size=self.group_size,
            seed=self.seed,
            steps=self.steps,
            observation_noise=self.observation_noise,
            process_noise=self.process_noise,
            settings=self._settings(),
        )
        part = Shard(*shard)
        total = sum(recording.episodes_of(g) for g in part.groups(recording))
        with progress(f"recording {recording.world}", total) as done:
            record(recording, self.out, workers=self.workers, shard=part, progress=done)
        print(f"{self.out}: {total} episodes of {recording.world}", file=sys.stderr)

    def _world(self) -> str:
        raise AssertionError("a world's own command says which it is")

    def _settings(self) -> dict[str, Any]:
        return {}

    def _objects(self) -> tuple[int, int]:
        return parse_objects(self.objects)


@dataclass(kw_only=True)
class RecordRope(_Record):
    """Record ropes: chains of masses whose top one is pushed along a rail."""

    episodes: int = 10_000
    objects: str = "5-9"
    group_size: int = 25

    def _world(self) -> str:
        return "rope"


@dataclass(kw_only=True)
class RecordSoft(_Record):
    """Record soft robots on a fixed foot."""

    episodes: int = 50_000
    objects: str = "5-9"
    group_size: int = 25

    def _world(self) -> str:
        return "soft"


@dataclass(kw_only=True)
class RecordSwim(_Record):
    """Record soft robots that swim."""

    episodes: int = 50_000
    objects: str = "5-9"
    group_size: int = 25

    def _world(self) -> str:
        return "swim"


@dataclass(kw_only=True)
class RecordGrid(_Record):
    """Record power grids, random or real."""

    episodes: int = 10_000
    objects: str = "50-100"
    group_size: int = 10
    topology: Literal["erdos_renyi", "ring", "lattice", "meshed"] = "erdos_renyi"
    """The graphs: random, cycles, 2D grids, or sparse ones that resemble transmission grids."""
    case: str | None = None
    """A real grid instead of random ones, such as case118 (extra `grid`); its number of nodes is its own."""

    def _world(self) -> str:
        return "grid"

    def _settings(self) -> dict[str, Any]:
        return {"topology": self.case or self.topology}

    def _objects(self) -> tuple[int, int]:
        if self.case is None:
            return parse_objects(self.objects)
        from gce.envs.real_grids import case_parameters

        nodes = case_parameters(self.case).num_nodes
        return nodes, nodes


def parse_objects(text: str) -> tuple[int, int]:
    """'7' or '5-9'."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if not found:
        raise InputError(f"--objects is {text!r}, expected a number or a range such as 5-9")
    low, high = int(found[1]), int(found[2] or found[1])
    if not 1 <= low <= high:
        raise InputError(f"--objects is {text!r}, expected at least 1 and the smaller number first, such as 5-9")
    return low, high


def parse_shard(text: str) -> tuple[int, int]:
    """'i/n'."""
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not found:
        raise InputError(f"--shard is {text!r}, expected i/n such as 0/4")
    return int(found[1]), int(found[2])
