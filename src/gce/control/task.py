"""What to reach, along dynamics that need not be linear: the flat, normalised form of a control problem.

    minimise sum_{t=1..M} |W_t (y_t - y*_t)|^2 + |w_t * u_{t-1} - v_t|^2 + k dist(y_t, [l, h])^2,   y = outputs(x)

`along` makes the quadratic problem of `tracking` at a path: outputs and dynamics to first order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from gce.control.tracking import DensePath, Limits, Path, Rows, Selection, Soft, Tracking, dense, rows

Array = np.ndarray


@runtime_checkable
class Dynamics(Protocol):
    """x_{t+1} = f_t(x_t, u_t) and y = outputs(x), flat and normalised: all a planner knows of a system."""

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        """x_1..x_M; a batch of controls from one start."""
        ...

    def path(self, x0: Float[Array, " s"], x: Float[Array, "M s"], u: Float[Array, "M n"]) -> Path:
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
    limits: Limits
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
            soft = Soft(S, scale * self.soft_low + shift, scale * self.soft_high + shift)
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
