"""Of answers that turn out well, how many carry a warning? And of those that do not, how many carry none?

A prediction turns out well where its error over an episode left out is at most half of that of persistence; a plan,
where what the world then does is at most half as far from the goal as doing nothing. Worlds are drawn anew and have the
models of the package; systems of others (--data, a folder as of `gce reproduce foreign`) those of a folder (--models).

    python -m bench.doubts --out doubts.json
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gce.envs import world_named
from gce.envs.recording import record_system
from gce.errors import Doubt
from gce.files import write_text
from gce.model.files import load_model, shipped
from gce.model.model import Model
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller, in_space_of
from gce.progress import run_module
from gce.system.system import System, adapt
from gce.trajectory import Episode

WORLDS = ("rope", "soft", "swim", "grid", "flock")
COUNTS = (1, 2, 4, 8)
"""Episodes adapted to."""
WELL = 0.5
STEPS, ASKED = 100, 2


def told(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What work gives, and the doubts told meanwhile."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        answer = work()
    return answer, [str(one.message) for one in found if issubclass(one.category, Doubt)]


def prediction(system: System, episode: Episode) -> tuple[bool, list[str]]:
    """(whether it turned out well, what was doubted)."""
    truth = episode.observations.astype(float)
    unit = system.model.arrays.observation_std
    predicted, doubts = told(lambda: system.predict(truth[0], episode.actions, exogenous=episode.exogenous))
    with np.errstate(all="ignore"):
        wrong, still = (float(np.sqrt(np.square((o - truth) / unit).mean())) for o in (predicted, truth[:1]))
    return bool(wrong <= WELL * still), doubts


def predictions(model: Model, episodes: Sequence[Episode], counted: Counter[str]) -> None:
    """After more and more episodes, of the last ones; every answer carries what its system was doubted for."""
    for count in COUNTS:
        if count + ASKED > len(episodes):
            continue
        system, of_fit = told(lambda count=count: adapt(model, episodes[:count]))
        for episode in episodes[-ASKED:]:
            well, doubts = prediction(system, episode)
            count_one(counted, "predictions", well, [*of_fit, *doubts])


def count_one(counted: Counter[str], kind: str, well: bool, doubts: Sequence[str]) -> None:
    outcome = "well" if well else "badly"
    counted[f"{kind} that turned out {outcome}"] += 1
    counted[f"{kind} that turned out {outcome}, doubted"] += bool(doubts)
    for sentence in {" ".join(one.split()[:4]) for one in doubts} if well else ():
        counted[f"doubted though well: {sentence} ..."] += 1


def of_world(world: str, seeds: int, counted: Counter[str]) -> None:
    model = load_model(shipped(world)).requires_grad_(False)
    for seed in range(seeds):
        env = world_named(world)()
        env.reset(seed=7000 + seed)
        parameters, protocol = env.parameters, env.recipe.protocol
        episodes = record_system(env, 7000 + seed, max(COUNTS) + ASKED, STEPS)
        predictions(model, episodes, counted)
        goal = env.default_goal(env.graph.num_nodes)
        goal = episodes[0].observations[protocol.horizon].astype(float) if goal is None else goal
        system, of_fit = told(lambda episodes=episodes: adapt(model, episodes[:4]))
        env.reset(seed=seed, options={"parameters": parameters, "goal": goal})
        controller = Controller(system, in_space_of(model, problem_for(env, goal, protocol)))
        run, doubts = told(lambda env=env, c=controller, p=protocol: control(env, c, p.feedback))
        reached = figures(env, run)
        count_one(counted, "plans", reached["control_error"] <= WELL * reached["nothing"], [*of_fit, *doubts])


def of_kind(kind: str, files: Sequence[Path], model: Model, systems: int, counted: Counter[str]) -> None:
    from gce.reproduce.foreign import recordings

    data = recordings(files[1], "actions")
    for group in np.unique(data.groups)[:systems]:
        predictions(model, [data[int(k)] for k in data.group(int(group)).episodes], counted)


@dataclass
class Doubts:
    """Count the warnings of answers that turn out well, and of the others."""

    out: Path = Path("doubts.json")
    worlds: tuple[str, ...] = WORLDS
    seeds: int = 4
    """Systems of each world."""
    data: Path | None = None
    """A folder of recordings of others."""
    models: Path | None = None
    """A folder KIND/general of models of these."""

    def run(self) -> None:
        found: dict[str, Counter[str]] = {}
        for world in self.worlds:
            of_world(world, self.seeds, found.setdefault(world, Counter()))
            print(world, dict(found[world]), flush=True)
        if self.data is not None and self.models is not None:
            from gce.reproduce.foreign import kinds_in

            for kind, files in kinds_in(self.data).items():
                if (folder := self.models / kind / "general").is_dir():
                    model = load_model(folder).requires_grad_(False)
                    of_kind(kind, files, model, self.seeds, found.setdefault(kind, Counter()))
                    print(kind, dict(found[kind]), flush=True)
        total = sum(found.values(), Counter[str]())
        print("all", dict(total))
        write_text(self.out, json.dumps({**found, "all": total}, indent=2) + "\n")


if __name__ == "__main__":
    run_module(Doubts, resumes=False)
