"""Statistics that add up: what episodes tell of a system, and can be taken out again; the factor of such a sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import add, sub
from typing import Any, TypeVar

import torch
from torch import Tensor

Statistics = TypeVar("Statistics", bound="Additive")
SHARED: dict[str, Any] = {"shared": True}
"""Metadata of a field that both operands have in common (the type of a node): it is carried over, not added."""


class Additive:
    """A frozen dataclass whose fields are sums. a + b holds what both were made of; (a + b) - b is a, up to rounding.

    Every field takes part, so that a field added later cannot be forgotten. A field that is None in both stays None.
    """

    def __add__(self: Statistics, other: Statistics) -> Statistics:
        return self._combined(other, add)

    def __sub__(self: Statistics, other: Statistics) -> Statistics:
        return self._combined(other, sub)

    def faded(self: Statistics, share: float) -> Statistics:
        """Of all that it was made of, so much less."""
        if share == 1:
            return self
        values = {}
        for part in dataclasses.fields(self):  # type: ignore[arg-type]
            mine = getattr(self, part.name)
            if mine is not None and "shared" not in part.metadata:
                mine = mine.faded(share) if isinstance(mine, Additive) else share * mine
            values[part.name] = mine
        return type(self)(**values)

    def _combined(self: Statistics, other: Statistics, operation: Callable[[Any, Any], Any]) -> Statistics:
        values = {}
        for part in dataclasses.fields(self):  # type: ignore[arg-type]
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            if (mine is None) != (theirs is None):
                raise ValueError(f"{type(self).__name__}.{part.name} is known on one side only")
            values[part.name] = mine if mine is None or "shared" in part.metadata else operation(mine, theirs)
        return type(self)(**values)


def cholesky(system: Tensor) -> Tensor:
    """Where the ridge is too small for the data, the smallest jitter that makes the matrix definite is added."""
    if not bool(torch.isfinite(system).all()):
        raise ValueError("the regression holds numbers that are not finite")
    factor, info = torch.linalg.cholesky_ex(system)
    jitter = 1e-14 * system.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-300)
    while bool(info.any()):
        eye = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
        factor, info = torch.linalg.cholesky_ex(system + jitter[..., None, None] * eye)
        jitter = 10 * jitter
    return factor
