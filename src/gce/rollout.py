"""The time loop: a state, inputs and operators in, predicted states out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Step = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(features, inputs, fresh) -> (next state, next features)."""


def rollout(
    step: Step,
    features: Float[Tensor, "*batch nodes f"],
    inputs: Float[Tensor, "*batch steps nodes a"],
    fresh: Float[Tensor, "*batch steps nodes 1"] | None = None,
) -> Float[Tensor, "*batch steps nodes c"]:
    """The states after each step."""
    states = []
    for t in range(inputs.shape[-3]):
        state, features = step(features, inputs[..., t, :, :], None if fresh is None else fresh[..., t, :, :])
        states.append(state)
    return torch.stack(states, dim=-3)
