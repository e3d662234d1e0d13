"""Objects say what they are in one line, and in a notebook in a table."""

import subprocess
import sys

import numpy as np
import pytest

import gce
from gce.errors import InputError
from small import recorded, system_episodes, untrained


def shown():
    episodes = system_episodes()
    model = untrained()
    system = gce.adapt(model, episodes[1:], measure=False)
    low = np.zeros((episodes[0].num_nodes, 1))
    low[-1] = -1
    problem = gce.Problem(horizon=5, goal=episodes[0].observations[5].astype(float), low=low, high=-low)
    plan = gce.Controller(system, problem).plan(episodes[0].observations[0].astype(float), opening=True)
    return [recorded(), episodes[0], episodes[0].graph, model, system, problem, plan]


def test_each_says_what_it_is_in_one_line_and_in_a_table():
    for one in shown():
        line = repr(one)
        assert line.startswith(f"{type(one).__name__}(") and "\n" not in line and len(line) < 150, line
        page = one._repr_html_()
        assert page.startswith(f"<b>{type(one).__name__}</b><table>") and len(page) < 20_000
        assert all(str(name) in page for name in one.facts())


def test_a_data_set_says_how_much_it_holds():
    assert repr(recorded()) == "Dataset(episodes=12, systems=3, steps=20, nodes=4-5, world=rope)"
    assert "<svg" in recorded()._repr_html_() and "<svg" in system_episodes()[0]._repr_html_()
    assert repr(recorded().select([])) == "Dataset(episodes=0, systems=0, steps=0, nodes=0, world=rope)"


WRONG = {
    "gce.adapt('rope', [])": "the model is 'rope' (str), expected Model: gce.load_model",
    "gce.adapt(model, 3)": "what to adapt to is 3 (int), expected Iterable: give a list of episodes",
    "gce.adapt(model, [1])": "what to adapt to is 1 (int), expected Episode: data[k]",
    "gce.train('rope.h5')": "the data is 'rope.h5' (str), expected Dataset: gce.Dataset.open",
    "gce.Controller(model, None)": "expected System: gce.adapt",
    "gce.plot.trajectories([1.0, 2.0])": "observations have shape (2,), expected (steps, nodes, coordinates)",
}


def test_a_wrong_class_is_refused_with_how_to_make_the_right_one():
    """In a process of its own, in which annotations are not checked."""
    code = f"""
import gce
model = gce.load_model(gce.shipped("rope"))
for asked in {list(WRONG)}:
    try:
        eval(asked)
    except gce.InputError as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == len(WRONG)
    for sentence, expected in zip(said, WRONG.values(), strict=True):
        assert expected in sentence


def test_a_wrong_name_gets_the_nearest_one():
    with pytest.raises(InputError, match="no method 'publishd' .did you mean 'published'."):
        gce.train(recorded(), method="publishd")
