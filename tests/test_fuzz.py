"""What ever failed fails no more, and a few new trials of every family pass; `make fuzz` runs many."""

import json
import os

import pytest

from fuzz.harness import CORPUS, Harness

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a trial is a process forked from this one")
TRIALS = 4


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    return Harness(tmp_path_factory.mktemp("fuzz"))


def test_what_ever_failed_passes(harness):
    wrong = {(name, number): harness.run(name, number).wrong for name, number in json.loads(CORPUS.read_text())}
    assert not {one: why for one, why in wrong.items() if why}


@pytest.mark.parametrize("family", list(__import__("fuzz.families", fromlist=["FAMILIES"]).FAMILIES))
def test_spoiled_files_and_numbers_are_refused_or_right(harness, family):
    outcomes = {number: harness.run(family, number).wrong for _, number in harness.draw(TRIALS, 11, family)}
    assert not {number: why for number, why in outcomes.items() if why}
