"""Predictions of 100 steps: with and without noise, after more and more episodes, and of systems recorded by others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gce.envs import world_named
from gce.envs.recording import import_recordings
from gce.reproduce import paper
from gce.reproduce.experiment import Cell, Context, Experiment, Preset
from gce.reproduce.methods import AS_PUBLISHED, IN_FEATURES, title
from gce.reproduce.recipes import GENERAL, PUBLISHED
from gce.reproduce.statistics import (
    Point,
    Record,
    curves,
    markdown,
    paired,
    point_of,
    select,
    short,
    summarise,
    values_of,
)
from gce.reproduce.tasks import (
    SEEN,
    TEST,
    Setting,
    WorldTable,
    control_cell,
    draw,
    loaded,
    prediction_errors,
    protocol_for,
    run_control,
    sizes_of,
)
from gce.reproduce.tuning import chosen_cost, methods_with_long
from gce.trajectory import Dataset

STEPS = (1, 10, 50, 100)


class PredictionTable(WorldTable):
    """Made of predicted episodes."""

    planned = False

    def count(self, preset: Preset, settings: dict[str, Any], context: Context) -> int:
        return preset.trajectories

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        s = cell.settings
        world, unit = s["world"], world_named(s["world"]).observation_std
        setting = draw(world, sizes_of(world, SEEN), TEST + cell.seed, s["episodes"])
        rng = np.random.default_rng([cell.seed, 3])

        def seen(observations: np.ndarray) -> np.ndarray:
            """With independent normal noise, a share of the units."""
            return observations.astype(float) + s["noise"] * unit * rng.standard_normal(observations.shape)

        episodes = setting.episodes
        if s["noise"]:
            episodes = [replace(episode, observations=seen(episode.observations)) for episode in episodes]
        adapted = loaded(context, world, s["method"]).adapt(episodes)
        start = seen(setting.target.observations[0])
        return error_figures(prediction_errors(adapted, setting.target, unit, start))


def error_figures(errors: np.ndarray) -> dict[str, Any]:
    """NRMSE of each step, of some by name, and their mean; a path that leaves all numbers is a failure."""
    if not np.isfinite(errors).all():
        raise FloatingPointError(f"the prediction is not finite from step {int(np.argmin(np.isfinite(errors))) + 1} on")
    named = {f"step_{k}": float(errors[k - 1]) for k in STEPS if k <= len(errors)}
    return {**named, "mean": float(errors.mean()), "nrmse": [float(f"{e:.4g}") for e in errors]}


def _by_step(records: Sequence[Record]) -> list[Point]:
    paths = np.array([r["figures"]["nrmse"] for r in records if "figures" in r])
    if len(paths) == 0:
        return []
    spread = paths.std(0, ddof=1) if len(paths) > 1 else np.zeros(paths.shape[1])
    return [
        (k + 1.0, float(m), float(s), len(paths)) for k, (m, s) in enumerate(zip(paths.mean(0), spread, strict=True))
    ]


class PredictedSteps(PredictionTable):
    name: ClassVar[str] = "prediction"
    about: ClassVar[str] = "NRMSE of 100 predicted steps with and without 10% noise, Rope and Soft"

    def rows(self, context: Context) -> list[dict[str, Any]]:
        return [
            {"world": world, "method": name, "noise": noise, "episodes": 8}
            for world in ("rope", "soft")
            for noise in (0.0, 0.1)
            for name in ("ours_gaussian", "cko", "kpm", "ours_shipped", PUBLISHED, GENERAL)
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
                curves(series, folder / f"prediction_{world}_{word}.svg", "step", f"NRMSE, {world}, {word}")
        header = ["world", "noise", "method", *(f"step {k}" for k in STEPS), "mean of 100", "mean - CKO's"]
        return "NRMSE from an episode's first observation.\n\n" + markdown(header, rows)


class SampleEfficiency(PredictionTable):
    name: ClassVar[str] = "sample_efficiency"
    about: ClassVar[str] = "NRMSE of 100 predicted steps after adapting to 1 to 32 episodes"

    def rows(self, context: Context) -> list[dict[str, Any]]:
        return [
            {"world": world, "method": name, "noise": 0.0, "episodes": episodes}
            for world in ("rope", "soft")
            for episodes in (1, 2, 4, 8, 16, 32)
            for name in ("ours_gaussian", "cko", "ours_shipped", PUBLISHED, GENERAL)
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
                series[title(name)] = [point_of(k, s) for k, s in found.items() if s.n > 1]
            path = folder / f"sample_efficiency_{world}.svg"
            curves(series, path, "episodes adapted to", f"mean NRMSE of 100 steps, {world}", log=True)
        header = ["world", "method", *(f"{k} episodes" for k in numbers)]
        return "Mean NRMSE of 100 steps.\n\n" + markdown(header, rows)


class RecordedByOthers(Experiment):
    """All methods on systems recorded by others: the goals published with Li et al. (2020), where the folder is there.

    A file WORLD_GROUP.npz holds nine episodes of one system: the first is predicted and its observation at the horizon
    is the goal, the others are adapted to. The rows of the published models are what their own code reached, for
    comparison. CKO planned as published (the last features near those of the goal, with the published weight of
    actions) shows whether our implementation is as good. The weight is that of published features, whose squared
    distances are `paper.FEATURES_PER_METRIC` / coordinates of those of observations; of ours they are the same, so it
    is divided by that.
    """

    name: ClassVar[str] = "recorded"
    about: ClassVar[str] = "all methods on the systems and goals published with Li et al. (2020)"

    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        files = sorted(context.recorded.glob("*_*.npz")) if context.recorded else []
        if not files:
            context.leave_out("no recordings are there, recorded is left out; name their folder with --recorded")
        tuned = context.records("action_weight")
        found = []
        for file in files:
            world, _, group = file.stem.partition("_")
            for plan in _plans(world, tuned):
                model = context.method(world, plan.get("model", plan["method"]))
                if model is None or int(group) >= preset.count(world, plan["method"]):
                    continue
                settings = {"world": world, **plan}
                found.append(replace(control_cell(self, int(group), settings, model), files=(file,)))
        return sorted(found, key=lambda cell: cell.seed)

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        world, name = cell.settings["world"], cell.settings.get("model", cell.settings["method"])
        env = world_named(world)()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "system.h5"
            import_recordings([cell.files[-1]], world, file)
            with Dataset.open(file) as data:
                target, *rest = list(data)
        env.reset(seed=0, options={"parameters": target.parameters})
        goal = target.observations[env.recipe.protocol.horizon].astype(float)
        method = loaded(context, world, name)
        adapted = method.adapt(rest)
        setting, protocol = Setting(env, 0, goal, target, rest), protocol_for(world, cell.settings)
        found = run_control(setting, method, adapted, protocol)[1]
        errors = prediction_errors(adapted, target, env.observation_std)
        try:
            predicted = {f"nrmse_{k}": v for k, v in error_figures(errors).items() if k != "nrmse"}
        except FloatingPointError:
            predicted = {"nrmse_mean": float("inf")}
        return {**found, **predicted}

    def report(self, records: Sequence[Record], folder: Path) -> str:
        header = ["method", "control error", "positions", "over nothing", "cost", "mean NRMSE", "error - CKO's"]
        parts = []
        for world in values_of(records, "world"):
            mine = select(records, world=world)
            rows: list[list[Any]] = []
            base = summarise(select(mine, method="cko"), "control_error")
            for name in values_of(mine, "method"):
                own = select(mine, method=name)
                figures = ("control_error_positions", "control_error_over_nothing", "cost", "nrmse_mean")
                error = summarise(own, "control_error")
                test = "–" if name == "cko" else paired(error, base)
                rows.append([title(name), error, *(f"{summarise(own, f).mean:.3g}" for f in figures), test])
            rows += _published(world, sorted({r["seed"] for r in mine}))
            parts.append(f"## {world.capitalize()}\n\n{markdown(header, rows)}")
        return "\n".join(parts)


def _plans(world: str, tuned: Sequence[Record]) -> list[dict[str, Any]]:
    """The settings of the rows."""
    names = methods_with_long(world)
    chosen = [{"method": name, "action_cost": chosen_cost(tuned, world, name)} for name in names]
    kind = world_named(world)
    weight = kind.action_weight * len(kind.observation_std) / paper.FEATURES_PER_METRIC
    costs = {"action_cost": weight, "state_cost": 0.0, "costs_alone": True}
    published = [
        {"method": name + AS_PUBLISHED, "model": name + IN_FEATURES, **costs}
        for name in names
        if name.startswith("cko") and not name.endswith(IN_FEATURES)
    ]
    return chosen + published


def _published(world: str, groups: Sequence[int]) -> list[list[Any]]:
    """What the published models reach: on all their groups, and on those that are here."""
    rows: list[list[Any]] = []
    for (where, name), (error, places, mean) in paper.PUBLISHED.items():
        if where == world:
            rows.append([f"{title(name)}, published model", _told(error, 8), places[0], "–", "–", mean, "–"])
    known = paper.PUBLISHED_GROUPS[world]
    if any(group >= len(known[0]) for group in groups):
        return rows
    errors, places_, means = (np.array(figures)[groups] for figures in known)
    spread = (errors.mean(), errors.std(ddof=1)) if len(groups) > 1 else (errors.mean(), np.nan)
    told = [_told(spread, len(groups)), short(places_.mean()), "–", "–", short(means.mean()), "–"]
    return [*rows, [f"{title('cko')}, published model, the groups that are here", *told]]


def _told(figure: tuple[float, float], n: int) -> str:
    return f"{short(figure[0])} ± {short(figure[1])} (n {n})"
