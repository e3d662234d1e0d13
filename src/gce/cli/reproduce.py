"""`gce reproduce`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from gce.cli.common import Place, Word
from gce.errors import InputError
from gce.progress import progress


@dataclass
class Reproduce:
    """Run the paper's tables and figures again; without a name, list them.

    Work is kept: a stopped command goes on when it is given again, and what is there is not computed again.
    """

    resumes = True

    name: tyro.conf.Positional[str] = ""
    """An experiment, `all` of them, `report`: tables and figures from the results that are there, or `carry`: runs
    kept under other keys are kept on, if a sample of them computed again has the same figures."""
    preset: Literal["quick", "evening", "paper"] = "quick"
    """quick: a few runs of each cell, minutes in all; evening: hours; paper: 200 runs, 20 of slow methods."""
    jobs: int = 1
    """Processes side by side, of one thread each."""
    on: Word = None
    """A Dask cluster instead: dask (here), tcp://host:8786, or slurm. All machines see the folders named here."""
    shard: Word = None
    """i/n: only this part of the cells, to divide work over machines."""
    minutes: float = float("inf")
    """Begin no cell after so long; the tables then have the runs that are there, and say how many."""
    results: Path = Path("results")
    """The folder of the results, with the computed cells beside them."""
    models: Place = None
    """The folder of the trained models; by default `models` in the results."""
    recorded: Place = None
    """The folder of recordings made by others (WORLD_GROUP.npz), for `recorded`."""
    data: Place = None
    """The folder of recordings of systems of others (KIND_train and KIND_validation, .h5 or .npz), for `foreign`."""
    train_minutes: float = 3.0
    """For `foreign`: CPU minutes that each of its models is trained for, here, where it is missing."""
    methods: tuple[str, ...] = ()
    """For `foreign`: these methods alone, as results name them; by default all of its table."""
    sample: int = 1
    """For `carry`: how many runs of each experiment, world and method are computed again."""

    def run(self) -> None:
        import torch

        from gce.reproduce.carry import carry
        from gce.reproduce.experiment import PRESETS, CellPart, Context
        from gce.reproduce.runner import EXPERIMENTS, experiment_named, report, reproduce

        models, results = self.models or self.results / "models", self.results
        if self.on is not None:  # workers are in folders of their own
            models, results = models.resolve(), results.resolve()
            self.recorded, self.data = (place and place.resolve() for place in (self.recorded, self.data))
        context = Context(models, results, self.recorded, self.data, self.train_minutes, self.methods)
        if not self.name:
            width = max(map(len, EXPERIMENTS))
            for name, experiment in EXPERIMENTS.items():
                print(f"{name:{width}s}  {experiment.about}")
            return
        if not self.minutes > 0:
            raise InputError(f"--minutes is {self.minutes}, expected more than 0")
        if not 0 < self.train_minutes < float("inf"):
            raise InputError(f"--train-minutes is {self.train_minutes}, expected more than 0")
        if self.name == "foreign" and self.data is None:
            raise InputError("foreign needs recordings of systems of others; give their folder with --data")
        if self.jobs < 1:
            raise InputError(f"--jobs is {self.jobs}, expected 1 or more")
        if self.recorded is not None and not self.recorded.is_dir():
            raise InputError(
                f"--recorded is {self.recorded}, which is not a folder; name one with WORLD_GROUP.npz files"
            )
        if self.name == "report":
            print(f"{self.results}: {', '.join(report(context))}", file=sys.stderr)
            return
        torch.set_num_threads(1)
        if self.name == "carry":
            if self.sample < 1:
                raise InputError(f"--sample is {self.sample}, expected 1 or more")
            say = partial(print, file=sys.stderr, flush=True)
            refused = carry(list(EXPERIMENTS.values()), context, self.sample, self.minutes, say)
            if refused:
                raise InputError(f"{', '.join(refused)}: figures differ; gce reproduce NAME computes these runs anew")
            return
        chosen = list(EXPERIMENTS.values()) if self.name == "all" else [experiment_named(self.name)]
        shard = None if self.shard is None else CellPart.of(self.shard)
        failures = reproduce(chosen, PRESETS[self.preset], context, shard, progress, self.minutes, self.jobs, self.on)
        for sentence in context.skipped:
            print(sentence, file=sys.stderr)
        for name, count in failures.items():
            if count:
                print(f"{name}: {count} cells failed; they are counted in its table", file=sys.stderr)
