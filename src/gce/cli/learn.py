"""`gce adapt` and `gce predict`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from gce.cli.beside import said, warn
from gce.cli.common import (
    Place,
    Reads,
    Word,
    check_numbers,
    episode_of,
    find_model,
    known_names,
    optional,
    others_of_group,
    told,
    units,
)
from gce.errors import InputError
from gce.names import Method
from gce.progress import TOLD


@dataclass
class Adapt(Reads):
    """Adapt a model to one system of a data set, and keep the result."""

    file: tyro.conf.Positional[Path]
    """A data set file."""
    out: Path
    """The folder to write."""
    group: int = 0
    """The system (group of episodes) to adapt to."""
    episodes: int = 8
    """How many of its episodes to use; all where it has fewer."""
    model: Place = None
    """The folder of a model; by default the one that comes with the package for the file's world."""
    method: Annotated[Method | None, optional("{published,structured,general}")] = None
    """Which of the models that come with the package: the paper's method, or ours, the default."""

    def run(self) -> None:
        from gce.cli.own_plan import own_about
        from gce.system.files import save_system
        from gce.system.system import adapt
        from gce.trajectory import Dataset

        with Dataset.open(self.file) as data:
            model = find_model(self.model, data, method=self.method)
            members = data.group(self.group).episodes
            check_numbers(self, "episodes")
            chosen = members[: self.episodes]
            system = adapt(model, [data[int(k)] for k in chosen])
            about = own_about(data, self.group, chosen.tolist())
        save_system(system, self.out, about)
        fewer = f", all it has (asked for {self.episodes})" if len(chosen) < self.episodes else ""
        print(
            f"{self.out}: adapted to {len(chosen)} episodes of group {self.group}{fewer}; "
            f"`gce control {self.out} --start START --goal GOAL --out plan` plans for it",
            file=sys.stderr,
        )


@dataclass
class Predict(Reads):
    """Predict an episode from its first observation and its actions, after adapting to others of its system."""

    file: tyro.conf.Positional[Path]
    """A data set file."""
    episode: int = 0
    """The episode to predict."""
    adapt: int = 8
    """How many other episodes of its group to adapt to; all where it has fewer."""
    noise: float = 0.0
    """Noise added to the observations of these and to the first observation, as a share of the world's units."""
    seeds: int = 3
    """With noise: how many draws to average over."""
    seed: int = 0
    """Of the noise."""
    model: Place = None
    """The folder of a model; by default the one that comes with the package for the file's world."""
    method: Annotated[Method | None, optional("{published,structured,general}")] = None
    """Which of the models that come with the package: the paper's method, or ours, the default."""
    form: Word = None
    """Another form of the operator, to compare, by its name as in `gce train`."""
    linear: bool = False
    """Stay in feature space instead of taking the features of each predicted state anew."""
    plot: Place = None
    """A picture (.png) of the prediction beside the truth."""
    json: bool = False
    """Print JSON on standard output; steps that the episode does not reach are null."""

    def run(self) -> None:
        import numpy as np
        import torch

        from gce import __version__
        from gce.trajectory import Dataset

        torch.set_num_threads(1)
        if self.adapt < 1:
            raise InputError(f"--adapt is {self.adapt}, expected at least 1 episode")
        check_numbers(self, "seeds")
        with Dataset.open(self.file) as data:
            model = find_model(self.model, data, self.form is not None, self.method)
            if self.form is not None:
                model = model.with_form(self.form)
            episode, others = episode_of(data, self.file, self.episode), others_of_group(data, self.episode, self.adapt)
            adapting = [data[k] for k in others]
            unit, names = units(data.world, model), known_names(data.metadata, episode.parameters)
        from gce.baselines.references import errors_beside, warning_of
        from gce.system.prediction import prediction
        from gce.system.weights import mean_of, weights_told

        reproject = False if self.linear else None
        results = [
            prediction(model, episode, adapting, unit, self.noise, self.seed + s, reproject)
            for s in range(self.seeds if self.noise else 1)
        ]
        errors = np.mean([result.nrmse for result in results], axis=0)
        by_step = _by_step(errors)
        beside = errors_beside(model, episode, results[0].adapting, unit, results[0].predicted[0])
        warn(warning_of(float(errors.mean()), {k: None if e is None else e.mean() for k, e in beside.items()}))
        if len(others) < self.adapt:
            print(f"adapted to {len(others)} episodes, all there are (asked for {self.adapt})", file=sys.stderr)
        answer = {
            "nrmse": by_step,
            "references": {name: None if e is None else _by_step(e) for name, e in beside.items()},
            "coverage_90": sum(result.coverage for result in results) / len(results),
            "weights": mean_of(
                [weights_told(r.system, episode, r.adapting, unit, r.predicted[0], reproject) for r in results]
            ),
            "episode": self.episode,
            "adapt": others,
            "noise": self.noise,
            "seed": self.seed,
            "version": __version__,
            "warnings": list(TOLD),
        }
        if self.plot is not None:
            from gce.views.plots import prediction_chart

            prediction_chart(
                results[0], episode.observations, self.plot, names.get("nodes"), names.get("observation_names")
            )
            print(f"{self.plot}: truth and prediction of some nodes, with 90% intervals", file=sys.stderr)
        if self.json:
            print(told(answer))
        else:
            for step, error in by_step.items():
                when = "mean" if step == "mean" else f"at step {step}"
                told_beside = said({k: None if e is None else _by_step(e)[step] for k, e in beside.items()})
                print(f"NRMSE {when}: {'the episode is shorter' if error is None else f'{error:.4g} ({told_beside})'}")


def _by_step(errors: Any) -> dict[str, float | None]:
    """At some steps, None where the episode is shorter, and the mean."""
    at = {str(k): float(errors[k - 1]) if k <= len(errors) else None for k in (1, 10, 50, 100)}
    return {**at, "mean": float(errors.mean())}
