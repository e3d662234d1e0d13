"""The dynamics that suit an adapted system's model, for a planner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from gce.control.tracking import DensePath
from gce.dynamics.anchored import AnchoredDynamics
from gce.dynamics.bodies import BodyDynamics
from gce.dynamics.features import FeatureDynamics
from gce.dynamics.message import MessageDynamics
from gce.dynamics.message_kernel import MessageStep
from gce.dynamics.state import StateDynamics
from gce.errors import InputError
from gce.system.system import System

Array = np.ndarray
NEGLIGIBLE = 1e-4
"""Coefficients of an operator that is all but switched off beside implicit features."""

SWITCH = 0.3
"""Over which width of a normalised action a planner lets a medium come into play, which it does at once."""

MANY_NODES = 40
"""Beyond which the model is not linearised anew at every step of a path: derivatives would take minutes."""


@dataclass(frozen=True, eq=False)
class FrozenDynamics:
    """Everything as it is at the current state: one derivative serves all steps, a plan is one quadratic problem."""

    known: StateDynamics
    x0: Float[Array, " s"]

    @cached_property
    def _step(self) -> tuple[Array, Array, Array]:
        u = np.zeros((1, int(self.known.controls.sum())))
        later = replace(self.known, opening=False)
        path = later.path(self.x0, later.rollout(self.x0, u), u)
        return path.A[0], path.B[0], path.c[0]

    def _along(self, x0: Float[Array, " s"], steps: int) -> DensePath:
        A, B, c = (np.broadcast_to(m, (steps, *m.shape)) for m in self._step)
        return DensePath(A, B, c, x0)

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> DensePath:
        return self._along(x0, len(u))

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        many = u.reshape(-1, *u.shape[-2:])
        path = self._along(x0, u.shape[-2])
        found = np.stack([path.forward(one) for one in many])
        return found.reshape(*u.shape[:-1], -1)

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        return self.known.outputs(x)

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"]:
        return self.known.output_slopes(x)


def anchored(system: System) -> bool:
    """Whether a model is better taken around one state: on many nodes, or where all depend on all."""
    return system.model.implicit is None and (system.graph.num_nodes > MANY_NODES or system.model.config.network)


def dynamics_of(
    system: System,
    controls: Bool[Array, "nodes a"],
    opening: bool = False,
    exogenous: Float[Tensor, "M nodes e"] | None = None,
    on: str = "observations",
    frozen: bool = False,
    swift: bool = False,
) -> StateDynamics | FeatureDynamics | AnchoredDynamics:
    """The dynamics that suit a system's model: linear in features where it rolls out so, anchored on large graphs.

    swift: without the operator beside implicit features, which is a small correction that makes derivatives slow.
    """
    model = system.model
    if not model.config.selects:
        raise InputError("plans need a model whose features hold the observation; train one with --decoder selection")
    if not model.config.reproject and model.form.shared and model.implicit is None:
        return FeatureDynamics(system, controls, opening, exogenous, frozen, on)
    if anchored(system) and on == "observations":
        return AnchoredDynamics(system, controls, exogenous)
    known = state_dynamics(system, controls, opening, exogenous, on, swift)
    return replace(known, switch=SWITCH) if isinstance(known, BodyDynamics) else known


def state_dynamics(
    system: System,
    controls: Bool[Array, "nodes a"],
    opening: bool = False,
    exogenous: Float[Tensor, "M nodes e"] | None = None,
    on: str = "observations",
    swift: bool = False,
) -> StateDynamics:
    """The dynamics of a system's state: by corners where implicit features are all there is, or all that is asked for
    (`swift`); by hand where possible."""
    kind: type[StateDynamics] = StateDynamics
    if MessageStep.fits(system.model, system.topology):
        kind = MessageDynamics
    elif system.model.implicit is not None:
        added = system.operator.coefficients[..., : system.model.num_effects].abs().max()
        kind = BodyDynamics if swift or float(added) < NEGLIGIBLE else StateDynamics
    return kind(system, controls, opening, exogenous, on)
