"""Solvers of the quadratic problem of `tracking`, as objects that are chosen by name or given.

A solver of your own derives from `Solver`, has a `name` and a `solve`, and is made known by `register_solver`.
`settle` calls it at each turn of a plan, on the problem along the present path.

The condensed bounded quadratic program: states eliminated, so that a plan has M n unknowns.

With y(u) = Y u + y_0 the residuals, Y = responses of the path,

    minimise    u'(Y'Y + diag w^2) u + 2 (Y'y_0 - w v)'u + |s|^2
    subject to  low <= u <= high,   |D u| <= rate,   S u + s in [l, h]

solved by PIQP, a proximal interior-point method (Schwan et al. 2023), dense. A soft limit's slack s is free: at the
optimum |s| is the distance. An interior point stays a little off its bounds; where the multiplier of a bound exceeds
what is left to it, the control is put on it; with bounds only, Newton steps (`box_qp`) make the rest exact. Where the
rate does not let the first control come within its bounds, the bounds go first.

Quadratic programs with bounds only, to the last digit: projected Newton (Bertsekas 1982).

    minimise  u'Hu / 2 + g'u   subject to   low <= u <= high

Controls on a bound that the gradient pushes against are held; the others take a Newton step, cut at the bounds, as
much of it as pays. Once the held ones are right, one step is exact: a few suffice from a good start.

Exact finite-horizon LQR along time-varying affine dynamics, without limits (Riccati).

    minimise sum_{t=1..M} |E_t x_t - e_t|^2 + |w_t * u_{t-1}|^2,   x_t = A x_{t-1} + B u_{t-1} + c

In z = [x; 1] the dynamics are linear and the cost is quadratic, Q_t = [E -e]'[E -e], so backwards from P_M = Q_M

    K = (R + B'PB)^-1 B'PA,   P <- Q + A'P(A - BK),   u = -K z,   cost-to-go = z'Pz
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from gce.control.graph_path import LinearPath
from gce.control.matrix_free import solve_matrix_free
from gce.control.tracking import ControlLimits, DensePath, Status, Tracking, columns, dense, rows
from gce.errors import InputError
from gce.names import add, registered


@dataclass(frozen=True)
class Gains:
    """u_t = -K_t z_t with z = [x; 1]; P: the cost from each step on is z'Pz."""

    K: Float[np.ndarray, "M n s_plus_1"]
    P: Float[np.ndarray, "M_plus_1 s_plus_1 s_plus_1"]

    def control(self, t: int, x: Float[np.ndarray, " s"]) -> Float[np.ndarray, " n"]:
        return -self.K[t] @ np.append(x, 1.0)

    def cost(self, x0: Float[np.ndarray, " s"]) -> float:
        z = np.append(x0, 1.0)
        return float(z @ self.P[0] @ z)


def lqr(
    path: DensePath,
    E: Float[np.ndarray, "M m s"],
    e: Float[np.ndarray, "M m"],
    w: Float[np.ndarray, "M n"],
) -> Gains:
    """The gains of the problem without limits, from the last step back."""
    M, s, n = path.B.shape
    K, P = np.zeros((M, n, s + 1)), np.zeros((M + 1, s + 1, s + 1))

    def weight(t: int) -> np.ndarray:
        residual = np.hstack([E[t], -e[t][:, None]])
        return residual.T @ residual

    P[M] = weight(M - 1)
    A, B = np.eye(s + 1), np.zeros((s + 1, n))
    for t in reversed(range(M)):
        A[:s, :s], A[:s, s], B[:s] = path.A[t], path.c[t], path.B[t]
        BP = B.T @ P[t + 1]
        K[t] = cho_solve(cho_factor(np.diag(np.square(w[t])) + BP @ B), BP @ A)
        P[t] = A.T @ P[t + 1] @ (A - B @ K[t])
        P[t] = (P[t] + P[t].T) / 2
        if t:
            P[t] += weight(t - 1)
    return Gains(K, P)


def roll(path: DensePath, gains: Gains) -> tuple[np.ndarray, np.ndarray]:
    """(controls [M, n], states [M, s]) under the gains."""
    x, us, xs = path.x0, [], []
    for t in range(len(path.A)):
        u = gains.control(t, x)
        x = path.A[t] @ x + path.B[t] @ u + path.c[t]
        us.append(u)
        xs.append(x)
    return np.array(us), np.array(xs)


STATUS = {1: Status.SOLVED, -1: Status.ITERATION_LIMIT, -2: Status.INFEASIBLE, -3: Status.UNBOUNDED}
"""What PIQP answers; anything else is numerical trouble."""

POLISH = 5


def solve_qp(problem: Tracking, tolerance: float = 1e-9) -> tuple[Float[np.ndarray, "M n"], Status]:
    """(controls, status); the controls keep to the limits exactly."""
    path, limits, E = problem.path, problem.limits, problem.E
    if not isinstance(path, DensePath if problem.soft is not None else DensePath | LinearPath):
        raise InputError(
            "the solver 'condensed' needs dynamics as matrices, these are products; choose 'matrix_free' or 'suitable'"
        )
    M, n = limits.low.shape
    still = path.forward(np.zeros((M, n)))
    H = path.gram(E)
    H[np.diag_indices(M * n)] += np.square(problem.w).reshape(-1)
    miss = rows(E, still) - problem.e
    g = (path.adjoint(columns(E, miss)) - problem.w * problem.v).reshape(-1)
    soft = None
    if problem.soft is not None:
        S = path.responses(dense(problem.soft.S, M)).reshape(-1, M * n)
        at = rows(problem.soft.S, still).reshape(-1)
        soft = S, problem.soft.low.reshape(-1) - at, problem.soft.high.reshape(-1) - at
    return limited_qp(H, g, limits, tolerance, soft)


def limited_qp(
    H: Float[np.ndarray, "k k"],
    g: Float[np.ndarray, " k"],
    limits: ControlLimits,
    tolerance: float = 1e-9,
    soft: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> tuple[Float[np.ndarray, "M n"], Status]:
    """The same without its states; soft: (S, l, h)."""
    import piqp

    M, n = limits.low.shape
    low, high = limits.low.reshape(-1), limits.high.reshape(-1)
    blocks, bottoms, tops = [], [], []
    if limits.rate is not None:
        difference = np.eye(M * n) - np.eye(M * n, k=-n)
        first = np.zeros(M * n)
        before = np.zeros(n) if limits.before is None else limits.before
        first[:n] = np.clip(before, limits.low[0] - limits.rate, limits.high[0] + limits.rate)
        reach = np.tile(limits.rate, M)
        blocks, bottoms, tops = [difference], [first - reach], [first + reach]
    slack = 0
    if soft is not None:
        slack = len(soft[0])
        for rows_of, part in zip((blocks, bottoms, tops), soft, strict=True):
            rows_of.append(part)
    if slack:
        H = np.block([[H, np.zeros((M * n, slack))], [np.zeros((slack, M * n)), np.eye(slack)]])
        g, low = np.append(g, np.zeros(slack)), np.append(low, np.full(slack, -np.inf))
        high = np.append(high, np.full(slack, np.inf))
    size = np.sqrt(np.abs(np.diag(H)).max()) or 1.0
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = tolerance
    solver.settings.eps_duality_gap_abs = solver.settings.eps_duality_gap_rel = tolerance
    G = None
    if blocks:
        G = np.vstack(blocks)
        if slack:
            G = np.hstack([G, np.vstack([np.zeros((len(G) - slack, slack)), np.eye(slack)])])
        G = np.asfortranarray(G)
    solver.setup(
        np.asfortranarray(H / size**2),
        g / size**2,
        None,
        None,
        G,
        np.concatenate(bottoms) if blocks else None,
        np.concatenate(tops) if blocks else None,
        low,
        high,
    )
    status = STATUS.get(int(solver.solve()), Status.NUMERICAL_TROUBLE)
    found = solver.result
    u = np.asarray(found.x)
    if not np.isfinite(u).all():
        return limits.nearest(np.zeros((M, n))), Status.NUMERICAL_TROUBLE
    u = np.where(found.z_bl > u - low, low, np.where(found.z_bu > high - u, high, u))
    if not blocks:
        with suppress(LinAlgError):  # without a cost on the controls the program may have many optima
            u, _ = box_qp(H, g, low, high, u, POLISH)
    return limits.nearest(u[: M * n].reshape(M, n)), status


Array = np.ndarray


def box_qp(
    H: Float[Array, "k k"],
    g: Float[Array, " k"],
    low: Float[Array, " k"],
    high: Float[Array, " k"],
    start: Float[Array, " k"],
    iterations: int = 30,
) -> tuple[Float[Array, " k"], Bool[Array, " k"]]:
    """(the best controls, which of them are free); H positive definite, or scipy raises LinAlgError."""
    u = np.clip(start, low, high)
    free = np.ones(len(u), dtype=bool)
    for _ in range(iterations):
        gradient = H @ u + g
        free = ~(((u <= low) & (gradient > 0)) | ((u >= high) & (gradient < 0)))
        if not free.any() or np.abs(gradient[free]).max() <= 1e-13 * (np.abs(g) + np.abs(H) @ np.abs(u)).max():
            break
        step = np.zeros_like(u)
        step[free] = -cho_solve(cho_factor(H[np.ix_(free, free)]), gradient[free])
        share = 1.0
        while True:
            moved = np.clip(u + share * step, low, high) - u
            # The change of the cost, written so that it does not drown in the cost itself.
            change = gradient @ moved + moved @ H @ moved / 2
            if change <= 0.1 * (gradient @ moved) < 0:
                break
            share /= 2
            if share < 1e-8:
                return u, free
        u = np.clip(u + share * step, low, high)
    return u, free


Controls = Float[np.ndarray, "M n"]

LARGE, LOOSE = 1500, 1e-4
"""Unknowns beyond which a dense quadratic program is slower than products alone; to what tolerance these then go."""
PRODUCTS = 1e8
"""Multiplications of condensing equal steps beyond which the same holds."""


class Solver(ABC):
    """Solves quadratic problems; one that it is not made for it refuses with an `InputError`."""

    name: ClassVar[str]

    @abstractmethod
    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        """(controls, status); start: controls to begin from. The controls keep to the limits whatever the status."""


SOLVERS: dict[str, type[Solver]] = {}
"""The solvers by name; each is made without arguments where it is chosen by name."""


def register_solver(cls: Any) -> Any:
    """Make a solver known by its name, as a decorator or a call; `del SOLVERS[name]` takes it out again."""
    return add(SOLVERS, cls, Solver)


def chosen_solver(choice: object) -> Solver:
    """The solver of a name, or the one given."""
    if isinstance(choice, str):
        return registered(SOLVERS, choice, "solver")()
    if not isinstance(choice, Solver):
        raise InputError(
            f"{choice!r} is not a solver; give one of {', '.join(SOLVERS)}, or an object of a class derived from "
            "gce.control.solver.Solver"
        )
    return choice


@register_solver
@dataclass(frozen=True)
class Riccati(Solver):
    """Exact and fastest, for problems without limits (`lqr`)."""

    name = "riccati"

    @staticmethod
    def limits(problem: Tracking) -> list[str]:
        """The limits of a problem that this solver does not keep to."""
        limits = problem.limits
        bounded = bool(np.isfinite(limits.low).any() or np.isfinite(limits.high).any())
        kinds = {
            "bounds": bounded,
            "limits on the rate": limits.rate is not None,
            "soft limits": problem.soft is not None,
        }
        return [kind for kind, given in kinds.items() if given]

    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        path = problem.path
        if given := self.limits(problem):
            raise InputError(
                f"the solver 'riccati' keeps to no limits, and this problem has {', '.join(given)}; leave these out, "
                "or choose the solver 'suitable'"
            )
        if not isinstance(path, DensePath):
            raise InputError(
                "the solver 'riccati' needs dynamics as matrices, these are products; choose 'matrix_free'"
            )
        shift = problem.v / np.where(problem.w > 0, problem.w, 1)
        moved = replace(path, c=path.c + np.einsum("tsn,tn->ts", path.B, shift))
        try:
            gains = lqr(moved, dense(problem.E, len(start)), problem.e, problem.w)
        except LinAlgError:  # controls that cost nothing and do nothing
            return start, Status.NUMERICAL_TROUBLE
        return roll(moved, gains)[0] + shift, Status.SOLVED


@register_solver
@dataclass(frozen=True)
class Condensed(Solver):
    """The condensed program by an interior-point method (`qp`); tolerance: of PIQP."""

    name = "condensed"
    tolerance: float = 1e-9

    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        return solve_qp(problem, self.tolerance)


@register_solver
@dataclass(frozen=True)
class MatrixFree(Solver):
    """Through products alone, for graphs of any size (`matrix_free`).

    tolerance: of the projected gradient; well below that of the plan, or its last turns find no better one.
    """

    name = "matrix_free"
    tolerance: float = 1e-6

    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        return solve_matrix_free(problem, start, self.tolerance)


@register_solver
@dataclass(frozen=True)
class Suitable(Solver):
    """The one that suits a problem: Riccati without limits, products alone where it is large, else condensed."""

    name = "suitable"
    large: int = LARGE

    def solve(self, problem: Tracking, start: Controls) -> tuple[Controls, Status]:
        path = problem.path
        if isinstance(path, LinearPath) and problem.soft is None and path.c.size * start.size**2 <= PRODUCTS:
            return Condensed().solve(problem, start)
        if not isinstance(path, DensePath):
            return MatrixFree(LOOSE).solve(problem, start)
        if not Riccati.limits(problem):
            return Riccati().solve(problem, start)
        return (MatrixFree(LOOSE) if start.size > self.large else Condensed()).solve(problem, start)
