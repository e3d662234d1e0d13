"""iLQR with bounds, for dynamics that are linear only locally (Li & Todorov 2004; Tassa, Mansard & Todorov 2014).

Along a path x, u the problem is quadratic (`task.along`). Backwards in time, with V the cost to go in dx,

    Q_u = B'V_x + w^2 u,   Q_uu = B'V_xx B + w^2,   Q_ux = B'V_xx A
    k = argmin k'Q_uu k / 2 + Q_u'k   subject to   low <= u + k <= high
    K = -Q_uu^-1 Q_ux   on the controls that k leaves free

and forwards through the model itself, u' = clip(u + share k + K (x' - x)). Each step's bounded problem is solved
exactly (`box`), so the gains know which controls are held. Costs are Gauss-Newton's: second derivatives of the dynamics
and the outputs are left out. The cheapest share is taken if it is cheaper than what was there; where none is, Q_uu is
regularised more (Tassa, Erez & Todorov 2012).

`settle` solves for all steps at once and then rolls out without feedback: the same optimum, but each of its steps
follows linear predictions over the whole horizon, which unstable dynamics leave.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from gce.control.box import box_qp
from gce.control.settle import SHARES, Settled, relative_gradient
from gce.control.status import Status
from gce.control.task import Dynamics, Task
from gce.control.tracking import DensePath, Tracking, columns, dense, rows
from gce.errors import InputError

Array = np.ndarray


@runtime_checkable
class StepDynamics(Dynamics, Protocol):
    """Dynamics that can be advanced one step at a time."""

    def step(self, t: int, x: Float[Array, "*batch s"], u: Float[Array, "*batch n"]) -> Float[Array, "*batch s"]:
        """f_t(x, u)."""
        ...


def ilqr(
    dynamics: StepDynamics,
    task: Task,
    x0: Float[Array, " s"],
    u: Float[Array, "M n"],
    iterations: int = 50,
    tolerance: float = 1e-4,
) -> Settled:
    """A plan of which nothing but `tolerance` of the gradient at doing nothing is left, as in `settle`."""
    if task.limits.rate is not None:
        raise InputError("iLQR keeps to bounds, not to limits on the rate of actions; leave these out")
    u = task.limits.nearest(u)
    x, cost = _follow(dynamics, task, x0, u)
    if not np.isfinite(cost):
        u = task.limits.nearest(np.zeros_like(u))
        x, cost = _follow(dynamics, task, x0, u)
    if not np.isfinite(cost):
        return Settled(u, x, cost, Status.NOT_FINITE, 0, np.inf)
    mu, least, size, gradient = 0.0, 0.0, 0.0, np.inf
    for i in range(iterations):
        problem = task.along(dynamics, x0, x, u)
        if i == 0:
            size = float(np.linalg.norm(problem.gradient(np.zeros_like(u))))
        gradient = relative_gradient(problem, u, size)
        if gradient <= tolerance:
            return Settled(u, x, cost, Status.SOLVED, i, gradient)
        try:
            k, K = _backward(problem, x, u, mu)
        except LinAlgError:
            mu = max(8 * mu, 1e-6 * cost, 1e-12)
            continue
        us, xs = _forward(dynamics, task, x0, x, u, k, K)
        costs = task.cost(dynamics.outputs(xs), us)
        costs = np.where(np.isfinite(costs), costs, np.inf)
        best = int(np.argmin(costs))
        if costs[best] < cost:
            u, x, cost = us[best], xs[best], float(costs[best])
            if best == 0:
                mu = mu / 4 if mu > least else 0.0
            continue
        if mu > 1e9 * least > 0 or not k.any():
            return Settled(u, x, cost, Status.NO_DESCENT, i + 1, gradient)
        if mu == 0:
            least = float(np.linalg.norm(problem.gradient(u)) / np.linalg.norm(k)) / 2
        mu = max(8 * mu, least)
    return Settled(u, x, cost, Status.ITERATION_LIMIT, iterations, gradient)


def _follow(dynamics: Dynamics, task: Task, x0: Array, u: Array) -> tuple[Array, float]:
    x = dynamics.rollout(x0, u)
    return x, float(task.cost(dynamics.outputs(x), u))


def _backward(
    problem: Tracking, x: Float[Array, "M s"], u: Float[Array, "M n"], mu: float
) -> tuple[Float[Array, "M n"], Float[Array, "M n s"]]:
    """(k, K); mu: added to the curvature in the controls."""
    path, (M, n), limits = problem.path, u.shape, problem.limits
    if not isinstance(path, DensePath):
        raise TypeError("iLQR needs a dense path")
    E = dense(problem.E, M)
    slope = columns(E, rows(E, x) - problem.e)
    S, outside = None, None
    if problem.soft is not None:
        S, outside = dense(problem.soft.S, M), problem.soft.miss(x)
        slope = slope + columns(S, outside)
    k, K = np.zeros((M, n)), np.zeros((M, n, x.shape[1]))
    V_x, V_xx = np.zeros(x.shape[1]), np.zeros((x.shape[1], x.shape[1]))
    for t in reversed(range(M)):
        V_x, V_xx = V_x + slope[t], V_xx + E[t].T @ E[t]
        if S is not None and outside is not None:
            active = S[t][outside[t] != 0]
            V_xx = V_xx + active.T @ active
        A, B, square = path.A[t], path.B[t], np.square(problem.w[t])
        Q_u, Q_x = B.T @ V_x + problem.w[t] * (problem.w[t] * u[t] - problem.v[t]), A.T @ V_x
        Q_uu, Q_ux = B.T @ V_xx @ B + np.diag(square), B.T @ V_xx @ A
        trusted = Q_uu + mu * np.eye(n)
        k[t], free = box_qp(trusted, Q_u, limits.low[t] - u[t], limits.high[t] - u[t], np.zeros(n))
        if free.any():
            K[t, free] = -cho_solve(cho_factor(trusted[np.ix_(free, free)]), Q_ux[free])
        V_x = Q_x + K[t].T @ (Q_uu @ k[t] + Q_u) + Q_ux.T @ k[t]
        V_xx = A.T @ V_xx @ A + K[t].T @ Q_uu @ K[t] + K[t].T @ Q_ux + Q_ux.T @ K[t]
        V_xx = (V_xx + V_xx.T) / 2
    return k, K


def _forward(
    dynamics: StepDynamics, task: Task, x0: Array, x: Array, u: Array, k: Array, K: Array
) -> tuple[Float[Array, "shares M n"], Float[Array, "shares M s"]]:
    """(controls, states) of every share of a step, with feedback."""
    earlier = np.concatenate([x0[None], x[:-1]])
    us, xs = np.empty((len(SHARES), *u.shape)), np.empty((len(SHARES), *x.shape))
    at = np.broadcast_to(x0, (len(SHARES), len(x0)))
    for t in range(len(u)):
        wanted = u[t] + SHARES[:, None] * k[t] + (at - earlier[t]) @ K[t].T
        us[:, t] = np.clip(np.nan_to_num(wanted), task.limits.low[t], task.limits.high[t])
        at = xs[:, t] = dynamics.step(t, at, us[:, t])
    return us, xs
