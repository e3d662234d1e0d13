"""A trained model looks once more at all systems it was trained on, and keeps what they tell as a prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np

from gce.graphs.topology import Topology
from gce.model.model import Model
from gce.operators.prior import TrainingPrior
from gce.operators.regression import Sums
from gce.operators.ridge import Moments
from gce.operators.whitening import Colour
from gce.progress import progress
from gce.system.evidence import colour_of, see, total
from gce.trajectory import Episode

SOME = 10
"""Systems that the correlation of the noise is found on, in TURNS turns."""
TURNS = 4


def remember(model: Model, memory: TrainingPrior, systems: Sequence[Sequence[Episode]]) -> None:
    """Fill the memory of a model. A system is the episodes of one graph, each of two steps or more."""
    correlation, some = 0.0, systems[:SOME]
    with progress("remembering", TURNS * len(some) + len(systems), "systems") as done:
        for _ in range(TURNS):
            memory.keep(_moments(model, some, correlation, done), correlation)
            correlation = _correlation(model, memory, some)
        memory.keep(_moments(model, systems, correlation, done), correlation)


def _moments(
    model: Model, systems: Sequence[Sequence[Episode]], correlation: float, done: Callable[[int], None]
) -> Moments:
    found = []
    for episodes in systems:
        graph = episodes[0].graph
        seen = see(model, episodes, graph, Colour.even(correlation, graph.num_nodes))
        found.append(total(seen).sums.moments)
        done(1)
    return reduce(add, found)


def _correlation(model: Model, memory: TrainingPrior, systems: Sequence[Sequence[Episode]]) -> float:
    """Of what the operator of all leaves of single systems, in the mean."""
    moments, graphs = memory.moments, [episodes[0].graph for episodes in systems]
    regression = model.regression(moments.cross.shape[-1])
    operator = regression.fit(Sums(moments), Topology.of(graphs[0], model.device), model.config.ridge)
    found = [
        colour_of(model, see(model, episodes, graph), operator, graph).correlation
        for episodes, graph in zip(systems, graphs, strict=True)
    ]
    return float(np.mean(found))
