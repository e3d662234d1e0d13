"""References beside our figures are what they say, in the units of the model they stand beside."""

import numpy as np
import pytest

from gce.baselines import adapt, train
from gce.baselines.references import LARGEST, dmdc_of, errors_beside, references, validation_beside, warning_of
from gce.metrics import nrmse
from small import recorded, system_episodes, untrained


def test_persistence_is_the_first_observation_and_dmdc_the_baseline():
    model, episodes = untrained(), system_episodes()
    unit = model.observation_std.double().numpy()
    found = errors_beside(model, episodes[0], episodes[1:], unit)
    truth = episodes[0].observations.astype(float)
    assert np.array_equal(found["persistence"], nrmse(np.repeat(truth[:1], len(truth) - 1, 0), truth[1:], unit))
    baseline = adapt(train("dmdc", recorded()), episodes[1:])
    predicted = baseline.predict(truth[0], episodes[0].actions)
    assert np.allclose(found["dmdc"], nrmse(predicted[1:], truth[1:], unit), rtol=0.2)  # other units, another ridge
    assert errors_beside(model, episodes[0], [], unit)["dmdc"] is None


@pytest.mark.parametrize("world", ["rope", "soft"])
def test_validation_errors_are_those_of_the_systems_kept(world):
    model = untrained(world)
    found = validation_beside(model, [system_episodes(world)])
    assert found.keys() == {"persistence", "dmdc"} and all(0 < error < 100 for error in found.values())
    assert dmdc_of(model).config.previous_action == model.config.previous_action


def test_large_systems_have_no_dmdc():
    model = untrained()
    assert references(model, LARGEST // 4).keys() == {"persistence", "dmdc"}
    assert references(model, LARGEST // 4 + 1).keys() == {"persistence"}


def test_a_warning_where_ours_is_not_the_smallest():
    assert warning_of(0.1, {"persistence": 0.8, "dmdc": None}) is None
    assert warning_of(0.1, {"persistence": 0.8, "dmdc": float("nan")}) is None
    said = warning_of(0.5, {"persistence": 0.8, "dmdc": 0.3})
    assert said.startswith("the model does not beat DMDc: NRMSE 0.5 beside 0.8 of persistence, 0.3 of DMDc; ")
    assert "persistence and DMDc" in warning_of(float("nan"), {"persistence": 0.8, "dmdc": 0.3})
