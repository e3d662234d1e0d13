"""Every method trained for some iterations, into a folder of its own; run by the tests alone and by torchrun.

python together.py FOLDER [moved]     moved: the last rank sees other data
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import gce
from gce.baselines import train as train_baseline
from gce.baselines.graph_ode import GraphOde
from gce.baselines.trainable import FineTuning
from gce.errors import InputError
from small import TINY, recorded

ITERATIONS = 20
OURS = {
    "grid": {"model": TINY},  # unions of graphs, and steps through the true states
    "soft": {"model": {"node_width": 8, "edge_width": 8}},  # one graph for all: a batch of systems
    "flock": {"method": "published", "model": TINY, "training": {"forward": 1.0}},
    "rope": {"method": "general", "training": {"noise": 0.01}},
}


def trained(folder: Path, names=tuple(OURS), data=lambda world: recorded(world, 12, 2, 20)) -> None:
    for name in names:
        given = dict(OURS[name])
        training = {"systems": 3, "validate_every": 10, "fit_episodes": 1, **given.pop("training", {})}
        gce.train(
            data(name), iterations=ITERATIONS, horizon=4, folder=folder / name, training=training,
            tell=lambda now: None, validation=0.2, **given,
        )  # fmt: skip
    schedule = {"iterations": ITERATIONS, "horizons": (2,), "validate_every": 10}
    if len(names) > 1:
        GraphOde.tuning = FineTuning(steps=1, check_every=1)
        train_baseline("graph_ode", data("soft"), folder=folder / "graph_ode", schedule=schedule, validation=0.2)


def moved(world: str) -> gce.Dataset:
    found = recorded(world, 12, 2, 20)
    episodes = list(found)
    if os.environ["RANK"] == "1":
        episodes[0].observations[3, 0, 0] += 1e-3
    return gce.Dataset.from_episodes(episodes, found.groups.tolist(), found.metadata)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2:] == ["moved"]:
        try:
            trained(Path(sys.argv[1]), ("grid",), moved)
        except InputError as error:
            sys.exit(f"rank {os.environ['RANK']} says: {error}")
    else:
        trained(Path(sys.argv[1]))
