"""The time loop: a state, inputs and operators in, predicted states out."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Step(Protocol):
    """What advances states: what acts on all steps is worked out at once, then one step is taken after another."""

    def drive(self, inputs: Tensor, fresh: Tensor | None) -> Any: ...

    def move(self, psi: Tensor, drive: Any) -> tuple[Tensor, Tensor]: ...


def rollout(
    step: Step,
    features: Float[Tensor, "*batch nodes f"],
    inputs: Float[Tensor, "*batch steps nodes a"],
    fresh: Float[Tensor, "*batch steps nodes 1"] | None = None,
) -> Float[Tensor, "*batch steps nodes c"]:
    """The states after each step."""
    batch, steps = features.shape[:-2], inputs.shape[-3]
    drive = step.drive(inputs, fresh)
    psi = features.movedim(-2, 0).reshape(features.shape[-2], -1, features.shape[-1])
    states = []
    for now in drive.by_step(steps):
        state, psi = step.move(psi, now)
        states.append(state)
    path = torch.stack(states)
    return path.reshape(*path.shape[:2], *batch, path.shape[-1]).movedim((0, 1), (-3, -2))
