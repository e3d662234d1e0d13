"""The loop closed on a system of one's own, with plans that settle and in real time."""

import dataclasses
import time
import tracemalloc

import numpy as np
import pytest

import gce
from gce.control.solver import Solver, Suitable
from gce.control.tracking import Status
from gce.envs import world_named
from gce.errors import Doubt, InputError
from gce.model.files import load_model, shipped
from gce.planning.closed_loop import control, figures, problem_for
from gce.planning.controller import Controller
from gce.planning.observer import Filter
from gce.system.system import adapt
from gce.trajectory import Episode
from general import pendulums, trained

STEPS = 12


@pytest.fixture(scope="module")
def rope():
    env = world_named("rope")(objects=5)
    env.reset(seed=3)
    parameters, episodes = env.parameters, []
    for k in range(4):
        env.reset(seed=100 + k, options={"parameters": parameters})
        episodes.append(Episode(env.graph, *env.run(env.excitation(np.random.default_rng(k), 40), 40)))
    system = adapt(load_model(shipped("rope")).requires_grad_(False), episodes[1:])
    goal = episodes[0].observations[STEPS].astype(float)
    protocol = dataclasses.replace(env.recipe.protocol, horizon=STEPS)
    return env, system, problem_for(env, goal, protocol)


def begun(env, **options):
    env.reset(seed=100, options={"parameters": env.parameters, **options})
    return env.observe()


def stepping(env, change=lambda t, o: o):
    """A step that counts; change: of what it answers."""
    at = iter(range(10**6))

    def step(action):
        env._advance(action)
        return change(next(at), env.observe())

    return step


@pytest.mark.parametrize("mode", ["settled", "realtime"])
def test_a_run_is_the_closed_loop_and_an_episode(rope, mode):
    env, system, problem = rope
    controller = Controller(system, problem, mode=mode)
    ran = gce.run(stepping(env), controller, begun(env))
    assert ran.status == "solved" and ran.ended is None
    assert len(ran.plan_seconds) == len(ran.feedback_seconds) == STEPS == sum(ran.statuses.values())
    assert all(0 < after <= whole for after, whole in zip(ran.feedback_seconds, ran.plan_seconds, strict=True))
    (episode,) = ran.episodes
    assert episode.length == STEPS and episode.graph is system.graph
    assert gce.adapt(system.model, [episode], measure=False).graph is episode.graph
    begun(env)
    run = control(env, controller, 1)
    np.testing.assert_allclose(run.actions, episode.actions)
    np.testing.assert_allclose(run.seen, episode.observations)
    told = figures(env, run)
    assert told["control_error"] < 0.3 * told["nothing"] and len(told["plan_seconds"]) == STEPS


def test_one_turn_a_step_ends_where_settled_plans_end(rope):
    env, system, problem = rope
    ends = []
    for mode in ("settled", "realtime"):
        begun(env)
        run = control(env, Controller(system, problem, mode=mode), 1)
        ends.append(np.linalg.norm(run.observations[-1] - problem.goal) / np.linalg.norm(problem.goal))
    assert ends[1] < 1.2 * ends[0]
    assert np.all((run.actions >= problem.low) & (run.actions <= problem.high))


def kinds(rope):
    env, system, problem = rope
    yield system, problem, begun(env)
    yield system, dataclasses.replace(problem, on="features", state_cost=1.0), begun(env)
    data = pendulums()
    own = gce.adapt(trained().model, [data[k] for k in range(3)], measure=False)
    _, low, high = gce.control_limits(data, 0)
    goal, at = data[3].observations[10].astype(float), data[3].observations[0].astype(float)
    yield own, gce.Problem(8, goal, low, high), at


def test_every_kind_of_dynamics_takes_turns(rope, monkeypatch):
    for system, problem, at in kinds(rope):
        for weights in ("along", "frozen"):
            turn = Controller(system, problem, weights, mode="realtime").begin(at)
            for _ in range(2):
                seen = turn.prepare().expectation
                turn = turn.prepare().feedback(seen)
                assert turn.status.ok and turn.action.shape == problem.low.shape
            assert len(turn.actions) == problem.horizon - 2
    env = world_named("grid")(objects=6)
    env.reset(seed=0)
    monkeypatch.setattr("gce.features.base.MANY_NODES", 4)
    episode = Episode(env.graph, *env.run(env.excitation(np.random.default_rng(0), 20), 20))
    system = adapt(load_model(shipped("grid")), [episode], measure=False)
    protocol = dataclasses.replace(env.recipe.protocol, horizon=6)
    ran = gce.run(
        stepping(env), Controller(system, problem_for(env, env.default_goal(6), protocol), mode="realtime"),
        env.observe(), observer=lambda o: Filter.opened(system, o),
    )  # fmt: skip
    assert ran.status.ok and not np.array_equal(ran.known[3], ran.observations[3])


def test_a_missing_measurement_is_said_and_the_last_plan_goes_on(rope):
    env, system, problem = rope
    nan = lambda t, o: np.full_like(o, np.nan) if t in (3, 4) else o  # noqa: E731
    for mode in ("settled", "realtime"):
        with pytest.warns(Doubt, match="step 3: the observation holds nan at node 0, coordinate 0; the last plan goes"):
            ran = gce.run(stepping(env, nan), Controller(system, problem, mode=mode), begun(env))
        assert ran.missed == [4, 5] and ran.ended is None and len(ran.actions) == STEPS
        assert [episode.length for episode in ran.episodes] == [3, STEPS - 6]
        assert np.isfinite(np.stack(ran.known)).all()
        if mode == "realtime":
            assert ran.statuses[Status.SHIFTED] == 2
        else:
            assert np.array_equal(ran.actions[4], ran.plans[3].actions[1])
    with pytest.warns(Doubt, match="3 measurements in a row were missing up to step 2"):
        ran = gce.run(
            stepping(env, lambda t, o: np.nan * o), Controller(system, problem), begun(env), patience=3,
            observer=lambda o: Filter.opened(system, o),
        )  # fmt: skip
    assert len(ran.actions) == 3 and ran.ended is not None and ran.episodes == []


def test_an_actuator_that_saturates_is_said_and_learned_from(rope):
    env, system, problem = rope
    before = dataclasses.replace(problem, action_cost=1e-6)

    def step(action):
        acted = np.clip(action, -0.05, 0.05)
        env._advance(acted)
        return env.observe(), acted

    for mode in ("settled", "realtime"):
        with pytest.warns(Doubt, match=r"step 0: the actuator of node \d was told .* narrow its bounds"):
            ran = gce.run(step, Controller(system, before, mode=mode), begun(env))
        assert ran.saturated and np.abs(ran.episodes[0].actions).max() <= 0.05


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda o: o[:2], r"step 0 answered with the shape \(2, 4\), expected \(5, 4\)"),
        (lambda o: "far", "step 0 is str, expected the observation"),
        (lambda o: (o, o, o), "step 0 answered with 3 values"),
        (lambda o: (o, o), r"the action as it acted has shape \(5, 4\), expected \(5, 2\)"),
    ],
    ids=["shape", "words", "many", "action"],
)
def test_a_step_that_answers_wrongly_is_refused(rope, answer, words):
    env, system, problem = rope
    words = words.replace("(5, 2\\)", f"(5, {problem.low.shape[1]}\\)")
    with pytest.raises(InputError, match=words):
        gce.run(stepping(env, lambda t, o: answer(o)), Controller(system, problem), begun(env))


def test_bad_settings_are_refused(rope):
    env, system, problem = rope
    first = begun(env)
    with pytest.raises(InputError, match="mode is 'settled' or 'realtime'"):
        Controller(system, problem, mode="fast")
    with pytest.raises(InputError, match="in real time every step"):
        gce.run(stepping(env), Controller(system, problem, mode="realtime"), first, feedback=2)
    with pytest.raises(InputError, match="first observation holds nan"):
        gce.run(stepping(env), Controller(system, problem), np.nan * first)
    path = dataclasses.replace(problem, goal=np.broadcast_to(problem.goal, (STEPS, *problem.goal.shape)).copy())
    with pytest.raises(InputError, match="moves on only where goal"):
        gce.run(stepping(env), Controller(system, path), first, steps=STEPS + 1)
    with pytest.raises(InputError, match="time_limit is 1e-06 s, and one turn takes .* allow more"):
        gce.run(stepping(env), Controller(system, problem, mode="realtime", time_limit=1e-6), first)


class Slow(Solver):
    """Sleeps at the fifth program."""

    name = "slow"

    def __init__(self):
        self.asked = 0

    def solve(self, problem, start):
        self.asked += 1
        time.sleep(2.5 * (self.asked == 25))
        return Suitable().solve(problem, start)


def test_steps_that_would_miss_the_time_limit_shift_the_last_plan(rope):
    env, system, problem = rope
    slow = Slow()
    controller = Controller(system, problem, mode="realtime", time_limit=2.0, solver=slow)
    turn = controller.begin(begun(env))
    slow.asked = 23
    turn = turn.prepare().feedback(begun(env))
    slowed = turn.prepare().feedback(begun(env))
    assert slowed.status.ok and slowed.pace > 2
    held = slowed.prepare().feedback(begun(env))
    assert held.status is Status.SHIFTED and np.array_equal(held.actions, slowed.actions[1:])
    for _ in range(6):
        held = held.prepare().feedback(begun(env))
    assert held.status.ok  # a slow turn is forgotten


def test_the_horizon_moves_along_and_memory_does_not_grow(rope):
    env, system, problem = rope
    for mode in ("settled", "realtime"):
        ran = gce.run(stepping(env), Controller(system, problem, mode=mode), begun(env), steps=2 * STEPS)
        assert len(ran.actions) == 2 * STEPS == len(ran.plan_seconds) and len(ran.plans) == 1
        assert ran.status.ok
    controller = Controller(system, problem, mode="realtime")
    turn, seen, sizes = controller.begin(begun(env)), begun(env), []
    tracemalloc.start()
    for t in range(40):
        turn = turn.prepare(recede=True).feedback(seen)
        if t in (9, 39):
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] < sizes[0] + 20_000 and len(turn.actions) == STEPS


def test_a_link_is_prepared_for_between_sending_and_receiving(rope):
    env, system, problem = rope
    order = []

    class Robot:
        def send(self, action):
            order.append("send")
            env._advance(action)

        def receive(self):
            order.append("receive")
            return env.observe()

    controller = Controller(system, problem, mode="realtime")
    plain = gce.run(stepping(env), controller, begun(env))
    first = begun(env)
    original = type(controller.begin(first)).prepare

    def told(self, *arguments):
        order.append("prepare")
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gce.planning.realtime.Turn.prepare", told)
        ran = gce.run(Robot(), controller, first)
    assert order[:6] == ["send", "prepare", "receive"] * 2 and order[-2:] == ["send", "receive"]
    np.testing.assert_allclose(np.stack(ran.actions), np.stack(plain.actions))
