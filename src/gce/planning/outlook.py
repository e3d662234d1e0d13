"""How far from its goal a plan may end, before it is carried out, and whether that is worth it.

With d the distance of the predicted end to the goal, in standard deviations of the coordinates that have one (root mean
square), and s the error of predictions of so many steps on episodes left out of the fit,

    expected error = sqrt(d^2 + (g s)^2),   within d +- 1.645 g s in nine cases of ten,   g = 1 + r

r: how far the plan leaves the range adapted to, in widths of it, at its worst step (root mean square): the error is
taken to grow in proportion. The interval takes errors of all coordinates as one, which makes it wide. A plan is solved
where its problem is; it is worth carrying out where its expected error is below that of doing nothing, as predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gce.control.problem import Problem
from gce.errors import warn
from gce.system.system import System
from gce.system.uncertainty import GO_ON, LEAST

Array = np.ndarray
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
        problem: Problem,
        expected: Float[Array, "M_plus_1 nodes d"],
        idle: Float[Array, "M_plus_1 nodes d"],
        actions: Float[Array, "M nodes a"],
    ) -> Outlook | None:
        """Of a prediction and of that of doing nothing; None where left-out errors were not measured."""
        spread, goal, std = system.spread, problem.goals[-1], system.model.arrays.observation_std
        if len(spread.counts) == 0 or not (np.isfinite(expected).all() and np.isfinite(idle).all()):
            return None
        tracked = np.ones(goal.shape, bool)
        if problem.tracked is not None:
            tracked = np.broadcast_to(problem.tracked.reshape(len(goal), -1), goal.shape)
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
