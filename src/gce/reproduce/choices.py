"""Which methods a table has, and what is chosen for their plans on validation systems: the weight of actions for every
method in the same way, what CKO's plans aim at, the potential and the running weight for ours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gce.envs import world_named
from gce.reproduce.experiment import Record
from gce.reproduce.methods import method
from gce.reproduce.recipes import LONG, LONGER
from gce.reproduce.statistics import paired, select, summarise

METHODS = (
    "ours_gaussian",
    "cko",
    "cko_in_features",
    "kpm",
    "ours_laplace",
    "ours_vmf",
    "ours_mlp",
    "ours_shipped",
    "graph_ode",
    "vae",
    "pcc",
)
POTENTIALS = tuple(name for name in METHODS if name.startswith("ours") and name != "ours_shipped")
CHEAPER = "ours_cheaper"
"""The first of the methods with the running weight chosen here: a row of its own."""
ACTION_COSTS = (1e-3, 1e-2, 1e-1, 1.0)
ALIKE = 1e-6
"""What differs by less, of an error, differs by rounding: where a choice changes nothing, none is the best."""
RUNNING_COSTS = (1e-3, 3e-3, 5e-3, 1e-2, 2e-2, 3e-2, 1e-1)


def methods_of(world: str) -> tuple[str, ...]:
    """The rows of a world's table; Rope has models of longer training too."""
    return (*METHODS, *LONGER, *LONG) if world_named(world).recipe.longer_trained else METHODS


def methods_with_long(world: str) -> tuple[str, ...]:
    """With the models that are there for the comparison with published ones."""
    return tuple(dict.fromkeys((*methods_of(world), *LONG)))


def chosen_potential(records: Sequence[Record], world: str) -> str:
    """Ours with the potential of the lowest mean error on validation systems; Gaussian where there was no choice, or
    all are alike."""
    errors = {name: min(_errors(records, world, name).values(), default=np.inf) for name in POTENTIALS}
    least = min(errors.values())
    return next(name for name in POTENTIALS if errors[name] <= least + ALIKE)


def chosen_for_grid(models: Path) -> str:
    """Ours, the package's model or the table's, that predicts validation grids better, as noted when it was trained."""
    found = [one for one in (method(models, "grid", name) for name in ("ours_shipped", METHODS[0])) if one.exists]
    errors = {one.name: json.loads(one.files[1].read_text())["about"]["validation_nrmse"] for one in found}
    return min(errors, key=lambda name: errors[name])


def chosen_cko(records: Sequence[Record], world: str) -> str:
    """CKO planned in observations or in features, whichever has the lower mean error on validation systems."""
    errors = {name: min(_errors(records, world, name).values(), default=np.inf) for name in ("cko", "cko_in_features")}
    return min(errors, key=lambda name: errors[name])


def chosen_cost(records: Sequence[Record], world: str, name: str) -> float | None:
    """The action weight with the lowest mean error on validation systems; None where there was no choice."""
    means = _errors(records, world, name)
    return min(means, key=lambda cost: means[cost]) if means else None


def cheaper_cost(tuned: Sequence[Record], running: Sequence[Record], world: str) -> float | None:
    """The running weight of ours whose largest ratio to another method, of error or of cost, is the smallest; means on
    the validation systems that both have. None where it is the world's own weight, or there is no other method."""
    ours = select(running, world=world, method=METHODS[0])
    others = [
        {
            figure: summarise(select(tuned, world=world, method=name), f"{figure}_{value:g}")
            for figure in ("error", "cost")
        }
        for name in METHODS
        if not name.startswith("ours") and (value := chosen_cost(tuned, world, name)) is not None
    ]
    own = world_named(world).recipe.protocol.state_cost
    largest = {}
    for q in (q for q in RUNNING_COSTS if q >= own):
        found = {figure: summarise(ours, f"{figure}_{q:g}") for figure in ("error", "cost")}
        ratios = [paired(found[f], other[f]).ratio for other in others for f in found]
        if ratios := [ratio for ratio in ratios if np.isfinite(ratio)]:
            largest[q] = max(ratios)
    chosen = min(largest, key=lambda q: largest[q], default=own)
    return chosen if chosen > own else None


def _errors(records: Sequence[Record], world: str, name: str) -> dict[float, float]:
    """By action weight."""
    mine = select(records, world=world, method=name)
    means = {value: summarise(mine, f"error_{value:g}").mean for value in ACTION_COSTS}
    return {value: mean for value, mean in means.items() if np.isfinite(mean)}
