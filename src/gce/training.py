"""Training: losses and loop.

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
from jaxtyping import Float
from torch import Tensor

from gce import checkpoint
from gce.adaptation import model_inputs
from gce.config import ModelConfig
from gce.errors import InputError
from gce.metrics import nrmse
from gce.model import Model, nodes_first
from gce.operators import Operator
from gce.rollout import rollout
from gce.system import adapt
from gce.topology import Topology
from gce.trajectory import Dataset, Episode, Normalisation

KINEMATIC_TOLERANCE = 1e-3
HELD_BELOW = 0.05


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    horizons: steps rolled out, growing; each for an equal share of the iterations.
    systems, fit_episodes, fit_steps: what operators are fitted on; rollouts: windows a system to predict.
    free_running: whether windows are rolled out from their first state; otherwise every step is predicted from the true
        state before it, and judged by the effects that its operator should have had. Where what is left to learn is
        small beside noise that grows with time, single steps teach more.
    fresh_share: of chunks and windows that open an episode. noise: largest observation noise added to some batches.
    patience: stop after so many validations without progress; 0 never.
    """

    iterations: int = 3000
    seed: int = 0
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    systems: int = 4
    fit_episodes: int = 8
    fit_steps: int = 12
    rollouts: int = 4
    horizons: tuple[int, ...] = (4, 16, 16, 16, 32, 32, 32, 48)
    free_running: bool = True
    fresh_share: float = 0.2
    noise: float = 0.1
    noise_share: float = 0.3
    clip: float = 1.0
    validate_every: int = 250
    checkpoint_every: int = 50
    patience: int = 0


class SystemData:
    """The episodes of one system as tensors: states [episodes, T+1, nodes, c] and inputs [episodes, T, nodes, a].

    kind: the same for systems on equal graphs, which may be worked on as one batch.
    """

    def __init__(self, model: Model, episodes: Sequence[Episode]) -> None:
        self.graph = episodes[0].graph
        # Vector channels want a union of graphs; forms without shared operators have one for each node.
        alone = model.implicit is not None or not model.form.shared
        self.kind = None if alone else checkpoint.fingerprint([self.graph])
        steps = min(episode.length for episode in episodes)
        seen = [torch.as_tensor(e.observations[: steps + 1], dtype=torch.float32) for e in episodes]
        self.inputs = torch.stack([model_inputs(model, e.actions, e.exogenous, e.graph)[:steps] for e in episodes])
        with torch.no_grad():
            actions = self.inputs[..., : model.config.num_actions]
            self.states = model.states(model.normalise(torch.stack(seen)), actions)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def steps(self) -> int:
        return self.inputs.shape[1]

    @cached_property
    def topology(self) -> Topology:
        return Topology.of(self.graph)


def find_kinematics(data: Dataset, dt: float, episodes: int = 20) -> tuple[tuple[int, int], ...]:
    """Pairs (position, velocity) of coordinates with v_t = (p_t - p_{t-1}) / dt throughout the first episodes."""
    sample = [data[k].observations.astype(np.float64) for k in range(min(episodes, len(data)))]
    d = sample[0].shape[-1]
    pairs = []
    for velocity in range(d):
        v = np.concatenate([o[1:, :, velocity].ravel() for o in sample])
        if v.std() == 0:
            continue
        for position in range(d):
            difference = np.concatenate([np.diff(o[..., position], axis=0).ravel() for o in sample]) / dt
            # Single precision leaves a rounding of positions, magnified by 1/dt.
            rounding = 4e-7 * max(np.abs(o[..., position]).max() for o in sample) / dt
            if position != velocity and np.abs(difference - v).max() < KINEMATIC_TOLERANCE * v.std() + rounding:
                pairs.append((position, velocity))
                break
    return tuple(sorted(pairs))


def prepare(config: ModelConfig, data: Dataset, seed: int = 0, sample: int = 200) -> Model:
    """An untrained model in the units of a data set."""
    torch.manual_seed(seed)
    model = Model(config)
    chosen = np.random.default_rng([seed, 1]).permutation(len(data))[:sample]
    part = data.select(np.sort(chosen))
    units = Normalisation.of(part)
    with torch.no_grad():
        mean = torch.as_tensor(units.observation_mean, dtype=torch.float32)
        for _, velocity in config.kinematics:
            mean[velocity] = 0
        model.observation_mean.copy_(mean)
        model.observation_std.copy_(torch.as_tensor(units.observation_std, dtype=torch.float32))
        model.action_std.copy_(torch.as_tensor(units.action_std, dtype=torch.float32))
        if config.num_exogenous:
            rows = np.concatenate(
                [e.exogenous.reshape(-1, config.num_exogenous) for e in part if e.exogenous is not None]
            )
            std = torch.as_tensor(rows.std(0), dtype=torch.float32)
            model.exogenous_std.copy_(torch.where(std > 0, std, 1.0))
        model.encoder.inputs.unit_mean.copy_(model.observation_mean)
        model.encoder.inputs.unit_std.copy_(model.observation_std)
        systems = [SystemData(model, [part[k]]) for k in range(min(len(part), 100))]
        model.encoder.inputs.set_units((system.states[0, ::4].transpose(0, 1), system.topology) for system in systems)
        model.held[:, : len(model.free)] = _held(model, systems)
        if model.implicit is not None:
            model.implicit.set_classes()
    return model


def _held(model: Model, systems: Sequence[SystemData]) -> Tensor:
    """Which free coordinates stay where they start at nodes of a type, within 5% of their unit, root mean square.

    A velocity stays where its position does.
    """
    c = model.config
    position = {v: p for p, v in c.kinematics}
    watched = [position.get(k, k) for k in model.free]
    squares, counts = torch.zeros(c.num_node_types, len(watched)), torch.zeros(c.num_node_types, 1)
    for system in systems:
        moved = (system.states[0] - system.states[0, :1])[..., watched].square().mean(0)
        squares.index_add_(0, system.topology.node_type, moved)
        counts.index_add_(0, system.topology.node_type, torch.ones(len(moved), 1))
    return ((squares / counts.clamp_min(1)).sqrt() < HELD_BELOW) & (counts > 0)


@dataclass(frozen=True)
class Batch:
    """Some systems joined: chunks to fit on and windows to predict, [systems, stretches, steps, nodes, ...].

    Systems on equal graphs share the topology; others are one system, on the union of their graphs.
    """

    topology: Topology
    fit_states: Tensor
    fit_inputs: Tensor
    fit_fresh: Tensor
    states: Tensor
    inputs: Tensor
    fresh: Tensor


def draw_batch(systems: Sequence[SystemData], config: TrainingConfig, horizon: int, rng: np.random.Generator) -> Batch:
    """Chunks and windows at random; episodes that are fitted on are not predicted."""
    chosen = [systems[k] for k in rng.integers(0, len(systems), config.systems)]
    alike = [system for system in systems if system.kind is not None and system.kind == chosen[0].kind]
    shared = len(alike) >= config.systems
    if shared:
        chosen = [alike[k] for k in rng.permutation(len(alike))[: config.systems]]
    pieces: dict[str, list[Tensor]] = {name: [] for name in ("fs", "fi", "ff", "s", "i", "f")}
    for system in chosen:
        order = rng.permutation(len(system))
        count = min(config.fit_episodes, len(system) - 1)
        fitted = order[:count][np.arange(config.fit_episodes) % count]
        predicted = order[count:][np.arange(config.rollouts) % (len(system) - count)]
        for names, episodes, steps in (
            (("fs", "fi", "ff"), fitted, config.fit_steps),
            (("s", "i", "f"), predicted, horizon),
        ):
            steps = min(steps, *(other.steps for other in chosen))
            starts = rng.integers(0, system.steps - steps + 1, len(episodes))
            starts[rng.random(len(episodes)) < config.fresh_share] = 0
            where = torch.as_tensor(starts)[:, None] + torch.arange(steps + 1)
            e = torch.as_tensor(episodes)[:, None]
            pieces[names[0]].append(system.states[e, where])
            pieces[names[1]].append(system.inputs[e, where[:, :-1]])
            nodes = system.graph.num_nodes
            pieces[names[2]].append((where[:, :-1] == 0).float()[..., None, None].expand(-1, -1, nodes, 1))
    joined = {name: torch.stack(parts) if shared else torch.cat(parts, dim=2)[None] for name, parts in pieces.items()}
    return Batch(
        chosen[0].topology if shared else Topology.of([system.graph for system in chosen]),
        *(joined[name] for name in ("fs", "fi", "ff", "s", "i", "f")),
    )


def loss_of(model: Model, batch: Batch, config: TrainingConfig, generator: torch.Generator) -> Tensor:
    """The prediction error of the windows, root mean square over nodes and coordinates, mean over steps and windows.

    Without `free_running`, the share of their effects that single steps leave unexplained.
    Where a decoder finds the observation, what it loses of those fitted on is added.
    """
    topology, d = batch.topology, model.config.num_observations
    fit_states, start = batch.fit_states, batch.states[:, :, 0]
    if torch.rand((), generator=generator) < config.noise_share:
        level = config.noise * torch.rand((), generator=generator)
        # Adaptation smooths noise away for the most part, so the fit sees less of it than the first observation.
        fit_states = fit_states + 0.3 * level * _observation_noise(fit_states, d, generator)
        start = start + level * _observation_noise(start, d, generator)
    here, there = fit_states[:, :, :-1], fit_states[:, :, 1:]
    if model.num_needed(model.config.reproject) == model.num_effects:  # the next features need not be known
        psi = model.features(here, topology)
        Y = (there - here)[..., model.free]
    else:
        along = model.features(fit_states, topology)
        psi = along[:, :, :-1]
        Y = model.targets(here, there, along[:, :, 1:])
    X = model.regressors(psi, batch.fit_inputs, topology, batch.fit_fresh)
    operators = model.fit_all(X, Y, here, topology)
    if not config.free_running:
        return _unexplained(model, operators, batch)
    predicted = rollout(model.stepper(operators, topology), model.features(start, topology), batch.inputs, batch.fresh)
    wrong = (predicted - batch.states[:, :, 1:])[..., :d].square().clamp(max=1e4)
    forward = _root_mean_square(wrong, topology)
    if model.decoder is None:
        return forward
    lost = (model.decoded(psi, topology) - batch.fit_states[:, :, :-1, :, :d]).square()
    return forward + _root_mean_square(lost, topology)


def _unexplained(model: Model, operators: Sequence[Operator], batch: Batch) -> Tensor:
    """The share of true effects, squared, that operators leave unexplained at single steps; mean over graphs."""
    topology, c = batch.topology, model.config.num_state
    here, there = batch.states[:, :, :-1], batch.states[:, :, 1:]
    step, rows = model.stepper(operators, topology), nodes_first(model.features(here, topology))
    found = step.targets(rows[..., :c], rows[..., c:], step.drive(batch.inputs, batch.fresh))[..., : model.num_effects]
    with torch.no_grad():
        true = nodes_first(model.effects(operators, here, there, topology))
    parts = zip((found - true).split(topology.splits), true.split(topology.splits), strict=True)
    return torch.stack([wrong.square().sum() / effect.square().sum() for wrong, effect in parts]).mean()


def _root_mean_square(squares: Float[Tensor, "*batch nodes d"], topology: Topology) -> Tensor:
    """Over the nodes and coordinates of each graph; then the mean."""
    by_system = torch.stack([part.mean((-1, -2)) for part in squares.split(topology.splits, dim=-2)])
    return (by_system + 1e-6).sqrt().mean()


def _observation_noise(states: Tensor, coordinates: int, generator: torch.Generator) -> Tensor:
    noise = torch.zeros_like(states)
    noise[..., :coordinates] = torch.randn(noise[..., :coordinates].shape, generator=generator)
    return noise


def learning_rate(config: TrainingConfig, iteration: int) -> float:
    """Cosine from the start rate to 2% of it after a short warm-up; or the paper's: halved linearly every 100,000."""
    if config.schedule == "paper":
        return max(1e-6, config.learning_rate * 0.5 ** (iteration / 100_000))
    share = iteration / config.iterations
    return config.learning_rate * min(1.0, (iteration + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))


def horizon_at(config: TrainingConfig, iteration: int) -> int:
    return config.horizons[min(len(config.horizons) - 1, iteration * len(config.horizons) // config.iterations)]


# ---- the loop ----


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
            if validation is not None or self.iteration % c.checkpoint_every == 0 or self.iteration == stop:
                self.save()
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
        line = {"iteration": self.iteration, "loss": loss, "validation": validation, "seconds": self.seconds}
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    # ---- going on ----

    def save(self) -> None:
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best_state.items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{k}": torch.as_tensor(v) for k, v in state.items()}
        text = {
            "iteration": self.iteration,
            "best": None if math.isinf(self.best) else self.best,
            "stale": self.stale,
            "seconds": self.seconds,
            "training": dataclasses.asdict(self.config),
            "config": dataclasses.asdict(self.model.config),
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
        here = json.loads(json.dumps([dataclasses.asdict(self.config), dataclasses.asdict(self.model.config)]))
        if [text["training"], text["config"]] != here:
            raise InputError(f"{self.folder} holds another training; finish that one or choose another folder")
        if text["data"] != self.fingerprint:
            raise InputError(
                f"{self.folder} holds a training on other data; give the data it began with or choose another folder"
            )

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.model.load_state_dict(part("model."))
        self.best_state = part("best.")
        state = self.optimiser.state_dict()
        state["state"] = {}
        for key, value in part("adam.").items():
            index, name = key.split(".")
            state["state"].setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict(state)
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
