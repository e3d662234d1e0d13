"""What training minimises: prediction errors, through the closed-form fit, the rollout and the encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from gce.graphs.topology import Topology
from gce.model.model import Model, nodes_first
from gce.model.step import Stepper, rollout
from gce.operators import Operator
from gce.training.batches import Batch
from gce.training.config import TrainingConfig


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
    if model.num_needed(model.config.reproject) == model.features.num_effects:  # the next features need not be known
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
    predicted = rollout(Stepper(model, operators, topology), model.features(start, topology), batch.inputs, batch.fresh)
    wrong = (predicted - batch.states[:, :, 1:])[..., :d].square().clamp(max=1e4)
    forward = _root_mean_square(wrong, topology)
    if model.features.selects:
        return forward
    lost = (model.decoded(psi, topology) - batch.fit_states[:, :, :-1, :, :d]).square()
    return forward + _root_mean_square(lost, topology)


def _unexplained(model: Model, operators: Sequence[Operator], batch: Batch) -> Tensor:
    """The share of true effects, squared, that operators leave unexplained at single steps; mean over graphs."""
    topology, c = batch.topology, model.config.num_state
    here, there = batch.states[:, :, :-1], batch.states[:, :, 1:]
    step, rows = Stepper(model, operators, topology), nodes_first(model.features(here, topology))
    said = step.targets(rows[..., :c], rows[..., c:], step.drive(batch.inputs, batch.fresh))
    with torch.no_grad():
        true = nodes_first(model.features.effects(operators, here, there, topology))
    parts = zip(
        (said[..., : model.features.num_effects] - true).split(topology.splits),
        true.split(topology.splits),
        strict=True,
    )
    return torch.stack([miss.square().sum() / effect.square().sum() for miss, effect in parts]).mean()


def _root_mean_square(squares: Float[Tensor, "*batch nodes d"], topology: Topology) -> Tensor:
    """Over the nodes and coordinates of each graph; then the mean."""
    by_system = torch.stack([part.mean((-1, -2)) for part in squares.split(topology.splits, dim=-2)])
    return (by_system + 1e-6).sqrt().mean()


def _observation_noise(states: Tensor, coordinates: int, generator: torch.Generator) -> Tensor:
    noise = torch.zeros_like(states)
    noise[..., :coordinates] = torch.randn(noise[..., :coordinates].shape, generator=generator)
    return noise
