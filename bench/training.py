"""Cost of a training iteration: 8 ropes of 7 masses, 64 steps predicted; fit, rollout, gradient and update."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gce.files import load_model, shipped
from gce.recording import Recording, record
from gce.training import SystemData, TrainingConfig, draw_batch, loss_of
from gce.trajectory import Dataset

PEER_SECONDS = 1.5
"""CPU seconds of an iteration of compositional Koopman operators (Li et al. 2020) at the same work."""


def bench_training(repeats: int = 8) -> dict[str, float]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rope.h5"
        record(Recording(world="rope", episodes=96, objects=(7, 7), group_size=12), file)
        with Dataset.open(file) as data:
            model = load_model(shipped("rope")).train()
            systems = [
                SystemData(model, [data[int(k)] for k in data.group(int(g)).episodes]) for g in np.unique(data.groups)
            ]
    config = TrainingConfig(systems=8, rollouts=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-5)
    times = []
    for k in range(repeats):
        start = time.process_time()
        batch = draw_batch(systems, config, 64, np.random.default_rng(k))
        optimiser.zero_grad()
        loss_of(model, batch, config, torch.Generator().manual_seed(k)).backward()
        optimiser.step()
        times.append(time.process_time() - start)
    best = min(times)
    return {"seconds": best, "peer_seconds": PEER_SECONDS, "share_of_peer": best / PEER_SECONDS}
