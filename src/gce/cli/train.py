"""`gce train`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tyro

from gce.cli.learn import Form
from gce.errors import InputError
from gce.progress import progress

Potential = Literal["gaussian", "laplace", "vmf", "mlp", "constant"]


@dataclass
class Train:
    """Train a model; a training that was stopped goes on when the same command is given again."""

    resumes = True

    world: tyro.conf.Positional[str]
    """The world the data is of: rope, soft, swim or grid; `own` for data of no known world."""
    data: Path
    """A data set file."""
    out: Path
    """The folder for the model, its log and its checkpoint."""
    form: Form = "hom_mean"
    """Form of the operator."""
    potential: Potential = "gaussian"
    """Potential of the Gibbs weights."""
    bandwidth: float = 2.0
    """Hyper-parameter of the potential, where it has one."""
    decoder: Literal["selection", "message_passing"] = "selection"
    """How observations come back from features: they are among them, or a decoder finds them, as in the paper."""
    iterations: int | None = None
    """Steps of gradient descent; this and what says None is by default as the world's shipped model was trained."""
    seed: int = 0
    """Decides everything random: the same seed and data give the same model."""
    network: bool = False
    """Whether lines conduct, the first edge attribute saying how well: features of a network, whatever form, potential
    and features say."""
    memory: float = 0.0
    """How many rows the systems trained on count for in the regression of a new one, such as 1e6; 0 for none. Only with
    --network, and for systems that differ in nothing but what their attributes say."""
    learning_rate: float | None = None
    """Largest step size, usually 3e-3."""
    schedule: Literal["cosine", "paper"] = "cosine"
    """How the step size falls: along a cosine, or as in the paper."""
    horizon: int | None = None
    """Steps predicted in training at the end; it grows from 4."""
    systems: int | None = None
    """Systems an iteration works on; fewer for large graphs."""
    fit_episodes: int | None = None
    """Episodes of each that its operator is fitted on in training."""
    fit_steps: int | None = None
    """Steps of each of these episodes."""
    rollouts: int | None = None
    """Windows of each system that are predicted."""
    patience: int = 0
    """Stop after so many validations without progress; 0 never."""
    features: int = 32
    """Learned features of a node."""
    validation: float = 0.05
    """Share of the systems kept for validation or, of one or two systems, of their episodes."""
    threads: int = 1
    """Threads of PyTorch."""
    device: str = "cpu"
    """cpu, or cuda where there is one."""

    def run(self) -> None:
        import torch

        from gce import __version__
        from gce.model.files import save_model
        from gce.training.learning import train
        from gce.training.preparation import training_for
        from gce.trajectory import Dataset

        if self.device != "cpu" and not torch.cuda.is_available():
            raise InputError(f"--device is {self.device!r}, but PyTorch finds no GPU here; leave it at cpu")
        if not 0 < self.validation < 1:
            raise InputError(f"--validation is {self.validation}, expected a share between 0 and 1 such as 0.05")
        for name in (
            "iterations",
            "features",
            "threads",
            "horizon",
            "systems",
            "fit_episodes",
            "fit_steps",
            "rollouts",
        ):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} is {getattr(self, name)}, expected at least 1")
        names = ("learning_rate", "systems", "fit_episodes", "fit_steps", "rollouts")
        given = {name: getattr(self, name) for name in names}
        learned = {
            "form": self.form,
            "potential": self.potential,
            "potential_value": self.bandwidth,
            "features": self.features,
        }
        model = {"decoder": self.decoder, "memory": self.memory, **({"network": True} if self.network else learned)}
        iterations = self.iterations or training_for(self.world, model)["iterations"]
        torch.set_num_threads(self.threads)
        with Dataset.open(self.data) as data, progress(f"training {self.world}", iterations, "iterations") as done:
            if (data.world or "own") != self.world:
                raise InputError(
                    f"{self.data} is of the world {data.world or 'own'}, not of {self.world}; name that one"
                )
            board = _Board(self.out)

            def tell(now: Any) -> None:
                done(1)
                board.add("loss", now.loss, now.iteration)
                if now.validation is not None:
                    board.add("validation", now.validation, now.iteration)
                    told = f"iteration {now.iteration}: loss {now.loss:.4f}, validation {now.validation:.4f}"
                    print(told, file=sys.stderr)

            trained = train(
                data,
                iterations=iterations,
                horizon=self.horizon,
                seed=self.seed,
                validation=self.validation,
                folder=self.out,
                device=self.device,
                tell=tell,
                start=done,
                model=model,
                training={
                    "schedule": self.schedule,
                    "patience": self.patience,
                    **{name: value for name, value in given.items() if value is not None},
                },
            )
        about = {
            "command": "gce " + " ".join(sys.argv[1:]),
            "data": data.metadata.get("recording", {"file": self.data.name}),
            "seed": self.seed,
            "version": __version__,
            "seconds": round(trained.seconds, 1),
            "validation_nrmse": trained.validation_nrmse,
        }
        save_model(trained.model, self.out, about)
        print(
            f"{self.out}: validation NRMSE {trained.validation_nrmse:.4f} after {trained.seconds:.0f} s; "
            f"give it to the other commands with --model {self.out}",
            file=sys.stderr,
        )


class _Board:
    """Figures for TensorBoard, where it is installed; nothing is written before the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"

    @cached_property
    def _writer(self) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self._folder))

    def add(self, name: str, value: float, iteration: int) -> None:
        if self._writer is not None:
            self._writer.add_scalar(name, value, iteration)
