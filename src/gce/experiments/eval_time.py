"""Prediction time of the four forms against the number of nodes.

A rollout of 100 steps in feature space on 2D grids of 9 to 10,000 nodes with random operators: what a step costs does
not depend on what was learned. CPU time of one core, the best of a few runs.

    python -m gce.experiments.eval_time --out results
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from gce.graph import Graph, lattice
from gce.operators import FORMS, Operator, Shape, make_form
from gce.potentials import Gaussian, gibbs_weights
from gce.topology import Topology

SIDES = (3, 10, 32, 100)
FEATURES, ACTIONS, STEPS = 16, 1, 100


@dataclass(frozen=True)
class Timing:
    """CPU seconds of a 100-step prediction."""

    form: str
    nodes: int
    edges: int
    seconds: float


def measure(form_name: str, side: int, steps: int = STEPS, repeats: int = 3) -> Timing:
    topology = Topology.of(Graph.from_edges(side * side, lattice(side, side), undirected=True))
    generator = torch.Generator().manual_seed(0)
    form = make_form(form_name, Shape(FEATURES, ACTIONS, num_relations=2, num_node_types=1))
    D = form.num_regressors(topology)
    shape = (D, FEATURES) if form.shared else (topology.num_nodes, D, FEATURES)
    C = torch.randn(shape, generator=generator) * 0.1 / D
    operator = Operator(form, C, torch.zeros(FEATURES, FEATURES), torch.eye(1)[None], 0.0, 1)
    potential = Gaussian(1.0, learned=False)
    start = torch.randn(topology.num_nodes, FEATURES, generator=generator)
    actions = torch.randn(steps, topology.num_nodes, ACTIONS, generator=generator)
    best = np.inf
    with torch.no_grad():
        for _ in range(repeats):
            clock = time.process_time()
            psi = start
            for a in actions:
                weights = gibbs_weights(potential, psi, topology) if form.weighted else None
                psi = operator.apply(form.regressors(psi, a, weights, topology))
            best = min(best, time.process_time() - clock)
    return Timing(form_name, topology.num_nodes, topology.num_edges, float(best))


def chart(timings: Sequence[Timing], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.8), layout="constrained")
    axis = figure.subplots()
    for form in FORMS:
        of_form = [t for t in timings if t.form == form]
        axis.loglog([t.nodes for t in of_form], [t.seconds for t in of_form], "o-", label=form)
    axis.set(xlabel="nodes", ylabel="CPU seconds for 100 steps")
    axis.legend()
    figure.savefig(path, dpi=130)


@dataclass
class EvalTime:
    """Time all forms; write eval_time.json, .csv and .png."""

    out: Path = Path("results")
    """The folder to write to."""

    def run(self) -> None:
        torch.set_num_threads(1)
        self.out.mkdir(parents=True, exist_ok=True)
        timings = [measure(form, side) for form in FORMS for side in SIDES]
        rows = [asdict(t) for t in timings]
        (self.out / "eval_time.json").write_text(json.dumps(rows, indent=2) + "\n")
        with (self.out / "eval_time.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        chart(timings, self.out / "eval_time.png")
        for t in timings:
            print(f"{t.form:9s} {t.nodes:6d} nodes: {t.seconds:.3f} s")


if __name__ == "__main__":
    import tyro

    tyro.cli(EvalTime).run()
