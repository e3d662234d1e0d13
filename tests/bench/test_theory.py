import numpy as np
import pytest
import torch
from bench.theory import Agents, bumps, discrepancy, measure

from bench import theory


@pytest.mark.parametrize("weights", theory.SIGMAS)
def test_the_embedding_is_the_mean_of_what_is_drawn(weights):
    system, rng = Agents(5, theory.SIGMAS[weights], 0), np.random.default_rng(0)
    x, a = (part.repeat(1, 20_000) for part in system.draw(1, rng))
    drawn = bumps(system.next(x, a, rng)).mean(1)
    assert torch.allclose(drawn, system.embedding(x[:, :1], a[:, :1], bumps)[:, 0], atol=0.02)


def test_only_a_form_that_can_express_the_truth_is_consistent():
    def error(form: str) -> float:
        return measure(6, 6000, "sharp", form, "fixed", 0)["error"]

    assert error("hom_mean") < 0.75 * error("hom")
    few, many = (measure(6, samples, "sharp", "hom_mean", "fixed", 0)["error"] for samples in (300, 4800))
    assert many == pytest.approx(few / 4, rel=0.4)


def test_three_moments_tell_less_than_fourier_features_of_two_modes():
    assert discrepancy("polynomial_3", 0.1, 0)["mmd"] > 2 * discrepancy("fourier_16", 0.1, 0)["mmd"]
