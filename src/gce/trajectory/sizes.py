"""What a model must be made for to be given an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory.episode import Episode


@runtime_checkable
class Sizes(Protocol):
    """How many coordinates and kinds of everything a model knows."""

    @property
    def num_observations(self) -> int: ...
    @property
    def num_actions(self) -> int: ...
    @property
    def num_exogenous(self) -> int: ...
    @property
    def num_node_attributes(self) -> int: ...
    @property
    def num_edge_attributes(self) -> int: ...
    @property
    def num_relations(self) -> int: ...
    @property
    def num_node_types(self) -> int: ...


def check_one_system(sizes: Sizes, episodes: Sequence[Episode], graph: Graph) -> None:
    """Episodes of another system, or of something the model was not made for, are refused."""
    for k, episode in enumerate(episodes):
        g = episode.graph
        if g is not graph and not g.equals(graph):
            raise InputError(
                f"episode {k} is of another graph than episode 0; adapt to episodes of one system at a time"
            )
        for what, found, expected in (
            ("coordinates", episode.observations.shape[2], sizes.num_observations),
            ("action coordinates", episode.actions.shape[2], sizes.num_actions),
            ("node attributes", g.node_attributes.shape[1], sizes.num_node_attributes),
            ("edge attributes", g.edge_attributes.shape[1], sizes.num_edge_attributes),
        ):
            if found != expected:
                raise InputError(f"episode {k} has {found} {what}, the model was made for {expected}")
        for what, found, known in (
            ("relation", int(g.edge_type.max()), sizes.num_relations),
            ("node", int(g.node_type.max()), sizes.num_node_types),
        ):
            if found >= known:
                raise InputError(
                    f"episode {k} has {what} type {found}, the model knows 0 to {known - 1}; train it on such data"
                )
