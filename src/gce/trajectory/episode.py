"""One recorded motion of a system of objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory.limits import Limits


@dataclass(frozen=True, eq=False)
class Episode:
    """T+1 observations and T actions of the nodes of a graph: `actions[t]` takes `observations[t]` to `[t+1]`.

    exogenous: inputs that are known in advance but not chosen (forecasts), one row a step like the actions.
    parameters: the physical parameters of the system, as far as known; JSON values.
    seed: what the simulator was seeded with, None for recordings of other origin.
    limits: which nodes of the system take an action and between which bounds, None where nobody said.
    """

    graph: Graph
    observations: Float[np.ndarray, "steps_plus_1 nodes coordinates"]
    actions: Float[np.ndarray, "steps nodes action_coordinates"]
    exogenous: Float[np.ndarray, "steps nodes exogenous_coordinates"] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    limits: Limits | None = None

    def __post_init__(self) -> None:
        check_arrays(self.graph, self.observations, self.actions, self.exogenous)
        if self.limits is not None and self.limits.low.shape != self.actions.shape[1:]:
            raise InputError(
                f"the limits are for actions of shape {self.limits.low.shape} a step, the actions have "
                f"{self.actions.shape[1:]}"
            )

    @property
    def length(self) -> int:
        """T, the number of steps."""
        return len(self.actions)

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    def window(self, start: int, length: int) -> Episode:
        """Steps start to start+length as an episode of its own."""
        if not 0 <= start <= start + length <= self.length:
            raise InputError(
                f"the window {start} to {start + length} leaves the episode's steps 0 to {self.length}; ask for less"
            )
        steps = slice(start, start + length)
        return Episode(
            graph=self.graph,
            observations=self.observations[start : start + length + 1],
            actions=self.actions[steps],
            exogenous=None if self.exogenous is None else self.exogenous[steps],
            parameters=self.parameters,
            seed=None,
            limits=self.limits,
        )


def check_arrays(
    graph: Graph, observations: np.ndarray, actions: np.ndarray, exogenous: np.ndarray | None, where: str = ""
) -> None:
    """Shapes that fit one another and the graph, and finite numbers; `where` opens the sentence otherwise."""
    for name, values in (("observations", observations), ("actions", actions), ("exogenous", exogenous)):
        if values is None:
            continue
        if values.ndim != 3:
            raise InputError(f"{where}{name} have shape {values.shape}, expected (steps, nodes, coordinates)")
        if values.shape[1] != graph.num_nodes:
            raise InputError(
                f"{where}{name} are of {values.shape[1]} nodes, but the graph has {graph.num_nodes}; give all"
            )
        if not np.issubdtype(values.dtype, np.floating):
            raise InputError(f"{where}{name} hold {values.dtype} values, expected floating-point numbers")
        if not np.isfinite(values).all():
            step, node, coordinate = np.argwhere(~np.isfinite(values))[0]
            raise InputError(
                f"{where}{name} hold {values[step, node, coordinate]} at step {step}, node {node}, "
                f"coordinate {coordinate}; leave out or mend the episode"
            )
    steps = len(actions)
    if steps < 1 or len(observations) != steps + 1:
        raise InputError(
            f"{where}there are {len(observations)} observations and {steps} actions; T actions lead through T+1 "
            "observations, T at least 1 (drop the last action if it leads nowhere)"
        )
    if exogenous is not None and len(exogenous) != steps:
        raise InputError(
            f"{where}there are {len(exogenous)} rows of exogenous inputs for {steps} steps; give one a step"
        )
    if graph.tied is not None and graph.tied.shape[1] != observations.shape[2]:
        raise InputError(
            f"{where}the graph ties {graph.tied.shape[1]} coordinates a node, observations have "
            f"{observations.shape[2]}; give an id for each"
        )
