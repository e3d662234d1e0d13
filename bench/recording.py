"""Speed of recording: simulation, observations and file together, against a bare step of the same space."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

from gce.envs import WORLDS
from gce.envs.recording import Recording, record

LIMITS = {"rope": 8.0, "soft": 6.0, "swim": 10.0}


def bench_recording(world: str, objects: int = 7, episodes: int = 100, repeats: int = 3) -> dict[str, float]:
    """CPU time a step of a whole recording over that of `space.step` alone, on systems of the same recording.

    The smallest ratio of a few repeats counts: both times are taken in the same run, one after the other.
    """
    recording = Recording(world=world, episodes=episodes, objects=(objects, objects), group_size=25)
    results = []
    for repeat in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            record(dataclasses.replace(recording, seed=repeat), Path(folder) / "x.h5")
            recorded = (time.process_time() - start) / (episodes * recording.steps)
        bare = _bare_step(world, objects, recording.steps)
        results.append({"seconds_per_step": recorded, "bare_step_seconds": bare, "ratio": recorded / bare})
    return {**min(results, key=lambda r: r["ratio"]), "limit": LIMITS[world]}


def _bare_step(world: str, objects: int, steps: int) -> float:
    env = WORLDS[world](objects=objects)
    spent, count = 0.0, 20
    for seed in range(count):
        env.reset(seed=seed)
        space, dt = env.space, env.dt  # type: ignore[attr-defined]
        start = time.process_time()
        for _ in range(steps):
            space.step(dt)
        spent += time.process_time() - start
    return spent / (count * steps)
