"""How far predictions may be off: errors on episodes left out, and the covariance that one-step residuals lead to.

**Spread.** An operator fits the episodes it was fitted to too well, so errors are measured on others: each adaptation
episode is predicted from its start by the operator of all but it, whose sums are those of all minus its own. The
squared errors of an episode, step by step, are all that is kept, and they add up.

An episode that stands alone leaves no other to fit on. It is predicted, whole, by the operator of its first half and by
that of its second, and the mean of the squared errors is taken: half of what is predicted was seen, by an operator of
half as many rows.

**Covariance.** With z the state x (or the features psi, where a rollout stays among them), Sigma the residual
covariance of a node's targets and G the way a target's error enters z,

    z_{t+1} = F(z_t, a_t) + G e_t,   e_t ~ (0, Sigma) at every node;   P_{t+1} = A_t P_t A_t' + G Sigma G'

with A_t the derivative of F along the predicted path and P_0 = 0. Errors of different nodes and steps are taken as
independent, and the operator as known.

When an answer is not worth trusting, as sentences: of a fit, a prediction or a plan.

A fit is doubted where it is not finite, where the condition number of the matrix inverted is beyond 1/eps of double
precision, where observations vary far more than in training, and where the left-out errors are no smaller than those of
persistence, or of the mean of the other episodes

    sum_t |o_t - o^_t|^2 >= sum_t |o_t - o_0|^2   or   >= sum_t |o_t - mean|^2

A prediction is doubted where it is not finite, leaves by far what the episodes adapted to show, or begins outside of
it.

How far from its goal a plan may end, before it is carried out, and whether that is worth it.

With d the distance of the predicted end to the goal, in standard deviations of the coordinates that have one (root mean
square), and s the error of predictions of so many steps on episodes left out of the fit,

    expected error = sqrt(d^2 + (g s)^2),   within d +- 1.645 g s in nine cases of ten,   g = 1 + r

r: how far the plan leaves the range adapted to, in widths of it, at its worst step (root mean square): the error is
taken to grow in proportion. The interval takes errors of all coordinates as one, which makes it wide. A plan is solved
where its problem is; it is worth carrying out where its expected error is below that of doing nothing, as predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.errors import warn
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.model.model import Model
from gce.operators import Operator
from gce.system.evidence import Evidence, Seen, normalised, opening_paths, opening_states, operators_of, total

if TYPE_CHECKING:
    from gce.system.system import System

Array = np.ndarray

LARGEST_ERROR = 1e6
"""What an error counts for that is larger or not finite, in normalised units."""
LARGEST_UNION = 4000
"""Nodes predicted at once."""
TANGENTS = 256
"""Directions differentiated along at once."""


@dataclass(frozen=True)
class Spread:
    """Squared errors so many steps ahead in normalised units, mean over nodes, summed over episodes; and how many."""

    squares: Float[np.ndarray, "steps d"]
    counts: Float[np.ndarray, " steps"]

    @classmethod
    def nothing(cls, num_observations: int) -> Spread:
        return cls(np.zeros((0, num_observations)), np.zeros(0))

    def __add__(self, other: Spread) -> Spread:
        steps = max(len(self.counts), len(other.counts))
        squares, counts = np.zeros((steps, self.squares.shape[1])), np.zeros(steps)
        for part in (self, other):
            squares[: len(part.squares)] += part.squares
            counts[: len(part.counts)] += part.counts
        return Spread(squares, counts)

    def deviations(self, steps: int) -> Float[np.ndarray, "{steps} d"]:
        """Root mean square errors of step 0 and so on; beyond the longest episode seen, those of its last step."""
        known = np.sqrt(self.squares / self.counts[:, None])
        return known[np.minimum(np.arange(steps), len(known) - 1)]


def left_out(model: Model, graph: Graph, seen: Sequence[Seen], ridge: float | None) -> Spread:
    """The errors of predicting each episode by what the others tell, or by itself where there is no other."""
    whole = total(seen)
    if len(seen) == 1:
        return _alone(model, graph, seen[0], ridge)
    spread = Spread.nothing(model.config.num_observations)
    together = max(1, LARGEST_UNION // graph.num_nodes)
    for k in range(0, len(seen), together):
        some = seen[k : k + together]
        spread = spread + errors(model, graph, some, [whole - s.evidence for s in some], ridge)
    return spread


def errors(model: Model, graph: Graph, seen: Sequence[Seen], known: Sequence[Evidence], ridge: float | None) -> Spread:
    """The errors of predicting each episode by what is known when it begins, all at once."""
    topology = Topology.of(graph, model.device)
    operators = operators_of(model, known, topology, ridge)
    openings = opening_states(model, [s.first for s in seen], [evidence.starts for evidence in known])
    paths = opening_paths(model, [graph] * len(seen), operators, list(openings), [s.inputs for s in seen])
    spread = Spread.nothing(model.config.num_observations)
    for s, predicted in zip(seen, paths, strict=True):
        wrong = np.abs(predicted[: len(s.observations)] - s.observations)
        wrong = np.nan_to_num(wrong, nan=LARGEST_ERROR, posinf=LARGEST_ERROR).clip(max=LARGEST_ERROR)
        spread = spread + Spread(np.square(wrong).mean(axis=1), np.ones(len(wrong)))
    return spread


def _alone(model: Model, graph: Graph, seen: Seen, ridge: float | None) -> Spread:
    """The mean errors of predicting an episode by each of its halves; one of a single step has only itself."""
    halves = [Evidence(sums, seen.starts, seen.coloured) for sums in seen.halves if sums.moments.rows > 0]
    off = errors(model, graph, [seen] * len(halves), halves, ridge)
    return Spread(off.squares / len(halves), off.counts / len(halves))


def propagate(
    following: Callable[[int, Tensor], Tensor],
    path: Float[Tensor, "steps_plus_1 s"],
    entering: Float[Tensor, "s e"],
    residual: Float[Tensor, "e e"],
) -> Float[Tensor, "steps_plus_1 s s"]:
    """P_0 to P_steps along a path: `following` takes z at step t to z at step t + 1."""
    added = entering @ residual @ entering.T
    P = torch.zeros_like(added)
    found = [P]
    for t, z in enumerate(path[:-1]):
        A = jacobian(partial(following, t), z).double()
        P = A @ P @ A.T + added
        found.append(P)
    return torch.stack(found)


def target_errors(
    model: Model, operator: Operator, topology: Topology, reproject: bool
) -> tuple[Float[Tensor, "s e"], Float[Tensor, "e e"]]:
    """(G, Sigma) of all nodes together: how errors of targets enter states (or features), and their covariance."""
    nodes, free, c = topology.num_nodes, len(model.free), model.config
    count = free if reproject else free + model.features.num_phi
    held = model.held[topology.node_type][:, :count]
    way_back = model.way_back(topology)
    still = torch.zeros(nodes, 1, c.num_state, dtype=model.dtype, device=model.device)
    pushed = still.new_zeros(nodes, 1, c.num_inputs)

    def entered(flat: Tensor) -> Tensor:
        e = flat.reshape(nodes, count).masked_fill(held, 0.0)
        x = way_back(still, e[:, None], pushed)[:, 0]
        return (x if reproject else torch.cat([x, e[:, free:]], dim=-1)).flatten()

    G = jacobian(entered, still.new_zeros(nodes * count)).double()
    by_node = operator.residual.to(G.device).expand(nodes, -1, -1)[:, :count, :count]
    return G, torch.block_diag(*by_node)


def jacobian(f: Callable[[Tensor], Tensor], at: Float[Tensor, " n"]) -> Float[Tensor, "m n"]:
    """The derivative of f, a few columns at a time."""

    def along(direction: Tensor) -> Tensor:
        return torch.func.jvp(f, (at,), (direction,))[1]

    directions = torch.eye(len(at), dtype=at.dtype, device=at.device)
    with torch.no_grad():
        return torch.func.vmap(along, chunk_size=TANGENTS)(directions).T


# ---- doubts ----

SINGULAR = 1 / np.finfo(np.float64).eps
OUTSIDE, AWAY, LEAST = 1.0, 10.0, 0.1
"""How far beyond the range seen a start or an action is outside, and a prediction away, in widths of that range; and
what counts as a width at least, in normalised units."""
FOREIGN = 30.0
"""Beyond which spread, in that of the training, observations are hardly of the same kind."""
GO_ON = "train the model longer, or adapt to more episodes"


@dataclass(frozen=True)
class Range:
    """The lowest and highest normalised observation and action of the episodes adapted to, by coordinate."""

    low: Float[Array, " c"]
    high: Float[Array, " c"]

    @classmethod
    def of(cls, paths: Sequence[tuple[Array, Tensor]]) -> Range:
        """Of normalised observations and inputs of episodes."""
        rows = [np.concatenate([_edges(o), _edges(a.double().cpu().numpy())], axis=-1) for o, a in paths]
        found = np.stack(rows)
        return cls(found[:, 0].min(0), found[:, 1].max(0))

    def __or__(self, other: Range) -> Range:
        return Range(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def left(self, values: Float[Array, "*batch c"], first: int, widths: float) -> Array:
        """Whether each value is beyond the range by so many widths; first: the place of its coordinates."""
        low, high = (side[first : first + values.shape[-1]] for side in (self.low, self.high))
        margin = widths * np.maximum(high - low, LEAST)
        return (values < low - margin) | (values > high + margin)


def _edges(values: Float[Array, "steps nodes c"]) -> Float[Array, "2 c"]:
    return np.stack([values.min((0, 1)), values.max((0, 1))])


def of_fit(system: System, seen: Sequence[Array]) -> tuple[str, ...]:
    """What speaks against a system just adapted to normalised observations."""
    operator, found = system.operator, []
    if not bool(torch.isfinite(operator.coefficients).all()):
        found.append(f"the fit is not finite; {GO_ON}")
    elif not bool((operator.condition < SINGULAR).all()):
        found.append("the fit is singular in double precision; give a larger ridge, or more varied episodes")
    spread, count = system.spread, float(system.spread.counts.sum())
    if count:
        wrong = float(np.sqrt(spread.squares.sum() / count / spread.squares.shape[1]))
        for words, off in (
            ("if nothing moved", [o - o[0] for o in seen]),
            ("the mean of the others", _off_means(seen)),
        ):
            level = float(np.sqrt(np.concatenate([np.square(o).mean(1) for o in off]).mean())) if off else np.inf
            if wrong >= level:
                found.append(
                    f"on episodes left out of the fit, predictions err as much as {words} "
                    f"({wrong:.2g} against {level:.2g} standard deviations); {GO_ON}"
                )
                break
    width = max((float(o.std()) for o in seen), default=0.0)
    if width > FOREIGN:
        found.append(
            f"the observations vary {width:.2g} times as much as those the model was trained on; check their units"
        )
    return tuple(found)


def _off_means(seen: Sequence[Array]) -> list[Array]:
    """How far each episode is off the mean of all others, node by node; nothing of a single one."""
    sums, steps = sum(o.sum(0) for o in seen), sum(len(o) for o in seen)
    return [o - (sums - o.sum(0)) / (steps - len(o)) for o in seen] if len(seen) > 1 else []


def of_start(system: System, observation: Float[Array, "nodes d"]) -> None:
    """Warns of a start that is outside the range seen."""
    if system.reach is None:
        return
    for node, column in np.argwhere(system.reach.left(normalised(system.model, observation), 0, OUTSIDE))[:1]:
        warn(
            f"the start is outside the range adapted to at node {node}, coordinate {column} "
            f"({observation[node, column]:.3g}); adapt to episodes that come there"
        )


def of_prediction(system: System, predicted: Float[Array, "steps_plus_1 nodes d"], actions: Array) -> None:
    """Warns of predictions that are not finite or far from all that was seen, and of such actions."""
    finite = np.isfinite(predicted).all((1, 2))
    if not finite.all():
        warn(f"the prediction is not finite from step {int(np.argmin(finite))} on; {GO_ON}")
    if system.reach is None:
        return
    away = system.reach.left(normalised(system.model, predicted[finite]), 0, AWAY).any((1, 2))
    if away.any():
        warn(f"from step {int(np.argmax(away))} on the prediction is far outside the range adapted to; {GO_ON}")
    taken = np.asarray(actions, dtype=float) / system.model.arrays.action_std
    outside = system.reach.left(taken, predicted.shape[-1], OUTSIDE)
    if outside.any():
        step, node, _ = np.argwhere(outside)[0]
        warn(f"the action of node {node} at step {step} is outside the range adapted to; keep to what was tried")


def of_covariance(P: Array) -> Array:
    """The same, with a warning where it is not finite."""
    finite = np.isfinite(P).all((1, 2))
    if not finite.all():
        warn(f"the covariance is not finite from step {int(np.argmin(finite))} on; {GO_ON}")
    return P


# ---- plans ----

NINETY = 1.645


@dataclass(frozen=True)
class Outlook:
    """error, low, high: of a plan at its end, in standard deviations; nothing: of doing nothing; beyond: r above."""

    error: float
    low: float
    high: float
    nothing: float
    beyond: float

    @property
    def worth(self) -> bool:
        """Whether the plan is expected to do better than nothing."""
        return self.error < self.nothing

    @classmethod
    def of(
        cls,
        system: System,
        goal: Float[Array, "nodes d"],
        aimed: Bool[Array, "nodes _"] | None,
        expected: Float[Array, "M_plus_1 nodes d"],
        idle: Float[Array, "M_plus_1 nodes d"],
        actions: Float[Array, "M nodes a"],
    ) -> Outlook | None:
        """Of a prediction and of that of doing nothing; None where left-out errors were not measured.

        goal: in physical units; aimed: which of its entries count, all by default.
        """
        spread, std = system.spread, system.model.arrays.observation_std
        if len(spread.counts) == 0 or not (np.isfinite(expected).all() and np.isfinite(idle).all()):
            return None
        tracked = np.ones(goal.shape, bool) if aimed is None else np.broadcast_to(aimed, goal.shape)
        away, nothing = (float(_size(((o[-1] - goal) / std)[tracked])) for o in (expected, idle))
        wrong = np.broadcast_to(spread.deviations(len(expected))[-1], goal.shape)[tracked]
        beyond = _beyond(system, expected, actions)
        off = (1 + beyond) * float(_size(wrong))
        return cls(float(np.hypot(away, off)), max(0.0, away - NINETY * off), away + NINETY * off, nothing, beyond)

    def say(self) -> None:
        """Warns of a plan that is not worth it."""
        if not self.worth:
            warn(
                f"the plan is expected to end {self.error:.2g} standard deviations from the goal ({self.low:.2g} to "
                f"{self.high:.2g}, by errors on episodes left out of the fit), doing nothing {self.nothing:.2g}: the "
                f"plan may do no better than nothing; {GO_ON}, or shorten the horizon"
            )


def _beyond(system: System, expected: Array, actions: Array) -> float:
    if system.reach is None:
        return 0.0
    arrays, reach = system.model.arrays, system.reach
    values = np.concatenate([arrays.normalise(expected[:-1]), actions / arrays.action_std], axis=-1)
    low, high = (side[: values.shape[-1]] for side in (reach.low, reach.high))
    outside = np.maximum(0, np.maximum(low - values, values - high)) / np.maximum(high - low, LEAST)
    return float(_size(outside, (1, 2)).max())


def _size(values: Array, axis: tuple[int, ...] | None = None) -> Array:
    return np.asarray(np.sqrt(np.square(values).mean(axis)))
