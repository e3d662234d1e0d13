"""Systems that are adapted to what happens while they act, and forget."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import gce
from gce.errors import InputError
from gce.system.files import load_system, save_system
from gce.system.system import adapt
from gce.trajectory import Episode
from general import pendulums, trained
from small import system_episodes, untrained


def piece(episode, first, last):
    return Episode(episode.graph, episode.observations[first : last + 1], episode.actions[first:last])


def sums_of(system):
    sums = system.evidence.sums
    return [v for v in vars(getattr(sums, "moments", sums)).values() if isinstance(v, torch.Tensor) and v.ndim > 1]


SYSTEMS = {
    "rope": lambda: (untrained("rope"), system_episodes("rope")),
    "grid": lambda: (untrained("grid"), system_episodes("grid")),
    "general": lambda: (trained().model, [pendulums()[k] for k in range(3)]),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_pieces_of_a_run_tell_what_the_run_tells(name):
    model, episodes = SYSTEMS[name]()
    start = adapt(model, episodes[:2], measure=False)
    whole, system = start.update(episodes[2]), start.update(piece(episodes[2], 0, 6))
    for first in range(6, episodes[2].length, 5):
        system = system.update(piece(episodes[2], first - 1, min(first + 5, episodes[2].length)), opening=False)
    for found, expected in zip(sums_of(system), sums_of(whole), strict=True):
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert system.evidence.starts.count == whole.evidence.starts.count
    assert system.operator.rows == whole.operator.rows


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_forgotten_counts_less_a_step(name, tmp_path):
    model, episodes = SYSTEMS[name]()
    start, new = adapt(model, episodes[:2], measure=False), episodes[2]
    found = sums_of(start.update(new, forget=0.9))
    share = 0.9**new.length
    for now, before, one in zip(found, sums_of(start), sums_of(adapt(model, [new], measure=False)), strict=True):
        if name != "general":  # the latent numbers of another fit are others
            assert (now - (share * before + one)).abs().max() <= 1e-4 * now.abs().max()
        assert (now - before - one).abs().max() > 1e-3 * now.abs().max()
    system = start
    for _ in range(4):
        system = system.update(new, forget=0.9)
    assert system.seen == () and np.isfinite(system.predict(new.observations[0].astype(float), new.actions)).all()
    save_system(system, tmp_path / "kept", {})
    again = load_system(tmp_path / "kept")
    assert torch.allclose(again.operator.coefficients, system.operator.coefficients, atol=1e-6)
    assert json.loads((tmp_path / "kept" / "system.json").read_text())


def test_what_cannot_be_forgotten_is_refused():
    model, episodes = SYSTEMS["rope"]()
    system = adapt(model, episodes[:2], measure=False)
    for forget in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="forget"):
            system.update(episodes[2], forget=forget)
    with pytest.raises(InputError, match="middle of a run"):
        system.update(piece(episodes[2], 0, 1), opening=False)


@pytest.mark.parametrize("mode", ["settled", "realtime"])
def test_a_run_that_learns_knows_the_system_it_met(mode):
    """The system it acts on is another one than that adapted to."""
    data = pendulums()
    system = gce.adapt(trained().model, [data[k] for k in range(3)], measure=False)  # three pendulums
    other = gce.adapt(trained().model, [data[k] for k in range(12, 15)], measure=False)
    start, goal = data[3].observations[0].astype(float), data[3].observations[20].astype(float)
    _, low, high = gce.control_limits(data)
    problem = gce.Problem(horizon=20, goal=goal, low=low, high=high, action_cost=1e-4)
    controller = gce.Controller(system, problem, mode=mode)
    errors = []
    for forget in (None, 0.9):
        seen = [start]

        def step(action, seen=seen):
            seen.append(other.predict(seen[-1], action[None])[1])
            return seen[-1]

        ran = gce.run(step, controller, start, forget=forget, feedback=1)
        assert (ran.system is system) == (forget is None)
        predicted = [ran.system.predict(o, a[None])[1] for o, a in zip(seen[10:-1], ran.actions[10:], strict=True)]
        errors.append(np.linalg.norm(np.stack(predicted) - np.stack(seen[11:])))
    assert errors[1] < 0.8 * errors[0]
    assert dataclasses.is_dataclass(ran)
