"""`gce train`."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gce.cli.beside import said, warn
from gce.cli.common import (
    Reads,
    Real,
    Whole,
    Word,
    check_numbers,
    optional,
)
from gce.errors import InputError
from gce.names import Method, registered
from gce.progress import progress

PUBLISHED = ("actions", "estimator", "hom", "updates", "maps")
"""Choices that the paper leaves."""


@dataclass
class Train(Reads):
    """Train a model; a training that was stopped goes on when the same command is given again."""

    resumes = True

    world: tyro.conf.Positional[str]
    """The world the data is of: rope, soft, swim, grid or flock; `own` for data of no known world."""
    data: Path
    """A data set file."""
    out: Path
    """The folder for the model, its log and its checkpoint."""
    method: Annotated[Method | None, optional("{published,structured,general}")] = None
    """The paper's method as its text has it, or ours: structured, with features made for a kind of physics, or general,
    without. By default structured for the worlds, and general for own data."""
    preset: Literal["literal", "tuned"] = "tuned"
    """Of the published method: all as the paper has it, or with what docs/published.md lists as changed."""
    form: str = "hom_mean"
    """Form of the operator: hom_mean, hom, dense, tensor, another of docs/choosing.md, or one of a plugin."""
    potential: str = "gaussian"
    """Potential of the Gibbs weights: gaussian, laplace, vmf, mlp, attention, constant, identity, or one of a
    plugin."""
    bandwidth: Real = None
    """Hyper-parameter of the potential, where it has one (heads of attention); by default 2, the paper's."""
    hyper_parameter: Annotated[Literal["fixed", "learned"] | None, optional("{fixed,learned}")] = None
    """Whether training changes it; by default fixed with --method published, and learned otherwise."""
    actions: Annotated[Literal["pairs", "neighbours"] | None, optional("{pairs,neighbours}")] = None
    """Published: operators of actions of all pairs of nodes (forward loss, the default), or of neighbours (text)."""
    estimator: Annotated[Literal["joint", "neighbours"] | None, optional("{joint,neighbours}")] = None
    """Published: one regression (the default), or neighbour by neighbour (appendix)."""
    hom: Annotated[Literal["relations", "average"] | None, optional("{relations,average}")] = None
    """Published, form hom: operators by relation (the default), or averaged over receivers (appendix)."""
    updates: Annotated[Literal["both", "reconstruction"] | None, optional("{both,reconstruction}")] = None
    """Published: gradients of both losses (text, the default), or of the reconstruction alone (pseudo code)."""
    maps: Annotated[Literal["two", "one"] | None, optional("{two,one}")] = None
    """Published: two maps of features, of history and of future (text), or one (pseudo code, and the tuned preset)."""
    decoder: Literal["selection", "message_passing"] = "selection"
    """How observations come back from features: they are among them, or a decoder finds them, as in the paper."""
    iterations: Whole = None
    """Steps of gradient descent; by default, like all that follows, as the world's shipped model was trained."""
    minutes: Real = None
    """CPU time to train for, instead of --iterations; 3 by default with --method general."""
    seed: int = 0
    """Decides everything random: the same seed and data give the same model."""
    kind: Word = None
    """Kind of features by name, such as message_passing, the default, or one of a plugin."""
    network: bool = False
    """Whether lines conduct, the first edge attribute saying how well: features of a network, whatever form, potential
    and features say."""
    memory: float = 0.0
    """How many rows the systems trained on count for in the regression of a new one, such as 1e6; 0 for none. Only with
    --network, and for systems that differ in nothing but what their attributes say."""
    learning_rate: Real = None
    """Largest step size, usually 3e-3."""
    schedule: Annotated[Literal["cosine", "paper"] | None, optional("{cosine,paper}")] = None
    """How the step size falls: along a cosine, or as in the paper; by default as the method's preset has it."""
    horizon: Whole = None
    """Steps predicted in training at the end; it grows from 4."""
    systems: Whole = None
    """Systems an iteration works on; fewer for large graphs."""
    fit_episodes: Whole = None
    """Episodes of each that its operator is fitted on in training."""
    fit_steps: Whole = None
    """Steps of each of these episodes."""
    rollouts: Whole = None
    """Windows of each system that are predicted."""
    patience: int = 0
    """Stop after so many validations without progress; 0 never."""
    features: int = 32
    """Learned features of a node."""
    validation: float = 0.05
    """Share of the systems kept for validation or, of one or two systems, of their episodes."""
    threads: int = 1
    """Threads of PyTorch."""
    ranks: int = 1
    """Processes side by side on this machine, each with a share of the systems of an iteration; torchrun starts them
    on several."""
    device: str = "cpu"
    """cpu, or cuda where there is one."""

    def run(self) -> None:
        import torch

        from gce import __version__
        from gce.baselines.references import validation_beside, warning_of
        from gce.cluster import ranks as side_by_side
        from gce.model.files import save_model
        from gce.training.learning import split_for_training, train
        from gce.training.preparation import by_time, settings_of, usual_method
        from gce.trajectory import Dataset
        from gce.trajectory.findings import look_over

        if self.device != "cpu" and not torch.cuda.is_available():
            raise InputError(f"--device is {self.device!r}, but PyTorch finds no GPU here; leave it at cpu")
        if not 0 < self.validation < 1:
            raise InputError(f"--validation is {self.validation}, expected a share between 0 and 1 such as 0.05")
        method = usual_method(self.world) if self.method is None else self.method
        from gce.operators import FORMS
        from gce.potentials import POTENTIALS

        registered(FORMS, self.form, "form")
        registered(POTENTIALS, self.potential, "potential")
        names = ("systems", "fit_episodes", "fit_steps", "rollouts")
        check_numbers(self, "iterations", "features", "threads", "horizon", "ranks", *names)
        given = {name: getattr(self, name) for name in ("schedule", "patience", "learning_rate", *names)}
        learned: dict[str, Any] = {"form": self.form, "potential": self.potential, "features": self.features}
        if self.bandwidth is not None:
            learned["potential_value"] = self.bandwidth
        if self.hyper_parameter is not None:
            learned["potential_learned"] = self.hyper_parameter == "learned"
        model = {"decoder": self.decoder, "memory": self.memory, **({"network": True} if self.network else learned)}
        if self.kind is not None:
            model["kind"] = self.kind
        if method == "published":
            model = learned | self._published()
            given["forward"] = 0.0 if self.updates == "reconstruction" else None
        if method == "general":
            model = self._general()
        for name in PUBLISHED if method != "published" else ():
            if getattr(self, name):
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag} is a choice of the paper's method; add --method published")
        usual = by_time(settings_of(method, self.preset, self.world, model)[1], self.iterations, self.minutes)
        minutes, iterations = usual.get("minutes"), usual["iterations"]
        scale = (iterations, "iterations") if minutes is None else (round(60 * minutes), "CPU seconds")
        about = {
            "command": "gce " + " ".join(sys.argv[1:]),
            "method": method,
            "seed": self.seed,
            "version": __version__,
        }
        torch.set_num_threads(self.threads)
        if self.ranks > 1 and not side_by_side.started():
            side_by_side.launch(self.ranks, sys.argv[1:])
            return
        with Dataset.open(self.data) as data, progress(f"training {self.world}", *scale) as done:
            if (data.world or "own") != self.world:
                raise InputError(
                    f"{self.data} is of the world {data.world or 'own'}, not of {self.world}; name that one"
                )

            if data.world is None:
                warn(*map(str, look_over(data)[1]))
            about["data"] = data.metadata.get("recording", {"file": self.data.name})
            told = 0

            def tell(now: Any) -> None:
                nonlocal told
                reached = now.iteration if minutes is None else min(int(now.spent), scale[0])
                done(reached - told)
                told = reached
                self._board("loss", now.loss, now.iteration)
                if now.validation is not None:
                    self._board("validation", now.validation, now.iteration)
                    line = f"iteration {now.iteration}: loss {now.loss:.4f}, validation {now.validation:.4f}"
                    print(line, file=sys.stderr)

            def begun(iteration: int) -> None:
                nonlocal told
                told = iteration if minutes is None else 0
                done(told)

            trained = train(
                data,
                iterations=None if minutes is not None else iterations,
                minutes=self.minutes,
                horizon=self.horizon,
                seed=self.seed,
                validation=self.validation,
                folder=self.out,
                device=self.device,
                tell=tell,
                start=begun,
                best=lambda found, error: save_model(found, self.out, {**about, "validation_nrmse": error}),
                method=method,
                preset=self.preset,
                model=model,
                training={name: value for name, value in given.items() if value is not None},
            )
            if not side_by_side.ranks().first:
                return
            beside = validation_beside(trained.model, split_for_training(data, self.validation, self.seed)[0])
        about |= {
            "validation_nrmse": trained.validation_nrmse,
            "weights": trained.weights,
            "references": beside,
        }
        save_model(trained.model, self.out, about)
        print(
            f"{self.out}: validation NRMSE {trained.validation_nrmse:.4f} ({said(beside)}) after "
            f"{trained.seconds:.0f} s; give it to the other commands with --model {self.out}",
            file=sys.stderr,
        )
        warn(warning_of(trained.validation_nrmse, beside))

    def _published(self) -> dict[str, Any]:
        """Choices that the paper leaves; what leaves its text is refused."""
        from gce.features.published import left_text

        for name, off, left in (
            ("kind", None, "features come from message passing ('Mapping to RKHSs')"),
            ("network", False, "features come from message passing ('Mapping to RKHSs')"),
            ("memory", 0.0, "operators are fitted to samples of the system (appendix, 'Empirical Estimation')"),
            ("decoder", "selection", "the decoder is message passing in any case ('Loss Functions')"),
        ):
            if getattr(self, name) != off:
                raise left_text(f"--{name}", left)
        chosen = {name: getattr(self, name) for name in ("actions", "estimator", "hom")}
        chosen["shared_map"] = None if self.maps is None else self.maps == "one"
        return {name: value for name, value in chosen.items() if value is not None}

    def _general(self) -> dict[str, Any]:
        """Settings of other methods are refused; there are none of its own."""
        flags = "form potential bandwidth hyper_parameter decoder kind network memory features"
        for name in flags.split():
            default = next(field.default for field in dataclasses.fields(self) if field.name == name)
            if getattr(self, name) != default:
                flag = f"--{name.replace('_', '-')}"
                raise InputError(
                    f"{flag} is not for the general method, the default for own data; add --method structured"
                )
        return {}

    @cached_property
    def _board(self) -> Callable[[str, float, int], object]:
        """Takes figures for TensorBoard, where it is installed; nothing is written before the first."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return lambda name, value, iteration: None
        threading.excepthook = lambda args: None  # of its thread, on a full disk: our own log tells it in words
        add: Callable[[str, float, int], object] = SummaryWriter(str(self.out / "tensorboard")).add_scalar
        return add
