"""Plans for dynamics that are linear only around a path: solve, follow, linearise again, until the plan settles.

At each turn the quadratic problem along the present path is solved; the plan moves towards its solution by the share
that the model itself, rolled out, finds cheapest. A plan that costs more is never accepted; where only a share of a
step helps, or none, the next step is trusted less (damping, Levenberg 1944).

It has settled when the projected gradient is below `tolerance` of the gradient at doing nothing. Limits on the rate
have no simple projection; under these it has settled when the quadratic problem promises to save no more than a share
`tolerance`^2 of the cost of doing nothing, which is what a gradient of that size would save.

What to reach, along dynamics that need not be linear: the flat, normalised form of a control problem.

    minimise sum_{t=1..M} |W_t (y_t - y*_t)|^2 + |w_t * u_{t-1} - v_t|^2 + k dist(y_t, [l, h])^2,   y = outputs(x)

`along` makes the quadratic problem of `tracking` at a path: outputs and dynamics to first order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from gce.control.tracking import (
    ControlLimits,
    ControlPath,
    DensePath,
    OutOfTime,
    Rows,
    Selection,
    SoftLimits,
    Status,
    Tracking,
    dense,
    late,
    projected_gradient,
    rows,
)

Array = np.ndarray


@runtime_checkable
class Dynamics(Protocol):
    """x_{t+1} = f_t(x_t, u_t) and y = outputs(x), flat and normalised: all a planner knows of a system."""

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        """x_1..x_M; a batch of controls from one start."""
        ...

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> ControlPath:
        """The dynamics to first order along x_0, x_1..x_M under u."""
        ...

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]: ...

    def output_slopes(self, x: Float[Array, "M s"]) -> Float[Array, "T p s"] | Selection:
        """dy/dx at each step; one matrix for all (T = 1) where outputs are linear."""
        ...


@dataclass(frozen=True)
class Task:
    """goal, W, l, h: of the outputs at steps 1..M; w, v: of the controls; a matrix W [M, r, p] weighs combinations."""

    goal: Float[Array, "M p"]
    W: Float[Array, "M p"] | Float[Array, "M r p"]
    w: Float[Array, "M n"]
    limits: ControlLimits
    soft_low: Float[Array, " p"] | None = None
    soft_high: Float[Array, " p"] | None = None
    soft_weight: float = 0.0
    v: Float[Array, "M n"] | float = 0.0

    @property
    def horizon(self) -> int:
        return len(self.goal)

    def residual(self, y: Float[Array, "*batch M p"]) -> Float[Array, "*batch M r"]:
        miss = y - self.goal
        return self.W * miss if self.W.ndim == 2 else np.einsum("trp,...tp->...tr", self.W, miss)

    def cost(self, y: Float[Array, "*batch M p"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch"]:
        total = np.square(self.residual(y)).sum((-1, -2)) + np.square(self.w * u - self.v).sum((-1, -2))
        if self.soft_low is not None:
            outside = y - np.clip(y, self.soft_low, self.soft_high)
            total = total + self.soft_weight * np.square(outside).sum((-1, -2))
        return np.asarray(total)

    def keeping(self, u: Float[Array, "M n"], k: Float[Array, " n"]) -> Task:
        """With |k * (u_t - u'_t)|^2 added, u' given, up to a constant."""
        w = np.hypot(self.w, k)
        return replace(self, w=w, v=(self.w * self.v + np.square(k) * u) / np.where(w > 0, w, 1))

    def along(
        self,
        dynamics: Dynamics,
        x0: Float[Array, " s"],
        x: Float[Array, "M s"],
        u: Float[Array, "M n"],
    ) -> Tracking:
        """The quadratic problem at a path."""
        D = dynamics.output_slopes(x)
        # y is y(x) + D (dx): the rows are D x, what they should be is shifted by what D x is now.
        here = rows(D, x)
        y = dynamics.outputs(x)
        target = self.goal - y + here
        E = weighed(self.W, D)
        e = self.W * target if self.W.ndim == 2 else np.einsum("trp,tp->tr", self.W, target)
        soft = None
        if self.soft_low is not None and self.soft_high is not None:
            scale = np.sqrt(self.soft_weight)
            S = weighed(np.full((len(x), D.shape[1]), scale), D)
            shift = scale * (here - y)
            soft = SoftLimits(S, scale * self.soft_low + shift, scale * self.soft_high + shift)
        return Tracking(dynamics.path(x0, x, u), E, e, self.w, np.broadcast_to(self.v, self.w.shape), self.limits, soft)


def weighed(W: Float[Array, "M p"] | Float[Array, "M r p"], D: Rows) -> Rows:
    """W D at each step; without a matrix where neither is one."""
    if W.ndim == 3:
        return W @ dense(D, len(W))
    return D.weighed(W) if isinstance(D, Selection) else W[..., None] * D


def dense_path(
    A: Float[Array, "M s s"], B: Float[Array, "M s n"], x0: Array, x: Float[Array, "M s"], u: Float[Array, "M n"]
) -> DensePath:
    """Matrices along a path x_0, x_1..x_M: the constants are what makes the path follow them."""
    earlier = np.concatenate([x0[None], x[:-1]])
    c = x - np.einsum("tij,tj->ti", A, earlier) - np.einsum("tij,tj->ti", B, u)
    return DensePath(A, B, c, x0)


Solve = Callable[[Tracking, Array], tuple[Array, str]]
"""(problem, controls to start from) -> (controls, status, or its word): the `solve` of a `Solver`."""

Tell = Callable[[int, float], None]
"""Told at each turn how many were taken before it, and which share of the way is done (`way_to`), which never falls."""

SHARES = np.array([1.0, 0.5, 0.25, 0.1, 0.02])
PROGRESS = 1e-6


@dataclass(frozen=True)
class Settled:
    """controls, their predicted states x_1..x_M and cost; status; turns taken; the relative projected gradient."""

    u: Float[Array, "M n"]
    x: Float[Array, "M s"]
    cost: float
    status: Status
    iterations: int
    gradient: float


def relative_gradient(problem: Tracking, u: Float[Array, "M n"], size: float | None = None) -> float:
    """The projected gradient at u over `size`, by default that of the gradient at doing nothing."""
    if size is None:
        size = float(np.linalg.norm(problem.gradient(np.zeros_like(u))))
    left = float(np.linalg.norm(projected_gradient(u, problem.gradient(u), problem.limits)))
    return left / size if size > 0 else left


def way_to(tolerance: float, gradient: float) -> float:
    """The share of the way from the gradient at doing nothing (1) to the tolerance, in orders of magnitude."""
    if not 0 < tolerance < 1:
        return 0.0
    return float(np.clip(np.log(max(gradient, tolerance)) / np.log(tolerance), 0.0, 1.0))


def settle(
    dynamics: Dynamics,
    task: Task,
    x0: Float[Array, " s"],
    u: Float[Array, "M n"],
    solve: Solve,
    iterations: int = 30,
    tolerance: float = 1e-4,
    patience: int = 0,
    tell: Tell = lambda turn, share: None,
) -> Settled:
    """From the controls given, or from doing nothing where that is cheaper.

    patience: end after so many turns in a row that gain less than 1e-6 each; 0 never.

    Where a model has kinks no gradient vanishes, and only this ends a plan before the iterations do.
    """
    begun = time.monotonic()
    starts = np.stack([task.limits.nearest(some) for some in ([u, np.zeros_like(u)] if u.any() else [u])])
    paths = dynamics.rollout(x0, starts)
    ahead = time.monotonic() - begun
    costs = task.cost(dynamics.outputs(paths), starts)
    first = int(np.argmin(np.where(np.isfinite(costs), costs, np.inf)))
    u, x, cost = starts[first], paths[first], float(costs[first])
    if not np.isfinite(cost):
        return Settled(u, x, cost, Status.NOT_FINITE, 0, np.inf)
    still, way = np.zeros_like(u), 0.0
    damping, least, size, gradient, status, slow = 0.0, 0.0, 0.0, np.inf, Status.ITERATION_LIMIT, 0
    longest, begun = 0.0, time.monotonic()
    for k in range(iterations):
        begun, last = time.monotonic(), begun
        longest = max(longest, begun - last)
        if late(longest):  # a turn like those before would end too late
            return Settled(u, x, cost, Status.TIME_LIMIT, k, gradient)
        try:
            problem = task.along(dynamics, x0, x, u)
        except OutOfTime:
            return Settled(u, x, cost, Status.TIME_LIMIT, k, gradient)
        if k == 0:
            size = float(np.linalg.norm(problem.gradient(still)))
        gradient = relative_gradient(problem, u, size)
        way = max(way, way_to(tolerance, gradient))
        tell(k, way)
        if gradient <= tolerance:
            return Settled(u, x, cost, Status.SOLVED, k, gradient)
        aim, word = solve(problem.damped(u, damping), u)
        solved = Status(word)
        status = Status.ITERATION_LIMIT if solved.ok else solved
        promised = problem.cost(u) - problem.cost(aim)
        if task.limits.rate is not None and damping == 0 and promised <= tolerance**2 * problem.cost(still):
            return Settled(u, x, cost, Status.SOLVED, k, gradient)
        if late(ahead):
            return Settled(u, x, cost, Status.TIME_LIMIT, k, gradient)
        moved = _cheapest(dynamics, task, x0, u, aim, cost, ahead)
        if moved is None and (promised <= 0 or damping > 1e9 * least > 0):
            ended = Status.NO_DESCENT if status is Status.ITERATION_LIMIT else status
            return Settled(u, x, cost, ended, k + 1, gradient)
        if moved is not None and moved[3] == 1:
            damping = damping / 4 if damping > least else 0.0
        elif promised > 0:
            least = least or promised / float(np.square(aim - u).sum())  # the problem's curvature along the step
            damping = max((8 if moved is None else 2) * damping, least)
        if moved is not None:
            slow = slow + 1 if cost - moved[2] < PROGRESS * cost else 0
            u, x, cost, _ = moved
            if patience and slow >= patience:
                return Settled(u, x, cost, Status.HARDLY_IMPROVES, k + 1, gradient)
    return Settled(u, x, cost, status, iterations, gradient)


def _cheapest(
    dynamics: Dynamics, task: Task, x0: Array, u: Array, aim: Array, cost: float, ahead: float = 0.0
) -> tuple[Array, Array, float, float] | None:
    """(controls, states, cost, share) of the whole step to the aim if that is cheaper, else of its cheapest share.

    ahead: seconds that one prediction takes; shares for which there is no time are not tried.
    """
    for shares in (SHARES[:1], SHARES[1:]):
        if late(len(shares) * ahead):
            return None
        # A sum may leave a bound by a rounding.
        candidates = np.stack([task.limits.nearest(u + share * (aim - u)) for share in shares])
        paths = dynamics.rollout(x0, candidates)
        costs = task.cost(dynamics.outputs(paths), candidates)
        costs = np.where(np.isfinite(costs), costs, np.inf)
        best = int(np.argmin(costs))
        if costs[best] < cost:
            return candidates[best], paths[best], float(costs[best]), float(shares[best])
    return None
