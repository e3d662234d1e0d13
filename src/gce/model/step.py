"""Steps under fitted operators, and the time loop. One step, in the names of the paper:

    alpha = gibbs_weights(phi);   X = form.regressors(psi, a, alpha);   y = C' X

and the next state from y. A rollout goes on from the predicted state, whose features it takes anew (reprojection, van
Goor et al. 2023), or from the predicted features themselves, which keeps it linear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.graphs.topology import Topology
from gce.model.model import Model, nodes_first
from gce.operators import Operator


@dataclass(frozen=True)
class Drive:
    """What acts on steps, known before they are taken.

    inputs: all there are; acting: those felt at once; push: what these and constants add to the targets; going: 0 at
        fresh states, where nothing else acts.
    """

    inputs: Float[Tensor, "nodes rows a"]
    acting: Float[Tensor, "nodes rows a"]
    push: Float[Tensor, "nodes rows m"]
    going: Float[Tensor, "#nodes rows 1"] | None

    def by_step(self, steps: int) -> list[Drive]:
        """The rows of each step apart, where the last axis of the batch is of steps."""
        parts = [self.inputs, self.acting, self.push]
        apart = [part.unflatten(1, (-1, steps)).unbind(2) for part in parts]
        going: list[Tensor | None] = [None] * steps
        if self.going is not None:
            by_step = self.going.unflatten(1, (-1, steps))
            on = (by_step == 1).all(1).all(0).flatten().tolist()
            going = [None if all_on else step for step, all_on in zip(by_step.unbind(2), on, strict=True)]
        return [Drive(*of_step) for of_step in zip(*apart, going, strict=True)]


class Stepper:
    """States into the next ones, under an operator for each graph of a union, or for each part of the batch.

    The latter is for systems that share a topology of one graph: the batch holds them one after another.
    All that depends on the topology, the parameters and the operators alone is looked up when it is made.

    reproject: take the features of the predicted state anew; otherwise go on with the predicted features. By default
        as the model was trained. With it, targets other than the free coordinates are not computed.
    """

    def __init__(
        self, model: Model, operators: Sequence[Operator], topology: Topology, reproject: bool | None = None
    ) -> None:
        reproject = model.config.reproject if reproject is None else reproject
        self.model, self.operators, self.topology, self.reproject = model, operators, topology, reproject
        self.num_state = model.config.num_state
        self.encode = model.features.on(topology) if reproject else None
        self.regressors = model.state_regressors(topology)
        self.way_back = model.way_back(topology)
        self.by_nodes = len(operators) == len(topology.splits)
        num_targets = model.num_needed(reproject)
        C = self._by_group(num_targets).to(model.observation_std.dtype)
        states = model.form.num_state_regressors(topology)
        self.from_state, self.from_inputs = C[:, :states], C[:, states:]
        self.moving = model.features.moving(topology).to(C.dtype).unsqueeze(1) if bool(model.held.any()) else None
        constants = [o.constants[:, :num_targets].to(C.dtype) for o in operators if o.constants is not None]
        self.constants = torch.cat(constants).unsqueeze(1) if constants and self.by_nodes else None
        if constants and not self.by_nodes:
            self.constants = torch.stack(constants, dim=1)

    def _by_group(self, num_targets: int) -> Float[Tensor, "groups D m"]:
        """Coefficients of groups of nodes, all of one size: of each graph, or of each node."""
        coefficients = [operator.coefficients[..., :num_targets] for operator in self.operators]
        if not self.model.form.shared:
            return torch.cat(coefficients)
        C, sizes = torch.stack(coefficients), self.topology.splits
        if not self.by_nodes or len(set(sizes)) == 1:
            return C
        return C.repeat_interleave(torch.tensor(sizes, device=C.device), dim=0)

    def drive(self, inputs: Float[Tensor, "*batch nodes a"], fresh: Float[Tensor, "*batch #nodes 1"] | None) -> Drive:
        inputs, going = nodes_first(inputs), self.model.going(fresh)
        acting = self.model.acting_inputs(inputs)
        X = self.model.input_regressors(acting, going, self.topology)
        push = self._apply(X, self.from_inputs)
        if self.model.form.pairs:
            push = push + self._pushed(acting, push.shape[-1])
        if self.constants is not None:
            own = self.constants.repeat_interleave(inputs.shape[1] // self.constants.shape[1], dim=1)
            push = push + (own if going is None else own * going)
        return Drive(inputs, acting, push, going)

    def _pushed(self, acting: Float[Tensor, "nodes rows a"], targets: int) -> Float[Tensor, "nodes rows m"]:
        """What actions of all nodes do to each, where pairs of nodes have operators of their own."""
        parts = acting.split(self.topology.splits) if self.by_nodes else acting.chunk(len(self.operators), dim=1)
        known = [operator.pairs for operator in self.operators if operator.pairs is not None]
        return torch.cat(
            [pairs.push(part, targets) for pairs, part in zip(known, parts, strict=True)], dim=0 if self.by_nodes else 1
        )

    def targets(
        self, x: Float[Tensor, "nodes rows c"], phi: Float[Tensor, "nodes rows p"], drive: Drive
    ) -> Float[Tensor, "nodes rows m"]:
        """What the operators say."""
        y = self._apply(self.regressors(x, phi, drive.acting), self.from_state)
        return drive.push + (y if drive.going is None else y * drive.going)

    def move(
        self, x: Float[Tensor, "nodes rows c"], phi: Float[Tensor, "nodes rows p"], drive: Drive
    ) -> tuple[Float[Tensor, "nodes rows c"], Float[Tensor, "nodes rows p"]]:
        """(next state, next phi)."""
        features = self.model.features
        y = self.targets(x, phi, drive)
        following_phi = y[..., features.num_effects :]
        y = features.increments(self.operators, y, x, self.topology)
        if self.moving is not None:
            free = self.moving.shape[-1]
            y = torch.cat([y[..., :free] * self.moving, y[..., free:]], dim=-1)
        following = self.way_back(x, y, drive.inputs)
        return following, following_phi if self.encode is None else self.encode(following)

    def _apply(self, X: Float[Tensor, "nodes rows D"], C: Float[Tensor, "groups D m"]) -> Float[Tensor, "nodes rows m"]:
        """C' x of every row under its group's operator."""
        if self.by_nodes:
            return torch.bmm(X.reshape(C.shape[0], -1, X.shape[-1]), C).reshape(*X.shape[:-1], -1)
        parts = X.unflatten(1, (C.shape[0], -1)).transpose(0, 1)
        return torch.bmm(parts.flatten(1, 2), C).reshape(*parts.shape[:-1], -1).transpose(0, 1).flatten(1, 2)

    def __call__(
        self,
        psi: Float[Tensor, "*batch nodes f"],
        inputs: Float[Tensor, "*batch nodes a"],
        fresh: Float[Tensor, "*batch #nodes 1"] | None = None,
    ) -> tuple[Float[Tensor, "*batch nodes c"], Float[Tensor, "*batch nodes f"]]:
        """(next state, next features) of a batch."""
        rows, c = nodes_first(psi), self.model.config.num_state
        moved = self.move(rows[..., :c], rows[..., c:], self.drive(inputs, fresh))
        x, phi = (part.reshape(len(part), *psi.shape[:-2], -1).movedim(0, -2) for part in moved)
        return x, torch.cat([x, phi], dim=-1)


def rollout(
    step: Stepper,
    features: Float[Tensor, "*batch nodes f"],
    inputs: Float[Tensor, "*batch steps nodes a"],
    fresh: Float[Tensor, "*batch steps nodes 1"] | None = None,
) -> Float[Tensor, "*batch steps nodes c"]:
    """The states after each step."""
    return _joined([state for state, _ in _steps(step, features, inputs, fresh)], features.shape[:-2])


def path_of(
    step: Stepper,
    features: Float[Tensor, "*batch nodes f"],
    inputs: Float[Tensor, "*batch steps nodes a"],
    fresh: Float[Tensor, "*batch steps nodes 1"] | None = None,
) -> tuple[Float[Tensor, "*batch steps nodes c"], Float[Tensor, "*batch steps nodes f"]]:
    """The states and the features after each step."""
    states, along = zip(*_steps(step, features, inputs, fresh), strict=True)
    x, phi = _joined(states, features.shape[:-2]), _joined(along, features.shape[:-2])
    return x, torch.cat([x, phi], dim=-1)


def features_along(
    step: Stepper, features: Float[Tensor, "*batch nodes f"], inputs: Float[Tensor, "*batch steps nodes a"]
) -> Float[Tensor, "*batch steps nodes f"]:
    """The features after each step, of models that go on from these alone; states in them stay as they were."""
    psi = features.movedim(-2, 0).flatten(1, -2)
    x, phi = psi[..., : step.num_state], psi[..., step.num_state :]
    along = [phi := step.targets(x, phi, now) for now in step.drive(inputs, None).by_step(inputs.shape[-3])]
    x = features[..., None, :, : step.num_state].expand(*inputs.shape[:-1], -1)
    return torch.cat([x, _joined(along, features.shape[:-2])], dim=-1)


def _steps(step: Stepper, features: Tensor, inputs: Tensor, fresh: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    drive = step.drive(inputs, fresh)
    psi = features.movedim(-2, 0).reshape(features.shape[-2], -1, features.shape[-1])
    x, phi = psi[..., : step.num_state], psi[..., step.num_state :]
    for now in drive.by_step(inputs.shape[-3]):
        x, phi = step.move(x, phi, now)
        yield x, phi


def _joined(path: Sequence[Float[Tensor, "nodes rows d"]], batch: torch.Size) -> Float[Tensor, "*batch steps nodes d"]:
    stacked = torch.stack(list(path))
    return stacked.reshape(*stacked.shape[:2], *batch, stacked.shape[-1]).movedim((0, 1), (-3, -2))


@torch.enable_grad()
def slopes(
    step: Stepper,
    x: Float[Tensor, "M nodes c"],
    inputs: Float[Tensor, "M nodes i"],
    fresh: Float[Tensor, "*batch #nodes 1"] | None = None,
    apart: bool = False,
) -> tuple[Float[np.ndarray, "M nodes c s"], Float[np.ndarray, "M nodes c nodes i"], Float[Tensor, "M nodes c"]]:
    """(d next state / d state, d next state / d inputs, next state) at each row, s: nodes flattened.

    What a step predicts is differentiated backwards through the model; the rest of it is linear and known.
    apart: whether tied coordinates may differ, so that each moves with all it is tied to.
    """
    model, topology, c = step.model, step.topology, step.model.config
    x, inputs = (part.detach().clone().requires_grad_(True) for part in (x, inputs))
    after = step(model.features(x, topology), inputs, fresh)[0]
    (M, N, width), d = after.shape, c.num_observations
    follows = model.features.selects and not (apart and topology.tied is not None)
    predicted = torch.zeros(N, width, dtype=torch.bool)
    # A held coordinate still moves with those it is tied to.
    held = model.held[topology.node_type][:, : len(model.free)]
    predicted[:, model.free if follows else slice(d)] = ~held if follows and topology.tied is None else True
    every = torch.eye(int(predicted.sum()), dtype=after.dtype)[:, None, :].expand(-1, M, -1)
    by_x, by_inputs = torch.autograd.grad(after[:, predicted], (x, inputs), every, is_grads_batched=True)
    eye, where = np.eye(N * width).reshape(N, width, -1), predicted.numpy()
    A, B = np.zeros((M, N, width, N * width)), np.zeros((M, N, width, N, inputs.shape[-1]))
    A[:] = eye
    A[:, where] = by_x.flatten(2).transpose(0, 1).double().numpy()
    B[:, where] = by_inputs.transpose(0, 1).double().numpy()
    for (position, velocity), ratio in zip(c.kinematics if follows else (), model.ratios, strict=False):
        A[:, :, position] += ratio * A[:, :, velocity]
        B[:, :, position] += ratio * B[:, :, velocity]
    if c.history == 2:
        A[:, :, d : 2 * d] = eye[:, :d]
    if c.previous_action:
        A[:, :, width - c.num_actions :] = 0
        for k in range(c.num_actions):
            B[:, range(N), width - c.num_actions + k, range(N), k] = 1
    return A, B, after.detach()
