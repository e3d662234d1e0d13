"""Hyperedges where forces among three rule, and where there are none.

    OMP_NUM_THREADS=1 python -m bench.hyperedges

Coincidences: nodes i of a graph with pairs and triples; a node is driven where the two others of a triple are active
together, and drawn to its neighbours:

    x_i <- x_i + 0.1 (-x_i + a mean over neighbours j of (x_j - x_i)
                           + b mean over triples (i, j, k) of tanh x_j tanh x_k + u_i)

Where three-body forces rule b = 3 and a = 0.3, where they do not b = 0 and a = 3, each 20% more or less from system to
system. Nodes have 4 triples on average, drawn at random; all pairs within a triple are neighbours, so that pairwise
models see the same nodes. These numbers were fixed before any model was trained. `pairwise` models are given the graph
without triples; `messages` hears them in its features, but has no mean field of them. All are trained for the same CPU
time.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import gce
from bench.attention import by_system
from bench.variants import RESULTS, beside, compare, write

NODES, TRIPLES, STEPS, HOLDS = (9, 14), 4, 50, (5, 10, 20)
TRAINING, TEST, EPISODES = 160, 24, 9
FORCES = {"three-body": (0.3, 3.0), "pairwise": (3.0, 0.0)}
PAIRWISE: dict[str, dict[str, Any]] = {"hom_mean": {"form": "hom_mean"}, "hom": {"form": "hom"}}
HYPER: dict[str, dict[str, Any]] = {"hom_mean_hyper": {"form": "hom_mean_hyper"}, "messages": {"form": "hom_mean"}}


def coincidences(systems: int, episodes: int, seed: int, pull: float, drive: float, triples: bool) -> gce.Dataset:
    """Recordings of systems drawn at random; half of the nodes take actions. triples: whether the graph tells them."""
    columns: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "edges", "triples", "groups")}
    for system in range(systems):
        rng = np.random.default_rng([seed, system])
        n = int(rng.integers(*NODES, endpoint=True))
        every = np.array(list(combinations(range(n), 3)))
        chosen = every[rng.permutation(len(every))[: round(TRIPLES * n / 3)]]
        alone = np.setdiff1d(np.arange(n), chosen)
        chosen = np.concatenate([chosen, (alone[:, None] + np.arange(3)) % n])
        pairs = np.unique(
            np.sort(np.concatenate([chosen[:, [0, 1]], chosen[:, [0, 2]], chosen[:, [1, 2]]]), axis=1), axis=0
        )
        near = np.zeros((n, n))
        near[pairs[:, 0], pairs[:, 1]] = near[pairs[:, 1], pairs[:, 0]] = 1
        near /= near.sum(1, keepdims=True)
        count = np.bincount(chosen.ravel(), minlength=n)
        a, b = pull * rng.uniform(0.8, 1.2), drive * rng.uniform(0.8, 1.2)
        acting = rng.permutation(n) < -(-n // 2)
        for _ in range(episodes):
            x = [rng.standard_normal(n)]
            held = np.arange(STEPS)[:, None] // rng.choice(HOLDS, n)
            u = np.take_along_axis(rng.uniform(-3, 3, (STEPS, n)), held, axis=0) * acting
            for t in range(STEPS):
                active, met = np.tanh(x[-1]), np.zeros(n)
                for i, j, k in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
                    np.add.at(met, chosen[:, i], active[chosen[:, j]] * active[chosen[:, k]])
                x.append(x[-1] + 0.1 * (-x[-1] + a * (near @ x[-1] - x[-1]) + b * met / count + u[t]))
            columns["observations"].append(np.stack(x)[..., None])
            columns["actions"].append(u[..., None])
            columns["edges"].append(pairs.T)
            columns["triples"].append(chosen.tolist())
            columns["groups"].append(system)
    return gce.Dataset.from_arrays(
        columns["observations"],
        columns["actions"],
        columns["edges"],
        groups=columns["groups"],
        undirected=True,
        hyperedges=columns["triples"] if triples else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0.8, help="CPU time of each training")
    parser.add_argument("--out", type=Path, default=RESULTS / "hyperedges.json")
    parser.add_argument("--study", nargs="*", default=tuple(FORCES))
    parser.add_argument("--only", nargs="*", default=(), help="train these alone")
    asked = parser.parse_args()
    for study in asked.study:
        recorded = {}
        for triples in (False, True):
            data, tests = (coincidences(n, EPISODES, s, *FORCES[study], triples) for n, s in ((TRAINING, 1), (TEST, 2)))
            recorded[triples] = data, by_system(tests)
        variants = {name: (*recorded[name in HYPER], settings) for name, settings in {**PAIRWISE, **HYPER}.items()}
        errors = compare(asked.out, study, variants, asked.minutes, asked.only)
        if PAIRWISE.keys() <= errors.keys():
            best = min(PAIRWISE, key=lambda name: float(errors[name].mean()))
            told = {name: beside(errors[name], errors[best]) for name in HYPER if name in errors}
            write(asked.out, study, "beside the best pairwise form", {"best": best, **told})
            print(study, best, json.dumps(told, indent=1), flush=True)


if __name__ == "__main__":
    main()
