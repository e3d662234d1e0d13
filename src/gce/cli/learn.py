"""`gce adapt` and `gce predict`."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from gce.cli.labels import known_names
from gce.errors import InputError

Form = Literal["hom_mean", "hom", "dense", "tensor"]


@dataclass
class Adapt:
    """Adapt a model to one system of a data set, and keep the result."""

    file: tyro.conf.Positional[Path]
    """A data set file."""
    out: Path
    """The folder to write."""
    group: int = 0
    """The system (group of episodes) to adapt to."""
    episodes: int = 8
    """How many of its episodes to use; all where it has fewer."""
    model: Path | None = None
    """The folder of a model; by default the one that comes with the package for the file's world."""

    def run(self) -> None:
        from gce.cli.own_plan import own_about
        from gce.system.files import save_system
        from gce.system.system import adapt
        from gce.trajectory import Dataset

        with Dataset.open(self.file) as data:
            model = find_model(self.model, data)
            members = data.group(self.group).episodes
            if self.episodes < 1:
                raise InputError(f"--episodes is {self.episodes}, expected at least 1")
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
class Predict:
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
    model: Path | None = None
    """The folder of a model; by default the one that comes with the package for the file's world."""
    form: Form | None = None
    """Another form of the operator, to compare."""
    linear: bool = False
    """Stay in feature space instead of taking the features of each predicted state anew."""
    plot: Path | None = None
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
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"--noise is {self.noise}, expected a share of the units such as 0.05")
        if self.seeds < 1:
            raise InputError(f"--seeds is {self.seeds}, expected at least 1")
        with Dataset.open(self.file) as data:
            model = find_model(self.model, data, self.form is not None)
            if self.form is not None:
                model = model.with_form(self.form)
            if not 0 <= self.episode < len(data):
                raise InputError(
                    f"{self.file} has the episodes 0 to {len(data) - 1}, asked for {self.episode}; choose one of these"
                )
            others = others_of_group(data, self.episode, self.adapt)
            episode, adapting = data[self.episode], [data[k] for k in others]
            unit, names = _units(data, model), known_names(data.metadata, episode.parameters)
        from gce.system.evaluation import prediction

        results = [
            prediction(model, episode, adapting, unit, self.noise, self.seed + s, False if self.linear else None)
            for s in range(self.seeds if self.noise else 1)
        ]
        errors = np.mean([result.nrmse for result in results], axis=0)
        by_step = {str(k): float(errors[k - 1]) if k <= len(errors) else None for k in (1, 10, 50, 100)}
        by_step["mean"] = float(errors.mean())
        if len(others) < self.adapt:
            print(f"adapted to {len(others)} episodes, all there are (asked for {self.adapt})", file=sys.stderr)
        answer = {
            "nrmse": by_step,
            "coverage_90": sum(result.coverage for result in results) / len(results),
            "episode": self.episode,
            "adapt": others,
            "noise": self.noise,
            "seed": self.seed,
            "version": __version__,
        }
        if self.plot is not None:
            from gce.views.plots import prediction_chart

            prediction_chart(
                results[0], episode.observations, self.plot, names.get("nodes"), names.get("observation_names")
            )
            print(f"{self.plot}: truth and prediction of some nodes, with 90% intervals", file=sys.stderr)
        if not np.isfinite(errors).all():
            first = int(np.flatnonzero(~np.isfinite(errors))[0]) + 1
            print(
                f"the prediction is not finite from step {first} on; train the model longer, or adapt to more episodes",
                file=sys.stderr,
            )
        if self.json:
            print(told(answer))
        else:
            for step, error in by_step.items():
                when = "mean" if step == "mean" else f"at step {step}"
                print(f"NRMSE {when}: {'the episode is shorter' if error is None else f'{error:.4g}'}")


def told(answer: dict[str, Any]) -> str:
    """An answer as JSON, which has no word for what is not finite: null."""

    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: known(entry) for name, entry in value.items()}
        if isinstance(value, list):
            return [known(entry) for entry in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(known(answer))


def find_model(folder: Path | None, data: Any, forms: bool = False) -> Any:
    """The model of a folder, or the one that comes with the package for the data's world.

    forms: one whose form of the operator may be changed.
    """
    from gce.model.files import load_model, shipped

    if folder is None and data.world is None:
        raise InputError("the file is of no known world; name a model with --model")
    model = load_model(folder if folder is not None else shipped(data.world if forms else _suited(data)))
    if model.config.world != data.world:
        raise InputError(
            f"the model is of the world {model.config.world}, the data of {data.world}; give its own with --model"
        )
    return model


def _suited(data: Any) -> str:
    """The name of the shipped model for data of a world."""
    from gce.envs import WORLDS

    if data.world not in WORLDS:
        return str(data.world)
    settings = data.metadata.get("recording", {}).get("settings", {})
    sizes = (data.group(int(group)).graph.num_nodes for group in set(data.groups.tolist()))
    return WORLDS[data.world].model_for(settings, sizes)


def others_of_group(data: Any, episode: int, count: int) -> list[int]:
    """The episodes that follow in the same group, going round: so many, or all where there are fewer."""
    members = data.group(int(data.groups[episode])).episodes.tolist()
    place = members.index(episode)
    others: list[int] = members[place + 1 :] + members[:place]
    if not others:
        raise InputError(f"episode {episode} is the only one of its system; there is no other to adapt to")
    return others[:count]


def _units(data: Any, model: Any) -> Any:
    """What errors are measured in: the world's fixed units, or the training data's where there is no world."""
    from gce.envs import WORLDS

    if data.world in WORLDS:
        return WORLDS[data.world].observation_std
    return model.observation_std.double().numpy()
