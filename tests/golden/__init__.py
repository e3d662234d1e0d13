"""Figures that no change of the code's layout may move: simulated episodes, predictions and plans from fixed seeds.

`python -m golden` in tests/ computes them again and writes numbers.npz, and versions.json: the versions they are of. Do
so only where a number is meant to change, and raise the version of the world or method first (`versions_of`).
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch

import gce
from gce.baselines import BASELINES
from gce.baselines import adapt as adapt_baseline
from gce.baselines import load as load_baseline
from gce.baselines.base import configure
from gce.baselines.trainable import FineTuned
from gce.envs import WORLDS
from gce.envs.recording import Recording, import_recordings, record
from gce.model.files import load_model, shipped
from gce.model.model import Model
from gce.planning.closed_loop import problem_for
from gce.planning.controller import Controller, in_space_of
from gce.reproduce.experiment import Cell, Context
from gce.reproduce.tasks import SEEN, run_cell
from gce.reproduce.versions import METHODS
from gce.system.system import adapt
from gce.trajectory import Dataset, Episode

FOLDER = Path(__file__).parent
NUMBERS, VERSIONS = FOLDER / "numbers.npz", FOLDER / "versions.json"
MODELS = FOLDER.parents[1] / "results" / "models"
PEERS = FOLDER.parents[2] / "shared" / "peers" / "cko"
OBJECTS = {"rope": 6, "soft": 5, "swim": 5, "grid": 20, "flock": 12}
STEPS, HORIZON = 40, 12


@cache
def episodes(world: str) -> list[Episode]:
    """Four episodes of one system: three to adapt to, one to predict and to plan in."""
    count = OBJECTS[world]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.h5"
        record(Recording(world, 4, (count, count), 4, seed=11, steps=STEPS), file)
        with Dataset.open(file) as data:
            return list(data)


def recorded_by_others(world: str) -> list[Episode]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.h5"
        import_recordings([PEERS / f"{world}_0.npz"], world, file)
        with Dataset.open(file) as data:
            return list(data)[:4]


def predicted(model: Model, world: str, some: list[Episode] | None = None) -> np.ndarray:
    """In double precision, so that the order of sums does not matter."""
    first, *others = some or episodes(world)
    system = adapt(model.double(), others, measure=False)
    return system.predict(first.observations[0].astype(float), first.actions, exogenous=first.exogenous)


def intervals(model: Model, world: str) -> np.ndarray:
    first, *others = episodes(world)
    system = adapt(model.double(), others)
    low, high = system.intervals(system.predict(first.observations[0].astype(float), first.actions))
    return high - low


def planned(model: Model, world: str, weights: str = "along") -> np.ndarray:
    """The cost of a plan to where the first episode went."""
    first, *others = episodes(world)
    env = WORLDS[world]()
    env.reset(seed=0, options={"parameters": first.parameters})
    protocol = env.recipe.protocol
    problem = problem_for(env, first.observations[HORIZON].astype(float), protocol)
    problem = in_space_of(model, gce.Problem(**{**vars(problem), "horizon": HORIZON}))
    controller = Controller(adapt(model, others, measure=False), problem, weights, tolerance=protocol.tolerance)
    return np.array(controller.plan(first.observations[0].astype(float), opening=True).cost)


def of_baseline(name: str) -> np.ndarray:
    first, *others = episodes("rope")
    model = load_baseline(MODELS / "rope" / name)
    if isinstance(model, FineTuned):
        model.tuning = dataclasses.replace(model.tuning, steps=4, check_every=2)
    adapted = adapt_baseline(model, others)
    return adapted.predict(first.observations[0].astype(float), first.actions[:HORIZON])


def of_fresh(name: str) -> np.ndarray:
    """Of a baseline with no training, in the units of the recordings; a network is tuned by a few steps."""
    first, *others = episodes("rope")
    data, kind = Dataset.from_episodes(others, [0] * len(others), {"world": "rope", "dt": 0.02}), BASELINES[name]
    torch.manual_seed(0)
    model = kind(configure(kind.config_class, data))
    model.set_units(data)
    if isinstance(model, FineTuned):
        model.tuning = dataclasses.replace(model.tuning, steps=4, check_every=2)
    return adapt_baseline(model, others).predict(first.observations[0].astype(float), first.actions[:HORIZON])


def of_oracle() -> np.ndarray:
    settings = {"world": "grid", "split": SEEN, "method": "oracle", "episodes": 1}
    return np.array(run_cell(Cell("golden", settings, 0), Context(MODELS, FOLDER))["cost"])


def cases() -> dict[str, Callable[[], np.ndarray]]:
    """What is computed, by name; peers' recordings only where they are."""
    found: dict[str, Callable[[], np.ndarray]] = {}
    worlds = {"rope": "rope", "soft": "soft", "swim": "swim", "grid": "grid", "erdos_renyi": "grid", "meshed": "grid"}
    for name, world in worlds.items():
        folder = shipped(name)
        found[f"{name} predicted"] = lambda folder=folder, world=world: predicted(load_model(folder), world)
        found[f"{name} planned"] = lambda folder=folder, world=world: planned(load_model(folder), world)
        found[f"{name} intervals"] = lambda folder=folder, world=world: intervals(load_model(folder), world)
    for world in OBJECTS:
        found[f"{world} simulated"] = lambda world=world: episodes(world)[0].observations
    found["oracle planned"] = of_oracle
    for form in ("tensor", "dense", "hom"):
        found[f"rope {form}"] = lambda form=form: predicted(load_model(shipped("rope")).with_form(form), "rope")
    found["rope planned frozen"] = lambda: planned(load_model(shipped("rope")), "rope", "frozen")
    for name in ("decoder", "in_features", "laplace_history", "published", "general"):
        found[f"{name} predicted"] = lambda name=name: predicted(load_model(FOLDER / name), "rope")
    for name in ("in_features", "laplace_history", "published", "general"):
        found[f"{name} planned"] = lambda name=name: planned(load_model(FOLDER / name), "rope")
    for name in ("cko", "kpm", "graph_ode", "vae", "pcc"):
        found[f"baseline {name}"] = lambda name=name: of_baseline(name)
    for name in ("dmdc", "gns"):
        found[f"baseline {name}"] = lambda name=name: of_fresh(name)
    if PEERS.is_dir():
        for world in ("rope", "soft", "swim"):
            found[f"peer {world}"] = lambda world=world: predicted(
                load_model(shipped(world)), world, recorded_by_others(world)
            )
    return found


def compute(name: str) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few episodes leave much to the ridge
        return np.asarray(cases()[name](), dtype=np.float64)


def versions_of(name: str) -> str:
    """Where the version stands that a number is of."""
    first, *_, last = name.split()
    if last == "simulated":
        return f"`version` of {WORLDS[first].__name__} (gce/envs)"
    if first == "baseline":
        return f"`version` of {BASELINES[last].__name__} (gce/baselines)"
    return f"that of {first if first in METHODS else 'ours'} in METHODS (gce/reproduce/versions.py)"
