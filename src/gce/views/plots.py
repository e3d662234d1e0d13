"""Pictures people look at: episodes as frames, frames as animations and film strips.

Charts by matplotlib: predictions beside the truth, and how a controlled run went.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from gce.envs import GraphEnv, world_named
from gce.envs.parts import NetworkPicture
from gce.errors import InputError
from gce.files import written
from gce.planning.closed_loop import Run
from gce.system.prediction import Prediction
from gce.trajectory import Episode
from gce.views import style
from gce.views.plot import prediction_curves

Frame = UInt8[np.ndarray, "height width 3"]


def episode_frames(
    world: str | None, episode: Episode, steps: Iterable[int], goal: np.ndarray | None = None
) -> Iterator[Frame]:
    """A picture of each step, with the action about to be taken, drawn by the episode's world.

    Data of no known world is drawn as a network whose colours are the first coordinate.
    """
    observations, last = episode.observations.astype(float), episode.length - 1
    if world is not None:
        env = environment_of(world, episode)
        yield from (env.draw(observations[t], episode.actions[min(t, last)].astype(float), goal) for t in steps)
        return
    network, first = NetworkPicture(episode.graph), episode.observations[..., 0]
    middle, reach = float(first.mean()), float(np.abs(first - first.mean()).max()) or 1.0
    yield from (network.draw((observations[t, :, 0] - middle) / reach, f"step {t}") for t in steps)


def environment_of(world: str, episode: Episode) -> GraphEnv:
    """The world with an episode's parameters, at its start."""
    env = world_named(world)()
    env.reset(seed=episode.seed or 0, options={"parameters": episode.parameters})
    return env


def write_animation(frames: Iterable[Frame], path: Path | str, fps: float) -> None:
    """Write .mp4 or .gif, complete or not at all."""
    with written(_placed(path)) as target:
        (_write_mp4 if Path(path).suffix == ".mp4" else _write_gif)(frames, target, fps)


def write_strip(frames: Sequence[Frame], path: Path | str, columns: int = 4) -> None:
    """Some frames side by side in one .png."""
    rows = [np.concatenate(list(frames[k : k + columns]), axis=1) for k in range(0, len(frames), columns)]
    blank = [np.pad(row, ((0, 0), (0, rows[0].shape[1] - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
    picture = Image.fromarray(np.concatenate(blank, axis=0))
    with written(_placed(path)) as target:
        picture.save(target, format="PNG")


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
        raise InputError("writing .mp4 needs pip install imageio-ffmpeg; .gif works without") from None
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


def _placed(path: Path | str) -> Path:
    """A path whose folder is there."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; make it first or give another place for {path.name}")
    return path


def prediction_chart(
    result: Prediction,
    truth: Float[np.ndarray, "steps nodes d"],
    path: Path | str,
    nodes: Sequence[str] | None = None,
    coordinates: Sequence[str] | None = None,
) -> None:
    """A panel for each of the first coordinates: truth and prediction of some nodes with intervals, and the error.

    nodes, coordinates: their names, by default numbers.
    """
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"{path} must end in .png, .svg or .pdf")
    shown = np.unique(np.linspace(0, truth.shape[1] - 1, 3).astype(int)).tolist()
    shown_of = range(min(4, truth.shape[2]))
    figure, axes = style.panels(4 * (len(shown_of) + 1), 3.4, 1, len(shown_of) + 1)
    for coordinate, axis in zip(shown_of, axes, strict=False):
        arrays = truth, result.predicted, result.low, result.high
        prediction_curves(*arrays, coordinate, shown, axis, nodes)
        if axis is not axes[0]:
            axis.get_legend().remove()
        axis.set(
            ylabel="",
            title=f"coordinate {coordinate}" if coordinates is None else coordinates[coordinate],
            xlabel="step",
        )
    axes[0].legend(title="truth; dashed: predicted; shaded: intervals")
    axes[-1].plot(np.arange(1, len(truth)), result.nrmse, color="black")
    axes[-1].set(title=f"NRMSE, mean {result.nrmse.mean():.3f}", xlabel="step", ylim=(0, None))
    style.save(figure, path)


def control_chart(run: Run, env: GraphEnv, path: Path | str) -> None:
    """How far the run is from its goal at each step, what each plan expected, and the actions taken in their bounds."""
    figure, (away, acted) = style.panels(11, 3.6, 1, 2)
    unit, names, bounds = env.observation_std, env.node_names, env.action_bounds

    def distance(observations: np.ndarray) -> np.ndarray:
        return np.sqrt(np.square((observations - run.goal) / unit).mean((-1, -2)))

    away.plot(distance(run.observations), color="black", label="what happened")
    shown = list(zip(run.plans, run.planned_at, strict=True))
    for plan, start in shown[:: max(1, len(shown) // 4)]:
        steps = np.arange(start, start + len(plan.observations))
        away.plot(steps, distance(plan.observations), "--", label=f"planned at {start}")
    away.set(title="distance from the goal", xlabel="step", ylabel="rms, units of each coordinate", ylim=(0, None))
    away.legend(fontsize=8)
    busy = np.flatnonzero(np.abs(run.actions).max((0, 2)) > 0)
    for node in busy[np.unique(np.linspace(0, max(0, len(busy) - 1), 6).astype(int))] if len(busy) else []:
        acted.step(
            np.arange(len(run.actions)), run.actions[:, node, 0], where="post", label=f"{env.words[0]} {names[node]}"
        )
    for bound in np.unique(np.concatenate(bounds)[np.tile(env.actuated, 2), 0]):
        acted.axhline(bound, color="grey", linestyle=":", label="bounds" if bound > 0 else None)
    acted.set(title="actions, the first coordinate", xlabel="step", ylabel=env.action_names[0].replace("_", " "))
    acted.legend(fontsize=8)
    style.save(figure, path)
