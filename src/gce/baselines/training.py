"""Training a baseline on a data set: the loop, its checkpoints, and the choice of the best model on validation systems.

All randomness of an iteration comes from the seed and the iteration's number, so a training that was stopped goes on
bit for bit. A method that is not trained only takes its units from the data.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gce.baselines.base import Baseline, adapt, configure
from gce.baselines.folder import baseline_named, save
from gce.baselines.trainable import Schedule, Trainable
from gce.baselines.windows import Recorded, draw_batch
from gce.errors import InputError
from gce.metrics import nrmse
from gce.training import checkpoint
from gce.training.learning import equal_stretches, split_for_training
from gce.training.loop import Progress
from gce.trajectory import Dataset, Episode

WARM_UP = 100
UNIT_SYSTEMS = 100
VALIDATION_SYSTEMS = 6
"""Fewer than for our own model: some methods take seconds to adapt."""


def train(
    name: str,
    data: Dataset,
    *,
    folder: Path | str | None = None,
    validation: float = 0.05,
    validation_systems: int = VALIDATION_SYSTEMS,
    seconds: float = math.inf,
    tell: Callable[[Progress], None] = lambda progress: None,
    model: dict[str, Any] | None = None,
    schedule: dict[str, Any] | None = None,
    start: Baseline | None = None,
) -> Baseline:
    """Train a baseline.

    folder: for the model, its log and a checkpoint, from which the same call goes on; by default nothing is kept.
    validation: share of the systems kept to choose the best model by. validation_systems: how many of these are used.
    seconds: stop when so many were spent.
    tell: hears of every iteration.
    model, schedule: fields of the method's configuration and of `Schedule` to change.
    start: a trained model of the same configuration to begin from, its units included.
    """
    kind = baseline_named(name)
    plan = dataclasses.replace(getattr(kind, "schedule", Schedule()), **(schedule or {}))
    torch.manual_seed(plan.seed)
    baseline = kind(configure(kind.config_class, data, **(model or {})))
    kept, rest = split_for_training(data, validation, plan.seed)
    baseline.set_units(rest, plan.seed)
    about: dict[str, Any] = {"seed": plan.seed, "data": data.metadata.get("recording", {})}
    if isinstance(baseline, Trainable):
        with tempfile.TemporaryDirectory() as nowhere:
            place = Path(nowhere if folder is None else folder)
            systems = _systems(baseline, rest, plan)
            if start is not None:
                baseline.load_state_dict(start.state_dict())
            run = Training(baseline, systems, kept[:validation_systems], plan, _made(place))
            run.resume()
            best = run.run(tell, seconds)
            about |= {"seconds": round(run.seconds, 1), "iterations": run.iteration, "validation_nrmse": best}
    if folder is not None:
        save(baseline, folder, about)
    return baseline.eval()


class Training:
    """A training that can stop at any iteration and go on from its folder."""

    def __init__(
        self,
        model: Trainable,
        systems: Sequence[Recorded],
        validation: Sequence[Sequence[Episode]],
        plan: Schedule,
        folder: Path,
    ) -> None:
        self.model, self.systems, self.validation, self.plan, self.folder = model, systems, validation, plan, folder
        self.optimiser = torch.optim.Adam(model.parameters(), lr=plan.learning_rate)
        self.iteration, self.best, self.seconds = 0, math.inf, 0.0
        self.best_state = self._weights()

    def run(
        self,
        tell: Callable[[Progress], None] = lambda progress: None,
        seconds: float = math.inf,
        until: int | None = None,
    ) -> float:
        """Train to the end, to an iteration, or until the seconds are spent; returns the best validation error."""
        plan = self.plan
        stop = plan.iterations if until is None else min(until, plan.iterations)
        clock = time.monotonic()
        with checkpoint.stops_between() as asked:
            while self.iteration < stop and self.seconds < seconds:
                loss = self._iterate()
                self.iteration += 1
                spent = self.seconds + time.monotonic() - clock
                last = self.iteration == plan.iterations or spent >= seconds
                validation = self._validate() if last or self.iteration % plan.validate_every == 0 else None
                self.seconds += time.monotonic() - clock
                clock = time.monotonic()
                tell(Progress(self.iteration, loss, validation, self.seconds))
                due = validation is not None or self.iteration % plan.checkpoint_every == 0 or self.iteration == stop
                if due or asked():
                    self._log(loss, validation)
                    self.save()
                if asked():
                    raise KeyboardInterrupt
        if until is None:
            self.model.load_state_dict(self.best_state)
        return self.best

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def _iterate(self) -> float:
        plan, k = self.plan, self.iteration
        rng = np.random.default_rng([plan.seed, k])
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        falling = 0.02 + 0.49 * (1 + math.cos(math.pi * k / plan.iterations))
        for group in self.optimiser.param_groups:
            group["lr"] = plan.learning_rate * min(1.0, (k + 1) / WARM_UP) * falling
        horizon = plan.horizons[k * len(plan.horizons) // plan.iterations]
        loss = self.model.loss(draw_batch(self.systems, plan.draw, horizon, rng), generator)
        self.optimiser.zero_grad()
        loss.backward()
        size = torch.nn.utils.clip_grad_norm_(self.model.parameters(), plan.clip)
        if torch.isfinite(size):
            self.optimiser.step()
        return float(loss.detach())

    def _validate(self) -> float:
        error = validation_error(self.model, self.validation)
        if error < self.best:
            self.best, self.best_state = error, self._weights()
        return error

    def _log(self, loss: float, validation: float | None) -> None:
        line = {"iteration": self.iteration, "loss": loss, "validation": validation, "seconds": self.seconds}
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    # ---- going on ----

    @cached_property
    def _note(self) -> dict[str, Any]:
        """What has to be the same for a training to go on."""
        seen = [part for s in self.systems for part in (s.graph, s.states.numpy(), s.inputs.numpy())]
        kept = [p for es in self.validation for e in es for p in (e.graph, e.observations, e.actions, e.exogenous)]
        same = {
            "baseline": self.model.name,
            "schedule": dataclasses.asdict(self.plan),
            "config": dataclasses.asdict(self.model.sizes),
            "data": checkpoint.fingerprint(seen + kept),
        }
        text: dict[str, Any] = json.loads(json.dumps(same))
        return text

    def save(self) -> None:
        tensors = checkpoint.packed(self.model, self.best_state, self.optimiser)
        best = None if math.isinf(self.best) else self.best
        now = {"iteration": self.iteration, "best": best, "seconds": self.seconds}
        checkpoint.write(self.folder, tensors, {**self._note, **now})

    def resume(self) -> bool:
        """Go on from the folder's checkpoint, if it has one of the same training on the same data."""
        found = checkpoint.read(self.folder)
        if found is None:
            return False
        tensors, note = found
        for what, mine in self._note.items():
            if note.get(what) != mine:
                raise InputError(f"{self.folder} holds a training with another {what}; choose another folder")
        self.best_state = checkpoint.unpacked(tensors, self.model, self.optimiser)
        self.iteration, self.seconds = note["iteration"], note["seconds"]
        self.best = math.inf if note["best"] is None else note["best"]
        return True


def validation_error(model: Baseline, systems: Sequence[Sequence[Episode]]) -> float:
    """Mean NRMSE of predicting the first episode of each system after adapting to the others."""
    unit, errors = model.observation_std.double().numpy(), []
    for first, *others in systems:
        adapted = adapt(model, others)
        predicted = adapted.predict(first.observations[0].astype(float), first.actions, first.exogenous)
        with np.errstate(over="ignore", invalid="ignore"):
            error = nrmse(predicted[1:], first.observations[1:].astype(float), unit)
        errors.append(np.nan_to_num(error, nan=100.0).clip(max=100.0).mean())
    return float(np.mean(errors))


def _systems(model: Trainable, data: Dataset, plan: Schedule) -> list[Recorded]:
    """The systems with at least two episodes, of equal length where the method fits operators on some of them."""
    wanted = max(*plan.horizons, plan.draw.fit_steps)
    found = []
    for g in np.unique(data.groups):
        episodes = [data[int(k)] for k in data.group(int(g)).episodes]
        stretches = equal_stretches(episodes, wanted, cut=not model.sizes.previous_action)
        if len(stretches) > 1:
            found.append(Recorded(model, stretches))
    if not found:
        raise InputError("there is no system with at least two episodes to train on; give more episodes of each")
    model.set_inputs(found[:UNIT_SYSTEMS])
    return found


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}; give another folder") from None
    return folder
