"""One turn of a plan a control step, in two parts (real-time iteration; Diehl, Bock and Schloeder 2005).

Prepared before a measurement arrives: the plan made before without its first step, dynamics to first order along it
from where the state is expected, and the quadratic problem without its states,

    minimise  u'Hu / 2 + (g + G (x_0 - expected))'u   subject to the limits

What is left after the measurement is one small program. Derivatives of steps that hardly moved since they were taken
are kept: the share of the plan that moved furthest is linearised anew. What is stale vanishes where the plan does not
move any more (inexact Jacobians). `advance` follows the plan that came out by the model itself: where a whole step made
the plan dearer, less of it is kept and the next is trusted less, as in `settle`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError

from gce.control.settle import SHARES, Dynamics, Task, dense_path
from gce.control.solver import LARGE, Solver, box_qp, limited_qp
from gce.control.tracking import ControlLimits, ControlPath, DensePath, Status, Tracking, columns, rows

Array = np.ndarray
ANEW = 0.25
"""The share of a plan's steps that is linearised anew in a turn."""


@dataclass(frozen=True)
class Prepared:
    """A quadratic problem that waits for x_0; condensed: (H, g, G) where that pays.

    expected: where x_0 should be; u: the plan to go on from. damping, least: of `settle`. at: states and controls
    [M, s + n] at which each step was linearised.
    """

    problem: Tracking
    expected: Float[Array, " s"]
    u: Float[Array, "M n"]
    condensed: tuple[Array, Array, Array] | None
    damping: float
    least: float
    at: Float[Array, "M s_plus_n"]

    def feedback(self, x0: Float[Array, " s"], solver: Solver) -> tuple[Float[Array, "M n"], Status]:
        """(the controls from a state on, status)."""
        if self.condensed is not None:
            H, g, G = self.condensed
            limits = self.problem.limits
            low, high = limits.low.reshape(-1), limits.high.reshape(-1)
            if limits.rate is not None:
                return limited_qp(H, g + G @ (x0 - self.expected), limits)
            try:
                u, _ = box_qp(H, g + G @ (x0 - self.expected), low, high, self.u.reshape(-1))
                return u.reshape(self.u.shape), Status.SOLVED
            except (LinAlgError, ValueError):  # costs that leave controls free, or numbers that are not finite
                pass
        path: Any = self.problem.path
        u, status = solver.solve(replace(self.problem, path=replace(path, x0=x0)), self.u)
        return u, Status(status)


def prepared(
    dynamics: Dynamics,
    task: Task,
    x0: Float[Array, " s"],
    x: Float[Array, "M s"],
    u: Float[Array, "M n"],
    damping: float = 0.0,
    least: float = 0.0,
    condensing: bool = True,
    before: Prepared | None = None,
    passed: int = 0,
) -> Prepared:
    """The problem along a path from where the state is expected. condensing: whether a solver of one's own is not.

    before: a turn whose derivatives may serve, its first steps (`passed`) left out.
    """
    along = _Kept(dynamics, before, passed, np.concatenate([np.concatenate([x0[None], x[:-1]]), u], axis=1))
    problem = task.along(along, x0, x, u).damped(u, damping)
    boxed = problem.soft is None and isinstance(problem.path, DensePath)
    found = condense(problem) if condensing and boxed and u.size <= LARGE else None
    return Prepared(problem, x0, u, found, damping, least, along.at)


@dataclass
class _Kept:
    """Dynamics whose derivatives are those of a turn before, where the path has not moved far; at: where it is."""

    known: Dynamics
    before: Prepared | None
    passed: int
    at: Float[Array, "M s_plus_n"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.known, name)

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> ControlPath:
        """Steps that moved furthest are linearised anew, and those that are new."""
        old = None if self.before is None else self.before.problem.path
        if self.before is None or not isinstance(old, DensePath):
            return self.known.path(x0, x, u)
        M, at = len(u), self.before.at[self.passed :][: len(u)]
        moved = np.full(M, np.inf)
        moved[: len(at)] = np.linalg.norm(self.at[: len(at)] - at, axis=1)
        anew = np.sort(np.argsort(-moved, kind="stable")[: max(M - len(at), int(np.ceil(ANEW * M)))])
        anew = anew[moved[anew] > 0]
        A, B = (np.concatenate([m[self.passed :], m[: M - len(at)]]) for m in (old.A, old.B))
        here = np.ones(M, bool)
        here[anew] = False
        self.at[here] = at[here[: len(at)]]
        if len(anew):
            states = self.at[anew, : len(x0)]
            found: Any = self.known.path(states[0], np.concatenate([states[1:], states[:1]]), u[anew])
            A[anew], B[anew] = found.A, found.B
        return dense_path(A, B, x0, x, u)


def condense(problem: Tracking) -> tuple[Float[Array, "k k"], Float[Array, " k"], Float[Array, "k s"]]:
    """(H, g, G): x_0 is carried along as controls are, so that its part in the gradient costs s more columns."""
    path, (M, n) = problem.path, problem.w.shape
    assert isinstance(path, DensePath)
    H, G = path.grams(problem.E, start=True)
    H[np.diag_indices(M * n)] += np.square(problem.w).reshape(-1)
    miss = rows(problem.E, path.forward(np.zeros((M, n)))) - problem.e
    g = path.adjoint(columns(problem.E, miss)) - problem.w * problem.v
    return H, g.reshape(-1), G


def advance(
    dynamics: Dynamics, task: Task, x0: Float[Array, " s"], now: Prepared, u: Float[Array, "M n"]
) -> tuple[Float[Array, "M n"], Float[Array, "M s"], float, float]:
    """(controls, states, damping, least): how to go on from a state after a feedback u, whose first step was taken."""
    kept = now.u.copy()
    kept[0] = u[0]
    paths, costs = _followed(dynamics, task, x0, np.stack([u, kept]))
    damping, least = now.damping, now.least
    if costs[0] <= costs[1] < np.inf:
        return u, paths[0], damping / 4 if damping > least else 0.0, least
    promised = now.problem.cost(now.u) - now.problem.cost(u)
    least = least or max(promised, 0.0) / float(np.square(u - now.u).sum() or 1.0)
    shares = now.u + SHARES[1:, None, None] * (u - now.u)
    shares[:, 0] = u[0]
    parts, tried = _followed(dynamics, task, x0, shares)
    best = int(np.argmin(tried))
    if tried[best] < costs[1]:
        return shares[best], parts[best], max(2 * damping, least), least
    return kept, paths[1], max(8 * damping, least), least


def _followed(dynamics: Dynamics, task: Task, x0: Array, many: Array) -> tuple[Array, Array]:
    paths = dynamics.rollout(x0, many)
    costs = task.cost(dynamics.outputs(paths), many)
    return paths, np.where(np.isfinite(costs), costs, np.inf)


def later(task: Task, steps: int, last: Float[Array, " n"]) -> Task:
    """The task without its first steps; last: the control before what remains."""
    limits = task.limits
    kept = ControlLimits(limits.low[steps:], limits.high[steps:], limits.rate, None if limits.rate is None else last)
    v = task.v[steps:] if isinstance(task.v, np.ndarray) and task.v.ndim else task.v
    return replace(task, goal=task.goal[steps:], W=task.W[steps:], w=task.w[steps:], limits=kept, v=v)
