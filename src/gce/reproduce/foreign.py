"""Systems of others: predictions after more and more episodes, ours beside what one would try first.

A folder holds KIND_train and KIND_validation, data set files (.h5) or archives (.npz) with arrays `K/NAME`, K the
number of a system: observations [episodes, T+1, nodes, d], actions [episodes, T, nodes, a], edges [2, E] and, if there
are any, edge_type, node_type, actuated; other arrays of four axes are actions in the place of `actions`, and get tables
of their own. Nothing here knows a kind. Of a validation system the last four episodes are
predicted from their first observation and their actions, after adapting to the first k,

    NRMSE = mean_t min(10, root mean square of (predicted - recorded) / std),   std: of the training recordings.
"""

from __future__ import annotations

import copy
import math
import warnings
import zipfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gce.baselines import adapt as adapt_baseline
from gce.baselines import load, save
from gce.baselines import train as train_baseline
from gce.baselines.base import FAR, Baseline
from gce.baselines.folder import about as about_baseline
from gce.baselines.folder import baseline_named
from gce.baselines.references import Persistence
from gce.envs import WORLDS
from gce.errors import InputError, undoubted
from gce.metrics import nrmse
from gce.model.files import about_model, load_model, save_model
from gce.names import METHODS
from gce.reproduce.experiment import Cell, Context, Experiment, Preset, digest
from gce.reproduce.recipes import OURS
from gce.reproduce.statistics import Record, markdown, select, values_of
from gce.reproduce.versions import method_version, tensor_digest
from gce.system.system import adapt
from gce.training.learning import train
from gce.trajectory import Dataset, Episode
from gce.trajectory.structure import find_structure

ADAPTED = (1, 2, 4, 8, 16, 32)
ASKED = 4
"""Episodes of a system that are predicted, its last."""
ALONE = ("persistence", "gns")
"""Methods that do not adapt."""
UNTRAINED = ("persistence", "dmdc")
TITLES = {"persistence": "persistence", "dmdc": "DMDc", "gns": "GNS, not tuned", "gns_tuned": "GNS, tuned"}
TABLE = (*TITLES, "published", "structured", "general")
ENDLESS = 10**6
"""Iterations of a training that time ends."""


class Foreign(Experiment):
    """Models that are missing are trained when cells are listed: what they became decides the runs."""

    name: ClassVar[str] = "foreign"
    about: ClassVar[str] = "NRMSE of whole episodes on systems of others, after 1 to 32 episodes (--data)"

    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        if context.data is None:
            context.leave_out("foreign needs recordings: give their folder with --data")
            return []
        found = []
        each = [(kind, files, acted) for kind, files in kinds_in(context.data).items() for acted in actions_in(*files)]
        for kind, files, acted in each:
            data = recordings(files[1], acted)
            of_kind = {"kind": kind, **({} if acted == "actions" else {"actions": acted})}
            counts = np.unique(data.groups, return_counts=True)[1][: preset.trajectories]
            for method in self.methods(data, context):
                trained: dict[str, Any] = {}
                conditions: dict[str, Any] = {"method": [method, _version(method)]}
                if method not in UNTRAINED:
                    trained = {"minutes": context.train_minutes}
                    place = _place(context, kind, acted, method)
                    subject(method, (files[0], acted), place.parent, context.train_minutes)
                    (tensors,) = place.glob("*.safetensors")
                    conditions |= {**trained, "model": tensor_digest(tensors)}
                for seed, count in enumerate(counts):
                    for k in (0,) if method in ALONE else ADAPTED:
                        if k + ASKED <= count:
                            settings = {**of_kind, "method": method, "episodes": k, **trained}
                            found.append(Cell(self.name, settings, seed, self.version, conditions, files))
        return sorted(found, key=lambda cell: cell.seed)

    def methods(self, data: Dataset, context: Context) -> list[str]:
        """Those of the table that are there: the paper's for recordings of its worlds."""
        for name in TABLE:
            if name not in (*TITLES, *METHODS):
                context.leave_out(f"there is no method {name} here; its rows are left out")
        known = [name for name in TABLE if name in TITLES or name in METHODS]
        for name in context.methods:
            if name not in known:
                raise InputError(f"foreign has no method {name!r}; it has {', '.join(known)}")
        known = [name for name in known if name in (context.methods or known)]
        return [name for name in known if name != "published" or data.world in WORLDS]

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        s, acted = cell.settings, cell.settings.get("actions", "actions")
        data = recordings(cell.files[1], acted)
        group = data.group(int(np.unique(data.groups)[cell.seed]))
        episodes = [data[int(k)] for k in group.episodes]
        unit = _unit(cell.files[0])
        place = _place(context, s["kind"], acted, s["method"])
        adapted = subject(s["method"], (cell.files[0], acted), place.parent, context.train_minutes)
        found = adapted(episodes[: s["episodes"]], episodes[-1])
        errors = []
        for episode in episodes[-ASKED:]:
            truth = episode.observations.astype(float)
            with undoubted(), np.errstate(over="ignore", invalid="ignore"):
                predicted = found.predict(truth[0], episode.actions, exogenous=episode.exogenous)
                wrong = nrmse(predicted[1:], truth[1:], unit)
            errors.append(np.nan_to_num(wrong, nan=FAR, posinf=FAR).clip(max=FAR).mean())
        return {"mean": float(np.mean(errors)), "nodes": group.graph.num_nodes}

    def report(self, records: Sequence[Record], folder: Path) -> str:
        parts = [
            "Mean (median) over systems of the NRMSE of whole episodes, clipped at 10, by the number of episodes\n"
            "adapted to; then how many systems a method of the package predicts better than a reference, and the ratio "
            "of the means."
        ]
        titles: dict[str, list[Record]] = {}
        for r in records:
            title = r["settings"]["kind"] + (
                f", actions: {r['settings']['actions']}" if "actions" in r["settings"] else ""
            )
            titles.setdefault(title, []).append(r)
        for title, mine in sorted(titles.items()):
            minutes = max((r["settings"].get("minutes", 0) for r in mine), default=0)
            parts += [f"## {title}, trained for {minutes:g} CPU minutes", _figures(mine), _wins(mine)]
        return "\n\n".join(parts)


# ---- tables ----


def errors_of(records: Sequence[Record], method: str, episodes: int) -> dict[int, float]:
    """By system; of methods that do not adapt the same for any number of episodes."""
    mine = select(records, method=method, episodes=0 if method in ALONE else episodes)
    return {r["seed"]: r["figures"]["mean"] for r in mine if "figures" in r}


def _figures(records: Sequence[Record]) -> str:
    rows = []
    for method in [name for name in TABLE if name in values_of(records, "method")]:
        each = [list(errors_of(records, method, k).values()) for k in ADAPTED]
        cells = [f"{np.mean(e):.3g} ({np.median(e):.3g})" if e else "–" for e in each]
        rows.append([TITLES.get(method, method), max(map(len, each)), *cells])
    return markdown(["method", "n", *map(str, ADAPTED)], rows)


def _wins(records: Sequence[Record]) -> str:
    there = values_of(records, "method")
    rows = []
    for ours in [name for name in METHODS if name in there]:
        for other in [name for name in ("dmdc", "gns_tuned", "structured") if name in there and name != ours]:
            cells = []
            for k in ADAPTED:
                left, right = errors_of(records, ours, k), errors_of(records, other, k)
                both = sorted(left.keys() & right.keys())
                ratio = np.mean([left[g] for g in both]) / np.mean([right[g] for g in both]) if both else math.nan
                cells.append(f"{sum(left[g] < right[g] for g in both)}/{len(both)}, {ratio:.2f}" if both else "–")
            rows.append([f"{ours} over {TITLES.get(other, other)}", *cells])
    return markdown(["wins, ratio", *map(str, ADAPTED)], rows) if rows else ""


# ---- methods ----

Adapting = Callable[[Sequence[Episode], Episode], Any]
"""(episodes to adapt to, one of the system) to what predicts."""


def _place(context: Context, kind: str, acted: str, method: str) -> Path:
    """The folder of a model."""
    return (
        context.models / "foreign" / (kind if acted == "actions" else f"{kind}_{acted}") / method.removesuffix("_tuned")
    )


def _version(method: str) -> int:
    if method == "persistence":
        return 1
    return method_version(OURS if method in METHODS else method.removesuffix("_tuned"))


def subject(method: str, of: tuple[Path, str], kind: Path, minutes: float) -> Adapting:
    """of: the recordings to train on, and which actions; kind: the folder of its models."""
    if method == "persistence":
        return lambda episodes, one: Persistence()
    place = kind / method.removesuffix("_tuned")
    if method in METHODS:
        model = _trained_ours(method, of, place, minutes)

        def adapted(episodes: Sequence[Episode], one: Episode) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few episodes leave much to the ridge
                return adapt(model, episodes, measure=False)

        return adapted
    baseline = _baseline(method.removesuffix("_tuned"), of, place, minutes)
    if method == "gns":
        return lambda episodes, one: copy.deepcopy(baseline).double().adapted(one.graph)
    return lambda episodes, one: adapt_baseline(baseline, episodes)


def _about(file: Path, minutes: float) -> dict[str, Any]:
    """What a kept model must say of itself to be used again."""
    return {"recordings": digest(file), "cpu_minutes_asked": minutes}


def _same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(found.get(name) == value for name, value in wanted.items())


@lru_cache(maxsize=32)
def _trained_ours(method: str, of: tuple[Path, str], place: Path, minutes: float) -> Any:
    """The model in its place, trained there where it is missing or of other recordings."""
    about = _about(of[0], minutes)
    if (place / "model.json").is_file() and _same(about_model(place), about):
        return load_model(place)
    done = train(recordings(*of), method=method, minutes=minutes, folder=place / _stem(about), tell=lambda now: None)
    save_model(done.model, place, {**about, "seconds": done.seconds, "validation_nrmse": done.validation_nrmse})
    return done.model


@lru_cache(maxsize=32)
def _baseline(name: str, of: tuple[Path, str], place: Path, minutes: float) -> Any:
    about = _about(of[0], minutes)
    if (place / "baseline.json").is_file() and _same(about_baseline(place), about):
        return load(place)
    timed = (
        {"minutes": minutes, "iterations": ENDLESS, "parts": ()} if hasattr(baseline_named(name), "schedule") else {}
    )
    model: Baseline = train_baseline(
        name, recordings(*of), folder=place / _stem(about) if timed else None, validation_systems=1, schedule=timed
    )
    save(model, place, about)
    return model


def _stem(about: dict[str, Any]) -> str:
    """A folder of its own for the checkpoint of each training."""
    return f"{about['recordings'][:8]}_{about['cpu_minutes_asked']:g}"


# ---- recordings ----


def kinds_in(folder: Path) -> dict[str, tuple[Path, Path]]:
    """(training, validation) files by kind; refused where there is none, or one has no other part."""
    if not folder.is_dir():
        raise InputError(
            f"--data is {folder}, which is not a folder; name one with KIND_train and KIND_validation files"
        )
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()):
        kind, _, part = file.stem.rpartition("_")
        if kind and part in ("train", "validation") and file.suffix in (".h5", ".npz"):
            if part in found.setdefault(kind, {}):
                raise InputError(f"{folder} has {kind}_{part} as .h5 and as .npz; keep one of them")
            found[kind][part] = file
    for kind, parts in found.items():
        if len(parts) == 1:
            (part,) = {"train", "validation"} - parts.keys()
            raise InputError(
                f"{folder} has no {kind}_{part}.h5 or .npz beside {kind}; add it, or remove the other part"
            )
    if not found:
        raise InputError(f"{folder} holds no recordings; put KIND_train and KIND_validation there, .h5 or .npz files")
    return {kind: (parts["train"], parts["validation"]) for kind, parts in found.items()}


def actions_in(train: Path, test: Path) -> list[str]:
    """The arrays of a kind that hold actions."""
    others = []
    if train.suffix == test.suffix == ".npz":
        shared = [{n for n, a in next(iter(_read(file).values())).items() if a.ndim == 4} for file in (train, test)]
        others = sorted((shared[0] & shared[1]) - {"observations", "actions"})
    return ["actions", *others]


@lru_cache(maxsize=32)
def _unit(file: Path) -> np.ndarray:
    """The standard deviations of recordings, which errors are measured in."""
    return recordings(file).normalisation().observation_std


@lru_cache(maxsize=32)
def recordings(file: Path, actions: str = "actions") -> Dataset:
    """A data set in memory; the time step of archives is that of their velocities, where there are any.

    actions: the array of an archive that holds them.
    """
    if file.suffix == ".h5":
        return Dataset.open(file)
    systems = _read(file)
    rows = [(g, s, e) for g, s in systems.items() for e in range(len(s["observations"]))]
    data = Dataset.from_arrays(
        [s["observations"][e].astype(float) for _, s, e in rows],
        [s[actions][e].astype(float) for _, s, e in rows],
        [s["edges"] for _, s, _ in rows],
        groups=[g for g, _, _ in rows],
        edge_type=_of_all(rows, "edge_type"),
        node_type=_of_all(rows, "node_type"),
        actuated=_of_all(rows, "actuated"),
    )
    found = find_structure(data)
    steps = [move[-1] for move in (*found.moves, *found.turns)]
    if steps:
        data.metadata["dt"] = float(f"{np.median(steps):.2g}")
    return data


def _of_all(rows: Sequence[tuple[int, dict[str, np.ndarray], int]], name: str) -> list[Any] | None:
    """What describes the system of each episode, where all say it."""
    return [s[name] for _, s, _ in rows] if all(name in s for _, s, _ in rows) else None


@lru_cache(maxsize=8)
def _read(file: Path) -> dict[int, dict[str, np.ndarray]]:
    """Arrays by system and name."""
    found: dict[int, dict[str, np.ndarray]] = {}
    try:
        with np.load(file, allow_pickle=False) as archive:
            for key in archive.files:
                system, _, name = key.partition("/")
                if not system.isdecimal() or not name:
                    raise InputError(f"{file} has an array {key!r}; name arrays K/NAME, such as 0/observations")
                found.setdefault(int(system), {})[name] = archive[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is not an archive of plain arrays: {error}; write it with numpy.savez") from None
    for system, arrays in sorted(found.items()):
        for name, rank in (("observations", 4), ("actions", 4), ("edges", 2)):
            if name not in arrays:
                raise InputError(f"{file}: system {system} has no array {system}/{name}; add it")
            if arrays[name].ndim != rank:
                raise InputError(f"{file}: {system}/{name} has {arrays[name].ndim} axes, expected {rank}")
        if len(arrays["observations"]) != len(arrays["actions"]):
            raise InputError(f"{file}: system {system} has observations and actions of different numbers of episodes")
    if not found:
        raise InputError(f"{file} holds no arrays; name them K/NAME, such as 0/observations")
    return dict(sorted(found.items()))
