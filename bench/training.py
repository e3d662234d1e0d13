"""Cost of a training iteration: 8 ropes of 7 masses, 64 steps predicted; fit, rollout, gradient and update.

Twice: with rollouts that stay in feature space, which is what the peer's do, and with rollouts that take the features
of every predicted state anew, which is how the models here are trained: 64 encodings more, one after another. Operators
are fitted to 8 x 8 steps of each rope, as many as the peer's (which are those it predicts). CPU seconds on one thread,
the least of some repeats.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gce.envs.recording import Recording, record
from gce.model.files import load_model, shipped
from gce.model.model import Model
from gce.training.batches import SystemData, TrainingConfig, draw_batch, loss_of
from gce.trajectory import Dataset

PEER_SECONDS = 1.5
"""CPU seconds of an iteration of compositional Koopman operators (Li et al. 2020) at the same work."""

TRAINING = TrainingConfig(systems=8, rollouts=1, fit_episodes=8, fit_steps=8)


def bench_training(repeats: int = 8) -> dict[str, float]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rope.h5"
        record(Recording(world="rope", episodes=96, objects=(7, 7), group_size=12), file)
        with Dataset.open(file) as data:
            model = load_model(shipped("rope"))
            systems = [
                SystemData(model, [data[int(k)] for k in data.group(int(g)).episodes]) for g in np.unique(data.groups)
            ]
    found = {}
    for name, reproject in (("linear", False), ("reprojected", True)):
        seconds = iteration_seconds(model, systems, reproject, repeats)
        found |= {f"{name}_seconds": seconds, f"{name}_share_of_peer": seconds / PEER_SECONDS}
    return {**found, "peer_seconds": PEER_SECONDS}


def iteration_seconds(model: Model, systems: Sequence[SystemData], reproject: bool, repeats: int) -> float:
    trained = Model(replace(model.config, reproject=reproject)).train()
    trained.load_state_dict(model.state_dict())
    optimiser = torch.optim.Adam(trained.parameters(), lr=1e-5)
    times = []
    for k in range(repeats):
        start = time.process_time()
        batch = draw_batch(systems, TRAINING, 64, np.random.default_rng(k))
        optimiser.zero_grad()
        loss_of(trained, batch, TRAINING, torch.Generator().manual_seed(k)).backward()
        optimiser.step()
        times.append(time.process_time() - start)
    return min(times)
