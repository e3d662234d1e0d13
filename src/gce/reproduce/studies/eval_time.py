"""Prediction time of the four forms against the number of nodes, and of relation types.

Rollouts of 100 steps in feature space, by the code that predicts, on 2D grids of 9 to 10,000 nodes. A model of the
default sizes (40 features, one action) with random operators: what a step costs does not depend on what was learned.
Edges have random relation types, 8 of them as in Rope if nothing else is said; `hom` has an operator for each, so its
cost grows with their number: the largest grid is measured with 2 to 36 (Soft). CPU time of one core, the best of a few
runs.

    gce reproduce eval_time
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gce.graphs.graph import Graph, lattice
from gce.graphs.topology import Topology
from gce.model.config import ModelConfig
from gce.model.model import Model
from gce.model.step import Stepper, rollout
from gce.operators import PAPER_FORMS, Operator

SIDES = (3, 10, 32, 100)
RELATIONS, RELATION_NUMBERS = 8, (2, 8, 36)
STEPS = 100


@dataclass(frozen=True)
class Timing:
    """CPU seconds of a 100-step prediction."""

    form: str
    nodes: int
    edges: int
    relations: int
    seconds: float


def typed_lattice(side: int, relations: int) -> Graph:
    pairs = np.asarray(lattice(side, side))
    both = np.concatenate([pairs, pairs[:, ::-1]])
    kinds = np.random.default_rng(0).integers(0, relations - 1, len(both))
    return Graph.from_edges(side * side, both, edge_type=kinds, self_type=relations - 1)


def measure(form: str, side: int, relations: int = RELATIONS, steps: int = STEPS, repeats: int = 5) -> Timing:
    topology = Topology.of(typed_lattice(side, relations))
    generator = torch.Generator().manual_seed(0)
    model = Model(ModelConfig(4, 1, relations, 1, form=form)).eval()
    D, m = model.form.num_regressors(topology), model.features.num_targets
    own = () if model.form.shared else (topology.num_nodes,)
    C = torch.randn(*own, D, m, generator=generator) * 0.1 / D
    residual, system = torch.zeros(()).expand(*own, m, m), torch.zeros(()).expand(1, *own, D, D)
    operator = Operator(model.form, C, residual, system, ridge=0.0, rows=1)
    state = torch.randn(topology.num_nodes, model.config.num_state, generator=generator)
    inputs = torch.randn(steps, topology.num_nodes, 1, generator=generator)
    best = np.inf
    with torch.no_grad():
        psi = model.features(state, topology)
        for _ in range(repeats):
            clock = time.process_time()
            rollout(Stepper(model, [operator], topology, reproject=False), psi, inputs)
            best = min(best, time.process_time() - clock)
    return Timing(form, topology.num_nodes, topology.num_edges, relations, float(best))


def chart(by_nodes: Sequence[Timing], by_relations: Sequence[Timing], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for form in PAPER_FORMS:
        of_form = [t for t in by_nodes if t.form == form]
        left.loglog([t.nodes for t in of_form], [t.seconds for t in of_form], "o-", label=form)
        of_form = [t for t in by_relations if t.form == form]
        right.loglog([t.relations for t in of_form], [t.seconds for t in of_form], "o-", label=form)
    mean = [t for t in by_nodes if t.form == "hom_mean"]
    per_row = mean[-1].seconds / (mean[-1].nodes + mean[-1].edges)
    reference = [per_row * (t.nodes + t.edges) for t in mean]
    left.loglog([t.nodes for t in mean], reference, ":", color="grey", label="nodes + edges")
    left.set(xlabel="nodes", ylabel="CPU seconds for 100 steps", title=f"{RELATIONS} relation types")
    right.set(xlabel="relation types", title=f"{mean[-1].nodes:,} nodes", xticks=RELATION_NUMBERS)
    right.set_xticklabels([str(k) for k in RELATION_NUMBERS])
    right.minorticks_off()
    left.legend(fontsize=8)
    figure.savefig(path, dpi=130)
