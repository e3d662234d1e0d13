"""From a data set to a trained model, as it is done for data of one's own."""

import warnings

import numpy as np
import pytest

import gce
from gce.errors import Doubt, InputError
from gce.training.learning import equal_stretches, split_for_training, train
from gce.training.preparation import config_for, prepare
from gce.trajectory import Dataset
from small import TINY

LINE = np.array([[0, 1], [1, 2]])


@pytest.fixture(autouse=True)
def few_samples_are_fine():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the ridge decides")
        yield


def data(lengths, groups=None, seed=0) -> Dataset:
    """x' = 0.9 x + 0.1 (mean of the neighbours) + a, on a line of three nodes."""
    rng = np.random.default_rng(seed)
    mix = 0.9 * np.eye(3) + 0.05 * np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    observations, actions = [], []
    for steps in lengths:
        a = rng.normal(size=(steps, 3, 1)) * [[[1], [0], [0]]]
        o = [rng.normal(size=(3, 1))]
        for t in range(steps):
            o.append(mix @ o[-1] + 0.1 * a[t])
        observations.append(np.stack(o))
        actions.append(a)
    return Dataset.from_arrays(observations, actions, LINE, undirected=True, groups=groups)


def test_a_linear_system_is_learned_from_one_system_alone():
    trained = train(data([20] * 6), iterations=3, horizon=4, model=TINY, method="structured")
    assert trained.validation_nrmse < 0.02
    test = data([20] * 6, seed=1)
    system = gce.adapt(trained.model, list(test)[1:])
    predicted = system.predict(test[0].observations[0], test[0].actions)
    assert np.abs(predicted - test[0].observations).max() < 0.05


def test_the_folder_of_a_training_is_a_model(tmp_path):
    trained = train(data([20] * 6), iterations=3, horizon=4, model=TINY, method="structured", folder=tmp_path)
    kept = gce.load_model(tmp_path).state_dict()
    assert all(bool((kept[name] == value).all()) for name, value in trained.model.state_dict().items())


def test_validation_systems_are_not_trained_on():
    some = data([6] * 12, groups=[k // 3 for k in range(12)])
    validation, rest = split_for_training(some, 0.05, 0)
    assert len(validation) == 1  # a share too small for one system keeps one
    assert len(validation[0]) == 3
    assert len(np.unique(rest.groups)) == 3
    firsts = {e.observations.tobytes() for episodes in validation for e in episodes}
    assert not firsts & {e.observations.tobytes() for e in rest}


@pytest.mark.parametrize("systems", [1, 2])
def test_of_few_systems_episodes_are_kept_away(systems):
    some = data([6] * 10, groups=[k % systems for k in range(10)])
    validation, rest = split_for_training(some, 0.3, 0)
    predicted = {episodes[0].observations.tobytes() for episodes in validation}
    trained = {e.observations.tobytes() for e in rest}
    assert len(predicted) + len(trained) == 10
    assert not predicted & trained
    for episodes in validation:
        assert {e.observations.tobytes() for e in episodes[1:]} <= trained


def test_lengths_may_differ():
    trained = train(data([5, 40, 9, 23, 31, 17]), iterations=2, horizon=8, model=TINY, method="structured")
    assert np.isfinite(trained.validation_nrmse)


@pytest.mark.parametrize(
    ("lengths", "cut", "expected"),
    [
        ([30, 30], True, [30, 30]),
        ([30, 60, 71], True, [30] * 5),
        ([3, 25, 41], True, [10] * 6),
        ([3, 25, 41], False, [10] * 2),
        ([3, 7, 8], True, [3, 7, 8]),
        ([60, 30], False, [30, 30]),
    ],
)
def test_stretches_are_equal_and_as_long_as_wanted(lengths, cut, expected):
    made = equal_stretches(list(data(lengths)), 10, cut)
    assert [episode.length for episode in made] == expected


def test_a_long_episode_is_cut_into_several():
    whole = data([50, 7, 21])
    pieces = whole.cut(10)
    assert pieces.lengths.tolist() == [10] * 7
    assert np.array_equal(pieces[2].observations, whole[0].observations[20:31])
    assert np.array_equal(pieces[5].actions, whole[2].actions[:10])
    assert pieces[0].limits is not None
    with pytest.raises(InputError, match="no episode has 60 steps; the longest has 50"):
        whole.cut(60)


@pytest.mark.parametrize(
    ("made", "options", "sentence"),
    [
        (lambda: data([9, 9]), {}, "system 0 has 2 episodes, and there are fewer than three"),
        (lambda: data([9] * 3, groups=[0, 1, 2]), {}, "a system has a single episode"),
        (lambda: data([9] * 3), {"validation": 1.5}, "validation is 1.5"),
        (lambda: data([9] * 3), {"iterations": 0}, "iterations is 0"),
    ],
)
def test_what_cannot_be_trained_on_is_explained(made, options, sentence):
    with pytest.raises(InputError, match=sentence):
        train(made(), **options)


@pytest.mark.parametrize("still", [lambda o: o * 0 + 3.0, lambda o: o * 1e-12])
def test_coordinates_that_never_move_are_named_and_left_out(still):
    rng = np.random.default_rng(0)
    paths = [rng.standard_normal((9, 2, 2)).cumsum(0) for _ in range(3)]
    actions = [rng.standard_normal((8, 2, 1)) for _ in range(3)]
    partly = [np.concatenate([o[..., :1], still(o[..., 1:])], axis=-1) for o in paths]
    names = {"observation_names": ["moving", "stuck"]}
    data = Dataset.from_arrays(partly, actions, [[0], [1]], **names)
    with pytest.warns(Doubt, match="^stuck never move"):
        model = prepare(config_for(data, features=2, node_width=4, edge_width=4), data)
    assert model.held[:, : len(model.free)].tolist() == [[False, True]]
    nothing = Dataset.from_arrays([still(o) for o in paths], actions, [[0], [1]], **names)
    with pytest.raises(InputError, match="nothing moves in the data: moving, stuck"):
        prepare(config_for(nothing, features=2, node_width=4, edge_width=4), nothing)
