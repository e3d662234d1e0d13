"""The time loop: a state, inputs and operators in, predicted states out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Step(Protocol):
    """What advances states: what acts on all steps is worked out at once, then one step is taken after another.

    num_state: coordinates of a state x, which features begin with; the others are phi.
    """

    num_state: int

    def drive(self, inputs: Tensor, fresh: Tensor | None) -> Any: ...

    def move(self, x: Tensor, phi: Tensor, drive: Any) -> tuple[Tensor, Tensor]: ...


def rollout(
    step: Step,
    features: Float[Tensor, "*batch nodes f"],
    inputs: Float[Tensor, "*batch steps nodes a"],
    fresh: Float[Tensor, "*batch steps nodes 1"] | None = None,
) -> Float[Tensor, "*batch steps nodes c"]:
    """The states after each step."""
    return _joined([state for state, _ in _steps(step, features, inputs, fresh)], features.shape[:-2])


def path_of(
    step: Step,
    features: Float[Tensor, "*batch nodes f"],
    inputs: Float[Tensor, "*batch steps nodes a"],
    fresh: Float[Tensor, "*batch steps nodes 1"] | None = None,
) -> tuple[Float[Tensor, "*batch steps nodes c"], Float[Tensor, "*batch steps nodes f"]]:
    """The states and the features after each step."""
    states, along = zip(*_steps(step, features, inputs, fresh), strict=True)
    x, phi = _joined(states, features.shape[:-2]), _joined(along, features.shape[:-2])
    return x, torch.cat([x, phi], dim=-1)


def _steps(step: Step, features: Tensor, inputs: Tensor, fresh: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    drive = step.drive(inputs, fresh)
    psi = features.movedim(-2, 0).reshape(features.shape[-2], -1, features.shape[-1])
    x, phi = psi[..., : step.num_state], psi[..., step.num_state :]
    for now in drive.by_step(inputs.shape[-3]):
        x, phi = step.move(x, phi, now)
        yield x, phi


def _joined(path: Sequence[Float[Tensor, "nodes rows d"]], batch: torch.Size) -> Float[Tensor, "*batch steps nodes d"]:
    stacked = torch.stack(list(path))
    return stacked.reshape(*stacked.shape[:2], *batch, stacked.shape[-1]).movedim((0, 1), (-3, -2))
