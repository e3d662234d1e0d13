"""What models of the published method reach: prediction and control on systems that were not trained on.

    OMP_NUM_THREADS=1 python -m bench.published_worlds rope soft swim grid flock --systems 48

Each shipped model, or that of --model, is adapted to eight episodes of test systems of the sizes trained on and of
larger ones. It predicts a ninth episode (mean NRMSE over 100 steps) and plans to where that went, by the world's
protocol. `identity` is the NRMSE with identity weights and the operator fitted anew, `nothing` the error of doing
nothing. On grids `left` is the share of the voltage error that is left. Results are added to results/published.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gce
from gce.errors import undoubted
from gce.metrics import nrmse
from gce.model.model import Model
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller, in_space_of
from gce.potentials import Identity
from gce.reproduce import paper
from gce.reproduce.tasks import TEST, draw, sizes_of
from gce.system.weights import spread_of, weights_along, with_potential

RESULTS = Path(__file__).parents[1] / "results" / "published.json"


def measured(model: Model, world: str, sizes: tuple[int, int], seed: int) -> dict[str, float]:
    setting = draw(world, sizes, seed)
    truth, unit = setting.target.observations.astype(float), setting.env.observation_std

    def error(adapted: gce.System) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            found = nrmse(adapted.predict(truth[0], setting.target.actions)[1:], truth[1:], unit)
        return float(np.nan_to_num(found, nan=10.0).clip(max=10).mean())

    system = gce.adapt(model, setting.episodes)
    env = setting.restart()
    protocol = env.recipe.protocol
    problem = in_space_of(model, problem_for(env, setting.goal, protocol))
    run = control(env, Controller(system, problem), protocol.feedback)
    found = figures(env, run)
    kept = ("control_error", "control_error_positions", "nothing", "voltage_error")
    row = {"nrmse": error(system), "plan_seconds": max(found["plan_seconds"])}
    row |= {name: float(found[name]) for name in kept if name in found}
    if model.form.weighted:
        with undoubted():
            row["identity"] = error(gce.adapt(with_potential(model, Identity()), setting.episodes))
        row |= spread_of(weights_along(system, truth, setting.target.actions), system.topology)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="+")
    parser.add_argument("--model", type=Path, help="the folder of a model instead of the shipped one")
    parser.add_argument("--label", default="published", help="what to call it, such as cko of --form hom")
    parser.add_argument("--systems", type=int, default=48)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for world in asked.worlds:
        model = gce.load_model(asked.model or gce.shipped(world, method="published"))
        for split in (paper.SEEN, paper.UNSEEN):
            rows = [measured(model, world, sizes_of(world, split), TEST + k) for k in range(asked.systems)]
            figures: dict[str, Any] = {"n": len(rows)}
            for name in rows[0]:
                values = [row[name] for row in rows]
                figures[name] = [round(float(np.mean(values)), 4), round(float(np.std(values)), 4)]
            print(world, split, asked.label, json.dumps(figures), flush=True)
            kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
            kept[f"{world}, {split}, {asked.label}"] = figures
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
