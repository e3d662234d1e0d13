"""A data set in, a trained model out: what is kept for validation, stretches of equal length, and the training."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gce.errors import InputError
from gce.model.config import ModelConfig
from gce.model.model import Model
from gce.progress import progress
from gce.training.batches import SystemData
from gce.training.config import TrainingConfig
from gce.training.loop import Progress, Training, validation_error
from gce.training.preparation import prepare
from gce.training.presets import config_for, training_for
from gce.training.remembering import remember
from gce.trajectory import Dataset, Episode

GROWTH = (4, 16, 16, 16, 32, 32, 32)
"""Steps predicted in training, before the longest."""

VALIDATION_SYSTEMS, VALIDATION_EPISODES = 12, 9


@dataclass(frozen=True)
class Trained:
    """A model, its error on what was kept for validation (mean NRMSE of whole episodes), and the seconds it took."""

    model: Model
    validation_nrmse: float
    seconds: float


def train(
    data: Dataset,
    *,
    iterations: int | None = None,
    horizon: int | None = None,
    seed: int = 0,
    validation: float = 0.05,
    folder: Path | str | None = None,
    device: str = "cpu",
    tell: Callable[[Progress], None] | None = None,
    start: Callable[[int], None] = lambda iteration: None,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> Trained:
    """Train a model on a data set.

    iterations: steps of gradient descent; horizon: steps predicted in training at the end, it grows from 4. Both, and
        `training`, are by default as the model that comes with the package for the data's world was trained.
    validation: share of the systems kept to choose the best model by or, of one or two systems, of their episodes.
    folder: keeps the log and a checkpoint, from which the same call goes on; by default nothing is kept.
    tell: hears of every iteration, by default a progress bar; start: of the one it begins with.
    model, training: settings of the model (`gce.model.config`) and fields of `TrainingConfig` to change.
    """
    if not 0 < validation < 1:
        raise InputError(f"validation is {validation}, expected a share between 0 and 1 such as 0.05")
    preset = training_for(data.world, model or {})
    usual_iterations, usual_horizon = preset.pop("iterations"), preset.pop("horizon")
    iterations = usual_iterations if iterations is None else iterations
    horizon = usual_horizon if horizon is None else horizon
    if iterations < 1 or horizon < 1:
        raise InputError(f"iterations is {iterations} and horizon {horizon}, expected at least 1 of each")
    settings = TrainingConfig(
        **{
            "iterations": iterations,
            "seed": seed,
            "horizons": tuple(min(h, horizon) for h in (*GROWTH, horizon)),
            "validate_every": max(1, min(250, iterations // 4)),
            **preset,
            **(training or {}),
        }
    )
    kept, rest = split_for_training(data, validation, seed)
    config = config_for(data, **(model or {}))
    prepared = prepare(config, rest, seed).to(device)
    systems = [
        SystemData(prepared, stretches)
        for episodes in _by_system(rest)
        if len(stretches := equal_stretches(episodes, max(horizon, settings.fit_steps), _can_be_cut(config))) > 1
    ]
    if not systems:
        raise InputError("there is no system with at least two episodes to train on; give more episodes of each")
    with tempfile.TemporaryDirectory() as nowhere:
        place = Path(nowhere if folder is None else folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror}; give another folder") from None
        run = Training(prepared, systems, kept, settings, place)
        run.resume()
        with progress("training", iterations, "iterations") if tell is None else nullcontext(start) as done:
            done(run.iteration)
            best = run.run(tell or (lambda now: done(1)))
    prior = prepared.features.training_prior
    if prior is not None:
        remember(prepared, prior, _by_system(rest))
        best = validation_error(prepared, kept)
    return Trained(prepared.eval(), best, run.seconds)


def split_for_training(data: Dataset, share: float, seed: int) -> tuple[list[list[Episode]], Dataset]:
    """(what to validate on, what to train on).

    What to validate on are lists of episodes of one system, the first of which is predicted after adapting to the
    others. Of three systems or more some are kept away from training; of fewer, some episodes of each.
    """
    numbers = np.unique(data.groups)
    if len(numbers) >= 3:
        count = int(np.clip(np.rint(share * len(numbers)), 1, len(numbers) - 1))
        kept, rest = data.split([count / len(numbers), 1 - count / len(numbers)], seed)
        systems = [episodes[:VALIDATION_EPISODES] for episodes in _by_system(kept)[:VALIDATION_SYSTEMS]]
        if any(len(episodes) < 2 for episodes in systems):
            raise InputError("a system has a single episode; give at least two of each, one to adapt to the system")
        return systems, rest
    validation: list[list[Episode]] = []
    training: list[int] = []
    for number in numbers:
        members = data.group(int(number)).episodes
        if len(members) < 3:
            raise InputError(
                f"system {number} has {len(members)} episodes, and there are fewer than three systems; give at least "
                "three episodes of it (Dataset.cut makes several of a long one)"
            )
        order = np.random.default_rng([seed, int(number)]).permutation(members)
        count = int(np.clip(np.rint(share * len(members)), 1, len(members) - 2))
        others = [data[int(k)] for k in order[count : count + VALIDATION_EPISODES - 1]]
        validation += [[data[int(k)], *others] for k in order[:count]]
        training += order[count:].tolist()
    return validation[:VALIDATION_SYSTEMS], data.select(sorted(training))


def equal_stretches(episodes: Sequence[Episode], wanted: int, cut: bool) -> list[Episode]:
    """Stretches of one length, of at least `wanted` steps where there are two so long.

    cut: whether a stretch may begin in the middle of an episode; otherwise each gives its first.
    """
    lengths = sorted(episode.length for episode in episodes)
    if lengths[0] == lengths[-1]:
        return list(episodes)
    length = lengths[0] if lengths[0] >= wanted else min(wanted, lengths[-1] if cut else lengths[-2])
    stretches = [
        episode.window(start, length)
        for episode in episodes
        for start in (range(0, episode.length - length + 1, length) if cut else range(min(1, episode.length // length)))
    ]
    return stretches if len(stretches) > 1 else list(episodes)


def _can_be_cut(config: ModelConfig) -> bool:
    """Whether a stretch from the middle of an episode means the same as one from its start."""
    return not (config.fresh_start or config.previous_action or config.history > 1)


def _by_system(data: Dataset) -> list[list[Episode]]:
    return [[data[int(k)] for k in data.group(int(g)).episodes] for g in np.unique(data.groups)]
