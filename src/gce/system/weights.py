"""What the Gibbs weights of a model do on a system: how much of a node's mean field is its own, over how many
neighbours the rest spreads, and what predictions lose when weights are replaced and the operator is fitted anew.

    self = mean of alpha_ii,   effective neighbours = mean over i of exp(-sum over j of alpha_ij log alpha_ij)

A self-weight near one, or an error that stays under identity weights, says that the mean field is idle.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float

from gce.errors import undoubted
from gce.graphs.topology import Topology
from gce.metrics import nrmse
from gce.model.model import Model, nodes_first
from gce.potentials import Constant, Identity, Potential, gibbs_weights
from gce.system.evidence import normalised
from gce.system.system import System, adapt
from gce.trajectory import Episode

Array = np.ndarray
REPLACED: dict[str, type[Potential]] = {"nrmse_identity": Identity, "nrmse_uniform": Constant}
"""By the name of the error, the weights instead of the model's own."""
FAR = 100.0
"""What the error of a step counts as where a prediction runs away."""


def weights_along(
    system: System, observations: Float[Array, "steps_plus_1 nodes d"], actions: Float[Array, "steps nodes a"]
) -> Float[Array, "steps_plus_1 edges"]:
    """alpha of every edge at each observation of an episode, the mean of all heads; no edges where the form of the
    operator has no weights."""
    model = system.model
    if not model.form.weighted:
        return np.zeros((len(observations), 0))
    seen = torch.as_tensor(normalised(model, observations), dtype=model.dtype, device=model.device)
    acted = torch.as_tensor(actions, dtype=model.dtype, device=model.device) / model.action_std
    with torch.no_grad():
        x = model.states(seen, acted)
        phi = nodes_first(model.features(x, system.topology)[..., model.config.num_state :])
        alpha = gibbs_weights(model.potential, phi, system.topology)
        return (alpha.mean(-1) if alpha.ndim == phi.ndim else alpha).T.double().cpu().numpy()


def spread_of(weights: Float[Array, "steps edges"], topology: Topology) -> dict[str, float]:
    """The mean weight of a node on itself, and the mean number of neighbours that count, itself among them."""
    alpha = torch.as_tensor(weights).T
    own = topology.senders == topology.receivers
    entropy = topology.sum(-torch.special.xlogy(alpha, alpha))
    return {"self": float(alpha[own].mean()), "effective_neighbours": float(entropy.exp().mean())}


def with_potential(model: Model, potential: Potential) -> Model:
    """The same model under another potential; tensors are shared."""
    other = copy.copy(model)
    other._modules = {**model._modules, "potential": potential}
    other.form = type(model.form)(replace(model.form.shape, heads=potential.heads), model.form.own_block)
    return other


def weights_told(
    system: System,
    episode: Episode,
    adapting: Sequence[Episode],
    unit: Float[Array, " d"],
    start: Float[Array, "nodes d"] | None = None,
    reproject: bool | None = None,
) -> dict[str, float] | None:
    """self, effective_neighbours, and the mean NRMSE of the episode under identity and under uniform weights.

    adapting: what the system was adapted to. start: the first observation as it was seen. None without weights.
    """
    if not system.model.form.weighted:
        return None
    truth = episode.observations.astype(float)
    first = truth[0] if start is None else start
    found = spread_of(weights_along(system, truth, episode.actions), system.topology)
    for name, potential in REPLACED.items():
        with undoubted(), np.errstate(over="ignore", invalid="ignore"):
            other = adapt(with_potential(system.model, potential()), adapting, system.ridge, measure=False)
            predicted = other.predict(first, episode.actions, exogenous=episode.exogenous, reproject=reproject)
            error = nrmse(predicted[1:], truth[1:], unit)
        found[name] = float(np.nan_to_num(error, nan=FAR).clip(max=FAR).mean())
    return found


def mean_of(told: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    """Over systems, or draws of noise; None where there are no weights."""
    known = [one for one in told if one is not None]
    return {name: float(np.mean([one[name] for one in known])) for name in known[0]} if known else None
