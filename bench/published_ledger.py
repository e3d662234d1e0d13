"""What each choice of the published method brings on Rope: the tuned preset with one thing changed at a time.

    OMP_NUM_THREADS=1 python -m bench.published_ledger --minutes 1 --systems 16 --rows tuned "two maps"

Every row is trained on the same 4,800 episodes (400 ropes of 5 to 9 masses) for as many CPU minutes, then adapted to
eight episodes of ropes drawn for validation, and judged by the mean NRMSE over 100 steps and by the control error of
one plan of 40 steps. The last rows change the plan alone. Rows in results/published_ledger.json are not computed again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gce
from gce.features.published import PRESETS, PublishedConfig
from gce.metrics import nrmse
from gce.model.files import load_model, save_model
from gce.model.model import Model
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller, in_space_of
from gce.reproduce import paper
from gce.reproduce.tasks import VALIDATION, draw, sizes_of
from gce.system.weights import spread_of, weights_along

RESULTS = Path(__file__).parents[1] / "results" / "published_ledger.json"
LITERAL, SCHOOL = PublishedConfig(), PRESETS["literal"][1]
Row = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
"""Settings of the model, of its training, and costs of the plan, over those of the tuned preset."""
ROWS: dict[str, Row] = {
    "tuned": ({}, {}, {}),
    "rate and schedule as literal": ({}, {name: SCHOOL[name] for name in ("learning_rate", "schedule")}, {}),
    "16 steps as literal": ({}, {"horizons": (16,)}, {}),
    "2 rounds as literal": ({"rounds": LITERAL.rounds}, {}, {}),
    "scale and bound as literal": ({"scale": LITERAL.scale, "bound": LITERAL.bound}, {}, {}),
    "forward loss not relative, weight 1, as literal": ({}, {"relative": False, "forward": 1.0}, {}),
    "updates on reconstruction alone": ({}, {"forward": 0.0}, {}),
    "windows as they come, as literal": ({}, {"fresh_share": SCHOOL["fresh_share"]}, {}),
    "two maps": ({"shared_map": False}, {}, {}),
    "no constant": ({"constant": False}, {}, {}),
    "actions of neighbours": ({"actions": "neighbours"}, {}, {}),
    "estimated neighbour by neighbour": ({"estimator": "neighbours"}, {}, {}),
    "sigma learned": ({"potential_learned": True}, {}, {}),
    "identity weights": ({"potential": "identity"}, {}, {}),
    "uniform weights": ({"potential": "constant"}, {}, {}),
    "Hom by relations": ({"form": "hom"}, {}, {}),
    "Hom averaged over receivers": ({"form": "hom", "hom": "average"}, {}, {}),
    "the paper's summed cost": ({}, {}, {"state_cost": LITERAL.q1, "terminal_cost": 0.0, "action_cost": LITERAL.q2}),
}


def figures_of(model: Model, costs: dict[str, Any], systems: int) -> dict[str, float]:
    rows = []
    for k in range(systems):
        setting = draw("rope", sizes_of("rope", paper.SEEN), VALIDATION + k)
        system, truth = gce.adapt(model, setting.episodes), setting.target.observations.astype(float)
        with np.errstate(over="ignore", invalid="ignore"):
            error = nrmse(system.predict(truth[0], setting.target.actions)[1:], truth[1:], setting.env.observation_std)
        env = setting.restart()
        problem = in_space_of(model, problem_for(env, setting.goal, env.recipe.protocol), **costs)
        found = figures(env, control(env, Controller(system, problem), env.recipe.protocol.feedback))
        rows.append({"nrmse": float(np.nan_to_num(error, nan=10.0).clip(max=10).mean())})
        rows[-1] |= {name: found[name] for name in ("control_error", "nothing")}
        if model.form.weighted:
            rows[-1] |= spread_of(weights_along(system, truth, setting.target.actions), system.topology)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]} | {
        "control_std": float(np.std([row["control_error"] for row in rows]))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="of CPU time, for each training")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--systems", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    with tempfile.TemporaryDirectory() as place:
        file, tuned = Path(place) / "rope.h5", Path(place) / "tuned"
        gce.record(gce.Recording("rope", 4800, (5, 9), 12, 11), file)
        for name in asked.rows:
            of_model, of_training, costs = ROWS[name]
            if name in kept:
                continue
            begin = time.process_time()
            if costs and tuned.is_dir():
                model = load_model(tuned)
            else:
                with gce.Dataset.open(file) as data:
                    model = gce.train(
                        data, method="published", model=of_model, training=of_training, minutes=asked.minutes
                    ).model
            if name == "tuned":
                save_model(model, tuned)
            minutes = round((time.process_time() - begin) / 60, 1)
            found = figures_of(model.eval(), costs, asked.systems)
            kept = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
            kept[name] = {"minutes": asked.minutes, "cpu_minutes": minutes, "n": asked.systems, **found}
            asked.out.write_text(json.dumps(kept, indent=1) + "\n")
            print(name, json.dumps(kept[name]), flush=True)


if __name__ == "__main__":
    main()
