"""The bounded problem of `tracking` through products alone, for graphs of any size.

    minimise f(u) = |E x(u) - e|^2 + |w * u - v|^2 + dist(S x(u), [l, h])^2     subject to low <= u <= high

f is quadratic in pieces. Each turn takes the controls that no bound holds, minimises the present piece over them by
conjugate gradients, and searches along the bent path P(u + t d) (projected Newton, Bertsekas 1982; conjugate gradients
on a face, More and Toraldo 1991). A product with the Hessian is one rollout and one adjoint; inside the bounds the next
gradient follows from the products already made.

Rates |u_t - u_{t-1}| <= rate enter as an augmented Lagrangian (Rockafellar 1976): distances to shifted intervals, again
quadratic in pieces, solved anew until the rates hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from gce.control.tracking import Status, Tracking, columns, late, projected_gradient, rows

Array = np.ndarray

TURNS, PRODUCTS, ROUNDS = 60, 300, 40
SUFFICIENT = 1e-4
LOOSE = 0.1
"""How far conjugate gradients reduce a face's gradient while the face still changes."""


@dataclass(frozen=True)
class Rates:
    """k dist(D u, [low, high])^2 on the changes D u from step to step, the first from what was before."""

    low: Float[Array, "M n"]
    high: Float[Array, "M n"]
    weight: float

    def miss(self, changes: Array) -> Array:
        return changes - np.clip(changes, self.low, self.high)


@dataclass(frozen=True)
class Point:
    """Controls with what is linear in them: rows y = E x, z = S x, changes D u. Points add up, and scale."""

    u: Float[Array, "M n"]
    y: Float[Array, "M m"]
    z: Float[Array, "M k"] | None

    def plus(self, t: float, other: Point) -> Point:
        z = None if self.z is None or other.z is None else self.z + t * other.z
        return Point(self.u + t * other.u, self.y + t * other.y, z)


class Piecewise:
    """f, its gradient and its Hessian, and how often products were made."""

    def __init__(self, problem: Tracking, rates: Rates | None = None) -> None:
        self.problem, self.rates, self.products = problem, rates, 0

    def at(self, u: Float[Array, "M n"], affine: bool = True) -> Point:
        """The point of controls; without x_0 and c: of a direction."""
        x = self.problem.path.forward(u, affine)
        soft = self.problem.soft
        return Point(u, rows(self.problem.E, x), None if soft is None else rows(soft.S, x))

    def cost(self, p: Point) -> float:
        problem = self.problem
        total = np.square(p.y - problem.e).sum() + np.square(problem.w * p.u - problem.v).sum()
        if problem.soft is not None and p.z is not None:
            total += np.square(p.z - np.clip(p.z, problem.soft.low, problem.soft.high)).sum()
        if self.rates is not None:
            total += self.rates.weight * np.square(self.rates.miss(changes(p.u))).sum()
        return float(total)

    def gradient(self, p: Point) -> Float[Array, "M n"]:
        problem, soft = self.problem, self.problem.soft
        miss = None if soft is None or p.z is None else p.z - np.clip(p.z, soft.low, soft.high)
        found = self._back(p.y - problem.e, miss) + problem.w * (problem.w * p.u - problem.v)
        if self.rates is not None:
            found += self.rates.weight * changes_back(self.rates.miss(changes(p.u)))
        return 2 * found

    def hessian(self, here: Point, d: Float[Array, "M n"]) -> tuple[Float[Array, "M n"], Point]:
        """(H d, the direction d as a point), H that of the piece at a point."""
        direction = self.at(d, affine=False)
        problem, soft = self.problem, self.problem.soft
        z = None
        if soft is not None and here.z is not None and direction.z is not None:
            z = np.where((here.z < soft.low) | (here.z > soft.high), direction.z, 0.0)
        found = self._back(direction.y, z) + np.square(problem.w) * d
        if self.rates is not None:
            outside = self.rates.miss(changes(here.u)) != 0
            found += self.rates.weight * changes_back(np.where(outside, changes(d), 0.0))
        self.products += 1
        return 2 * found, direction

    def _back(self, y: Float[Array, "M m"], z: Float[Array, "M k"] | None) -> Float[Array, "M n"]:
        weights = columns(self.problem.E, y)
        if self.problem.soft is not None and z is not None:
            weights += columns(self.problem.soft.S, z)
        return self.problem.path.adjoint(weights)


def changes(u: Float[Array, "M n"]) -> Float[Array, "M n"]:
    """D u: what changes at every step, from 0."""
    return np.diff(u, axis=0, prepend=0.0)


def changes_back(r: Float[Array, "M n"]) -> Float[Array, "M n"]:
    """D' r."""
    return -np.diff(r, axis=0, append=0.0)


def solve_matrix_free(
    problem: Tracking, u0: Float[Array, "M n"], tolerance: float = 1e-4
) -> tuple[Float[Array, "M n"], Status]:
    """(controls, status); solved: the projected gradient is below `tolerance` of the gradient at doing nothing."""
    limits = problem.limits
    still = Piecewise(problem)
    size = float(np.linalg.norm(still.gradient(still.at(np.zeros_like(u0)))))
    if not np.isfinite(size):
        return limits.nearest(np.zeros_like(u0)), Status.NUMERICAL_TROUBLE
    if limits.rate is None:
        u, status = _bounded(still, np.clip(u0, limits.low, limits.high), tolerance * size)
    else:
        u, status = _rated(problem, np.clip(u0, limits.low, limits.high), tolerance, size)
    if not np.isfinite(u).all():
        return limits.nearest(np.zeros_like(u0)), Status.NUMERICAL_TROUBLE
    return limits.nearest(u), status


def _rated(problem: Tracking, u: Array, tolerance: float, size: float) -> tuple[Array, Status]:
    """The problem with rates: prices p of the rates rise until they hold."""
    limits = problem.limits
    assert limits.rate is not None
    first = np.zeros_like(u)
    first[0] = 0.0 if limits.before is None else limits.before
    low, high = first - limits.rate, first + limits.rate
    weight = max(1e-3 * size / max(float(np.linalg.norm(u)), float(np.linalg.norm(high)), 1e-12), 1e-12)
    prices, worst, status = np.zeros_like(u), np.inf, Status.SOLVED
    for _ in range(ROUNDS):
        shift = prices / weight
        f = Piecewise(problem, Rates(low - shift, high - shift, weight))
        u, status = _bounded(f, u, tolerance * size)
        if not np.isfinite(u).all():
            return u, Status.NUMERICAL_TROUBLE
        if status is Status.TIME_LIMIT:
            return u, status
        missed = changes(u) - np.clip(changes(u), low, high)
        now = float(np.abs(missed).max())
        if status.ok and now <= tolerance * float(limits.rate.max()):
            return u, Status.SOLVED
        assert f.rates is not None
        prices = weight * f.rates.miss(changes(u))
        if now > 0.25 * worst:
            weight *= 4
        worst = min(worst, now)
    return u, Status.ITERATION_LIMIT


def _bounded(f: Piecewise, u: Float[Array, "M n"], target: float) -> tuple[Float[Array, "M n"], Status]:
    limits = f.problem.limits
    here = f.at(u)
    cost, gradient = f.cost(here), f.gradient(here)
    held: Array | None = None
    f.products = 0
    for _ in range(TURNS):
        left = projected_gradient(here.u, gradient, limits)
        size = float(np.linalg.norm(left))
        if size <= target:
            return here.u, Status.SOLVED
        if late():
            return here.u, Status.TIME_LIMIT
        if not np.isfinite(size) or f.products >= PRODUCTS:
            break
        free = left != 0
        same = held is not None and bool((free == held).all())
        held = free
        aim = 0.5 * target if same else max(LOOSE * size, 0.5 * target)
        step, bent = _face(f, here, gradient, free, aim)
        slope = float((gradient * step.u).sum())
        found = _search(f, here, cost, step, slope)
        if found is None:  # no progress along the Newton direction: the gradient's, as far as the piece goes
            steepest, Hd = f.at(-left, affine=False), f.hessian(here, -left)[0]
            t = size**2 / max(float(-(left * Hd).sum()), 1e-300)
            step, bent = Point(t * steepest.u, t * steepest.y, None if steepest.z is None else t * steepest.z), None
            found = _search(f, here, cost, step, -t * size**2)
        if found is None:
            return here.u, Status.SOLVED if size <= 10 * target else Status.NO_DESCENT
        here, cost, whole = found
        gradient = gradient + bent if whole and bent is not None else f.gradient(here)
    return here.u, Status.ITERATION_LIMIT if np.isfinite(gradient).all() else Status.NUMERICAL_TROUBLE


def _face(
    f: Piecewise, here: Point, gradient: Array, free: Bool[Array, "M n"], aim: float
) -> tuple[Point, Float[Array, "M n"] | None]:
    """(step, H step) that minimises the present piece over the free controls, by conjugate gradients.

    H step is that of f's gradient only where the piece does not change along the step: None otherwise.
    """
    r = np.where(free, -gradient, 0.0)
    p, rr = r, float((r * r).sum())
    step = Point(np.zeros_like(r), np.zeros_like(here.y), None if here.z is None else np.zeros_like(here.z))
    bent = np.zeros_like(r)
    while f.products < PRODUCTS and not late():
        Hp, direction = f.hessian(here, p)
        curved = float((p * Hp).sum())
        if not curved > 0:
            break
        a = rr / curved
        step, bent = step.plus(a, direction), bent + a * Hp
        r = r - a * np.where(free, Hp, 0.0)
        before, rr = rr, float((r * r).sum())
        if rr <= aim**2:
            break
        p = r + rr / before * p
    pieces = f.problem.soft is not None or f.rates is not None
    return step, None if pieces else bent


def _search(f: Piecewise, here: Point, cost: float, step: Point, slope: float) -> tuple[Point, float, bool] | None:
    """(point, cost, whether nothing was bent and the whole step taken): the first cheaper enough of P(u + t step)."""
    limits, t = f.problem.limits, 1.0
    if not slope < 0:
        return None
    for _ in range(12):
        aim = here.u + t * step.u
        kept = np.clip(aim, limits.low, limits.high)
        inside = bool((kept == aim).all())
        point = here.plus(t, step) if inside else f.at(kept)
        found = f.cost(point)
        if found <= cost + SUFFICIENT * min(t * slope, 0.0) and found < cost:
            return point, found, inside and t == 1.0
        t *= 0.5
    return None
