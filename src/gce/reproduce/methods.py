"""The methods of the tables: each adapts to episodes, and then predicts, plans and has features.

What they are called in tables is here too, and which are slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gce.baselines import Adapted, BaselineController, load
from gce.baselines import adapt as adapt_baseline
from gce.baselines.folder import kind_of
from gce.control.problem import Problem
from gce.envs import world_named
from gce.files import read_json
from gce.model.files import load_model, shipped
from gce.planning.controller import Controller, Planner, in_space_of
from gce.reproduce.recipes import GENERAL, OURS, PUBLISHED
from gce.system.system import System, adapt
from gce.trajectory import Episode

OWN = (OURS, PUBLISHED, GENERAL)
ITERATIONS = 10
"""Of a plan that is linearised again, for every method."""
IN_FEATURES = "_in_features"
"""What follows a method's name where its plans bring features to those of the goal."""
AS_PUBLISHED = "_as_published"
"""What follows a method's name where its plans have the published costs."""
LATENT = ("vae", "pcc")
"""Methods whose plans need iLQR and whose adaptation needs gradient descent: seconds."""
SLOW = ("graph_ode",)
"""The same, minutes."""
TITLES = {
    "vae": "VAE",
    "pcc": "PCC",
    "graph_ode": "GraphODE",
    "kpm": "KPM",
    "cko": "CKO",
    "nothing": "doing nothing",
    "published": "published (Gaussian)",
    "published_vmf": "published (vMF)",
    "published_laplace": "published (Laplace)",
    "published_mlp": "published (MLP)",
    "ours_vmf": "structured (vMF)",
    "ours_laplace": "structured (Laplace)",
    "ours_gaussian": "structured (Gaussian)",
    "ours_mlp": "structured (MLP)",
    "ours_shipped": "structured (the package's model)",
    "ours_cheaper": "structured (Gaussian), cheaper plans",
    "ours_60_minutes": "structured (Gaussian), 60 minutes",
    "cko_60_minutes": "CKO, 60 minutes",
    "cko_long": "CKO, trained long",
}


@dataclass(frozen=True)
class Method:
    """A trained model by name, of the package's (structured, published, general) or a baseline. form: of the operator,
    the encoder as it is."""

    world: str
    name: str
    folder: Path
    form: str | None = None

    @property
    def label(self) -> str:
        return f"{self.world}/{self.name}"

    @property
    def ours(self) -> bool:
        return self.name.startswith(OWN)

    @property
    def kind(self) -> str:
        """Which of the package's methods, or which baseline."""
        return next((kind for kind in OWN if self.name.startswith(kind)), None) or kind_of(self.folder).name

    @property
    def files(self) -> tuple[Path, Path]:
        stem = "model" if self.ours else "baseline"
        return self.folder / f"{stem}.safetensors", self.folder / f"{stem}.json"

    @property
    def exists(self) -> bool:
        return all(file.is_file() for file in self.files)

    @cached_property
    def model(self) -> Any:
        if not self.ours:
            return load(self.folder)
        model = load_model(self.folder)
        return model if self.form is None else model.with_form(self.form)

    @property
    def minutes(self) -> float | None:
        """CPU time that the model was given in training, or took; None where a method is not trained."""
        about = read_json(self.files[1])["about"]
        if "cpu_minutes_asked" in about:
            return float(about["cpu_minutes_asked"]) if about["iterations"] else None
        return round(about["seconds"] / 60, 1) if "seconds" in about else None

    def adapt(self, episodes: Sequence[Episode]) -> System | Adapted:
        return adapt(self.model, episodes, measure=False) if self.ours else adapt_baseline(self.model, episodes)

    def planner(self, adapted: System | Adapted, problem: Problem) -> Planner:
        if isinstance(adapted, System):
            return Controller(adapted, in_space_of(adapted.model, problem), iterations=ITERATIONS)
        on = "features" if self.name.endswith(IN_FEATURES) else "observations"
        return BaselineController(adapted, replace(problem, on=on), iterations=ITERATIONS)


def method(models: Path, world: str, name: str) -> Method:
    """By name; `ours_shipped` and `published` are models that come with the package."""
    own = models / world / name.removesuffix(IN_FEATURES)
    named = {"ours_shipped": (world_named(world).usual_model(), None), PUBLISHED: (world, PUBLISHED)}
    return Method(world, name, shipped(*named[name]) if name in named else own)


def title(name: str) -> str:
    for ending in (IN_FEATURES, AS_PUBLISHED):
        if name.endswith(ending):
            return f"{title(name.removesuffix(ending))}, planned{ending.replace('_', ' ')}"
    return TITLES.get(name, name.replace("_", " "))
