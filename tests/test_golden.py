"""Simulations, predictions and plans are what they were, unless a version says that they changed."""

import json

import numpy as np
import pytest

from gce.baselines import BASELINES
from gce.reproduce.versions import declared
from golden import NUMBERS, VERSIONS, cases, compute, versions_of

PREDICTIONS, PLANS, FLOATS = 1e-6, 1e-4, 1e-5
"""Relative differences allowed; baselines compute in single precision."""

with np.load(NUMBERS) as archive:
    KNOWN = {name: archive[name] for name in archive.files}


@pytest.mark.parametrize("name", KNOWN)
def test_numbers_are_as_they_were(name):
    if name not in cases():
        pytest.skip("the peer's recordings are not here (shared/peers/cko beside the project)")
    tolerance = PLANS if "planned" in name else FLOATS if "baseline" in name else PREDICTIONS
    difference = np.abs(compute(name) - KNOWN[name]).max() / np.abs(KNOWN[name]).max()
    assert difference <= tolerance, (
        f"{name} changed by {difference:.1g} of its size; if it is meant to, raise {versions_of(name)}, so that runs "
        "kept of before are not used, and write the numbers anew: python -m golden in tests/"
    )


def test_numbers_are_of_the_versions_that_are_declared():
    assert json.loads(VERSIONS.read_text()) == declared(), "write the numbers anew: python -m golden in tests/"


def test_every_world_and_method_has_a_number():
    told = " ".join(versions_of(name) for name in KNOWN)
    assert {f"{name} simulated" for name in declared()["worlds"]} <= KNOWN.keys()
    assert {f"baseline {name}" for name in BASELINES} <= KNOWN.keys()
    assert all(f"{name} in METHODS" in told for name in ("ours", "published", "general", "oracle"))
