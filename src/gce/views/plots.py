"""Pictures people look at: episodes as frames, frames as animations and film strips."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gce.envs import GraphEnv, world_named
from gce.envs.network import NetworkPicture
from gce.errors import InputError
from gce.trajectory import Episode

Frame = UInt8[np.ndarray, "height width 3"]


def episode_frames(
    world: str | None, episode: Episode, steps: Iterable[int], goal: np.ndarray | None = None
) -> Iterator[Frame]:
    """A picture of each step, with the action about to be taken, drawn by the episode's world.

    Data of no known world is drawn as a network whose colours are the first coordinate.
    """
    env = None if world is None else environment_of(world, episode)
    network = NetworkPicture(episode.graph) if env is None else None
    first = episode.observations[..., 0]
    middle, reach = float(first.mean()), float(np.abs(first - first.mean()).max()) or 1.0
    for t in steps:
        observation = episode.observations[t].astype(float)
        if env is not None:
            yield env.draw(observation, episode.actions[min(t, episode.length - 1)].astype(float), goal)
        elif network is not None:
            yield network.draw((observation[:, 0] - middle) / reach, f"step {t}")


def environment_of(world: str, episode: Episode) -> GraphEnv:
    """The world with an episode's parameters, at its start."""
    env = world_named(world)()
    env.reset(seed=episode.seed or 0, options={"parameters": episode.parameters})
    return env


def write_animation(frames: Iterable[Frame], path: Path | str, fps: float) -> None:
    """Write .mp4 or .gif, complete or not at all."""
    path = Path(path)
    _atomically(path, lambda target: (_write_mp4 if path.suffix == ".mp4" else _write_gif)(frames, target, fps))


def write_strip(frames: Sequence[Frame], path: Path | str, columns: int = 4) -> None:
    """Some frames side by side in one .png."""
    rows = [np.concatenate(list(frames[k : k + columns]), axis=1) for k in range(0, len(frames), columns)]
    blank = [np.pad(row, ((0, 0), (0, rows[0].shape[1] - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
    picture = Image.fromarray(np.concatenate(blank, axis=0))
    _atomically(Path(path), lambda target: picture.save(target, format="PNG"))


def _write_gif(frames: Iterable[Frame], target: Path, fps: float) -> None:
    pictures = [Image.fromarray(frame) for frame in frames]
    # One palette for all frames, from a few of them: smaller files and no flicker.
    sample = np.concatenate([np.asarray(p) for p in pictures[:: max(1, len(pictures) // 5)]], axis=0)
    palette = Image.fromarray(sample).quantize(128, method=Image.Quantize.MEDIANCUT)
    flat = [p.quantize(palette=palette, dither=Image.Dither.NONE) for p in pictures]
    # A GIF counts hundredths of a second, and viewers do not go below two.
    delay = max(20, 10 * round(100 / fps))
    flat[0].save(target, format="GIF", save_all=True, append_images=flat[1:], duration=delay, loop=0)


def _write_mp4(frames: Iterable[Frame], target: Path, fps: float) -> None:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise InputError("writing .mp4 needs the extra 'video': pip install 'gce[video]'; .gif works without") from None
    steps = iter(frames)
    first = next(steps)
    height, width = first.shape[:2]
    writer = imageio_ffmpeg.write_frames(
        str(target), (width, height), fps=fps, macro_block_size=2, output_params=["-f", "mp4"]
    )
    writer.send(None)
    for frame in (first, *steps):
        writer.send(np.ascontiguousarray(frame))
    writer.close()


def _atomically(path: Path, write: Callable[[Path], None]) -> None:
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; make it first or give another place for {path.name}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; give another place") from None
    finally:
        temporary.unlink(missing_ok=True)
