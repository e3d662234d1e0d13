"""`python -m gce.baselines NAME --world rope --data FILE --out FOLDER`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from gce.errors import InputError
from gce.progress import counted, progress, run_module


@dataclass
class TrainBaseline:
    """Train a baseline; a training that was stopped goes on when the same command is given again."""

    name: tyro.conf.Positional[str]
    """kpm, cko, vae, pcc, graph_ode, dmdc or gns."""
    world: str
    """The world the data is of; `own` for data of no known world."""
    data: Path
    """A data set file."""
    out: Path
    """The folder for the model, its log and its checkpoint."""
    iterations: int | None = None
    """Steps of gradient descent; by default what some 15 minutes on one core allow."""
    minutes: float | None = None
    """Stop after so much time, with the best model so far."""
    seed: int = 0
    """Decides everything random: the same seed and data give the same model."""
    max_nodes: int | None = None
    """vae and pcc: nodes the padded state has room for."""
    threads: int = 1
    """Threads of PyTorch."""

    def run(self) -> None:
        import torch

        from gce.baselines.folder import about, baseline_named, train
        from gce.baselines.trainable import Schedule
        from gce.training.loop import Progress
        from gce.trajectory import Dataset

        for name in ("iterations", "minutes", "max_nodes", "threads"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"--{name.replace('_', '-')} is {value}, expected more than 0")
        torch.set_num_threads(self.threads)
        schedule: dict[str, Any] = {"seed": self.seed}
        if self.iterations is not None:
            schedule |= {"iterations": self.iterations, "validate_every": max(1, self.iterations // 10)}
        with Dataset.open(self.data) as data:
            if (data.world or "own") != self.world:
                raise InputError(
                    f"{self.data} is of the world {data.world or 'own'}, not of {self.world}; name that one"
                )
            total = self.iterations or getattr(baseline_named(self.name), "schedule", Schedule()).iterations
            with progress(f"training {self.name}", total, "iterations") as done:
                reached = counted(done)

                def tell(now: Progress) -> None:
                    reached(now.iteration)
                    if now.validation is not None:
                        told = f"iteration {now.iteration}: loss {now.loss:.4f}, validation {now.validation:.4f}"
                        print(f"{told}, {now.seconds:.0f} s", file=sys.stderr)

                train(
                    self.name,
                    data,
                    folder=self.out,
                    seconds=float("inf") if self.minutes is None else 60 * self.minutes,
                    tell=tell,
                    model={} if self.max_nodes is None else {"max_nodes": self.max_nodes},
                    schedule=schedule,
                )
        print(f"{self.out}: {about(self.out)}", file=sys.stderr)


if __name__ == "__main__":
    run_module(TrainBaseline)
