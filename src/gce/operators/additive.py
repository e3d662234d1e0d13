"""Statistics that add up: sums over episodes, from which any episode can be taken out again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import add, sub
from typing import Any, TypeVar

Sums = TypeVar("Sums", bound="Additive")
SHARED: dict[str, Any] = {"shared": True}
"""Metadata of a field that both operands have in common (the type of a node): it is carried over, not added."""


class Additive:
    """A frozen dataclass whose fields are sums. a + b holds what both were made of; (a + b) - b is a, up to rounding.

    Every field takes part, so that a field added later cannot be forgotten. A field that is None in both stays None.
    """

    def __add__(self: Sums, other: Sums) -> Sums:
        return self._combined(other, add)

    def __sub__(self: Sums, other: Sums) -> Sums:
        return self._combined(other, sub)

    def _combined(self: Sums, other: Sums, operation: Callable[[Any, Any], Any]) -> Sums:
        values = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if (mine is None) != (theirs is None):
                raise ValueError(f"{type(self).__name__}.{field.name} is known on one side only")
            values[field.name] = mine if mine is None or "shared" in field.metadata else operation(mine, theirs)
        return type(self)(**values)
