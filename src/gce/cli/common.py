"""What commands share: names, the models and episodes that they find, and what `gce control --out` leaves."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from gce.errors import InputError
from gce.files import border, finite, guarded, read_bytes, read_json, read_npy, written_together


@dataclass(kw_only=True)
class Reads:
    """A command that reads files."""

    unchecked: bool = False
    """Use files though their checksums or digests say that they were changed."""


def optional(shown: str) -> Any:
    """How help shows an option that may be left out; its text says what happens then."""
    return tyro.conf.arg(metavar=shown, help_behavior_hint=lambda default: "")


Whole = Annotated[int | None, optional("INT")]
Real = Annotated[float | None, optional("FLOAT")]
Word = Annotated[str | None, optional("STR")]
Place = Annotated[Path | None, optional("PATH")]

WORDS = ("observation", "action", "exogenous")
"""What columns without a name are called, before their number."""
FIGURES, TIMINGS = "control.json", "timings.json"
OTHER = "give another place with --out"


@dataclass(frozen=True)
class Labels:
    """Names of the nodes and of the columns of observations, actions and exogenous inputs."""

    nodes: tuple[str, ...]
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    exogenous: tuple[str, ...]

    @classmethod
    def of(cls, known: Mapping[str, Any], system: Any) -> Labels:
        """known: `nodes`, `observation_names`, ...; what is not there, or does not fit the system, is numbered."""
        config = system.model.config
        sizes = (config.num_observations, config.num_actions, config.num_exogenous)
        columns = (
            _names(known.get(f"{word}_names"), size, f"{word}_") for word, size in zip(WORDS, sizes, strict=True)
        )
        return cls(_names(known.get("nodes"), system.graph.num_nodes, ""), *columns)


def known_names(metadata: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What a data set says of names, in its own metadata and among the parameters of a system; JSON values."""
    found = {f"{word}_names": metadata.get(f"{word}_names") for word in WORDS}
    return {name: value for name, value in {"nodes": parameters.get("nodes"), **found}.items() if value}


def _names(given: Any, count: int, before: str) -> tuple[str, ...]:
    fits = isinstance(given, list) and len(set(map(str, given))) == len(given) == count
    return tuple(map(str, given)) if fits else tuple(f"{before}{k}" for k in range(count))


def check_numbers(command: Any, *names: str) -> None:
    """Arguments of a command: these are at least 1, where they are given, and its noise is a share."""
    for name in names:
        value = getattr(command, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}, expected at least 1")
    if getattr(command, "seed", 0) < 0:
        raise InputError(f"--seed is {command.seed}, expected 0 or more")
    check_share("--noise", getattr(command, "noise", 0.0))
    check_share("--process-noise", getattr(command, "process_noise", 0.0))


def check_share(flag: str, value: float) -> None:
    """Noise is a share of the units, at most all of them."""
    if not 0 <= value <= 1:
        raise InputError(f"{flag} is {value:g}, expected a share of the units from 0 to 1; 10% is 0.1")


def told(answer: dict[str, Any]) -> str:
    """An answer as JSON."""
    return json.dumps(finite(answer))


def model_of_method(folder: Path | None, suited: str, world: str, method: str | None) -> Any:
    """The model of a folder, or the one that comes with the package; refused where it is of another method.

    suited, world: the names that one comes by, the first first; the usual method has one for the first.
    """
    from gce.model.files import load_model, shipped
    from gce.names import USUAL, check_same

    if folder is None:
        try:
            folder = shipped(suited, method)
        except InputError:
            if method in (None, USUAL) or world == suited:
                raise
            folder = shipped(world, method)
    model = load_model(folder)
    check_same(method, model.method, f"the model in {folder}")
    return model


def find_model(folder: Path | None, data: Any, forms: bool = False, method: str | None = None) -> Any:
    """The model of a folder, or the one that comes with the package for the data's world.

    forms: one whose form of the operator may be changed.
    """
    if folder is None and data.world is None:
        raise InputError("the file is of no known world; name a model with --model")
    suited = str(data.world) if forms or folder is not None else _suited(data)
    model = model_of_method(folder, suited, str(data.world), method)
    if model.config.world != data.world:
        raise InputError(
            f"the model is of the world {model.config.world}, the data of {data.world}; give its own with --model"
        )
    return model


def _suited(data: Any) -> str:
    """The name of the shipped model for data of a world."""
    from gce.envs import WORLDS

    if data.world not in WORLDS:
        return str(data.world)
    settings = data.metadata.get("recording", {}).get("settings", {})
    sizes = (data.group(int(group)).graph.num_nodes for group in set(data.groups.tolist()))
    return WORLDS[data.world].model_for(settings, sizes)


def others_of_group(data: Any, episode: int, count: int) -> list[int]:
    """The episodes that follow in the same group, going round: so many, or all where there are fewer."""
    members = data.group(int(data.groups[episode])).episodes.tolist()
    place = members.index(episode)
    others: list[int] = members[place + 1 :] + members[:place]
    if not others:
        raise InputError(f"episode {episode} is the only one of its system; there is no other to adapt to")
    return others[:count]


def episode_of(data: Any, file: Path | str, number: int) -> Any:
    """An episode by its number; others are refused."""
    if not 0 <= number < len(data):
        raise InputError(f"{file} has the episodes 0 to {len(data) - 1}, asked for {number}; choose one of these")
    return data[number]


def read_cost(flag: str, text: str | None) -> Any:
    """A cost from a command: a number, numbers separated by commas, or a file of them (.json, .npy, .csv)."""
    import numpy as np

    from gce.control.problem import check_cost

    if text is None:
        return None
    path = Path(text)
    kinds = "a number, numbers separated by commas, or a file (.json, .npy, .csv)"
    with border(f"{flag} {text!r}", kinds, "give one"):
        found = table_of(path)
        if found is None:
            found = np.array([float(part) for part in text.split(",")])
        if not np.isfinite(found).all():
            raise ValueError("it holds numbers that are not finite")
    check_cost(flag, found)
    return float(found.reshape(-1)[0]) if found.size == 1 else found


def table_of(path: Path) -> Any:
    """The numbers of a file without names (.json, .npy, .csv), NaN where it says nothing; None for another ending."""
    import numpy as np

    if path.suffix == ".json":
        found = np.array(read_json(path, constants=True))
    elif path.suffix == ".npy":
        found = read_npy(path)
    elif path.suffix == ".csv":
        found = np.loadtxt(read_bytes(path).decode("utf-8-sig").splitlines(), delimiter=",", ndmin=2)
    else:
        return None
    if found.dtype.kind not in "iuf" and found.tolist() not in ([], None):
        empty = found.dtype.kind == "O" and all(v is None or isinstance(v, int | float) for v in found.reshape(-1))
        if not empty:
            raise ValueError(f"it holds {found.dtype} values, expected numbers")
    return found.astype(np.float64)


def goal_at(episode: Any, step: int) -> Any:
    """Where an episode was at a step [nodes, d]."""
    if step > episode.length:
        raise InputError(
            f"the episode has {episode.length} steps, the goal is of step {step}; give an earlier --goal-step"
        )
    return episode.observations[step].astype(float)


def units(world: str | None, model: Any) -> Any:
    """What errors are measured in: the world's fixed units, or the training data's where there is no world."""
    from gce.envs import WORLDS

    return WORLDS[world].observation_std if world in WORLDS else model.observation_std.double().numpy()


# ---- what is left: runs on a simulator, and plans for systems without one ----


def write_run(folder: Path, env: Any, run: Any, answer: dict[str, Any], details: Any) -> None:
    """The episode, its figures, its animation, a chart and what a report needs."""
    from gce.trajectory import Writer
    from gce.views.plots import control_chart, write_animation
    from gce.views.report.details import write_details

    with written_together(folder, OTHER) as place:
        answer = _timed_apart(answer, place)
        with Writer(place / "episode.h5", {**env.describe(), "control": answer}) as writer:
            group = writer.add_group(env.graph, dataclasses.asdict(env.parameters))
            writer.add_episode(group, run.observations, run.actions)
        (place / FIGURES).write_text(json.dumps({**answer, "goal": run.goal.tolist()}, indent=2) + "\n")
        last = len(run.actions) - 1
        frames = [env.draw(o, run.actions[min(t, last)], run.goal) for t, o in enumerate(run.observations)]
        write_animation([*frames, *[frames[-1]] * 15], place / "control.gif", min(30.0, 1 / env.dt))
        control_chart(run, env, place / "control.svg")
        write_details(details, place)
    _say(folder, "episode.h5, control.json, control.gif, control.svg")


def write_plan(folder: Path, plan: Any, labels: Labels, answer: dict[str, Any], details: Any) -> None:
    """Actions and expected observations as tables in the names of the system, figures, and what a report needs."""
    from gce.views.report.details import write_details

    with written_together(folder, OTHER) as place:
        _write_table(place / "plan.csv", labels.nodes, labels.actions, plan.actions)
        _write_table(place / "predicted.csv", labels.nodes, labels.observations, plan.observations)
        (place / FIGURES).write_text(json.dumps(_timed_apart(answer, place), indent=2) + "\n")
        write_details(details, place)
    _say(folder, "plan.csv, predicted.csv, control.json")


def write_ran(folder: Path, ran: Any, labels: Labels, bounds: Any, answer: dict[str, Any]) -> None:
    """What happened on a system of one's own, as a data set to learn from, and figures."""
    from gce.trajectory import Limits, Writer

    names = {f"{word}_names": list(getattr(labels, f"{word}s" if word != "exogenous" else word)) for word in WORDS}
    with written_together(folder, OTHER) as place:
        answer = _timed_apart(answer, place)
        with Writer(place / "episodes.h5", names) as writer:
            group = writer.add_group(ran.graph, {"nodes": list(labels.nodes)}, Limits(*bounds))
            for episode in ran.episodes:
                writer.add_episode(group, episode.observations, episode.actions, episode.exogenous)
        (place / FIGURES).write_text(json.dumps(answer, indent=2) + "\n")
    _say(folder, "episodes.h5, control.json")


def _timed_apart(answer: dict[str, Any], place: Path) -> dict[str, Any]:
    """An answer without what differs between equal runs, which gets a file of its own; JSON has no infinity."""
    timings = {name: value for name, value in answer.items() if name.endswith("seconds")}
    (place / TIMINGS).write_text(json.dumps(timings) + "\n")
    found: dict[str, Any] = finite({name: value for name, value in answer.items() if name not in timings})
    return found


def _write_table(file: Path, nodes: Sequence[str], columns: Sequence[str], values: Any) -> None:
    """A row a step and node."""
    with open(file, "w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened, lineterminator="\n")
        table.writerow(["step", "node", *map(guarded, columns)])
        for step, rows in enumerate(values):
            table.writerows(
                [step, guarded(node), *(f"{v:.9g}" for v in row)] for node, row in zip(nodes, rows, strict=True)
            )


def _say(folder: Path, files: str) -> None:
    print(f"{folder}: {files}; `gce report {folder}` makes a page of it", file=sys.stderr)
