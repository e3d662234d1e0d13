"""A data set in, a trained model out: what is kept for validation, stretches of equal length, and the training.

In the end a model may look once more at all systems it was trained on, and keep what they tell as a prior.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from gce.cluster.ranks import ranks
from gce.errors import InputError, of_kind, undoubted
from gce.graphs.topology import Topology
from gce.metrics import nrmse
from gce.model.files import save_model
from gce.model.model import Model, Units
from gce.operators.prior import ColouredNoise, TrainingPrior
from gce.operators.regression import Moments, Sums
from gce.progress import progress
from gce.system.evidence import coloured_noise_of, see, total
from gce.system.system import adapt
from gce.system.weights import mean_of, weights_told
from gce.training.batches import Recorded, SystemData, TrainingConfig, digest, draw_batch, loss_of
from gce.training.hyperedges import without_idle_hyperedges
from gce.training.loop import Progress, Training, place_for
from gce.training.preparation import by_time, config_for, prepare, settings_of, usual_method
from gce.trajectory import Dataset, Episode

Systems = Sequence[Sequence[Episode]]
GROWTH = (4, 16, 16, 16, 32, 32, 32)
"""Steps predicted in training, before the longest."""
VALIDATION_SYSTEMS, VALIDATION_EPISODES = 12, 9
SOME = 10
"""Systems that the correlation of the noise is found on, in TURNS turns."""
TURNS = 4


@dataclass(frozen=True)
class Trained:
    """A model, its error on what was kept for validation (mean NRMSE of whole episodes), and the seconds it took.

    iterations, cpu_seconds: how long it was trained, over all its stretches. weights: what its Gibbs weights do on what
    was kept (`gce.system.weights`), where it has any.
    """

    model: Model
    validation_nrmse: float
    seconds: float
    iterations: int = 0
    cpu_seconds: float = 0.0
    weights: dict[str, float] | None = None


def train(
    data: Dataset,
    *,
    iterations: int | None = None,
    horizon: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    validation: float = 0.05,
    folder: Path | str | None = None,
    device: str = "cpu",
    method: str | None = None,
    preset: str = "tuned",
    tell: Callable[[Progress], None] | None = None,
    start: Callable[[int], None] = lambda iteration: None,
    best: Callable[[Model, float], object] | None = None,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> Trained:
    """Train a model on a data set.

    iterations: steps of gradient descent; horizon: steps predicted in training at the end, it grows from 4. Both, and
        `training`, are by default as the model that comes with the package for the data's world was trained.
    validation: share of the systems kept to choose the best model by or, of one or two systems, of their episodes.
    folder: keeps the log, a checkpoint, from which the same call goes on, and the best model so far, as `load_model`
        reads it; by default nothing is kept.
    minutes: of CPU time to train for, where iterations are not given; by default 3 for the general method.
    method: `published` for the paper's, which `preset` makes `literal` or `tuned`; `general` or `structured` for ours,
        the former by default for data of no known world, the latter for the others.
    tell: hears of every iteration, by default a progress bar; start: of the one it begins with; best: takes
        the model whenever it is the best so far, with its error, instead of the folder.
    model, training: settings of the model (`gce.model.config`) and fields of `TrainingConfig` to change.
    """
    of_kind("the data", data, Dataset, "gce.Dataset.open(file) or gce.Dataset.from_arrays(...) gives one")
    if not 0 < validation < 1:
        raise InputError(f"validation is {validation}, expected a share between 0 and 1 such as 0.05")
    method = usual_method(data.world) if method is None else method
    model, usual = settings_of(method, preset, data.world, model or {})
    usual = by_time(usual, iterations, minutes)
    iterations, usual_horizon = usual.pop("iterations"), usual.pop("horizon")
    growth = (*usual.pop("growth", GROWTH), usual_horizon)
    growth = usual.pop("horizons", growth)[:-1]
    horizon = usual_horizon if horizon is None else horizon
    if iterations < 1 or horizon < 1:
        raise InputError(f"iterations is {iterations} and horizon {horizon}, expected at least 1 of each")
    settings = TrainingConfig(
        **{
            "iterations": iterations,
            "seed": seed,
            "horizons": tuple(min(h, horizon) for h in (*growth, horizon)),
            "validate_every": max(1, min(250, iterations // 4)),
            **usual,
            **(training or {}),
        }
    )
    kept, rest = split_for_training(data, validation, seed)
    config = config_for(data, **model)
    prepared = prepare(without_idle_hyperedges(config, rest, seed), rest, seed).to(device)
    prepared.method = method
    # A stretch from the middle of an episode must mean the same as one from its start.
    cut = not (config.fresh_start or config.previous_action or config.history > 1)
    wanted = max(horizon, settings.fit_steps)
    systems = equal_systems(rest, wanted, cut, lambda episodes: SystemData(prepared, episodes))
    with place_for(folder) as place:
        module, name = prepared.features.trained.split(":")
        make: TrainingOf = getattr(importlib.import_module(module), name)
        run = make(prepared, systems, kept, settings, place)
        keep = best or (lambda model, error: folder and save_model(model, folder, {"validation_nrmse": error}))
        run.improved = lambda: keep(prepared, run.best)
        run.resume()
        with progress("training", iterations, "iterations") if tell is None else nullcontext(start) as done:
            done(run.iteration)
            error = run.run(tell or (lambda now: done(1)))
    prior = prepared.features.training_prior
    if prior is not None:
        remember(prepared, prior, list(_by_system(rest)))
        error = validation_error(prepared, kept)
    if best is None and prior is not None and run.ranks.first:
        keep(prepared, error)
    trained = prepared.eval()
    return Trained(trained, error, run.seconds, run.iteration, run.spent, _weights(trained, kept))


TrainingOf = Callable[[Model, Sequence[Recorded], Systems, TrainingConfig, Path], Training]


def training_of(
    model: Model, systems: Sequence[Recorded], validation: Systems, config: TrainingConfig, folder: Path
) -> Training:
    """The training of a model on some systems; it is judged by others, or by other episodes."""

    def loss(horizon: int, rng: np.random.Generator, generator: torch.Generator) -> Tensor:
        return loss_of(model, draw_batch(systems, config, horizon, rng, ranks()), config, generator)

    about, data = model.config.described(), digest(systems, validation)
    return Training(model, loss, lambda: validation_error(model, validation), config, folder, about, data)


def _weights(model: Model, systems: Systems) -> dict[str, float] | None:
    """What the Gibbs weights do on what was kept for validation."""
    if not model.form.weighted:
        return None
    unit = model.observation_std.double().cpu().numpy()
    return mean_of([weights_told(adapt(model, rest, measure=False), one, rest, unit) for one, *rest in systems])


def validation_error(model: Model, systems: Systems) -> float:
    return prediction_error(lambda episodes: adapt(model, episodes, measure=False), model, systems)


@runtime_checkable
class Predictor(Protocol):
    """What a model becomes when it is adapted to a system."""

    def predict(
        self, observation: np.ndarray, actions: np.ndarray, *, exogenous: np.ndarray | None = None
    ) -> np.ndarray: ...


def prediction_error(adapt: Callable[[Sequence[Episode]], Predictor], units: Units, systems: Systems) -> float:
    """Mean NRMSE of predicting the first episode of each system after adapting to the others."""
    unit, errors = units.observation_std.double().numpy(), []
    for first, *others in systems:
        start = first.observations[0].astype(float)
        with undoubted(), np.errstate(over="ignore", invalid="ignore"):
            predicted = adapt(others).predict(start, first.actions, exogenous=first.exogenous)
            error = nrmse(predicted[1:], first.observations[1:].astype(float), unit)
        errors.append(np.nan_to_num(error, nan=100.0).clip(max=100.0).mean())
    return float(np.mean(errors))


def split_for_training(data: Dataset, share: float, seed: int) -> tuple[list[list[Episode]], Dataset]:
    """(what to validate on, what to train on).

    What to validate on are lists of episodes of one system, the first of which is predicted after adapting to the
    others. Of three systems or more some are kept away from training; of fewer, some episodes of each.
    """
    numbers = np.unique(data.groups)
    if len(numbers) >= 3:
        count = int(np.clip(np.rint(share * len(numbers)), 1, len(numbers) - 1))
        kept, rest = data.split([count / len(numbers), 1 - count / len(numbers)], seed)
        systems = [episodes[:VALIDATION_EPISODES] for episodes in islice(_by_system(kept), VALIDATION_SYSTEMS)]
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


def equal_systems(
    data: Dataset, wanted: int, cut: bool, seen: Callable[[Sequence[Episode]], Recorded]
) -> list[Recorded]:
    """The systems with at least two stretches, as `equal_stretches` makes them and a model sees them."""
    each = (equal_stretches(episodes, wanted, cut) for episodes in _by_system(data))
    systems = [seen(stretches) for stretches in each if len(stretches) > 1]
    if not systems:
        raise InputError("there is no system with at least two episodes to train on; give more episodes of each")
    return systems


def _by_system(data: Dataset) -> Iterator[list[Episode]]:
    for g in np.unique(data.groups):
        yield [data[int(k)] for k in data.group(int(g)).episodes]


# ---- remembering ----


def remember(model: Model, memory: TrainingPrior, systems: Sequence[Sequence[Episode]]) -> None:
    """Fill the memory of a model. A system is the episodes of one graph, each of two steps or more."""
    correlation, some = 0.0, systems[:SOME]
    with progress("remembering", TURNS * len(some) + len(systems), "systems") as done:
        for _ in range(TURNS):
            memory.keep(_moments(model, some, correlation, done), correlation)
            correlation = _correlation(model, memory, some)
        memory.keep(_moments(model, systems, correlation, done), correlation)


def _moments(
    model: Model, systems: Sequence[Sequence[Episode]], correlation: float, done: Callable[[int], None]
) -> Moments:
    moments = []
    for episodes in systems:
        graph = episodes[0].graph
        seen = see(model, episodes, graph, ColouredNoise.even(correlation, graph.num_nodes))
        moments.append(total(seen).sums.moments)
        done(1)
    return reduce(add, moments)


def _correlation(model: Model, memory: TrainingPrior, systems: Sequence[Sequence[Episode]]) -> float:
    """Of what the operator of all leaves of single systems, in the mean."""
    moments, graphs = memory.moments, [episodes[0].graph for episodes in systems]
    regression = model.regression(moments.cross.shape[-1])
    operator = regression.fit(Sums(moments), Topology.of(graphs[0], model.device), model.config.ridge)
    correlations = [
        coloured_noise_of(model, see(model, episodes, graph), operator, graph).correlation
        for episodes, graph in zip(systems, graphs, strict=True)
    ]
    return float(np.mean(correlations))
