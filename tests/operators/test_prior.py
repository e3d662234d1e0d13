"""What trained systems tell together, and what it counts for in the regression of a new one."""

import numpy as np
import pytest
import torch

from gce.errors import InputError
from gce.model.files import load_model, save_model
from gce.operators.prior import ColouredNoise, TrainingPrior, left
from gce.operators.regression import Moments
from gce.system.evidence import see, total
from gce.system.files import load_system, save_system
from gce.system.system import adapt
from gce.training.learning import remember, train
from gce.training.preparation import config_for
from gce.trajectory import Episode
from small import close, recorded, system_episodes, untrained

pytestmark = pytest.mark.filterwarnings("ignore:.*samples for.*regressors")


def remembering(counts_for=1e4, groups=(0, 1)):
    model = untrained("grid", network=True, memory=counts_for, **{"features": 0, "linear_features": 0})
    remember(model, model.features.training_prior, [system_episodes("grid", group) for group in groups])
    return model


def thrown(episodes, size, seed=0):
    """Episodes with noise on their observations."""
    rng = np.random.default_rng(seed)
    return [
        Episode(e.graph, e.observations + size * rng.standard_normal(e.observations.shape).astype("f4"), e.actions)
        for e in episodes
    ]


def rows(slope, noise, count, seed):
    rng = np.random.default_rng(seed)
    x = torch.as_tensor(rng.standard_normal((1, count, 1)))
    return Moments.of(x, slope * x + noise * torch.as_tensor(rng.standard_normal((1, count, 1))))


def test_what_is_remembered_is_the_sum_over_systems():
    model = remembering()
    r = float(model.training_prior.correlation)
    expected = [
        total(see(model, episodes, episodes[0].graph, ColouredNoise.even(r, episodes[0].graph.num_nodes))).sums.moments
        for episodes in (system_episodes("grid", group) for group in (0, 1))
    ]
    assert close(model.training_prior.gram, expected[0].gram + expected[1].gram, 1e-12)
    assert int(model.training_prior.rows) == expected[0].rows + expected[1].rows
    assert 0 < r < 1  # the loads of a grid keep for a while what they draw


def test_precise_rows_of_a_system_outweigh_what_others_had():
    """The slope of all others is 1, that of the system 2: it is found the better the fewer rows memory counts for."""
    others, own = rows(1.0, 0.5, 20_000, 0), rows(2.0, 0.01, 1000, 1)
    found = []
    for counts_for in (1e-6, 100.0, 1e9):
        memory = TrainingPrior(1, 1, counts_for)
        memory.keep(others, 0.0)
        both = memory.beside(own, torch.ones(1, 1, dtype=torch.float64))
        found.append(float(both.cross / both.gram))
        assert both.rows == own.rows
    assert found[0] == pytest.approx(2, abs=0.01) and found[2] == pytest.approx(1, abs=0.01)
    assert found[2] < found[1] < found[0]


def test_noisy_rows_count_by_how_precise_they_are():
    memory = TrainingPrior(1, 1, 1000.0)
    memory.keep(rows(1.0, 0.5, 20_000, 0), 0.0)
    one = torch.ones(1, 1, dtype=torch.float64)
    own = rows(1.0, 5.0, 1000, 1)  # a hundred times the variance
    expected = float(left(own, one) / left(memory.moments, one))
    assert expected == pytest.approx(100, rel=0.1)
    both = memory.beside(own, one)
    weighted = own.cross / expected + memory.cross * 1000 / 20_000
    assert float(both.cross / both.gram) == pytest.approx(
        float(weighted / (own.gram / expected + memory.gram * 1000 / 20_000)), rel=1e-12
    )


def test_noise_on_observations_hardly_moves_the_operator():
    (plain, keeps), episodes = (remembering(1e-3), remembering(1e5)), system_episodes("grid", 2)

    def moved(model):
        clean, noisy = (adapt(model, some, measure=False).operator.coefficients[:, :2] for some in (episodes, noise))
        return float((noisy - clean).norm() / clean.norm())

    noise = thrown(episodes, 0.005)
    assert moved(keeps) < 0.1 * moved(plain)


def test_updates_one_by_one_equal_adapting_at_once():
    model, (first, *others) = remembering(), system_episodes("grid", 2)
    grown = adapt(model, [first], measure=False)
    for episode in others:
        grown = grown.update(episode)
    at_once = adapt(model, [first, *others], measure=False)
    assert close(grown.operator.coefficients, at_once.operator.coefficients, 1e-10)


def test_models_and_systems_keep_it_on_disk(tmp_path):
    model, episodes = remembering(), system_episodes("grid", 2)
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert torch.equal(again.training_prior.gram, model.training_prior.gram)
    system = adapt(model, episodes)
    save_system(system, tmp_path / "system")
    steps = (episodes[0].observations[0].astype(float), episodes[0].actions)
    np.testing.assert_array_equal(load_system(tmp_path / "system").predict(*steps), system.predict(*steps))


def test_training_fills_it_at_the_end():
    found = train(
        recorded("grid"), iterations=2, horizon=4, model={"network": True, "memory": 1e4}, training={"fit_steps": 8}
    )
    assert found.model.training_prior is not None and np.isfinite(found.validation_nrmse)


def test_single_steps_are_enough_to_adapt_to():
    model, episodes = remembering(), [e.window(0, 1) for e in system_episodes("grid", 2)]
    assert np.isfinite(adapt(model, episodes, measure=False).operator.coefficients.numpy()).all()


def test_what_has_no_network_has_no_memory():
    with pytest.raises(InputError, match="network=True"):
        config_for(recorded("rope"), memory=1e5)
    with pytest.raises(InputError, match="node_constants=0"):
        config_for(recorded("grid"), network=True, memory=1e5, node_constants=30.0)
