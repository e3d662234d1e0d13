"""What one would try first, beside our figures: persistence (nothing moves), and DMDc where that takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float

from gce.baselines.base import adapt
from gce.baselines.dmdc import Dmdc, DmdcConfig
from gce.features.base import StateShape
from gce.metrics import nrmse
from gce.model.model import Model
from gce.training.learning import Predictor, Systems, prediction_error
from gce.trajectory import Episode

LARGEST = 400
"""Observed numbers of all nodes beyond which DMDc is left out."""
TITLES = {"persistence": "persistence", "dmdc": "DMDc"}


@dataclass(frozen=True)
class Persistence:
    """Nothing moves."""

    def predict(
        self, observation: np.ndarray, actions: np.ndarray, *, exogenous: np.ndarray | None = None
    ) -> np.ndarray:
        return np.repeat(observation[None], len(actions) + 1, axis=0)


def dmdc_of(model: Model) -> Dmdc:
    """DMDc in the units of a model."""
    known = {field.name: getattr(model.config, field.name) for field in fields(StateShape)}
    made = Dmdc(DmdcConfig(**{**known, "history": 1}))
    units = {name: getattr(model, name).detach().cpu() for name in made.state_dict()}
    made.load_state_dict(units)
    return made


def references(model: Model, nodes: int) -> dict[str, Callable[[Sequence[Episode]], Predictor]]:
    """By name, what adapts to some episodes of a system of so many nodes."""
    adapters: dict[str, Callable[[Sequence[Episode]], Predictor]] = {"persistence": lambda episodes: Persistence()}
    if nodes * model.config.num_observations <= LARGEST:
        dmdc = dmdc_of(model)
        adapters["dmdc"] = lambda episodes: adapt(dmdc, episodes)
    return adapters


def validation_beside(model: Model, systems: Systems) -> dict[str, float | None]:
    """Of each reference, the error that `gce.train` chooses a model by; None where it is left out."""
    known = references(model, max(episodes[0].num_nodes for episodes in systems))
    return {name: prediction_error(known[name], model, systems) if name in known else None for name in TITLES}


def errors_beside(
    model: Model, episode: Episode, adapting: Sequence[Episode], unit: np.ndarray, start: np.ndarray | None = None
) -> dict[str, Float[np.ndarray, " steps"] | None]:
    """Of each reference, the NRMSE at every step of an episode; start: where predictions begin, if not as recorded.

    None where it is left out: too large, or nothing to adapt to.
    """
    known, errors = references(model, episode.num_nodes), dict[str, np.ndarray | None]()
    truth = episode.observations.astype(float)
    for name in TITLES:
        if name not in known or (name == "dmdc" and not adapting):
            errors[name] = None
            continue
        with torch.no_grad(), np.errstate(over="ignore", invalid="ignore"):
            predicted = known[name](adapting).predict(
                truth[0] if start is None else start, episode.actions, exogenous=episode.exogenous
            )
            errors[name] = nrmse(predicted[1:], truth[1:], unit)
    return errors


def warning_of(ours: float, beside: Mapping[str, float | None]) -> str | None:
    """A sentence where ours is not the smallest error."""
    known = {name: value for name, value in beside.items() if value is not None and np.isfinite(value)}
    better = [TITLES[name] for name, value in known.items() if not ours < value]
    if not better:
        return None
    told = ", ".join(f"{value:.3g} of {TITLES[name]}" for name, value in known.items())
    return (
        f"the model does not beat {' and '.join(better)}: NRMSE {ours:.3g} beside {told}; train longer, record or "
        "adapt to more episodes, and see what `gce data check` says of the data"
    )
