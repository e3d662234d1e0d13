"""What all baselines have in common: one interface, derivatives that are right, models that survive the disk."""

import dataclasses
from functools import cache, partial

import gymnasium
import numpy as np
import pytest
import torch

import small
from gce.baselines import BASELINES, BaselineController, BaselineDynamics, adapt, load, save, train
from gce.baselines.base import configure
from gce.baselines.koopman import LinearAdapted
from gce.baselines.trainable import Draw, FineTuning, Trainable, draw_batch, systems_of, training_of
from gce.control.problem import Problem
from gce.control.settle import Dynamics, Task
from gce.control.solver import solve_qp
from gce.control.tracking import ControlLimits
from gce.envs import Protocol
from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.planning.closed_loop import control, problem_for
from gce.training.batches import Recorded
from gce.training.learning import prediction_error
from gce.trajectory import Episode

TINY = {
    "kpm": {},
    "cko": {"features": 6, "node_width": 12, "edge_width": 8},
    "vae": {"latent": 6, "width": 24, "max_nodes": 6},
    "pcc": {"latent": 6, "width": 24, "max_nodes": 6},
    "graph_ode": {"features": 8, "node_width": 12, "edge_width": 8},
    "dmdc": {},
    "gns": {"width": 12},
}
QUICK = {
    "iterations": 6,
    "horizons": (2, 3),
    "validate_every": 3,
    "draw": Draw(systems=2, windows=2, fit_episodes=2, fit_steps=6),
}
GRAPH_METHODS = ("kpm", "cko", "graph_ode", "dmdc", "gns")


def recorded(world: str = "rope"):
    return small.recorded(world, steps=8)


def system_episodes(world: str = "rope", group: int = 0) -> list[Episode]:
    data = recorded(world)
    return [data[int(k)] for k in data.group(group).episodes]


names = pytest.mark.parametrize("name", BASELINES)


@pytest.fixture(autouse=True)
def short_tuning(monkeypatch):
    for kind in BASELINES.values():
        if hasattr(kind, "tuning"):
            monkeypatch.setattr(kind, "tuning", FineTuning(steps=2, windows=2, horizon=3, check_every=1))


@cache
def untrained(name: str, world: str = "rope", seed: int = 0):
    data, kind = recorded(world), BASELINES[name]
    torch.manual_seed(seed)
    model = kind(configure(kind.config_class, data, **TINY[name]))
    model.set_units(data)
    if isinstance(model, Trainable):
        systems_of(model, data, dataclasses.replace(model.schedule, **QUICK))
    return model


def adapted(name: str, world: str = "rope"):
    return adapt(untrained(name, world), system_episodes(world)[1:])


def bits(model) -> list[bytes]:
    return [value.numpy().tobytes() for value in model.state_dict().values()]


# ---- predictions ----


@names
@pytest.mark.parametrize("world", ["rope", "soft"])
def test_a_prediction_starts_at_the_observation_and_stays_finite(name, world):
    episode = system_episodes(world)[0]
    first = episode.observations[0].astype(float)
    predicted = adapted(name, world).predict(first, episode.actions)
    assert predicted.shape == episode.observations.shape
    assert np.array_equal(predicted[0], first)
    assert np.isfinite(predicted).all()
    if episode.graph.tied is not None:  # tied corners are one
        assert np.allclose(episode.graph.merge(predicted), predicted)


@names
def test_the_path_and_the_prediction_are_one(name):
    episode = system_episodes()[0]
    system = adapted(name)
    dynamics = BaselineDynamics(system, np.ones(episode.actions.shape[1:], bool))
    x0 = dynamics.start(episode.observations[0].astype(float))
    u = (episode.actions / system.model.action_std.numpy()).reshape(episode.length, -1)
    seen = torch.as_tensor(dynamics.outputs(dynamics.rollout(x0, u.astype(float)))).unflatten(-1, (-1, 4))
    expected = system.predict(episode.observations[0].astype(float), episode.actions)[1:]
    assert np.allclose(system.model.denormalise(seen).numpy(), expected)


@pytest.mark.parametrize("name", GRAPH_METHODS)
def test_relabelling_nodes_permutes_the_prediction(name):
    episodes = system_episodes("rope")
    order = np.random.default_rng(0).permutation(episodes[0].num_nodes)
    model = untrained(name)
    plain = adapt(model, episodes[1:]).predict(episodes[0].observations[0].astype(float), episodes[0].actions)
    moved = [relabelled(episode, order) for episode in episodes]
    other = adapt(model, moved[1:]).predict(moved[0].observations[0].astype(float), moved[0].actions)
    assert np.allclose(plain[:, order], other, atol=1e-4)
    assert not np.allclose(plain, other, atol=1e-2)


def relabelled(episode: Episode, order: np.ndarray) -> Episode:
    """Node k of the new episode is node order[k] of the old one."""
    old, place = episode.graph, np.argsort(order)
    graph = Graph(
        place[old.edge_index], old.edge_type, old.node_type[order], old.node_attributes[order], old.edge_attributes
    )
    return Episode(graph, episode.observations[:, order], episode.actions[:, order])


# ---- what a planner needs ----


@names
@pytest.mark.parametrize("world", ["rope", "soft"])
def test_slopes_are_those_of_small_differences(name, world):
    episode = system_episodes(world)[0]
    system = adapted(name, world)
    _, inputs = system.model.recorded(episode)
    x = torch.stack([system.start(o.astype(float)) for o in episode.observations[3:5]])
    inputs = inputs[3:5].double()
    by_x, by_u = system.slopes(x, inputs)
    by_output = system.output_slopes(x).expand(2, -1, -1)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(3):
            dx, du = torch.randn(x.shape, generator=rng).double(), torch.randn(inputs.shape, generator=rng).double()
            h = 1e-5
            step = (system.step(x + h * dx, inputs + h * du) - system.step(x - h * dx, inputs - h * du)) / (2 * h)
            along = (by_x @ dx.unsqueeze(-1) + by_u @ du.flatten(1).unsqueeze(-1)).squeeze(-1)
            assert torch.allclose(step, along, atol=1e-6, rtol=1e-6)
            seen = (system.observe(x + h * dx) - system.observe(x - h * dx)).flatten(1) / (2 * h)
            assert torch.allclose(seen, (by_output @ dx.unsqueeze(-1)).squeeze(-1), atol=1e-6, rtol=1e-6)


@names
def test_a_plan_costs_less_than_doing_nothing(name):
    episode = system_episodes()[0]
    system = adapted(name)
    dynamics = BaselineDynamics(system, np.arange(episode.num_nodes)[:, None] == 0)
    assert isinstance(dynamics, Dynamics)
    x0, M = (
        dynamics.start(episode.observations[2].astype(float), before=(episode.observations[1], episode.actions[1])),
        6,
    )
    still = np.zeros((M, 1))
    x = dynamics.rollout(x0, still)
    goal = np.repeat(dynamics.outputs(dynamics.start(episode.observations[-1].astype(float)))[None], M, 0)
    task = Task(
        goal, np.ones_like(goal), np.full((M, 1), 0.1), ControlLimits(np.full((M, 1), -2.0), np.full((M, 1), 2.0))
    )
    problem = task.along(dynamics, x0, x, still)
    assert np.isclose(problem.cost(still), task.cost(dynamics.outputs(x)[None], still[None])[0])
    u, status = solve_qp(problem)
    assert status == "solved"
    assert problem.cost(u) < problem.cost(still)


@names
def test_a_world_is_controlled(name):
    """Plans within bounds, taken again from what was seen, in the loop of our own controller."""
    env = gymnasium.make("gce/Rope-v0").unwrapped
    episode = system_episodes()[0]
    env.reset(seed=0, options={"parameters": episode.parameters})
    problem = problem_for(env, episode.observations[-1].astype(float), Protocol(6, 3, 0.1, 1.0, 1e-2))
    controller = BaselineController(adapted(name), problem, iterations=3)
    run = control(env, controller, feedback=3)
    assert run.planned_at == [0, 3]
    assert (run.actions[:, 0] != 0).any()
    assert not run.actions[:, 1:].any()
    low, high = env.action_bounds
    assert (run.actions >= low).all() and (run.actions <= high).all()
    first = run.plans[0]
    assert first.observations.shape == (7, *episode.observations.shape[1:])
    expected = controller.adapted.predict(run.seen[0], first.actions)
    assert np.allclose(first.observations, expected)


@names
def test_a_goal_in_features(name, monkeypatch):
    """Of the linear methods; others say that they have none."""
    start, goal = system_episodes()[0].observations[[0, -1]].astype(float)
    high = np.zeros((len(goal), 1))
    high[0] = 2.0
    problem = Problem(6, goal, -high, high, state_cost=0.0, terminal_cost=1.0, action_cost=1e-3, on="features")
    one = adapted(name)
    if not isinstance(one, LinearAdapted):
        with pytest.raises(InputError, match=f"{name} has no features"):
            BaselineController(one, problem)
        return
    plan = BaselineController(one, problem).plan(start)
    aim = one.start(goal).numpy()[one.embedding]

    def away(actions):
        x = one.rollout(one.start(start), one.model.inputs(actions, None, len(start)))[-1].numpy()
        return float(np.square(x[one.embedding] - aim).sum() + 1e-3 * np.square(actions).sum())

    assert plan.status == "solved"
    assert plan.cost == pytest.approx(away(plan.actions), rel=1e-6)
    others = np.random.default_rng(0).normal(size=(50, *plan.actions.shape)) * 0.05
    moved = np.clip(plan.actions + others * (high > 0), -high, high)
    assert all(away(actions) > away(plan.actions) for actions in moved)
    monkeypatch.setattr("gce.baselines.controller.LARGE_STATE", 1)
    with pytest.raises(InputError, match="at most 1 of all nodes"):
        BaselineController(one, problem)


def test_previous_actions_are_no_features():
    model = train("cko", recorded("soft"), model=TINY["cko"], schedule=QUICK)
    one = adapt(model, system_episodes("soft"))
    nodes = one.graph.num_nodes
    psi = one.features(torch.arange(len(one.c)).double()).numpy()[:, :6]
    assert one.embedding.tolist() == psi.flatten().tolist() and len(one.c) == 7 * nodes


# ---- training ----


@pytest.mark.parametrize("name", [n for n, kind in BASELINES.items() if issubclass(kind, Trainable)])
def test_training_lowers_the_loss(name, tmp_path):
    model = untrained(name, seed=1)
    plan = dataclasses.replace(
        model.schedule, **{**QUICK, "iterations": 1000, "learning_rate": 3 * model.schedule.learning_rate}
    )
    systems = [Recorded.of(model, system_episodes("rope", g)) for g in (0, 1, 2)]
    run = training_of(model, systems, [], plan, tmp_path)

    def loss() -> float:
        with torch.no_grad():
            batch = draw_batch(systems, Draw(3, 4, 3, 8), 3, np.random.default_rng(5))
            return float(model.loss(batch, torch.Generator().manual_seed(2)))

    before = loss()
    run.iteration = 100  # past the warm-up
    for _ in range(100):
        run._iterate()
        run.iteration += 1
    assert loss() < 0.9 * before


@names
def test_the_same_seed_gives_the_same_model_and_a_stopped_training_goes_on(name, tmp_path):
    data = recorded("rope")
    options = {"model": TINY[name], "schedule": {**QUICK, "iterations": 3}, "validation": 0.3}
    once = train(name, data, **options)
    train(name, data, folder=tmp_path, seconds=0.0, **options)  # stops before the first iteration
    again = train(name, data, folder=tmp_path, **options)
    assert bits(once) == bits(again)
    if name == "vae":
        options["schedule"]["seed"] = 1
        assert bits(once) != bits(train(name, data, **options))


def test_a_training_stopped_half_way_goes_on_bit_for_bit(tmp_path):
    def run(folder, some=slice(None)):
        torch.manual_seed(0)
        model = BASELINES["cko"](configure(BASELINES["cko"].config_class, recorded("rope"), **TINY["cko"]))
        model.set_units(recorded("rope"))
        plan = dataclasses.replace(model.schedule, **QUICK)
        folder.mkdir(exist_ok=True)
        systems = systems_of(model, recorded("rope"), plan)[some]
        return training_of(model, systems, [system_episodes("rope", 2)], plan, folder)

    whole = run(tmp_path / "whole")
    whole.run()
    run(tmp_path / "parts").run(until=4)
    rest = run(tmp_path / "parts")
    assert rest.resume()
    assert rest.iteration == 4
    rest.run()
    assert bits(whole.model) == bits(rest.model)
    with pytest.raises(InputError, match="on other data"):
        run(tmp_path / "parts", slice(1)).resume()


@names
def test_a_saved_baseline_is_the_same(name, tmp_path):
    model = untrained(name)
    save(model, tmp_path, {"seed": 0})
    loaded = load(tmp_path)
    assert bits(model) == bits(loaded)
    assert loaded.config == model.config
    errors = [prediction_error(partial(adapt, one), one, [system_episodes()]) for one in (model, loaded)]
    assert errors[0] == errors[1]


def test_a_training_may_begin_from_a_trained_model():
    options = {"model": TINY["cko"], "validation": 0.3}
    first = train("cko", recorded("rope"), schedule={**QUICK, "iterations": 3}, **options)
    still = {**QUICK, "iterations": 1, "learning_rate": 0.0}
    assert bits(train("cko", recorded("rope"), schedule=still, start=first, **options)) == bits(first)
    assert bits(train("cko", recorded("rope"), schedule=still, **options)) != bits(first)


def test_a_stop_after_some_time_leaves_the_best_model(tmp_path):
    model = train("cko", recorded("rope"), folder=tmp_path, seconds=1e-6, model=TINY["cko"], validation=0.3)
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 1
    assert bits(model) == bits(load(tmp_path))


# ---- bad input ----


def test_what_does_not_fit_is_refused(tmp_path):
    rope, soft = system_episodes("rope"), system_episodes("soft")
    model = untrained("vae")
    with pytest.raises(InputError, match="no episode"):
        adapt(model, [])
    with pytest.raises(InputError, match="another graph"):
        adapt(model, [rope[0], soft[0]])
    with pytest.raises(InputError, match="16 coordinates"):
        adapt(model, soft)
    with pytest.raises(InputError, match="no baseline 'gnn'; the baselines are kpm"):
        train("gnn", recorded("rope"))
    with pytest.raises(InputError, match="has no baseline.json"):
        load(tmp_path)
    crowded = BASELINES["vae"](dataclasses.replace(model.config, max_nodes=3))
    with pytest.raises(InputError, match="room for 3"):
        adapt(crowded, rope)
    system = adapted("kpm")
    with pytest.raises(InputError, match="observation has shape"):
        system.predict(rope[0].observations[0][:2].astype(float), rope[0].actions[:, :2])
    with pytest.raises(InputError, match="actions have shape"):
        system.predict(rope[0].observations[0].astype(float), np.repeat(rope[0].actions, 2, axis=2))


def test_a_damaged_folder_is_refused(tmp_path):
    save(untrained("kpm"), tmp_path)
    (tmp_path / "baseline.json").write_text("{}")
    with pytest.raises(InputError, match="is not a gce-baseline"):
        load(tmp_path)


def test_the_command_line_trains(tmp_path, monkeypatch, capsys):
    from gce.baselines.__main__ import TrainBaseline
    from gce.progress import run_module

    file, out = tmp_path / "rope.h5", tmp_path / "out"
    recorded("rope").save(file)
    command = ["train", "kpm", "--world", "rope", "--data", str(file), "--out", str(out)]
    monkeypatch.setattr("sys.argv", command)
    run_module(TrainBaseline)
    assert load(out).name == "kpm"
    monkeypatch.setattr("sys.argv", [*command[:3], "soft", *command[4:]])
    assert "seed" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        run_module(TrainBaseline)
    assert end.value.code == 2 and "is of the world rope, not of soft" in capsys.readouterr().err
