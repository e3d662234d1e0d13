"""Models of the general method: trained on own data, adapted, kept, planned for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import gce
from gce.errors import Doubt, InputError
from gce.training.learning import train
from general import TINY_GENERAL, pendulums, trained


@pytest.fixture(scope="module")
def system():
    data = pendulums()
    return gce.adapt(trained().model, [data[k] for k in range(4)])


def started(episode):
    return episode.observations[0].astype(float), episode.actions


def test_it_is_the_default_for_own_data():
    assert trained().model.method == "general"
    assert np.isfinite(trained().validation_nrmse)


def test_prediction_beats_nothing_moving(system):
    episode = pendulums()[5]
    predicted = system.predict(*started(episode))
    assert np.array_equal(predicted[0], episode.observations[0])
    still = np.square(episode.observations - episode.observations[0]).mean()
    assert np.square(predicted - episode.observations).mean() < 0.5 * still


def test_angles_stay_on_the_circle(system):
    predicted = system.predict(*started(pendulums()[5]))
    assert np.abs(np.hypot(predicted[..., 0], predicted[..., 1]) - 1).max() < 1e-5


def test_updating_is_adapting_to_all_with_the_strengths_given(system):
    data = pendulums()
    later = system.update(data[4])
    at_once = gce.adapt(system.model, [data[k] for k in range(5)], strengths=system.strengths)
    assert later.operator.rows == at_once.operator.rows
    np.testing.assert_allclose(later.predict(*started(data[5])), at_once.predict(*started(data[5])), atol=1e-5)
    assert np.abs(later.predict(*started(data[5])) - system.predict(*started(data[5]))).max() > 1e-5


def test_updating_is_adapting_with_a_dense_part_too(system):
    data, strengths = pendulums(), replace(system.strengths, shift=10.0, dense=0.5)
    some = gce.adapt(system.model, [data[k] for k in range(4)], strengths=strengths)
    at_once = gce.adapt(system.model, [data[k] for k in range(5)], strengths=strengths)
    assert some.dense is not None
    np.testing.assert_allclose(
        some.update(data[4]).predict(*started(data[5])), at_once.predict(*started(data[5])), atol=1e-4
    )


def test_a_file_keeps_all(system, tmp_path):
    strengths = replace(system.strengths, shift=10.0, dense=0.5)
    for one in (system, gce.adapt(system.model, [pendulums()[0]], strengths=strengths)):
        gce.save_system(one, tmp_path)
        again = gce.load_system(tmp_path)
        assert again.strengths == one.strengths
        start, actions = started(pendulums()[5])
        np.testing.assert_allclose(again.predict(start, actions), one.predict(start, actions), atol=1e-6)
        for side, other in zip(
            again.intervals(again.predict(start, actions)), one.intervals(one.predict(start, actions)), strict=True
        ):
            np.testing.assert_allclose(side, other, atol=1e-6)


def test_intervals_hold_most_of_what_happens(system):
    data = pendulums()
    inside = []
    for k in range(4, 6):
        low, high = system.intervals(system.predict(*started(data[k])))
        inside.append(((data[k].observations >= low) & (data[k].observations <= high))[1:].mean())
    assert np.mean(inside) > 0.6


def test_covariance_is_that_of_errors_of_the_targets(system):
    """Against rollouts to whose targets errors of the residual covariance were added."""
    start, actions = started(pendulums()[5])
    P = system.covariance(start, actions[:2])
    assert P.shape[0] == 3 and not P[0].any()
    nodes, free = system.graph.num_nodes, len(system.model.free)
    rng = np.random.default_rng(0)
    errors = rng.multivariate_normal(np.zeros(free), system.operator.residual.numpy(), (2, nodes, 4000))
    x = system.state(start, True)[:, None].expand(-1, 4000, -1)
    a = torch.as_tensor(actions[:2], dtype=torch.float32)[:, :, None].expand(-1, -1, 4000, -1) / system.model.action_std
    with torch.no_grad():
        for t in range(2):
            x = system.hierarchy.step(x, a[t], torch.as_tensor(errors[t], dtype=torch.float32))
    found = np.var((x * system.model.observation_std).numpy(), axis=1).reshape(-1)
    expected = np.diagonal(P[2])
    counted = expected > 1e-4 * expected.max()
    np.testing.assert_allclose(found[counted], expected[counted], rtol=0.15)


def test_linearisation_is_that_of_small_steps(system):
    start, actions = started(pendulums()[5])
    x = system.state(start, True)[None]
    a = torch.as_tensor(actions[:1], dtype=torch.float32) / system.model.action_std
    A, B, c = system.linearise(x, a)
    nudge = 1e-2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        after = [system.hierarchy.step((x + s * nudge)[0][:, None], a[0][:, None]).flatten() for s in (1, -1)]
    found = (A[0] @ nudge[0].flatten()).detach()
    assert float(found.abs().max()) > 1e-3
    np.testing.assert_allclose((after[0] - after[1]) / 2, found, atol=1e-4)
    assert np.allclose(
        (A[0] @ x[0].flatten() + B[0] @ a[0].flatten() + c[0]).detach(),
        system.hierarchy.step(x[0][:, None], a[0][:, None]).detach().flatten(),
        atol=1e-5,
    )


def test_what_it_has_not_is_refused(system):
    episode = pendulums()[5]
    with pytest.raises(InputError, match="feature space"):
        system.predict(*started(episode), reproject=False)
    with pytest.raises(InputError, match="features"):
        system.covariance(*started(episode), features=True)
    with pytest.raises(InputError, match="ridge"):
        gce.adapt(system.model, [episode], ridge=1e-3)
    with pytest.raises(InputError, match="structured"):
        system.model.with_form("hom")
    with pytest.raises(InputError, match="another graph"):
        gce.adapt(system.model, [pendulums()[0], pendulums()[6]])
    with pytest.raises(InputError, match="finite"):
        system.predict(np.full_like(episode.observations[0], np.nan), episode.actions)


def test_shifts_say_more_than_training_does_where_rows_are_many(system):
    """Strengths without bounds on either side: none at all, and no trust in training."""
    data = pendulums()
    errors = {}
    for shift in (0.0, np.inf):
        one = gce.adapt(system.model, [data[k] for k in range(5)], strengths=replace(system.strengths, shift=shift))
        x = one.state(data[0].observations[0].astype(float), True)
        errors[shift] = float(torch.diagonal(one.operator.residual).mean())
        assert torch.isfinite(x).all()
    assert errors[0.0] < errors[np.inf]


def test_training_again_goes_on_and_gives_the_same(tmp_path):
    whole = train(pendulums(), iterations=12, model=TINY_GENERAL, folder=tmp_path / "whole")
    stop = {"left": 6}

    def tell(now):
        stop["left"] -= 1
        if not stop["left"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            pendulums(),
            iterations=12,
            model=TINY_GENERAL,
            folder=tmp_path / "two",
            tell=tell,
            training={"checkpoint_every": 1},
        )
    again = train(
        pendulums(), iterations=12, model=TINY_GENERAL, folder=tmp_path / "two", training={"checkpoint_every": 1}
    )
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_what_is_worth_little_is_doubted(system):
    data = pendulums()
    some = [data[k] for k in range(4)]
    assert system.warnings == () and system.reach is not None

    def changed(change):
        return [gce.Episode(e.graph, change(e.observations.astype(float)), e.actions) for e in some]

    def adapted_to(episodes):
        with pytest.warns(Doubt):
            return " ".join(gce.adapt(system.model, episodes).warnings)

    assert "check their units" in adapted_to(changed(lambda o: o * np.array([1, 1, 1e4])))
    rng = np.random.default_rng(0)
    assert "err as much as the mean of the others" in adapted_to(changed(lambda o: 5 * rng.normal(size=o.shape)))
    far = some[0].observations[0] + np.array([0, 0, 50.0])
    with pytest.warns(Doubt, match="outside the range adapted to"):
        system.predict(far, some[0].actions)
