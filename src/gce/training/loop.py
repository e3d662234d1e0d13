"""The training loop, of our models and of the baselines.

All randomness of an iteration comes from the seed and the iteration's number, so a training that was stopped goes on
bit for bit. What is trained, its loss and its validation error are handed in. A checkpoint is one safetensors file
with a JSON note in its header, replaced at once: a stop at any moment leaves a whole one. No pickle.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from gce.cluster.ranks import Ranks, ranks
from gce.errors import InputError, real, warn, whole
from gce.files import (
    ARRAY_BYTES,
    border,
    is_checked,
    locked,
    parsed_json,
    read_bytes,
    read_json,
    renamed_digest,
    sha256,
    writable,
    write_text,
    written,
)

CHECKPOINT, TIMINGS = "checkpoint.safetensors", "timings.json"
WARM_UP = 100
LOG_EVERY = 10


@dataclass(frozen=True)
class LoopConfig:
    """How long to train, and how fast.

    horizons: steps rolled out, growing; each for an equal share of the iterations.
    learning_rate: the largest; schedule: how it falls, `cosine` or `paper`.
    patience: stop after so many validations without progress; 0 never.
    minutes: of CPU time, after which a training ends whatever its iterations; horizons and rates then follow the time
        spent, and it is validated as often as `parts` says, with the share of the time spent.
    """

    iterations: int = 4000
    seed: int = 0
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    horizons: tuple[int, ...] = (1, 4, 4, 8, 8, 16)
    clip: float = 1.0
    validate_every: int = 250
    checkpoint_every: int = 50
    patience: int = 0
    minutes: float = math.inf
    parts: tuple[float, ...] = (0.05, 0.3, 0.6, 0.8)

    def __post_init__(self) -> None:
        for name, low in (
            ("iterations", 0),
            ("seed", 0),
            ("validate_every", 1),
            ("checkpoint_every", 1),
            ("patience", 0),
        ):
            whole(name, getattr(self, name), low)
        real("learning_rate", self.learning_rate, 0)
        real("clip", self.clip, above=0)


def learning_rate(config: LoopConfig, iteration: int, share: float | None = None) -> float:
    """Cosine from the start rate to 2% of it after a short warm-up; or the paper's: halved linearly every 100,000.

    share: of the training that is done, by default that of its iterations.
    """
    if config.schedule == "paper":
        return max(1e-6, config.learning_rate * 0.5 ** (iteration / 100_000))
    share = iteration / config.iterations if share is None else share
    return config.learning_rate * min(1.0, (iteration + 1) / WARM_UP) * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))


def horizon_at(config: LoopConfig, iteration: int, share: float | None = None) -> int:
    count, by_iteration = len(config.horizons), iteration * len(config.horizons) // config.iterations
    return config.horizons[min(count - 1, by_iteration if share is None else int(share * count))]


def descend(
    optimiser: torch.optim.Optimizer,
    loss: Tensor,
    parameters: Sequence[nn.Parameter],
    clip: float,
    ranks: Ranks | None = None,
) -> Tensor:
    """One step along the gradient, clipped; none where it is not finite. Gives the loss, of all ranks together."""
    optimiser.zero_grad()
    loss.backward()
    loss = loss if ranks is None else ranks.add_gradients(parameters, loss)
    if torch.isfinite(nn.utils.clip_grad_norm_(parameters, clip)):
        optimiser.step()
    return loss


@dataclass(frozen=True)
class Progress:
    """What a training tells while it goes on. spent: CPU seconds."""

    iteration: int
    loss: float
    validation: float | None
    seconds: float
    spent: float = 0.0


class Training:
    """A training that can stop at any iteration and go on from its folder, bit for bit.

    loss: of a horizon and what an iteration draws from, a rank's part of it; error: of the model on what is kept for
        validation.
    settings: of the model, JSON values; data: a digest of all that is trained and validated on.
    The folder holds checkpoint.safetensors (the newest state) and log.jsonl.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[int, np.random.Generator, torch.Generator], Tensor],
        error: Callable[[], float],
        config: LoopConfig,
        folder: Path,
        settings: dict[str, Any],
        data: str,
        optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    ) -> None:
        self.model, self.loss, self.error, self.config, self.folder = model, loss, error, config, folder
        limits = {"minutes": config.minutes if math.isfinite(config.minutes) else None}
        same = {"training": {**dataclasses.asdict(config), **limits}, "config": settings, "data": data}
        self._same: dict[str, Any] = json.loads(json.dumps(same))
        self.ranks = ranks()
        self.optimiser = optimiser(model.parameters(), lr=config.learning_rate)
        self.iteration, self.best, self.stale, self.seconds, self.spent = 0, math.inf, 0, 0.0, 0.0
        self.best_state = self._weights()
        self.improved: Callable[[], object] = lambda: None
        """Called when the model is the best so far."""

    def run(
        self, tell: Callable[[Progress], None] = lambda now: None, until: int | None = None, seconds: float = math.inf
    ) -> float:
        """Train to the end, to an iteration, or until the seconds are spent; returns the best validation error."""
        c = self.config
        stop = c.iterations if until is None else min(until, c.iterations)
        alike = {"data": self._same["data"], "checkpoint": str(self.iteration)}
        self.ranks.check_alike(**alike, settings=json.dumps(self._same, sort_keys=True))
        self._since = time.monotonic(), time.process_time()
        with stops_between() as asked:
            while self.iteration < stop and self.seconds < seconds and not (c.patience and self.stale >= c.patience):
                if self.spent >= 60 * c.minutes:
                    break
                before, loss = self.share, self._iterate()
                self.iteration += 1
                self._take_time()
                last = self.iteration == c.iterations or self.seconds >= seconds
                due = last or self.spent >= 60 * c.minutes
                if before is None:
                    due = due or self.iteration % c.validate_every == 0
                else:
                    due = due or any(before < part <= (self.share or 0.0) for part in c.parts)
                validation = self._validate() if due else None
                self._take_time()
                tell(Progress(self.iteration, loss, validation, self.seconds, self.spent))
                if validation is not None or self.iteration % LOG_EVERY == 0:
                    self._log(loss, validation)
                due = validation is not None or self.iteration % c.checkpoint_every == 0 or self.iteration == stop
                (halted,) = self.ranks.of_first(asked())
                if due or halted:
                    self.save()
                if halted:
                    raise KeyboardInterrupt
        if self.iteration >= c.iterations or until is None:
            self.model.load_state_dict(self.best_state)
        return self.best

    @property
    def share(self) -> float | None:
        """The share that is done of a training by time; None of one by iterations."""
        limited = math.isfinite(self.config.minutes)
        return (
            max(self.spent / (60 * self.config.minutes), self.iteration / self.config.iterations) if limited else None
        )

    def _take_time(self) -> None:
        before, self._since = self._since, (time.monotonic(), time.process_time())
        self.seconds, self.spent = self.ranks.of_first(
            self.seconds + self._since[0] - before[0], self.spent + self._since[1] - before[1]
        )

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def _iterate(self) -> float:
        c = self.config
        rng = np.random.default_rng([c.seed, self.iteration])
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(c, self.iteration, self.share)
        loss = self.loss(horizon_at(c, self.iteration, self.share), rng, generator)
        return float(descend(self.optimiser, loss, list(self.model.parameters()), c.clip, self.ranks).detach())

    def _validate(self) -> float:
        (error,) = self.ranks.of_first(self.error())
        if error < self.best:
            self.best, self.stale, self.best_state = error, 0, self._weights()
            if self.ranks.first:
                self.improved()
        else:
            self.stale += 1
        return error

    def _log(self, loss: float, validation: float | None) -> None:
        if not self.ranks.first:
            return
        known = loss if math.isfinite(loss) else None  # JSON has no word for what is not finite
        line = {"iteration": self.iteration, "loss": known, "validation": validation, "seconds": self.seconds}
        with writable(self.folder / "log.jsonl", "give another folder"), (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    # ---- going on ----

    def save(self) -> None:
        if not self.ranks.first:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best_state.items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{k}": torch.as_tensor(v) for k, v in state.items()}
        best = None if math.isinf(self.best) else self.best
        now = {"iteration": self.iteration, "best": best, "stale": self.stale, **self._same}
        if self.share is not None:
            now["spent"] = self.spent
        whole = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
        note = {**now, "sha256": sha256({**now, "tensors": sha256(save(whole))})}
        with written(self.folder / CHECKPOINT, "give another folder") as place:
            place.write_bytes(save(whole, {"note": json.dumps(note)}))
        write_text(self.folder / TIMINGS, json.dumps({"seconds": round(self.seconds, 3)}) + "\n")

    def resume(self) -> bool:
        """Go on from the folder's checkpoint, if it has one of the same training on the same data.

        Lines of the log that tell of later iterations go: they will be written again.
        """
        resumed, log = self._found(), self.folder / "log.jsonl"
        if log.is_file():
            lines = log.read_text(errors="replace").splitlines()
            kept = [line for line in lines if _iteration(line) <= self.iteration]
            if kept != lines:
                write_text(log, "".join(f"{line}\n" for line in kept))
        return resumed

    def _found(self) -> bool:
        file = self.folder / CHECKPOINT
        if not file.is_file():
            return False
        with border(f"the checkpoint in {self.folder}", "whole (it is damaged)", "choose another folder"):
            content = read_bytes(file, ARRAY_BYTES)
            with safe_open(file, "pt") as opened:
                note = parsed_json(opened.metadata()["note"])
            if is_checked() and renamed_digest({**note, "data": None}, "sha256"):
                raise ValueError("its digest has another name")
            tensors, known = load(content), note.pop("sha256", None)
            if is_checked() and known is None:
                warn(f"the checkpoint in {self.folder} has no digest; whether it was changed cannot be seen")
            elif is_checked() and known != sha256({**note, "tensors": sha256(save(tensors))}):
                raise ValueError("its SHA-256 differs")
            self._resume(note, tensors)
        return True

    def _resume(self, note: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        if any(note.get(name) != self._same[name] for name in ("training", "config")):
            raise InputError(f"{self.folder} holds another training; finish that one or choose another folder")
        if note["data"] != self._same["data"]:
            raise InputError(
                f"{self.folder} holds a training on other data; give the data it began with or choose another folder"
            )
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "adam": {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        self.model.load_state_dict(parts["model"])
        state = self.optimiser.state_dict()
        state["state"] = {}
        for key, value in parts["adam"].items():
            index, name = key.split(".")
            state["state"].setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict(state)
        self.best_state, self.best = parts["best"], math.inf if note["best"] is None else note["best"]
        self.iteration, self.stale = int(note["iteration"]), int(note["stale"])
        self.seconds = float(note["seconds"]) if "seconds" in note else _seconds(self.folder)
        self.spent = float(note.get("spent", 0.0))


def _iteration(line: str) -> float:
    """Of a line of the log; one that was cut short is of none."""
    try:
        return float(json.loads(line)["iteration"])
    except (KeyError, TypeError, ValueError):
        return math.inf


def _seconds(folder: Path) -> float:
    """What a training took so far; a file of its own, so that equal trainings write equal checkpoints."""
    file = folder / TIMINGS
    return float(read_json(file)["seconds"]) if file.is_file() else 0.0


@contextmanager
def stops_between() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C only asks to stop: work looks for it between two iterations, when its state is whole.

    Gives a function that tells whether it was asked. A second Ctrl-C ends the work where it is.
    """
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    foreign = threading.current_thread() is not threading.main_thread()
    if foreign or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False  # somebody else decides what an interrupt means
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def place_for(folder: Path | str | None) -> Iterator[Path]:
    """The folder of a training, made, if this is its first rank; None for one that is gone afterwards."""
    with tempfile.TemporaryDirectory() as nowhere:
        place = Path(nowhere if folder is None else folder)
        if not ranks().first:
            yield place
            return
        with writable(place, "give another folder"):
            place.mkdir(parents=True, exist_ok=True)
            with locked(place / "training"):
                yield place
