"""Plans of the general method for systems of others, carried out in their simulators.

    python -m bench.foreign_control FOLDER [KIND ...] [--minutes 3] [--results results]

FOLDER holds KIND_train.npz and KIND_validation.npz, as `gce reproduce foreign` reads them, with the states that
episodes began with (`K/states`), and systems.py, whose `system(kind, part, k, nodes)` makes the simulator of a system:
restore(state) and step(action) give an observation. The model of a kind is the one that `gce reproduce foreign` keeps;
it is trained where there is none.

Of each validation system the last four episodes are tasks: from where one began to where it was at step 40, within the
recorded bounds, after adapting to its first eight. error = |o - o*| / |o*| at step 40, over all coordinates, and over
those divided by their standard deviation in training; feedback plans again every ten steps. The costs are those of
`gce control` on own data, the same for all kinds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gce
from gce.cli.own_plan import ACTION_COST
from gce.errors import InputError
from gce.reproduce.foreign import ASKED, kinds_in, recordings, subject

ADAPTED, HORIZON, AGAIN = 8, 40, 10


def simulators(folder: Path) -> Any:
    """The module systems.py of a folder."""
    spec = importlib.util.spec_from_file_location("systems", folder / "systems.py")
    if spec is None or spec.loader is None or not (folder / "systems.py").is_file():
        raise InputError(f"{folder} has no systems.py; name the folder with the simulators")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Task:
    """From where an episode began to where it was at step 40."""

    simulator: Any
    state: np.ndarray
    episode: gce.Episode
    system: Any
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def goal(self) -> np.ndarray:
        return self.episode.observations[HORIZON].astype(float)

    def plan(self, o: np.ndarray, steps: int) -> Any:
        unit = self.system.model.action_std.double().numpy()
        costs = {"action_cost": ACTION_COST, "unit": self.std, "action_unit": unit}
        problem = gce.Problem(horizon=steps, goal=self.goal, low=self.low, high=self.high, **costs)
        return gce.Controller(self.system, problem).plan(o, opening=steps == HORIZON)

    def end(self, again: int, actions: np.ndarray | None = None) -> tuple[np.ndarray, list[Any]]:
        """Where actions, or plans made anew so often, lead, and the plans."""
        o, plans = self.simulator.restore(self.state), []
        for t in range(HORIZON):
            if actions is None and t % again == 0:
                plans.append(self.plan(o, HORIZON - t))
            o = self.simulator.step(plans[-1].actions[t % again] if actions is None else actions[t])
        return o, plans

    def run(self) -> dict[str, Any]:
        clock = time.process_time()
        acted = self.episode.actions.astype(float)
        (opened, (first,)), (fed, later) = self.end(HORIZON), self.end(AGAIN)
        ends = {
            "nothing": self.end(0, 0 * acted)[0],
            "recorded": self.end(0, acted)[0],
            "open": opened,
            "feedback": fed,
            "expected": first.observations[-1],
        }
        errors = {}
        for end, unit in (("", 1.0), ("_scaled", self.std)):
            size = np.linalg.norm(self.goal / unit)
            errors |= {name + end: float(np.linalg.norm((o - self.goal) / unit) / size) for name, o in ends.items()}
        return {
            "errors": errors,
            "status": [str(plan.status) for plan in (first, *later)],
            "plan_seconds": first.seconds,
            "seconds": time.process_time() - clock,
        }


def control(systems: Any, kind: str, files: tuple[Path, Path], models: Path, minutes: float) -> list[dict[str, Any]]:
    data, runs = recordings(files[1]), []
    std = recordings(files[0]).normalisation().observation_std
    adapted = subject("general", (files[0], "actions"), models / "foreign" / kind, minutes)
    with np.load(files[1], allow_pickle=False) as archive:
        starts = {int(g): archive[f"{g}/states"] for g in np.unique(data.groups)}
    for g, states in starts.items():
        group = data.group(g)
        episodes = [data[int(k)] for k in group.episodes]
        clock = time.process_time()
        system = adapted(episodes[:ADAPTED], episodes[-1])
        seconds = time.process_time() - clock
        _, low, high = gce.trajectory.control_limits(data, group=g)
        simulator = systems.system(kind, "validation", g, group.graph.num_nodes)
        for e in range(len(episodes) - ASKED, len(episodes)):
            found = Task(simulator, states[e], episodes[e], system, std, low, high).run()
            about = {"kind": kind, "system": g, "nodes": group.graph.num_nodes, "episode": e}
            runs.append({**about, **found, "adapt_seconds": seconds})
            print(json.dumps(runs[-1]), flush=True)
    return runs


def table(runs: list[dict[str, Any]]) -> str:
    """Means by kind; of plans also the ratio to doing nothing."""
    lines = ["| kind | n | error | nothing | open | feedback | expected | recorded actions |", "|---" * 8 + "|"]
    for kind in dict.fromkeys(run["kind"] for run in runs):
        mine = [run["errors"] for run in runs if run["kind"] == kind]
        for end, title in (("", "all coordinates"), ("_scaled", "in standard deviations")):
            mean = {name: np.mean([e[name + end] for e in mine]) for name in ("nothing", "open", "feedback")}
            more = [np.mean([e[name + end] for e in mine]) for name in ("expected", "recorded")]
            cells = [f"{mean[name]:.3f} ({mean[name] / mean['nothing']:.2f})" for name in ("open", "feedback")]
            cells = [f"{mean['nothing']:.3f}", *cells, *(f"{value:.3f}" for value in more)]
            lines.append(f"| {kind} | {len(mine)} | {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Plans for systems of others, carried out in their simulators.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--results", type=Path, default=Path("results"))
    asked = parser.parse_args()
    systems, every = simulators(asked.folder), kinds_in(asked.folder)
    runs: list[dict[str, Any]] = []
    for kind in asked.kinds or [kind for kind in every if hasattr(systems.KINDS[kind], "step")]:
        runs += control(systems, kind, every[kind], asked.results / "models", asked.minutes)
    (asked.results / "foreign_control.json").write_text(json.dumps({"minutes": asked.minutes, "runs": runs}, indent=1))
    print(table(runs))


if __name__ == "__main__":
    main()
