"""What a person calls the nodes and the coordinates of a system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORDS = ("observation", "action", "exogenous")
"""What columns without a name are called, before their number."""


@dataclass(frozen=True)
class Labels:
    """Names of the nodes and of the columns of observations, actions and exogenous inputs."""

    nodes: tuple[str, ...]
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    exogenous: tuple[str, ...]

    @classmethod
    def of(cls, known: Mapping[str, Any], system: Any) -> Labels:
        """known: `nodes`, `observation_names`, ...; what is not there, or does not fit the system, is numbered."""
        config = system.model.config
        sizes = (config.num_observations, config.num_actions, config.num_exogenous)
        columns = (
            _names(known.get(f"{word}_names"), size, f"{word}_") for word, size in zip(WORDS, sizes, strict=True)
        )
        return cls(_names(known.get("nodes"), system.graph.num_nodes, ""), *columns)


def known_names(metadata: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What a data set says of names, in its own metadata and among the parameters of a system; JSON values."""
    found = {f"{word}_names": metadata.get(f"{word}_names") for word in WORDS}
    return {name: value for name, value in {"nodes": parameters.get("nodes"), **found}.items() if value}


def _names(given: Any, count: int, before: str) -> tuple[str, ...]:
    fits = isinstance(given, list) and len(set(map(str, given))) == len(given) == count
    return tuple(map(str, given)) if fits else tuple(f"{before}{k}" for k in range(count))
