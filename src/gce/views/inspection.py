"""What an adapted system looks like from inside: its Gibbs weights along a path, its spectra, and how its fit grows.

Two spectra, since two maps answer to the name. In feature space with weights frozen at a state, the operator takes psi
to (I (x) S + alpha (x) M) psi + inputs; its eigenvalues are those of S + mu M over the eigenvalues mu of alpha (see
`stability`). In the space of states, the step that predictions and plans take has a derivative (`System.linearise`),
with the channels of stiff bodies and the reprojection of features in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Complex, Float, Int

from gce.dynamics.state import StateDynamics, state_class
from gce.errors import InputError
from gce.metrics import nrmse
from gce.model.model import nodes_first
from gce.potentials import gibbs_weights
from gce.system.evidence import model_inputs, normalised, opening_paths, opening_states, operators_of, see, total
from gce.system.system import System
from gce.system.uncertainty import LARGEST_UNION, blocks
from gce.trajectory import Episode

Array = np.ndarray

LARGEST = 1000
"""Nodes beyond which the operator's spectrum is not taken."""
LARGEST_STATE = 250
"""Coordinates of a state beyond which that of a step is not: all its directions at once need memory by the gigabyte."""


def weights_along(
    system: System, observations: Float[Array, "steps_plus_1 nodes d"], actions: Float[Array, "steps nodes a"]
) -> Float[Array, "steps_plus_1 edges"]:
    """alpha of every edge at each observation of an episode; no edges where the form of the operator has no weights."""
    model = system.model
    if not model.form.weighted:
        return np.zeros((len(observations), 0))
    seen = torch.as_tensor(normalised(model, observations), dtype=model.dtype, device=model.device)
    acted = torch.as_tensor(actions, dtype=model.dtype, device=model.device) / model.action_std
    with torch.no_grad():
        x = model.states(seen, acted)
        phi = nodes_first(model.features(x, system.topology)[..., model.config.num_state :])
        return gibbs_weights(model.potential, phi, system.topology).T.double().cpu().numpy()


def operator_spectrum(system: System, weights: Float[Array, " edges"]) -> Complex[Array, " eigenvalues"]:
    """Of the operator in feature space with weights frozen.

    None where it does not share its blocks over all nodes, or is not all of a step in feature space.
    """
    n, nothing = system.graph.num_nodes, np.zeros(0, np.complex128)
    if n > LARGEST:
        return nothing
    try:
        S, M = (block.cpu().numpy() for block in blocks(system.model, system.operator))
    except InputError:
        return nothing
    alpha = np.zeros((n, n))
    alpha[system.graph.receivers, system.graph.senders] = weights
    return np.linalg.eigvals(S + np.linalg.eigvals(alpha)[:, None, None] * M).astype(np.complex128).reshape(-1)


def step_spectrum(system: System, observation: Float[Array, "nodes d"]) -> Complex[Array, " eigenvalues"]:
    """Of the derivative of one step at an observation at which nothing is pushed."""
    state = system.state(observation, opening=False)
    if state.numel() > LARGEST_STATE:
        return np.zeros(0, np.complex128)
    kind = state_class(system)
    known = (kind if kind.whole else StateDynamics)(
        system, np.ones((len(state), system.model.config.num_actions), bool)
    )
    x0, u = known.reduced(state), np.zeros((1, int(known.controls.sum())))
    A = known.path(x0, known.rollout(x0, u), u).A[0]
    return np.linalg.eigvals(A).astype(np.complex128)


def fit_by_episodes(
    system: System,
    episodes: Sequence[Episode],
    observations: Float[Array, "steps_plus_1 nodes d"],
    actions: Float[Array, "steps nodes a"],
    unit: Float[Array, " d"],
    exogenous: Float[Array, "steps nodes e"] | None = None,
) -> tuple[Int[Array, " fits"], Float[Array, "fits steps"]]:
    """(how many episodes, NRMSE of each step) of predicting a run that none of the fits knew, by operators of 1, 2, ...

    The episodes are those adapted to, in their order; their sums add up, so that each is looked at once.
    """
    model, graph = system.model, system.graph
    seen = system.seen or tuple(see(model, episodes, graph, system.evidence.colour))
    counts = [k for k in range(1, len(seen) + 1) if k <= 8 or k == len(seen) or k & (k - 1) == 0]
    parts = [total(seen[:k]) for k in counts]
    operators = operators_of(model, parts, system.topology, system.ridge)
    openings = opening_states(model, [normalised(model, observations[0])] * len(parts), [p.starts for p in parts])
    inputs = model_inputs(model, actions, exogenous, graph)
    mean, std = model.arrays.observation_mean, model.arrays.observation_std
    errors, together = [], max(1, LARGEST_UNION // graph.num_nodes)
    for k in range(0, len(parts), together):
        some = list(openings[k : k + together])
        paths = opening_paths(model, [graph] * len(some), operators[k : k + together], some, [inputs] * len(some))
        errors += [nrmse(path[1:] * std + mean, observations[1:], unit) for path in paths]
    return np.array(counts), np.stack(errors)
