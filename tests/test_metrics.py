import numpy as np
import pytest

from gce.control.problem import control_error
from gce.metrics import mmd, nrmse


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_the_error_of_the_mean_is_one_in_units_of_the_spread():
    true = numbers(1, 500, 3)
    std = true.std(axis=(0, 1))
    assert nrmse(np.broadcast_to(true.mean(axis=1, keepdims=True), true.shape), true, std) == pytest.approx(1)


def test_errors_scale_with_the_miss_and_against_the_unit():
    true, miss, std = numbers(4, 5, 3), numbers(4, 5, 3, seed=1), np.array([1.0, 2.0, 0.5])
    once = nrmse(true + miss, true, std)
    assert np.allclose(nrmse(true + 2 * miss, true, 2 * std), once)
    assert np.allclose(nrmse(true + miss * std, true, std), np.sqrt(np.square(miss).mean(axis=(1, 2))))
    assert not nrmse(true, true, std).any()


def test_the_control_error_of_staying_at_zero_is_one():
    goal = numbers(5, 2)
    assert control_error(np.zeros((5, 2)), goal) == pytest.approx(1)
    assert control_error(goal, goal) == 0


def test_mmd_is_a_distance():
    first, second = numbers(4, 3), numbers(4, 3, seed=1)
    assert np.allclose(mmd(first, second), mmd(second, first))
    assert not mmd(first, first).any()
