import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.graphs.topology import Topology
from gce.training.batches import Batch, SystemData, TrainingConfig, draw_batch, loss_of
from gce.training.learning import training_of, validation_error
from gce.training.loop import Training, horizon_at, learning_rate
from gce.training.preparation import config_for, find_kinematics, prepare
from gce.trajectory import Dataset
from small import TINY, close, recorded, system_episodes, untrained

QUICK = TrainingConfig(
    iterations=4, systems=2, fit_episodes=3, fit_steps=8, rollouts=2, horizons=(2, 3), validate_every=2
)


def training(folder, config: TrainingConfig = QUICK, moved: float = 0.0, kept: int = 4, **overrides) -> Training:
    """moved: how far one number is from the recorded one; kept: episodes to validate on."""
    folder.mkdir(exist_ok=True)
    model = untrained("rope", **overrides)
    systems = [SystemData(model, system_episodes("rope", group)) for group in (0, 1)]
    systems[1].states[2, 3, 0, 0] += moved
    return training_of(model, systems, [system_episodes("rope", 2)[:kept]], config, folder)


def weights(run: Training) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


# ---- what is read off the data ----


def test_kinematics_are_found():
    assert find_kinematics(recorded("rope"), 0.02) == ((0, 2), (1, 3))
    assert find_kinematics(recorded("soft"), 0.02) == tuple((k, k + 8) for k in range(8))
    assert find_kinematics(recorded("grid"), 0.05) == ()
    assert find_kinematics(recorded("rope"), 0.04) == ()


def test_the_configuration_follows_the_recording():
    config = config_for(recorded("rope"))
    assert (config.num_observations, config.num_actions, config.num_relations, config.num_node_types) == (4, 1, 8, 2)
    assert config.rest_start
    assert config.fresh_start
    assert config.points == ((0, 1, 2, 3),)
    assert config_for(recorded("soft")).previous_action
    assert config_for(recorded("grid")).kinematics == ()


def test_a_structure_that_is_not_known_is_told():
    data = Dataset.from_episodes(system_episodes("rope"), [0] * 4, {"structure": {"colour": 1}})
    with pytest.raises(InputError, match="structure says 'colour'; it may say points"):
        config_for(data)


def test_units_are_those_of_the_data():
    model, episodes = untrained("rope"), list(recorded("rope"))
    seen = model.normalise(torch.as_tensor(np.concatenate([e.observations.reshape(-1, 4) for e in episodes])))
    assert torch.allclose(seen.std(0, correction=0), torch.ones(4), atol=1e-3)
    assert torch.allclose(seen.mean(0)[:2], torch.zeros(2), atol=1e-3)
    assert not model.observation_mean[2:].any()


def test_exogenous_inputs_have_their_unit():
    episodes = [replace(e, exogenous=50 * np.ones_like(e.actions) * (k + 1)) for k, e in enumerate(recorded("grid"))]
    data = Dataset.from_episodes(episodes, recorded("grid").groups.tolist())
    unit = prepare(config_for(data, **TINY), data).exogenous_std
    assert unit.item() == pytest.approx(np.concatenate([e.exogenous.ravel() for e in episodes]).std(), rel=1e-5)


def test_very_short_recordings_have_finite_units():
    episodes = [e.window(0, 2) for e in system_episodes("rope")[:1]]
    data = Dataset.from_episodes(episodes, [0], recorded("rope").metadata)
    model = prepare(config_for(data, **TINY), data)
    assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


# ---- batches ----


def test_episodes_fitted_on_are_not_predicted():
    data = recorded("rope")
    model = untrained("rope")
    system = SystemData(model, system_episodes("rope"))
    for k in range(len(system)):
        system.states[k] = k
    batch = draw_batch([system], replace(QUICK, systems=1), 3, np.random.default_rng(0))
    assert len(data.group(0).episodes) == len(system)
    assert not set(batch.fit_states.unique().tolist()) & set(batch.states.unique().tolist())


def test_systems_of_different_lengths_share_a_batch():
    model = untrained("rope")
    long = SystemData(model, system_episodes("rope", 0))
    short = SystemData(model, [e.window(0, 4) for e in system_episodes("rope", 1)])
    for seed in range(4):
        batch = draw_batch([long, short], replace(QUICK, systems=4), 10, np.random.default_rng(seed))
        assert batch.states.shape[2] == batch.inputs.shape[2] + 1


def test_systems_on_equal_graphs_have_the_loss_of_their_union():
    model = untrained("rope")
    data = recorded("rope", episodes=24)
    systems = [SystemData(model, [data[int(k)] for k in data.group(int(g)).episodes]) for g in np.unique(data.groups)]
    alike = [system for system in systems if system.kind == systems[0].kind]
    assert 1 < len(alike) < len(systems)
    shared = draw_batch(alike, replace(QUICK, systems=len(alike)), 4, np.random.default_rng(0))
    assert len(shared.states) == len(alike)
    parts = (shared.fit_states, shared.fit_inputs, shared.fit_fresh, shared.states, shared.inputs, shared.fresh)
    union = Batch(
        Topology.of([system.graph for system in alike]), *(torch.cat(list(part), dim=-2)[None] for part in parts)
    )
    losses = [
        loss_of(model, b, replace(QUICK, noise_share=0.0), torch.Generator().manual_seed(0)) for b in (shared, union)
    ]
    assert close(losses[0].detach(), losses[1].detach(), 1e-4)


def test_a_window_is_fresh_where_it_opens_an_episode():
    system = SystemData(untrained("rope"), system_episodes("rope"))
    batch = draw_batch([system], replace(QUICK, systems=1, fresh_share=1.0), 3, np.random.default_rng(0))
    assert bool((batch.fresh[:, :, 0] == 1).all())
    assert not batch.fresh[:, :, 1:].any()


def test_horizons_grow_and_steps_shrink():
    config = replace(QUICK, iterations=400, horizons=(4, 16, 48))
    horizons = [horizon_at(config, k) for k in range(400)]
    assert horizons == sorted(horizons)
    assert {h: horizons.count(h) for h in config.horizons} == pytest.approx({4: 133, 16: 133, 48: 134}, abs=1)
    rates = [learning_rate(config, k) for k in range(100, 400)]
    assert rates == sorted(rates, reverse=True)
    assert learning_rate(config, 399) == pytest.approx(0.02 * config.learning_rate, rel=0.05)
    paper = replace(config, schedule="paper")
    assert learning_rate(paper, 100_000) == pytest.approx(paper.learning_rate / 2)


# ---- the loop ----


def test_the_same_seed_gives_the_same_model(tmp_path):
    runs = [training(tmp_path / name) for name in ("a", "b")]
    assert runs[0].run() == runs[1].run()
    assert same(weights(runs[0]), weights(runs[1]))
    other = training(tmp_path / "c", replace(QUICK, seed=1))
    other.run()
    assert not same(weights(other), weights(runs[0]))


@pytest.mark.parametrize("stop", [1, 2])
def test_a_stopped_training_goes_on_bit_for_bit(tmp_path, stop):
    whole = training(tmp_path / "whole")
    best = whole.run()
    training(tmp_path / "parts").run(until=stop)
    rest = training(tmp_path / "parts")
    assert rest.resume()
    assert rest.iteration == stop
    assert rest.run() == best
    assert same(weights(rest), weights(whole))
    assert same(rest.best_state, whole.best_state)


def test_an_interrupt_keeps_the_iteration_it_comes_in(tmp_path, monkeypatch):
    """Ctrl-C in the middle of an iteration: that one is done to its end, kept, and not done again."""
    whole = training(tmp_path / "whole", replace(QUICK, checkpoint_every=100, validate_every=100))
    whole.run()
    stopped = training(tmp_path / "parts", whole.config)
    once, before = stopped._iterate, signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(stopped, "_iterate", lambda: (signal.raise_signal(signal.SIGINT), once())[1])
    try:
        with pytest.raises(KeyboardInterrupt):
            stopped.run()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    rest = training(tmp_path / "parts", whole.config)
    assert rest.resume() and rest.iteration == 1
    rest.run()
    assert same(weights(rest), weights(whole))


def test_a_finished_training_has_nothing_left_to_do(tmp_path):
    first = training(tmp_path)
    best = first.run()
    again = training(tmp_path)
    again.resume()
    told = []
    assert again.run(told.append) == best
    assert told == []
    assert same(weights(again), weights(first))


def test_the_loss_falls(tmp_path):
    config = replace(QUICK, iterations=60, horizons=(2,), noise_share=0.0, learning_rate=0.03, validate_every=1000)
    told = []
    training(tmp_path, config).run(told.append, until=24)
    losses = [progress.loss for progress in told]
    assert len(losses) == 24
    assert np.mean(losses[-6:]) < 0.8 * np.mean(losses[:6])


def test_the_best_validation_is_kept(tmp_path):
    run = training(tmp_path)
    told = []
    best = run.run(told.append)
    assert best == min(p.validation for p in told if p.validation is not None)
    assert validation_error(run.model, [system_episodes("rope", 2)]) == best
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [2, 4]


def test_an_empty_folder_starts_anew(tmp_path):
    assert not training(tmp_path).resume()


def test_another_trainings_folder_is_refused(tmp_path):
    training(tmp_path).run(until=1)
    for other in (training(tmp_path, replace(QUICK, seed=1)), training(tmp_path, linear_features=3)):
        with pytest.raises(InputError, match="holds another training"):
            other.resume()


def test_other_data_are_refused(tmp_path):
    training(tmp_path).run(until=1)
    for other in (training(tmp_path, moved=1e-3), training(tmp_path, kept=3)):
        with pytest.raises(InputError, match="holds a training on other data"):
            other.resume()


@pytest.mark.parametrize("damage", [b"{", b"", None])
def test_a_damaged_checkpoint_is_told(tmp_path, damage):
    training(tmp_path).run(until=1)
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-50] if damage is None else damage)
    with pytest.raises(InputError, match="the checkpoint in .* is damaged"):
        training(tmp_path).resume()


def test_a_stop_while_writing_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    run = training(tmp_path)
    run.run(until=1)
    before = weights(run)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        run.run(until=2)
    monkeypatch.undo()
    again = training(tmp_path)
    assert again.resume()
    assert again.iteration == 1
    assert same(weights(again), before)
