"""The models of the tables, and what each is trained with: the same data for all, the same CPU time within a table.

A recipe makes the folder models/WORLD/NAME. The order is that of the queue: what most tables need comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gce.baselines.trainable import Draw
from gce.envs import world_named
from gce.errors import InputError

OURS = "ours"
"""How settings and keys of kept runs call the structured method; tables write structured."""
PUBLISHED, GENERAL = "published", "general"


@dataclass(frozen=True)
class ModelRecipe:
    """method: `ours` (structured), `published`, `general`, or a baseline's name.

    model, schedule: what is changed in its configuration and training. minutes: CPU time of one core.
    validation_systems: that the best model is chosen on; methods adapt to each.
    start: the name of a baseline's model of the same world that is trained on, for so many minutes more.
    """

    world: str
    name: str
    method: str
    model: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    minutes: float = 15.0
    validation_systems: int = 6
    start: str | None = None

    @property
    def folder(self) -> str:
        return f"{self.world}/{self.name}"


FORMS = ("hom", "dense")
"""Of which the published method gets models of their own, beside Hom+Mean."""
POTENTIALS = {"gaussian": 2.0, "laplace": 2.0, "vmf": 2.0, "mlp": 2.0}
DIMENSIONS = (8, 16, 64)
BANDWIDTHS = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0)
LONGER = {"ours_60_minutes": 60.0, "cko_60_minutes": 60.0}
"""Models of Rope with more time, to see whether the order of methods holds."""
LONG = ("cko_long",)
"""Our CKO beside the published one, which was trained for 400,000 iterations on a GPU."""


def _ours(world: str, potential: str) -> ModelRecipe:
    chosen = {"potential": potential, "potential_value": POTENTIALS[potential]}
    return ModelRecipe(world, f"ours_{potential}", OURS, chosen)


def _longer(name: str, minutes: float) -> ModelRecipe:
    method = name.partition("_")[0]
    return ModelRecipe("rope", name, method, _ours("rope", "gaussian").model if method == OURS else {}, minutes=minutes)


def _long(world: str, minutes: float, start: str, learning_rate: float = 1e-3) -> ModelRecipe:
    schedule = {"horizons": (16, 32, 64, 64), "learning_rate": learning_rate}
    return ModelRecipe(world, "cko_long", "cko", schedule=schedule, minutes=minutes, start=start)


def _published(world: str, name: str, **model: Any) -> ModelRecipe:
    """By the tuned preset, but for what is named."""
    return ModelRecipe(world, f"published_{name}", PUBLISHED, model, minutes=4.0)


def bandwidth_model(bandwidth: float) -> str:
    """The name of the model trained with a bandwidth that is not learned."""
    return f"ours_bandwidth_{bandwidth:g}"


def _baselines(world: str, *names: str) -> list[ModelRecipe]:
    return [_baseline(world, name) for name in names]


def _baseline(world: str, name: str) -> ModelRecipe:
    """As published, but for what the world's recipe changes."""
    changes = dict(world_named(world).recipe.baselines.get(name, {}))
    schedule = dict(changes.pop("schedule", {}))
    if "draw" in schedule:
        schedule["draw"] = Draw(**schedule["draw"])
    return ModelRecipe(world, name, name, schedule=schedule, **changes)


RECIPES: tuple[ModelRecipe, ...] = (
    *_baselines("rope", "kpm", "cko"),
    _ours("rope", "gaussian"),
    *_baselines("rope", "graph_ode", "vae", "pcc"),
    *_baselines("grid", "kpm", "cko"),
    _ours("grid", "gaussian"),
    *_baselines("grid", "graph_ode"),
    *_baselines("soft", "kpm", "cko"),
    _ours("soft", "gaussian"),
    *_baselines("swim", "kpm", "cko"),
    _ours("swim", "gaussian"),
    *(_ours("rope", potential) for potential in ("laplace", "vmf", "mlp")),
    *_baselines("soft", "graph_ode", "vae", "pcc"),
    *_baselines("swim", "graph_ode", "vae", "pcc"),
    *(ModelRecipe("grid", f"ours_{d}_features", OURS, {"features": d}) for d in DIMENSIONS),
    *(_ours(world, potential) for world in ("soft", "swim") for potential in ("laplace", "vmf", "mlp")),
    *(
        ModelRecipe(world, bandwidth_model(s), OURS, {"potential_value": s, "potential_learned": False}, minutes=5.0)
        for world in ("rope", "soft")
        for s in BANDWIDTHS
    ),
    *(_longer(name, minutes) for name, minutes in LONGER.items()),
    *(_published("rope", name, potential=name) for name in POTENTIALS if name != "gaussian"),
    *(_published("rope", form, form=form) for form in FORMS),
    *(ModelRecipe(world, GENERAL, GENERAL, minutes=4.0) for world in ("rope", "soft", "swim", "grid")),
    _long("rope", 90.0, "cko_60_minutes"),
    _long("swim", 75.0, "cko", 2e-3),
    _long("soft", 40.0, "cko", 2e-3),
)


def recipe_named(folder: str) -> ModelRecipe:
    """A recipe by WORLD/NAME."""
    known = {recipe.folder: recipe for recipe in RECIPES}
    if folder not in known:
        raise InputError(f"there is no model {folder!r} to train; the models are {', '.join(known)}")
    return known[folder]
