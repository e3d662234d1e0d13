"""Bodies of tied points as a planner sees them: set up once for a system, then in arrays alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.dynamics.bodies import SWITCH, BodyDynamics, _known
from gce.system.system import System, adapt
from small import recorded, system_episodes, untrained


def adapted(world: str) -> System:
    return adapt(untrained(world), system_episodes(world)[:3], 1e9, measure=False)


def seen_by_a_planner(system: System, world: str) -> BodyDynamics:
    limits = recorded(world).group(0).limits
    return BodyDynamics(system, (limits.low != 0) | (limits.high != 0), switch=SWITCH)


@pytest.mark.parametrize("world", ["soft", "swim"])
def test_planning_calls_no_torch(world, monkeypatch):
    known = seen_by_a_planner(adapted(world), world)
    x0 = known.reduced(known.system.state(system_episodes(world)[3].observations[0].astype(float), True, None))
    u = np.random.default_rng(0).standard_normal((3, int(known.controls.sum())))
    expected = known.path(x0, known.rollout(x0, u), u).A

    def refused(*_, **__):
        raise AssertionError("torch was called")

    for owner, name in (
        (torch, "as_tensor"),
        (torch, "tensor"),
        (torch, "from_numpy"),
        (torch.Tensor, "numpy"),
        (torch.Tensor, "__array__"),
        (torch.Tensor, "__getitem__"),
    ):
        monkeypatch.setattr(owner, name, refused)
    x = known.rollout(x0, u)
    path = known.path(x0, x, u)
    assert np.array_equal(path.A, expected)
    assert known.output_slopes(x).shape == (1, known.outputs(x).shape[-1], len(x0))
    assert np.allclose(known.step(0, x0, u[0]), x[0])


def test_a_system_is_set_up_once_and_again_in_another_precision():
    system = adapted("soft")
    first, second = (seen_by_a_planner(system, "soft") for _ in range(2))
    assert first._parts is second._parts
    assert replace(first, switch=0.0)._parts is not first._parts
    system.model.double()
    assert seen_by_a_planner(system, "soft")._parts is not first._parts


def test_parts_go_with_their_system():
    system = adapted("soft")
    assert seen_by_a_planner(system, "soft")._parts
    kept = len(_known)
    del system
    assert len(_known) == kept - 1
