"""Statistics of episodes: what one of them contributed can be taken out again, whatever the kind of statistics."""

import dataclasses

import numpy as np
import pytest
import torch

from gce.graphs.topology import Topology
from gce.operators.prior import ColouredNoise
from gce.operators.regression import Additive, Moments
from gce.system.evidence import see, total
from small import close, system_episodes, untrained

KINDS = {
    "shared operator": ("rope", {}),
    "own operators": ("rope", {"form": "dense"}),
    "channels of bodies": ("soft", {}),
    "channels with drag": ("swim", {}),
    "constants of nodes": ("grid", {"node_constants": 5.0}),
    "network": ("grid", {"network": True}),
    "decoder": ("rope", {"decoder": "message_passing"}),
}


@pytest.mark.parametrize("colour", [False, True], ids=["white", "coloured"])
@pytest.mark.parametrize("kind", KINDS)
def test_leaving_an_episode_out_equals_fitting_without_it(kind, colour):
    world, options = KINDS[kind]
    model, episodes = untrained(world, **options), system_episodes(world)[:3]
    graph = episodes[0].graph
    lasting = ColouredNoise.even(0.5, graph.num_nodes) if colour and model.features.linear else None
    seen = see(model, episodes, graph, lasting)
    without, fewer = total(seen) - seen[1].evidence, total([seen[0], seen[2]])
    for left, right in zip(_numbers(without), _numbers(fewer), strict=True):
        assert np.allclose(left, right, rtol=1e-8, atol=1e-8)
    topology = Topology.of(graph)
    left, right = (evidence.operator(model, topology, 1e-2) for evidence in (without, fewer))
    for part in ("coefficients", "residual", "channels", "constants"):
        mine, other = getattr(left, part), getattr(right, part)
        assert (mine is None and other is None) or close(mine, other, 1e-5)


def test_what_only_one_side_knows_is_not_dropped():
    @dataclasses.dataclass(frozen=True)
    class Both(Additive):
        moments: Moments
        extra: Moments | None = None

    some = Moments.of(torch.ones(2, 1), torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"Both\.extra is known on one side only"):
        _ = Both(some, some) - Both(some)


def _numbers(value):
    """All numbers within nested statistics."""
    if dataclasses.is_dataclass(value):
        return [n for f in dataclasses.fields(value) for n in _numbers(getattr(value, f.name))]
    return [] if value is None else [np.asarray(value, dtype=float)]
