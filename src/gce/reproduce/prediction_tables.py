"""Predictions of 100 steps: with and without noise, and after adapting to more and more episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gce.envs import world_named
from gce.reproduce.cells import Cell
from gce.reproduce.experiment import Context, Preset
from gce.reproduce.methods import noisy, title
from gce.reproduce.statistics import Record, curves, markdown, paired, select, summarise, values_of
from gce.reproduce.tasks import SEEN, TEST, Table, draw, loaded, prediction_errors, sizes_of

STEPS = (1, 10, 50, 100)


class PredictionTable(Table):
    """Made of predicted episodes."""

    planned = False

    def count(self, preset: Preset, settings: dict[str, Any], context: Context) -> int:
        return preset.trajectories

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        s = cell.settings
        world, unit = s["world"], world_named(s["world"]).observation_std
        setting = draw(world, sizes_of(world, SEEN), TEST + cell.seed, s["episodes"])
        rng = np.random.default_rng([cell.seed, 3])
        subject = loaded(context, world, s["method"]).adapt(
            noisy(setting.episodes, s["noise"], unit, rng) if s["noise"] else setting.episodes
        )
        start = setting.target.observations[0].astype(float)
        start = start + s["noise"] * unit * rng.standard_normal(start.shape)
        return error_figures(prediction_errors(subject, setting.target, unit, start))


def error_figures(errors: np.ndarray) -> dict[str, Any]:
    """NRMSE of each step, of some by name, and their mean; a path that leaves all numbers is a failure."""
    if not np.isfinite(errors).all():
        raise FloatingPointError(f"the prediction is not finite from step {int(np.argmin(np.isfinite(errors))) + 1} on")
    named = {f"step_{k}": float(errors[k - 1]) for k in STEPS if k <= len(errors)}
    return {**named, "mean": float(errors.mean()), "nrmse": [float(f"{e:.4g}") for e in errors]}


def _by_step(records: Sequence[Record]) -> list[tuple[float, float, float]]:
    paths = np.array([r["figures"]["nrmse"] for r in records if "figures" in r])
    if len(paths) == 0:
        return []
    spread = paths.std(0, ddof=1) if len(paths) > 1 else np.zeros(paths.shape[1])
    return [(k + 1.0, float(m), float(s)) for k, (m, s) in enumerate(zip(paths.mean(0), spread, strict=True))]


class Prediction(PredictionTable):
    name: ClassVar[str] = "prediction"
    about: ClassVar[str] = "NRMSE of 100 predicted steps with and without 10% noise, Rope and Soft, ours and CKO"

    def rows(self, context: Context) -> list[dict[str, Any]]:
        return [
            {"world": world, "method": name, "noise": noise, "episodes": 8}
            for world in ("rope", "soft")
            for noise in (0.0, 0.1)
            for name in ("ours_gaussian", "cko", "kpm", "ours_shipped")
        ]

    def report(self, records: Sequence[Record], folder: Path) -> str:
        rows = []
        for world in values_of(records, "world"):
            for noise in (0.0, 0.1):
                mine = select(records, world=world, noise=noise)
                base = summarise(select(mine, method="cko"), "mean")
                for name in values_of(mine, "method"):
                    own = select(mine, method=name)
                    steps = [summarise(own, f"step_{k}") for k in STEPS]
                    mean = summarise(own, "mean")
                    test = "–" if name == "cko" else paired(mean, base)
                    rows.append(
                        [world, f"{100 * noise:g}%", title(name), *(f"{s.mean:.3f}" for s in steps), mean, test]
                    )
                series = {title(name): _by_step(select(mine, method=name)) for name in values_of(mine, "method")}
                word = "noisy" if noise else "clean"
                curves(series, folder / f"prediction_{world}_{word}.png", "step", f"NRMSE, {world}, {word}")
        header = ["world", "noise", "method", *(f"step {k}" for k in STEPS), "mean of 100", "mean - CKO's"]
        return "NRMSE from an episode's first observation.\n\n" + markdown(header, rows)


class SampleEfficiency(PredictionTable):
    name: ClassVar[str] = "sample_efficiency"
    about: ClassVar[str] = "NRMSE of 100 predicted steps after adapting to 1 to 32 episodes, ours and CKO"

    def rows(self, context: Context) -> list[dict[str, Any]]:
        return [
            {"world": world, "method": name, "noise": 0.0, "episodes": episodes}
            for world in ("rope", "soft")
            for episodes in (1, 2, 4, 8, 16, 32)
            for name in ("ours_gaussian", "cko", "ours_shipped")
        ]

    def report(self, records: Sequence[Record], folder: Path) -> str:
        rows = []
        numbers = sorted(values_of(records, "episodes"))
        for world in values_of(records, "world"):
            series = {}
            for name in values_of(select(records, world=world), "method"):
                mine = select(records, world=world, method=name)
                found = {k: summarise(select(mine, episodes=k), "mean") for k in numbers}
                rows.append([world, title(name), *found.values()])
                series[title(name)] = [(k, s.mean, s.std) for k, s in found.items() if s.n > 1]
            path = folder / f"sample_efficiency_{world}.png"
            curves(series, path, "episodes adapted to", f"mean NRMSE of 100 steps, {world}", log=True)
        header = ["world", "method", *(f"{k} episodes" for k in numbers)]
        return "Mean NRMSE of 100 steps.\n\n" + markdown(header, rows)
