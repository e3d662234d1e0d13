import numpy as np
import pytest
import torch
from bench.consistency import Chain, measure, one_hot

from gce.operators import PAPER_FORMS


@pytest.mark.parametrize("form", PAPER_FORMS)
def test_the_error_falls_as_the_root_of_the_samples(form):
    curve = measure(form, samples=(300, 3_000, 30_000), seeds=2, probes=50)
    assert curve.slope == pytest.approx(-0.5, abs=0.1)


@pytest.mark.parametrize("form", PAPER_FORMS)
def test_the_embedding_is_the_distribution_that_is_drawn_from(form):
    chain = Chain.draw(form, 0)
    states, actions = chain.draw_inputs(1, np.random.default_rng(0))
    truth = chain.embedding(states, actions)[0]
    assert torch.allclose(truth.sum(-1), torch.ones(len(truth), dtype=torch.float64))
    drawn = torch.multinomial(truth, 20_000, replacement=True, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(one_hot(drawn, truth.shape[-1]).mean(1), truth, atol=0.02)
