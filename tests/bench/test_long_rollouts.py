"""Long rollouts: batches, going on after a stop, and what counts as bounded."""

import json

import numpy as np
import pytest
from bench.long_rollouts import LongRollouts, _multiples

from gce.system.system import adapt, predict_together
from small import system_episodes, untrained


@pytest.mark.parametrize("world", ["rope", "swim"])
def test_together_is_the_same_as_one_by_one(world):
    model = untrained(world)
    groups = [system_episodes(world, group) for group in (0, 1)]
    systems = [adapt(model, episodes[1:]) for episodes in groups]
    starts, actions = [g[0].observations[0].astype(float) for g in groups], [g[0].actions[:6] for g in groups]
    together = predict_together(systems, starts, actions)
    for system, start, a, path in zip(systems, starts, actions, together, strict=True):
        assert np.allclose(path, system.predict(start, a), rtol=1e-3, atol=1e-4)


def record(seed, reached, finite=True):
    ranges = {"predicted": [[-reached], [reached]], "true": [[-1.0], [1.0]], "short": [[-0.5], [0.5]]}
    kept = {name: {"observations": limits} for name, limits in ranges.items()}
    return {
        "seed": seed, "nodes": 3, "finite": finite, "true_finite": True, "nrmse": {"10": 0.1}, "ranges": kept
    }  # fmt: skip


def test_bounded_is_within_five_times_the_true_range(tmp_path):
    records = [record(0, 1.0), record(1, 4.9), record(2, 5.1), record(3, np.nan, finite=False)]
    assert _multiples(records[:3], "observations", "true", 0.0).tolist() == [1.0, 4.9, 5.1]
    found = LongRollouts(out=tmp_path, steps=10).summary(records)
    assert found["finite"] == 3
    assert found["within_five_times_range"]["observations"]["of_10_steps"] == 2
    assert found["within_five_times_range"]["observations"]["of_100_steps"] == 1
    assert found["largest_multiple_of_range"]["observations"]["of_10_steps"] == np.inf


def test_a_stopped_run_goes_on_and_other_batches_say_the_same(tmp_path):
    whole = LongRollouts("rope", systems=3, steps=12, adapt=1, out=tmp_path / "whole", batch=3)
    records = whole.predict_batch(0)
    parts = LongRollouts("rope", systems=3, steps=12, adapt=1, out=tmp_path / "parts", batch=2)
    again = parts.predict_batch(0) + parts.predict_batch(2)
    assert [r["seed"] for r in again] == [r["seed"] for r in records]
    assert np.allclose([r["nrmse"]["12"] for r in again], [r["nrmse"]["12"] for r in records], rtol=1e-3)
    folder = tmp_path / "parts" / f".long_rollouts_rope_{parts._fingerprint()}"
    folder.mkdir(parents=True)
    (folder / "0.json").write_text(json.dumps(again[:2]))
    (folder / "2.json").write_text(json.dumps(again[2:]))
    assert parts.run()["systems"] == 3  # nothing left to predict
    assert not folder.exists()
    assert json.loads((tmp_path / "parts" / "long_rollouts_rope.json").read_text())["systems"] == 3
