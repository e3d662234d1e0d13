"""Answers that are not worth trusting say so."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.control.problem import Problem
from gce.control.tracking import Status
from gce.envs import world_named
from gce.envs.recording import record_system
from gce.errors import Doubt
from gce.model.files import load_model, shipped
from gce.planning.controller import Controller
from gce.system import uncertainty as doubts
from gce.system.files import load_system, save_system
from gce.system.system import adapt
from small import system_episodes, untrained


def told(work):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [str(one.message) for one in found if issubclass(one.category, Doubt)]


@pytest.fixture(scope="module")
def rope():
    """A system that is known well, and an episode of it."""
    env = world_named("rope")(objects=6)
    env.reset(seed=2)
    episodes = record_system(env, 2, 5, 40)
    return adapt(load_model(shipped("rope")), episodes[1:]), episodes[0]


def test_a_good_answer_says_nothing(rope):
    system, episode = rope
    assert system.warnings == ()
    assert told(lambda: system.predict(episode.observations[0], episode.actions)) == []


def test_a_start_or_an_action_outside_of_what_was_seen_is_told(rope):
    system, episode = rope
    (start,) = [t for t in told(lambda: system.predict(episode.observations[0] + 50, episode.actions)) if "start" in t]
    assert "the start is outside the range adapted to at node 0, coordinate 0 (" in start
    pushed = episode.actions.copy()
    pushed[3] *= 1000
    assert any(
        "at step 3 is outside the range" in t for t in told(lambda: system.predict(episode.observations[0], pushed))
    )


def test_a_plan_that_left_out_errors_contradict_is_told(rope):
    system, episode = rope
    low, high = (side * np.abs(episode.actions).max(0) for side in (-1, 1))
    problem = Problem(8, episode.observations[8].astype(float), low, high)
    controller = Controller(system, problem, iterations=2)
    assert told(lambda: controller.plan(episode.observations[0], opening=True)) == []
    poor = replace(system, spread=replace(system.spread, squares=system.spread.squares + 1e4))
    (sentence,) = told(lambda: replace(controller, system=poor).plan(episode.observations[0], opening=True))
    assert "the plan may do no better than nothing" in sentence
    both = (controller, replace(controller, system=poor))
    plan, worse = (one.plan(episode.observations[0], opening=True) for one in both)
    assert plan.status == worse.status  # how the problem ended is one thing, what the plan is worth another
    assert plan.outlook.worth and not worse.outlook.worth
    assert plan.outlook.low <= plan.outlook.error <= plan.outlook.high < worse.outlook.high
    assert worse.outlook.nothing == pytest.approx(plan.outlook.nothing)


def test_a_fit_that_is_no_better_than_nothing_is_told_and_kept(tmp_path):
    model, episodes = untrained("rope"), system_episodes("rope")[:2]
    found = told(lambda: save_system(adapt(model, episodes), tmp_path))
    assert len(found) == 1 and "predictions err as much as if nothing moved" in found[0]
    assert told(lambda: load_system(tmp_path)) == found
    assert load_system(tmp_path).warnings == tuple(found)


def test_a_singular_fit_is_told(rope):
    system, _ = rope
    matrix = torch.ones_like(system.operator.system)
    broken = replace(system, operator=replace(system.operator, system=matrix))
    assert any(
        "singular in double precision" in sentence
        for sentence in doubts.of_fit(broken, [s.observations for s in system.seen])
    )
    lost_fit = replace(
        system,
        spread=doubts.Spread.nothing(4),
        operator=replace(system.operator, coefficients=system.operator.coefficients * torch.nan),
    )
    assert any("the fit is not finite" in sentence for sentence in doubts.of_fit(lost_fit, []))


def test_no_prediction_is_nan_in_silence_and_no_such_plan_is_solved():
    """A real grid, known from one episode: too little for its model, whose prediction leaves all bounds."""
    pytest.importorskip("pandapower")
    env = world_named("grid").of_case("case39")
    env.reset(seed=0)
    parameters, goal = env.parameters, env.default_goal(env.graph.num_nodes)
    episodes = record_system(env, 0, 2, 100)
    system = None

    def work():
        nonlocal system
        system = adapt(load_model(env.shipped_model() and shipped(env.shipped_model())), episodes[1:])

    of_fit = told(work)
    predicted = None

    def predict():
        nonlocal predicted
        predicted = system.predict(episodes[0].observations[0], episodes[0].actions)

    of_prediction = told(predict)
    wild = not np.isfinite(predicted).all() or np.abs(predicted - 1).max() > 1e3
    assert of_fit and (of_prediction or not wild), (of_fit, of_prediction)
    env.reset(seed=0, options={"parameters": parameters})
    low, high = env.action_bounds
    problem = Problem(100, episodes[0].observations[100].astype(float) if goal is None else goal, low, high)
    plan = Controller(system, problem, iterations=3).plan(episodes[0].observations[0], opening=True)
    assert np.isfinite(plan.observations).all() or plan.status is Status.NOT_FINITE
