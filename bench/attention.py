"""Attention where content decides which neighbours matter, and where distance does.

    OMP_NUM_THREADS=1 python -m bench.attention

Listeners: agents i with a query q_i and a key k_i, unit vectors in the plane drawn independently, known as attributes.
Over the inclusive neighbourhood E(i) an agent heeds those whose key matches its query, and shuns those whose key is
opposite:

    x_i <- 0.3 x_i + g m+_i - s m-_i + 0.5 u_i,    m+-_i = sum over j in E(i) of softmax_j(+-3 q_i . k_j) x_j

g (0.4 to 0.5) and s (0.1 to 0.2) differ from system to system; their sum keeps positions bounded. These numbers were
fixed before models were compared. The flock (`gce.envs.flock`)
is the other case: its weights fall with distance. All potentials are trained alike, for the same CPU time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import gce
from bench.variants import RESULTS, beside, compare, write
from gce.graphs.graph import erdos_renyi

AGENTS, LINKED, SHARPNESS, KEPT, REACH, STEPS = (8, 14), 0.6, 3.0, 0.3, 0.5, 50
HOLDS = (1, 5, 10)
TRAINING, TEST, EPISODES = 160, 24, 9
POTENTIALS: dict[str, dict[str, Any]] = {
    "gaussian": {"potential": "gaussian"},
    "attention": {"potential": "attention"},
    "mlp": {"potential": "mlp"},
    "laplace": {"potential": "laplace"},
    "vmf": {"potential": "vmf"},
    "attention, one head": {"potential": "attention", "potential_value": 1.0},
}


def listeners(systems: int, episodes: int, seed: int) -> gce.Dataset:
    """Recordings of systems drawn at random; one agent in three is steered."""
    columns: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "edges", "attributes", "groups")}
    for system in range(systems):
        rng = np.random.default_rng([seed, system])
        n = int(rng.integers(*AGENTS, endpoint=True))
        links = erdos_renyi(n, LINKED, rng)
        near = np.eye(n, dtype=bool)
        near[links[:, 0], links[:, 1]] = near[links[:, 1], links[:, 0]] = True
        query, key = (np.stack([np.cos(a), np.sin(a)], axis=1) for a in rng.uniform(0, 2 * np.pi, (2, n)))
        match = np.where(near, SHARPNESS * query @ key.T, -np.inf)
        shun = np.where(near, -SHARPNESS * query @ key.T, -np.inf)
        heed, shun = (np.exp(f) / np.exp(f).sum(1, keepdims=True) for f in (match, shun))
        g, s = rng.uniform(0.4, 0.5), rng.uniform(0.1, 0.2)
        step = KEPT * np.eye(n) + g * heed - s * shun
        steered = rng.permutation(n) < -(-n // 3)
        for _ in range(episodes):
            x = [rng.standard_normal((n, 2))]
            held = np.arange(STEPS)[:, None] // rng.choice(HOLDS, n)
            u = np.take_along_axis(rng.uniform(-1, 1, (STEPS, n, 2)), held[..., None], axis=0) * steered[:, None]
            for t in range(STEPS):
                x.append(step @ x[-1] + REACH * u[t])
            columns["observations"].append(np.stack(x))
            columns["actions"].append(u)
            columns["edges"].append(links.T)
            columns["attributes"].append(np.concatenate([query, key], axis=1))
            columns["groups"].append(system)
    return gce.Dataset.from_arrays(
        columns["observations"],
        columns["actions"],
        columns["edges"],
        groups=columns["groups"],
        node_attributes=columns["attributes"],
        undirected=True,
    )


def flocks(systems: int, episodes: int, seed: int) -> gce.Dataset:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "flock.h5"
        gce.record(gce.Recording("flock", systems * episodes, (10, 20), episodes, seed, steps=STEPS), file)
        with gce.Dataset.open(file) as data:
            return gce.Dataset.from_episodes(list(data), data.groups.tolist(), data.metadata)


def by_system(data: gce.Dataset) -> list[list[gce.Episode]]:
    return [[data[int(k)] for k in data.group(int(g)).episodes] for g in np.unique(data.groups)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0.8, help="CPU time of each training")
    parser.add_argument("--out", type=Path, default=RESULTS / "attention.json")
    parser.add_argument("--study", nargs="*", default=("listeners", "flock"))
    parser.add_argument("--only", nargs="*", default=(), help="train these alone")
    asked = parser.parse_args()
    for study, make, names in (
        ("listeners", listeners, list(POTENTIALS)),
        ("flock", flocks, ["gaussian", "attention"]),
    ):
        if study not in asked.study:
            continue
        data, systems = make(TRAINING, EPISODES, 1), by_system(make(TEST, EPISODES, 2))
        variants = {name: (data, systems, POTENTIALS[name]) for name in names}
        errors = compare(asked.out, study, variants, asked.minutes, asked.only)
        if "gaussian" in errors:
            told = {name: beside(e, errors["gaussian"]) for name, e in errors.items() if name != "gaussian"}
            write(asked.out, study, "beside gaussian", told)
            print(study, json.dumps(told, indent=1), flush=True)


if __name__ == "__main__":
    main()
