"""Other potentials for a trained model.

The operator is fitted in closed form to a system's episodes under whatever weights a potential gives to the features,
so a potential can be exchanged when a model adapts, without training. The encoder was trained beside its own potential,
which is the first choice; hyper-parameters of others follow from that one's bandwidth sigma:

    Laplace: lambda = 2 sigma sqrt(2 p / pi), for which f is the same at a distance of sigma spread over p features
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from gce.errors import InputError
from gce.model.model import Model

CONCENTRATION = 5.0
"""Of the von Mises-Fisher potential: neighbours whose features are at right angles weigh e^-5 of the node itself."""

Change = Callable[[float, int], tuple[str, float]]
"""(learned value, number of features) to (potential, value)."""

CHANGES: dict[str, tuple[str, Change]] = {
    "wide": ("Gaussian, twice as wide", lambda sigma, p: ("gaussian", 2 * sigma)),
    "narrow": ("Gaussian, half as wide", lambda sigma, p: ("gaussian", sigma / 2)),
    "laplace": ("Laplace", lambda sigma, p: ("laplace", 2 * sigma * math.sqrt(2 * p / math.pi))),
    "vmf": ("von Mises-Fisher", lambda sigma, p: ("vmf", CONCENTRATION)),
    "constant": ("constant: a plain mean", lambda sigma, p: ("constant", 1.0)),
}
TRAINED = "trained"


def potentials_of(model: Model) -> dict[str, str]:
    """Names and descriptions of what a model can be given; only a Gaussian's bandwidth says what others should be."""
    own = {TRAINED: f"{model.config.potential}, as trained"}
    if model.config.potential != "gaussian" or not model.form.weighted:
        return own
    return own | {name: description for name, (description, _) in CHANGES.items()}


def under_potential(model: Model, name: str) -> Model:
    """The same encoder under another potential."""
    if name == TRAINED:
        return model
    if name not in potentials_of(model):
        raise InputError(f"there is no potential {name!r} for this model; it has {', '.join(potentials_of(model))}")
    sigma = float(model.state_dict()["potential._log"].exp())
    potential, value = CHANGES[name][1](sigma, model.features.num_phi)
    other = Model(replace(model.config, potential=potential, potential_value=value))
    kept = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("potential.")}
    other.load_state_dict({**other.state_dict(), **kept})
    return other.eval()
