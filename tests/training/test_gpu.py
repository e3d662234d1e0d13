"""What a GPU computes is what the CPU does; where there is none, that is said."""

import numpy as np
import pytest
import torch

import gce
from small import TINY, recorded, system_episodes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here: nothing was run on one")


def test_training_adapting_and_predicting_on_a_gpu_are_as_on_the_cpu():
    found = {}
    for device in ("cpu", "cuda"):
        trained = gce.train(recorded(), iterations=3, horizon=4, device=device, model=TINY, validation=0.4)
        episodes = system_episodes()
        system = gce.adapt(trained.model.to(device), episodes[1:])
        found[device] = system.predict(episodes[0].observations[0], episodes[0].actions)
    assert np.isfinite(found["cuda"]).all()
    assert np.abs(found["cuda"][:5] - found["cpu"][:5]).max() < 1e-2 * np.abs(found["cpu"][:5]).max()
