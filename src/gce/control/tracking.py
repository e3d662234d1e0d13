"""The quadratic problem that every solver here solves: least squares along linear dynamics.

    minimise    sum_{t=1..M} |E_t x_t - e_t|^2 + |w_t * u_{t-1} - v_t|^2 + dist(S_t x_t, [l_t, h_t])^2
    subject to  x_t = A_{t-1} x_{t-1} + B_{t-1} u_{t-1} + c_{t-1},   x_0 given
                low <= u_t <= high,   |u_t - u_{t-1}| <= rate

Costs come as residuals: a weight Q on y - y* is E = Q^(1/2) dy/dx, e = Q^(1/2) y*. The last term is a soft limit. M
steps, s states, n controls; everything in normalised units, nodes flattened.

How a plan ended: one enumeration for all solvers. A failure is a value with advice, not an exception.
"""

from __future__ import annotations

import math
import time
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

Array = np.ndarray


DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)
"""Of `time.monotonic`: when a plan has to end."""


def late(by: float = 0.0) -> bool:
    """Whether the deadline has passed, or will have in so many seconds."""
    return time.monotonic() + by > DEADLINE.get()


class OutOfTime(Exception):
    """The deadline has passed within a turn; `settle` ends with what it has, `Controller` with nothing done."""


def hurry() -> None:
    """Called now and then in whatever may take long: ends the turn once the deadline has passed."""
    if late():
        raise OutOfTime


@runtime_checkable
class ControlPath(Protocol):
    """Linear dynamics as two products, so that large graphs never form a matrix."""

    def forward(self, u: Float[Array, "M n"], affine: bool = True) -> Float[Array, "M s"]:
        """x_1..x_M under controls; affine: with x_0 and c, otherwise the part that is linear in u."""
        ...

    def adjoint(self, weights: Float[Array, "M s"]) -> Float[Array, "M n"]:
        """The gradient of sum_t weights_t . x_t with respect to u."""
        ...


@dataclass(frozen=True)
class DensePath:
    """Linear dynamics with matrices."""

    A: Float[Array, "M s s"]
    B: Float[Array, "M s n"]
    c: Float[Array, "M s"]
    x0: Float[Array, " s"]

    def forward(self, u: Float[Array, "M n"], affine: bool = True) -> Float[Array, "M s"]:
        x = self.x0 if affine else np.zeros_like(self.x0)
        pushed = np.einsum("tsn,tn->ts", self.B, u)
        if affine:
            pushed = pushed + self.c
        xs = np.empty_like(self.c)
        for t in range(len(u)):
            x = xs[t] = self.A[t] @ x + pushed[t]
        return xs

    def adjoint(self, weights: Float[Array, "M s"]) -> Float[Array, "M n"]:
        costate = np.empty_like(weights)
        carried = np.zeros(weights.shape[1])
        for t in reversed(range(len(weights))):
            carried = costate[t] = weights[t] + carried
            carried = self.A[t].T @ carried
        return np.einsum("tsn,ts->tn", self.B, costate)

    def transition(self, t: int) -> Float[Array, "s s"]:
        """A of step t."""
        return self.A[t]

    def gram(self, E: Rows) -> Float[Array, "Mn Mn"]:
        """sum_t Y_t'Y_t of the responses Y_t = d (E_t x_t) / du, which are never formed."""
        return self.grams(E)[0]

    def grams(self, E: Rows, start: bool = False) -> tuple[Float[Array, "Mn Mn"], Float[Array, "Mn s"]]:
        """(sum_t Y_t'Y_t; sum_t Y_t'X_t where asked for); X_t = d (E_t x_t) / dx_0.

        What a state costs from then on is x'P x, P_t = E_t'E_t + A_{t+1}'P_{t+1} A_{t+1}; so the block of u_j and an
        earlier u_k is B_j'P_j dx_{j+1} / du_k. x_0 is carried along as an earlier control is.
        """
        M, s, n = self.B.shape
        E = dense(E, M)
        weighed = np.empty((M, n, s))
        square, P = np.empty((s, s)), np.zeros((s, s))
        for t in reversed(range(M)):
            if t == M - 1 or not np.array_equal(E[t], E[t + 1]):
                square = E[t].T @ E[t]
            P = square + (self.A[t + 1].T @ (P @ self.A[t + 1]) if t < M - 1 else 0.0)
            weighed[t] = self.B[t].T @ P
        more = s if start else 0
        carried, found = np.zeros((s, more + M * n)), np.zeros((M * n, more + M * n))
        carried[:, :more] = np.eye(s, more)
        for t in range(M):
            used = more + t * n
            if used:
                carried[:, :used] = self.A[t] @ carried[:, :used]
            carried[:, used : used + n] = self.B[t]
            found[t * n : t * n + n, : used + n] = weighed[t] @ carried[:, : used + n]
        H = found[:, more:]
        return np.tril(H) + np.tril(H, -1).T, found[:, :more]

    def responses(self, E: Float[Array, "M m s"]) -> Float[Array, "M m M n"]:
        """d (E_t x_t) / d u_k: what every control does to every row from then on."""
        M, s, n = self.B.shape
        carried = np.zeros((s, M * n))
        found = np.zeros((M, E.shape[1], M * n))
        for t in range(M):
            used = t * n
            if t:
                carried[:, :used] = self.A[t] @ carried[:, :used]
            carried[:, used : used + n] = self.B[t]
            if E[t].any():
                found[t, :, : used + n] = E[t] @ carried[:, : used + n]
        return found.reshape(M, E.shape[1], M, n)


@dataclass(frozen=True)
class Selection:
    """Rows that weigh one coordinate each, (E_t x)_k = weight_tk x_index_k: on large graphs E is never a matrix.

    index: all different; weight: one step serves all; size: of x.
    """

    index: Int[Array, " m"]
    weight: Float[Array, "T m"]
    size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.weight.shape, self.size)

    def weighed(self, W: Float[Array, "M m"]) -> Selection:
        return replace(self, weight=W * self.weight)

    def matrix(self) -> Float[Array, "T m s"]:
        E = np.zeros(self.shape)
        E[:, np.arange(len(self.index)), self.index] = self.weight
        return E


Rows = np.ndarray | Selection
"""E as matrices [M, m, s], or without any."""


@dataclass(frozen=True)
class ControlLimits:
    """low and high [M, n]; rate [n] with the control before the first one, or None."""

    low: Float[Array, "M n"]
    high: Float[Array, "M n"]
    rate: Float[Array, " n"] | None = None
    before: Float[Array, " n"] | None = None

    def nearest(self, u: Float[Array, "M n"]) -> Float[Array, "M n"]:
        """Within the limits for certain: clipped step by step."""
        if self.rate is None:
            return np.clip(u, self.low, self.high)
        kept = np.empty_like(u)
        last = self.before if self.before is not None else np.zeros(u.shape[1])
        for t in range(len(u)):
            low, high = np.maximum(self.low[t], last - self.rate), np.minimum(self.high[t], last + self.rate)
            # Where the last control is further out than its rate lets it return, it returns as fast as it may.
            last = kept[t] = np.clip(np.clip(u[t], low, np.maximum(low, high)), self.low[t], self.high[t])
        return kept


@dataclass(frozen=True)
class SoftLimits:
    """Rows S_t x_t that cost the square of their distance from [low, high]."""

    S: Float[Array, "M k s"] | Selection
    low: Float[Array, "M k"]
    high: Float[Array, "M k"]

    def miss(self, x: Float[Array, "M s"]) -> Float[Array, "M k"]:
        values = rows(self.S, x)
        return values - np.clip(values, self.low, self.high)


@dataclass(frozen=True)
class Tracking:
    """The quadratic problem of this module."""

    path: ControlPath
    E: Float[Array, "M m s"] | Selection
    e: Float[Array, "M m"]
    w: Float[Array, "M n"]
    v: Float[Array, "M n"]
    limits: ControlLimits
    soft: SoftLimits | None = None

    def cost(self, u: Float[Array, "M n"]) -> float:
        x = self.path.forward(u)
        total = np.square(rows(self.E, x) - self.e).sum() + np.square(self.w * u - self.v).sum()
        if self.soft is not None:
            total += np.square(self.soft.miss(x)).sum()
        return float(total)

    def gradient(self, u: Float[Array, "M n"]) -> Float[Array, "M n"]:
        x = self.path.forward(u)
        weights = columns(self.E, rows(self.E, x) - self.e)
        if self.soft is not None:
            weights = weights + columns(self.soft.S, self.soft.miss(x))
        return 2 * (self.path.adjoint(weights) + self.w * (self.w * u - self.v))

    def damped(self, u: Float[Array, "M n"], damping: float) -> Tracking:
        """With a cost on leaving u, |u' - u|^2 damping, up to a constant: not to be trusted far."""
        if damping == 0:
            return self
        w = np.sqrt(np.square(self.w) + damping)
        return replace(self, w=w, v=(self.w * self.v + damping * u) / w)


def rows(E: Rows, x: Float[Array, "M s"]) -> Float[Array, "M m"]:
    """E_t x_t at every step; a matrix with one step serves all."""
    if isinstance(E, Selection):
        return E.weight * x[:, E.index]
    return np.matmul(E, x[..., None])[..., 0]


def columns(E: Rows, r: Float[Array, "M m"]) -> Float[Array, "M s"]:
    """E_t' r_t at every step."""
    if isinstance(E, Selection):
        x = np.zeros((len(r), E.size))
        x[:, E.index] = E.weight * r
        return x
    return np.matmul(np.swapaxes(E, -1, -2), r[..., None])[..., 0]


def dense(E: Rows, M: int) -> Float[Array, "M m s"]:
    """E as matrices, one for every step."""
    matrices = E.matrix() if isinstance(E, Selection) else E
    return np.broadcast_to(matrices, (M, *matrices.shape[1:]))


def projected_gradient(u: Array, gradient: Array, limits: ControlLimits) -> Array:
    """The gradient without what would only push against a bound: zero at an optimum."""
    reach = limits.high - limits.low
    near = 1e-7 * np.where(np.isfinite(reach), reach, 0.0)
    held = ((u <= limits.low + near) & (gradient > 0)) | ((u >= limits.high - near) & (gradient < 0))
    return np.where(held, 0.0, gradient)


class Status(StrEnum):
    """How a plan, or one of its quadratic problems, ended; prints, compares and is written as a word or a few.

    advice: what to do about it, a sentence; empty where nothing needs to be done.
    """

    advice: str

    SOLVED = "solved", ""
    ITERATION_LIMIT = (
        "iteration limit",
        "Allow more turns (iterations), shorten the horizon, or plan again more often (feedback).",
    )
    TIME_LIMIT = "time limit", "Give the solver more seconds, or shorten the horizon."
    NO_DESCENT = (
        "no step improves the plan",
        "Begin from another plan (start), shorten the horizon, or choose a goal nearer to what was recorded.",
    )
    HARDLY_IMPROVES = (
        "hardly improves any more",
        "The plan is usually as good as a solved one, near a kink of the model; to go on nevertheless, raise patience.",
    )
    INFEASIBLE = (
        "infeasible",
        "No actions keep to all limits: look for bounds that cross, or a rate too small to come within the bounds.",
    )
    NOT_FINITE = (
        "the model's prediction is not finite",
        "Shorten the horizon or narrow the bounds, and adapt to episodes that begin near this observation.",
    )
    SHIFTED = (
        "shifted",
        "The step would have missed its time limit, and the plan before went on: allow more time, shorten the horizon, "
        "or install the extra `fast`.",
    )
    UNBOUNDED = "unbounded", "Give bounds of the actions, or an action cost above zero."
    NUMERICAL_TROUBLE = (
        "numerical trouble",
        "Look for numbers that are huge or not finite, and choose costs nearer to each other, all above zero.",
    )

    def __new__(cls, word: str, advice: str = "") -> Status:
        status = str.__new__(cls, word)
        status._value_, status.advice = word, advice
        return status

    @property
    def ok(self) -> bool:
        """Whether the plan is solved."""
        return self is Status.SOLVED
