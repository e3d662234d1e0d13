"""A control problem as a user states it: goals, costs and limits of every node, in physical units.

    minimise sum_{t=1..M} |(o_t - goal_t) / unit|^2_Q + |a_{t-1} / action unit|^2_R + |(o_M - goal_M) / unit|^2_QM

over the actions of the nodes that take one, within their bounds. With `on = "features"` the first and last terms are of
features psi(o) instead of observations. Planning again adds |(a_t - a'_t) / action unit|^2_K, a' the plan made before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from gce.errors import InputError, real, table, whole
from gce.names import Shown

Array = np.ndarray
LARGEST_COST = 1e30
Cost = float | Array
"""A number, one a coordinate [d], one a node and coordinate [nodes, d], or a matrix [nodes d, nodes d]."""


@dataclass(frozen=True, repr=False)
class Problem(Shown):
    """What to reach, and what may be done to reach it.

    horizon: M. goal: an observation [nodes, d], or a path [M, nodes, d] to follow from step 1 on.
    low, high: bounds of the actions [nodes, a]; a node whose bounds are both 0 takes no action.
    state_cost, terminal_cost, action_cost: Q, Q_M and R; zero or positive, matrices positive semi-definite.
    unit, action_unit: what costs are measured in; 1 by default, so that they are of physical units.
    change_cost: K, what leaving the plan made before costs. A plan that is made anew at every step and free to
        change all its actions follows the model's errors; see the notes on control.
    tracked: which nodes [nodes], or coordinates of nodes [nodes, d], have a goal; all by default.
    rate: how much an action may change from one step to the next [nodes, a].
    soft_low, soft_high: limits of observations [nodes, d] that cost soft_cost times the squared distance beyond.
    hard: whether these must be kept instead; a plan that cannot is `infeasible`, and leaves them as little as it can.
    exogenous: inputs known in advance [M, nodes, e].
    """

    horizon: int
    goal: Array
    low: Float[Array, "nodes a"]
    high: Float[Array, "nodes a"]
    state_cost: Cost = 0.0
    terminal_cost: Cost = 1.0
    action_cost: Cost = 1e-3
    change_cost: Cost = 0.0
    unit: Array | float = 1.0
    action_unit: Array | float = 1.0
    tracked: Array | None = None
    rate: Array | None = None
    soft_low: Array | None = None
    soft_high: Array | None = None
    soft_cost: float = 10.0
    exogenous: Array | None = None
    on: str = "observations"
    hard: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high", "rate", "soft_low", "soft_high", "exogenous"):
            if getattr(self, name) is not None or name in ("low", "high"):
                object.__setattr__(self, name, table(name, getattr(self, name), finite=name == "exogenous"))
        object.__setattr__(self, "horizon", whole("the horizon", self.horizon, 1))
        real("soft_cost", self.soft_cost, 0)
        if self.tracked is not None:
            object.__setattr__(self, "tracked", table("tracked", self.tracked).astype(bool))
        self._check_goal()
        for name, shape in (("unit", self.goal.shape[-2:]), ("action_unit", self.low.shape)):
            unit = table(name, getattr(self, name))
            if not (unit > 0).all() or not _fits(unit, shape):
                raise InputError(
                    f"{name} is {unit.tolist()}; give a number above 0, one a coordinate, or shape {shape}"
                )
        self._check_limits()
        if self.hard and (self.soft_low is None or self.on == "features"):
            raise InputError("hard limits are of observations; give soft_low and soft_high, and on='observations'")
        for name in ("state_cost", "terminal_cost", "action_cost", "change_cost"):
            check_cost(name, getattr(self, name))
        if self.on not in ("observations", "features"):
            raise InputError(f"costs are on 'observations' or on 'features', not on {self.on!r}")

    def beyond(self, observations: Float[Array, "*batch nodes d"]) -> float:
        """How far some observations are outside the limits on them at most, in their unit."""
        if self.soft_low is None or self.soft_high is None:
            return 0.0
        outside = np.maximum(self.soft_low - observations, observations - self.soft_high) / self.unit
        return max(0.0, float(outside.max()))

    def facts(self) -> dict[str, Any]:
        shape = " x ".join(map(str, self.goal.shape))
        return {
            "horizon": self.horizon,
            "goal": f"[{shape}]",
            "actuated": int(self.controls.any(-1).sum()),
            "on": self.on,
        }

    def _check_goal(self) -> None:
        if not isinstance(self.goal, np.ndarray) or self.goal.dtype.kind != "f":
            object.__setattr__(self, "goal", table("the goal", self.goal))
        if self.goal.ndim not in (2, 3) or (self.goal.ndim == 3 and len(self.goal) != self.horizon):
            raise InputError(
                f"the goal has shape {self.goal.shape}; give one observation [nodes, coordinates], or one for each of "
                f"the {self.horizon} steps"
            )
        if not np.isfinite(self.goal).all():
            where = np.argwhere(~np.isfinite(self.goal))[0]
            raise InputError(
                f"the goal of node {where[-2]}, coordinate {where[-1]} is not a finite number; a goal of some nodes "
                "only is stated with `tracked`"
            )

    def _check_limits(self) -> None:
        nodes = self.goal.shape[-2]
        for name in ("low", "high", "rate"):
            value = getattr(self, name)
            if value is not None and (value.ndim != 2 or len(value) != nodes or value.shape != self.low.shape):
                raise InputError(f"{name} has shape {value.shape}, expected one row for each of the {nodes} nodes")
            if value is not None and np.isnan(value).any():
                raise InputError(
                    f"{name} of node {np.argwhere(np.isnan(value))[0][0]} is not a number; infinity is for no bound"
                )
        if np.isposinf(self.low).any() or np.isneginf(self.high).any():
            raise InputError("a lowest action is infinite, or a highest minus infinite; exchange them")
        if (self.low > self.high).any():
            node = np.argwhere(self.low > self.high)[0][0]
            raise InputError(
                f"the bounds of node {node} are crossed, from {self.low[node].min():g} to {self.high[node].max():g}; "
                "give the lower one first"
            )
        if not self.controls.any():
            raise InputError("no node takes an action: all bounds are 0; say which nodes are actuated")
        if self.rate is not None and (self.rate < 0).any():
            raise InputError("a limit on how fast actions change must not be negative")
        if (self.soft_low is None) != (self.soft_high is None):
            raise InputError("soft limits need both ends; use infinity for one that is open")
        if self.soft_low is not None and self.soft_high is not None:
            if self.soft_low.shape != self.goal.shape[-2:] or self.soft_high.shape != self.goal.shape[-2:]:
                raise InputError(f"soft limits have shape {self.soft_low.shape}, expected {self.goal.shape[-2:]}")
            if (self.soft_low > self.soft_high).any():
                raise InputError("the soft limits are crossed: the lower lies above the upper; exchange them")
        if self.tracked is not None and self.tracked.shape not in (self.goal.shape[-2:], self.goal.shape[-2:-1]):
            raise InputError(f"tracked has shape {self.tracked.shape}, expected {self.goal.shape[-2:]} or one a node")

    @property
    def controls(self) -> Array:
        """Which (node, action) entries are planned."""
        return (self.low != 0) | (self.high != 0)

    @property
    def goals(self) -> Float[Array, "M nodes d"]:
        """The goal at each of the steps 1..M."""
        return np.broadcast_to(self.goal, (self.horizon, *self.goal.shape[-2:]))


def control_error(final: Float[np.ndarray, "nodes d"], goal: Float[np.ndarray, "nodes d"]) -> float:
    """|o_M - o*| / |o*| in physical units."""
    return float(np.linalg.norm(final - goal) / np.linalg.norm(goal))


def harm(positions: str, figures: dict[str, Any]) -> list[str]:
    """Sentences about coordinates that a run left further from the goal than doing nothing does.

    positions: what they are called; figures: `rms_positions` and `rms_rates`, each (of the run, of doing nothing).
    """
    return [
        f"{what} end {figures[name][0]:.3g} from the goal (rms), {figures[name][1]:.3g} if nothing is done"
        for name, what in (("rms_positions", positions), ("rms_rates", "rates of change"))
        if figures[name] is not None and figures[name][0] > figures[name][1]
    ]


def weights_of(cost: Cost, shape: tuple[int, ...], scale: Any = 1.0) -> Array:
    """The square root of a cost, for entries of `shape` flattened: a vector, or a matrix W with W'W the cost.

    scale: factors of the entries, so that the cost is of (scale * value).
    """
    cost = np.asarray(cost, dtype=np.float64)
    size = int(np.prod(shape))
    factors = np.broadcast_to(scale, shape).reshape(-1)
    if cost.ndim == 2 and cost.shape == (size, size) and shape != (size, size):
        values, vectors = np.linalg.eigh((cost + cost.T) / 2)
        _check_spectrum("a cost", values)
        return np.sqrt(np.clip(values, 0, None))[:, None] * vectors.T * factors
    if (cost < 0).any():
        raise InputError(f"a cost is negative ({cost.min():g}); costs are zero or positive")
    try:
        return np.sqrt(np.broadcast_to(cost, shape)).reshape(-1) * factors
    except ValueError:
        raise InputError(
            f"a cost has shape {cost.shape}; give a number, one a coordinate, one for each of {shape}, or a matrix "
            f"({size}, {size})"
        ) from None


def _fits(values: Array, shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(values.shape, shape) == shape
    except ValueError:
        return False


def check_cost(name: str, cost: Cost) -> None:
    """That it is one, whatever the system."""
    cost = table(name, cost)
    if np.abs(cost).max(initial=0.0) > LARGEST_COST:
        raise InputError(f"{name} is {np.abs(cost).max():g}, more than {LARGEST_COST:g}; give it in other units")
    square = cost.ndim == 2 and cost.shape[0] == cost.shape[1]
    if (cost < 0).any() and not square:
        raise InputError(f"{name} is negative ({cost.min():g}); costs are zero or positive")
    # A table of one number a node and coordinate may be square too: without negative numbers it is left for later.
    if square and (cost < 0).any():
        _check_spectrum(name, np.linalg.eigvalsh((cost + cost.T) / 2))


def _check_spectrum(name: str, values: Array) -> None:
    """That the eigenvalues are those of a matrix of costs."""
    if values.min() < -1e-9 * max(1.0, float(np.abs(values).max())):
        raise InputError(
            f"{name} is not positive semi-definite: its lowest eigenvalue is {values.min():g}, expected none below 0"
        )
