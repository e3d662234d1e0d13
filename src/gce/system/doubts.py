"""When an answer is not worth trusting, as sentences: of a fit, a prediction or a plan.

A fit is doubted where it is not finite, where the condition number of the matrix inverted is beyond 1/eps of double
precision, and where the left-out errors are no smaller than those of persistence

    sum_t |o_t - o^_t|^2 >= sum_t |o_t - o_0|^2

A prediction is doubted where it is not finite, leaves by far what the episodes adapted to show, or begins outside of
it; a plan, where what its system errs at its end is as much as there is to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from gce.errors import warn
from gce.system.evidence import Seen, normalised

if TYPE_CHECKING:
    from gce.system.system import System

Array = np.ndarray

SINGULAR = 1 / np.finfo(np.float64).eps
OUTSIDE, AWAY, LEAST = 1.0, 10.0, 0.1
"""How far beyond the range seen a start or an action is outside, and a prediction away, in widths of that range; and
what counts as a width at least, in normalised units."""
GO_ON = "train the model longer, or adapt to more episodes"


@dataclass(frozen=True)
class Range:
    """The lowest and highest normalised observation and action of the episodes adapted to, by coordinate."""

    low: Float[Array, " c"]
    high: Float[Array, " c"]

    @classmethod
    def of(cls, seen: Sequence[Seen]) -> Range:
        rows = [
            np.concatenate([_edges(s.observations), _edges(s.inputs.double().cpu().numpy())], axis=-1) for s in seen
        ]
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


def of_fit(system: System) -> tuple[str, ...]:
    """What speaks against a system just adapted."""
    operator, found = system.operator, []
    if not bool(torch.isfinite(operator.coefficients).all()):
        found.append(f"the fit is not finite; {GO_ON}")
    elif not bool((operator.condition < SINGULAR).all()):
        found.append("the fit is singular in double precision; give a larger ridge, or more varied episodes")
    spread, count = system.spread, float(system.spread.counts.sum())
    if count:
        moved = sum(float(np.square(s.observations - s.observations[0]).mean(1).sum()) for s in system.seen)
        wrong, still = (float(np.sqrt(v / count / spread.squares.shape[1])) for v in (spread.squares.sum(), moved))
        if wrong >= still:
            found.append(
                "on episodes left out of the fit, predictions err as much as if nothing moved "
                f"({wrong:.2g} against {still:.2g} standard deviations); {GO_ON}"
            )
    return tuple(found)


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


def of_plan(
    system: System, observations: Float[Array, "M_plus_1 nodes d"], goal: Float[Array, "nodes d"], tracked: Array | None
) -> None:
    """Warns of a plan that its system's left-out errors contradict."""
    spread = system.spread
    if not np.isfinite(observations).all() or len(spread.counts) == 0:
        return
    chosen = (
        np.ones(goal.shape, bool) if tracked is None else np.broadcast_to(tracked.reshape(len(goal), -1), goal.shape)
    )
    unit = system.model.arrays.observation_std
    to_go = float(np.sqrt(np.square(((observations[0] - goal) / unit)[chosen]).mean()))
    each = np.broadcast_to(spread.deviations(len(observations))[-1], goal.shape)[chosen]
    wrong = float(np.sqrt(np.square(each).mean()))
    if wrong >= to_go:
        warn(
            f"predictions of so many steps err by {wrong:.2g} standard deviations on episodes left out of the fit, and "
            f"the goal is {to_go:.2g} away: the plan may do no better than nothing; {GO_ON}, or shorten the horizon"
        )
