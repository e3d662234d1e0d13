"""The training loop.

An iteration takes a few systems, fits their operators on chunks of some episodes (closed form), rolls out windows of
others, and follows the gradient of the prediction error through the rollout, the fit and the encoder. All randomness
of an iteration comes from the seed and the iteration's number, so a training that was stopped goes on bit for bit.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from gce.errors import InputError
from gce.metrics import nrmse
from gce.model.model import Model
from gce.system.system import adapt
from gce.training import checkpoint
from gce.training.batches import SystemData, draw_batch
from gce.training.config import TrainingConfig
from gce.training.losses import loss_of
from gce.trajectory import Episode


def learning_rate(config: TrainingConfig, iteration: int) -> float:
    """Cosine from the start rate to 2% of it after a short warm-up; or the paper's: halved linearly every 100,000."""
    if config.schedule == "paper":
        return max(1e-6, config.learning_rate * 0.5 ** (iteration / 100_000))
    share = iteration / config.iterations
    return config.learning_rate * min(1.0, (iteration + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))


def horizon_at(config: TrainingConfig, iteration: int) -> int:
    return config.horizons[min(len(config.horizons) - 1, iteration * len(config.horizons) // config.iterations)]


@dataclass(frozen=True)
class Progress:
    """What a training tells while it goes on."""

    iteration: int
    loss: float
    validation: float | None
    seconds: float


class Training:
    """A training that can stop at any iteration and go on from its folder, bit for bit.

    The folder holds checkpoint.safetensors and checkpoint.json (the newest state), log.jsonl, and at the end the
    model that did best on the validation systems.
    """

    def __init__(
        self,
        model: Model,
        train: Sequence[SystemData],
        validation: Sequence[Sequence[Episode]],
        config: TrainingConfig,
        folder: Path,
    ) -> None:
        self.model, self.train, self.validation, self.config, self.folder = model, train, validation, config, folder
        self.optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
        self.iteration, self.best, self.stale, self.seconds = 0, math.inf, 0, 0.0
        self.best_state = {name: value.clone() for name, value in model.state_dict().items()}

    def run(self, tell: Callable[[Progress], None] = lambda progress: None, until: int | None = None) -> float:
        """Train to the end (or to an iteration); returns the best validation error."""
        c = self.config
        stop = c.iterations if until is None else min(until, c.iterations)
        clock = time.monotonic()
        with checkpoint.stops_between() as asked:
            while self.iteration < stop and not (c.patience and self.stale >= c.patience):
                loss = self._iterate()
                self.iteration += 1
                validation = None
                if self.iteration % c.validate_every == 0 or self.iteration == c.iterations:
                    validation = self._validate()
                self.seconds += time.monotonic() - clock
                clock = time.monotonic()
                tell(Progress(self.iteration, loss, validation, self.seconds))
                self._log(loss, validation)
                due = validation is not None or self.iteration % c.checkpoint_every == 0 or self.iteration == stop
                if due or asked():
                    self.save()
                if asked():
                    raise KeyboardInterrupt
        if self.iteration >= c.iterations or until is None:
            self.model.load_state_dict(self.best_state)
        return self.best

    def _iterate(self) -> float:
        c = self.config
        rng = np.random.default_rng([c.seed, self.iteration])
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(c, self.iteration)
        batch = draw_batch(self.train, c, horizon_at(c, self.iteration), rng)
        loss = loss_of(self.model, batch, c, generator)
        self.optimiser.zero_grad()
        loss.backward()
        size = torch.nn.utils.clip_grad_norm_(self.model.parameters(), c.clip)
        if torch.isfinite(size):
            self.optimiser.step()
        return float(loss.detach())

    def _validate(self) -> float:
        error = validation_error(self.model, self.validation)
        if error < self.best:
            self.best, self.stale = error, 0
            self.best_state = {name: value.clone() for name, value in self.model.state_dict().items()}
        else:
            self.stale += 1
        return error

    def _log(self, loss: float, validation: float | None) -> None:
        if validation is None and self.iteration % 10:
            return
        known = loss if math.isfinite(loss) else None  # JSON has no word for what is not finite
        line = {"iteration": self.iteration, "loss": known, "validation": validation, "seconds": self.seconds}
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    # ---- going on ----

    def save(self) -> None:
        tensors = checkpoint.packed(self.model, self.best_state, self.optimiser)
        text = {
            "iteration": self.iteration,
            "best": None if math.isinf(self.best) else self.best,
            "stale": self.stale,
            "seconds": self.seconds,
            "training": dataclasses.asdict(self.config),
            "config": self.model.config.described(),
            "data": self.fingerprint,
        }
        checkpoint.write(self.folder, tensors, text)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that is trained and validated on."""
        seen = [part for s in self.train for part in (s.graph, s.states.cpu().numpy(), s.inputs.cpu().numpy())]
        kept = [p for es in self.validation for e in es for p in (e.graph, e.observations, e.actions, e.exogenous)]
        return checkpoint.fingerprint(seen + kept)

    def resume(self) -> bool:
        """Go on from the folder's checkpoint, if it has one of the same training on the same data."""
        found = checkpoint.read(self.folder)
        if found is None:
            return False
        tensors, text = found
        here = json.loads(json.dumps([dataclasses.asdict(self.config), self.model.config.described()]))
        if [text["training"], text["config"]] != here:
            raise InputError(f"{self.folder} holds another training; finish that one or choose another folder")
        if text["data"] != self.fingerprint:
            raise InputError(
                f"{self.folder} holds a training on other data; give the data it began with or choose another folder"
            )
        self.best_state = checkpoint.unpacked(tensors, self.model, self.optimiser)
        self.iteration, self.stale, self.seconds = text["iteration"], text["stale"], text["seconds"]
        self.best = math.inf if text["best"] is None else text["best"]
        return True


def validation_error(model: Model, systems: Sequence[Sequence[Episode]]) -> float:
    """Mean NRMSE of predicting the first episode of each system after adapting to the others."""
    errors = []
    for first, *others in systems:
        system = adapt(model, others, measure=False)
        predicted = system.predict(first.observations[0].astype(float), first.actions, exogenous=first.exogenous)
        unit = model.observation_std.double().numpy()
        error = nrmse(predicted[1:], first.observations[1:].astype(float), unit)
        errors.append(np.nan_to_num(error, nan=100.0).clip(max=100.0).mean())
    return float(np.mean(errors))
