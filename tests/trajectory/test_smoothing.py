import numpy as np
import pytest

from gce.system.evidence import noise_variance, smooth

PAIRS, RATIOS = [(0, 2), (1, 3)], [0.07, 0.3]


def motion(steps: int = 200, nodes: int = 3) -> np.ndarray:
    """Smooth paths with v_t = (p_t - p_{t-1}) / c, at rest at the start."""
    rng = np.random.default_rng(0)
    t = np.arange(steps)[:, None] / 30
    o = np.zeros((steps, nodes, 4))
    for (position, velocity), c in zip(PAIRS, RATIOS, strict=True):
        o[..., position] = np.sin(t * rng.uniform(0.5, 2, nodes) + rng.uniform(0, 6, nodes))
        o[1:, :, velocity] = np.diff(o[..., position], axis=0) / c
    return o


def noisy(level: float, steps: int = 200) -> np.ndarray:
    clean = motion(steps)
    return clean + level * np.random.default_rng(1).normal(size=clean.shape)


def test_a_recording_without_noise_stays_as_it_is():
    assert np.allclose(smooth(motion(), PAIRS, RATIOS, at_rest=True), motion(), atol=1e-11)
    assert noise_variance(motion(), PAIRS, RATIOS) < 1e-25


@pytest.mark.parametrize("level", [0.01, 0.1])
def test_smoothing_takes_noise_out_of_positions_and_velocities(level):
    before = noisy(level) - motion()
    left = smooth(noisy(level), PAIRS, RATIOS, at_rest=True) - motion()
    for position, velocity in PAIRS:
        assert left[..., position].std() < 0.5 * before[..., position].std()
        assert left[..., velocity].std() < 1.02 * before[..., velocity].std()


def test_what_is_smoothed_is_the_likeliest_path():
    """No other path fits positions and velocities better together."""
    seen, (c, _) = noisy(0.1), RATIOS
    path = smooth(seen, PAIRS[:1], RATIOS[:1], at_rest=False)[..., 0]

    def misfit(p: np.ndarray) -> float:
        return np.square(p - seen[..., 0]).sum() + np.square(np.diff(p, axis=0) / c - seen[1:, :, 2]).sum()

    rng = np.random.default_rng(2)
    assert all(misfit(path) < misfit(path + 1e-3 * rng.normal(size=path.shape)) for _ in range(20))


def test_smoothed_velocities_are_the_differences_of_smoothed_positions():
    found = smooth(noisy(0.1), PAIRS, RATIOS, at_rest=True)
    for (position, velocity), c in zip(PAIRS, RATIOS, strict=True):
        assert np.allclose(np.diff(found[..., position], axis=0) / c, found[1:, :, velocity])
        assert not found[0, :, velocity].any()


@pytest.mark.parametrize("level", [0.003, 0.1, 1.0])
def test_the_disagreement_tells_the_noise(level):
    assert np.sqrt(noise_variance(noisy(level, 1000), PAIRS, RATIOS)) == pytest.approx(level, rel=0.1)


def test_without_pairs_nothing_is_known():
    assert noise_variance(noisy(0.1), [], []) == 0
    assert np.array_equal(smooth(noisy(0.1), [], [], at_rest=True), noisy(0.1))
