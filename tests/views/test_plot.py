"""Plots return the axis they were given, or a new one, and show what they say."""

import matplotlib
import numpy as np
import pytest

import gce
from gce.errors import InputError
from gce.model.files import load_model, shipped
from gce.system.system import adapt
from gce.views.style import colour_of
from small import system_episodes, untrained

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def adapted():
    episodes = system_episodes()
    return adapt(load_model(shipped("rope")), episodes[1:]), episodes


@pytest.fixture(scope="module")
def planned(adapted):
    system, episodes = adapted
    limits = episodes[0].limits
    goal = episodes[0].observations[9].astype(float)
    problem = gce.Problem(horizon=9, goal=goal, low=limits.low, high=limits.high)
    return gce.Controller(system, problem).plan(episodes[0].observations[0].astype(float), opening=True), problem


def test_each_takes_an_axis_and_returns_it(adapted, planned):
    from matplotlib.figure import Figure

    system, episodes = adapted
    first = episodes[0]
    for draw in (
        lambda axis: gce.plot.trajectories(first, axis=axis),
        lambda axis: gce.plot.prediction(system, first, axis=axis),
        lambda axis: gce.plot.plan(*planned, axis=axis),
        lambda axis: gce.plot.actions(*planned, axis=axis),
        lambda axis: gce.plot.weights(system, first.observations[0], axis=axis),
        lambda axis: gce.plot.spectrum(system, first.observations[0], axis=axis),
        lambda axis: gce.plot.fit(system, episodes[1:], first, axis=axis),
    ):
        axis = Figure().subplots()
        assert draw(axis) is axis and axis.has_data()


def test_lines_are_the_values_of_the_nodes_asked_for(adapted):
    system, (first, *_) = adapted
    axis = gce.plot.trajectories(first, coordinate=1, nodes=[2])
    (line,) = axis.get_lines()
    assert np.array_equal(line.get_ydata(), first.observations[:, 2, 1]) and line.get_label() == "node 2"
    true, predicted = gce.plot.prediction(system, first, coordinate=1, nodes=[2]).get_lines()
    assert np.allclose(
        predicted.get_ydata(), system.predict(first.observations[0].astype(float), first.actions)[:, 2, 1]
    )
    assert np.allclose(true.get_ydata(), line.get_ydata())


def test_bounds_and_goals_are_drawn(planned):
    plan, problem = planned
    axis = gce.plot.actions(plan, problem)
    low, high = problem.low.min(), problem.high.max()
    assert sorted({line.get_ydata()[0] for line in axis.get_lines() if line.get_linestyle() == ":"}) == [low, high]
    marks = [line for line in gce.plot.plan(plan, problem, nodes=[0]).get_lines() if line.get_marker() == "x"]
    assert [mark.get_ydata()[0] for mark in marks] == [problem.goal[0, 0]]


def test_what_cannot_be_drawn_is_said(adapted):
    system, (first, *_) = adapted
    with pytest.raises(InputError, match="there is no coordinate 9"):
        gce.plot.trajectories(first, coordinate=9)
    with pytest.raises(InputError, match="there is no node 7; nodes are numbered 0 to"):
        gce.plot.trajectories(first, nodes=[7])
    with pytest.raises(InputError, match="no Gibbs weights"):
        gce.plot.weights(adapt(untrained(form="hom"), [first], measure=False), first.observations[0])


def test_forms_of_one_method_have_colours_of_their_own():
    names = [f"{method}, {form}" for method in ("structured", "published") for form in ("hom_mean", "hom", "dense")]
    assert len({colour_of(name) for name in names}) == len(names)
    assert colour_of("structured, hom_mean") == colour_of("structured")
