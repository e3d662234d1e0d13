"""The dynamics that suit an adapted system's model."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from gce.dynamics.anchored import AnchoredDynamics
from gce.dynamics.features import FeatureDynamics
from gce.dynamics.state import StateDynamics, state_dynamics
from gce.errors import InputError
from gce.system.system import System

Array = np.ndarray
SystemDynamics = StateDynamics | FeatureDynamics | AnchoredDynamics


def dynamics_of(
    system: System,
    controls: Bool[Array, "nodes a"],
    opening: bool = False,
    exogenous: Float[Tensor, "M nodes e"] | None = None,
    on: str = "observations",
    frozen: bool = False,
) -> SystemDynamics:
    """The dynamics for a planner: linear in features where the model rolls out so, around one state on large graphs.

    controls: which (node, action) entries are planned. opening: whether the first step opens an episode. exogenous:
    known inputs, normalised. on: whether outputs are observations or features. frozen: Gibbs weights as at the start.
    """
    model = system.model
    if not model.features.selects:
        raise InputError("plans need a model whose features hold the observation; train one with --decoder selection")
    if not model.config.reproject and model.form.shared and model.features.linear:
        return FeatureDynamics(system, controls, opening, exogenous, frozen, on)
    if on == "observations" and model.features.anchored(system.topology):
        return AnchoredDynamics(system, controls, exogenous)
    return state_dynamics(system, controls, opening, exogenous, on).for_plans()


def filter_dynamics(system: System, controls: Bool[Array, "nodes a"]) -> StateDynamics | AnchoredDynamics:
    """The model's own steps; on graphs on which their derivative would take too long, those around one state."""
    if system.model.features.anchored(system.topology):
        return AnchoredDynamics(system, controls)
    return state_dynamics(system, controls, opening=True)
