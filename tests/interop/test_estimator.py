"""The facade for people who come from scikit-learn, pykoopman or pykoop."""

import warnings

import numpy as np
import pytest

import gce
from gce import Regressor
from gce.errors import InputError

LINE = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])


@pytest.fixture(autouse=True)
def few_samples_are_fine():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the ridge decides")
        yield


def trajectories(count, seed=0, steps=15):
    """Three nodes that mix linearly; the first is pushed."""
    rng = np.random.default_rng(seed)
    mix = np.array([[0.9, 0.05, 0], [0.05, 0.85, 0.05], [0, 0.05, 0.9]])
    X, u = [], []
    for _ in range(count):
        pushes = rng.normal(size=(steps, 3, 1)) * [[1], [0], [0]]
        x = [rng.normal(size=(3, 1))]
        for push in pushes:
            x.append(mix @ x[-1] + 0.2 * push)
        X.append(np.stack(x))
        u.append(pushes)
    return X, u


def test_a_linear_system_is_found_in_closed_form():
    X, u = trajectories(8)
    fitted = Regressor(features=4, iterations=0, ridge=1e-8).fit(X[:7], u[:7], edge_index=LINE)
    assert fitted.score(X[7:], u[7:]) > 0.999
    (predicted,) = fitted.predict(X[7:], u[7:])
    assert predicted.shape == X[7].shape
    assert np.array_equal(predicted[0], X[7][0])
    (alone,) = fitted.predict([X[7][0]], u[7:])  # the first observation is all it looks at
    assert np.array_equal(alone, predicted)


def test_training_and_adapting_to_another_system():
    X, u = trajectories(5)
    fitted = Regressor(features=4, iterations=2, horizon=4).fit(X, u, edge_index=LINE)
    assert fitted.validation_nrmse_ < 1
    bidirectional = np.array([[0, 1], [1, 2]])
    other = fitted.adapt(X, u, edge_index=bidirectional, undirected=True)
    assert other.model_ is fitted.model_
    assert np.isfinite(other.score(X, u))


def test_the_mean_scores_zero():
    X, u = trajectories(6)
    fitted = Regressor(features=4, iterations=0).fit(X, u, edge_index=LINE)
    mean = np.concatenate([x[1:] for x in X]).reshape(-1, 1).mean(axis=0)
    fitted.predict = lambda X, u, group: [np.broadcast_to(mean, x.shape) for x in X]
    assert fitted.score(X, u) == pytest.approx(0)
    fitted.predict = lambda X, u, group: X
    assert fitted.score(X, u) == 1
    fitted.predict = lambda X, u, group: [np.full(x.shape, np.nan) for x in X]
    assert fitted.score(X, u) == -np.inf


def test_one_object_needs_no_graph():
    rng = np.random.default_rng(0)
    turn = np.array([[0.99, 0.1], [-0.1, 0.99]])
    X = [np.stack([np.linalg.matrix_power(turn, t) @ start for t in range(20)]) for start in rng.normal(size=(6, 2))]
    fitted = Regressor(features=4, iterations=0, ridge=1e-8).fit(X)  # and no actions
    assert fitted.score(X) > 0.99
    assert fitted.predict(X)[0].shape == (20, 2)


def test_several_systems_have_names():
    X, u = trajectories(6)
    fitted = Regressor(features=4, iterations=0).fit(X, u, edge_index=LINE, groups=["a", "b"] * 3)
    assert list(fitted.systems_) == ["a", "b"]
    assert fitted.score(X, u, group="b") > 0.9
    with pytest.raises(InputError, match="say which group: a, b"):
        fitted.predict(X, u)
    with pytest.raises(InputError, match="no group 'c'"):
        fitted.predict(X, u, group="c")


def test_a_trained_model_is_taken_from_its_folder(tmp_path):
    X, u = trajectories(6)
    first = Regressor(features=4, iterations=0).fit(X, u, edge_index=LINE)
    gce.save_model(first.model_, tmp_path / "model")
    second = Regressor(model=tmp_path / "model").fit(X, u, edge_index=LINE)
    assert second.score(X, u) == pytest.approx(first.score(X, u))


def test_parameters():
    made = Regressor(features=4, ridge=1e-3)
    assert made.get_params()["features"] == 4
    assert made.set_params(features=8, seed=3) is made
    assert (made.features, made.seed) == (8, 3)
    assert repr(made) == "Regressor(features=8, ridge=0.001, seed=3)"
    with pytest.raises(InputError, match="no parameter 'depth'; the parameters are form,"):
        made.set_params(depth=2)


def test_scikit_learn_clones_it():
    base = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed: its clone was not checked")
    X, u = trajectories(4)
    fitted = Regressor(features=4, iterations=0).fit(X, u, edge_index=LINE)
    copy = base.clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "model_")


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda r, X, u: r.predict(X, u), "not fitted; call fit first"),
        (lambda r, X, u: r.adapt(X, u), "not fitted"),
        (lambda r, X, u: r.fit(X, u), r"trajectory 0 has shape \(16, 3, 1\); without edge_index"),
        (lambda r, X, u: r.fit(X, u, edge_index=LINE).predict(X), "the system takes actions, which are missing"),
        (lambda r, X, u: r.fit(X, u, edge_index=LINE).predict([X[0][0, 0]], u), "an array has shape"),
        (lambda r, X, u: r.set_params(iterations=2).fit(X[:2], u[:2], edge_index=LINE), "three episodes"),
    ],
)
def test_what_cannot_be_done_is_explained(act, sentence):
    with pytest.raises(InputError, match=sentence):
        act(Regressor(features=4, iterations=0), *trajectories(3))
