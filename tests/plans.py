"""Random control problems for the tests."""

from dataclasses import dataclass, field

import numpy as np

from gce.control.settle import Task, dense_path
from gce.control.tracking import ControlLimits, DensePath, SoftLimits, Tracking


def random_path(seed: int, M: int = 6, s: int = 4, n: int = 2) -> DensePath:
    """Time-varying affine dynamics, stable enough to be well scaled."""
    rng = np.random.default_rng(seed)
    A = np.eye(s) * 0.8 + 0.3 * rng.standard_normal((M, s, s)) / np.sqrt(s)
    return DensePath(A, rng.standard_normal((M, s, n)), 0.1 * rng.standard_normal((M, s)), rng.standard_normal(s))


def free(M: int, n: int) -> ControlLimits:
    return ControlLimits(np.full((M, n), -np.inf), np.full((M, n), np.inf))


def random_problem(seed: int, bound: float = np.inf, rate: float | None = None, soft: float | None = None) -> Tracking:
    """bound, rate: of every control; soft: half the width of a band on all states, weighed by 3."""
    path = random_path(seed)
    M, s, n = path.B.shape
    rng = np.random.default_rng([seed, 1])
    limits = ControlLimits(
        np.full((M, n), -bound),
        np.full((M, n), bound),
        None if rate is None else np.full(n, rate),
        None if rate is None else 0.1 * rng.standard_normal(n),
    )
    band = None
    if soft is not None:
        band = SoftLimits(np.tile(3 * np.eye(s), (M, 1, 1)), np.full((M, s), -3 * soft), np.full((M, s), 3 * soft))
    E, e = rng.standard_normal((M, 3, s)), rng.standard_normal((M, 3))
    w, v = rng.uniform(0.1, 1, (M, n)), 0.2 * rng.standard_normal((M, n))
    return Tracking(path, E, e, w, v, limits, band)


@dataclass
class Linear:
    """Linear dynamics of a path, all states observed; counts the derivatives taken."""

    known: DensePath
    asked: list[int] = field(default_factory=list)

    def rollout(self, x0, u):
        known = DensePath(self.known.A, self.known.B, self.known.c, x0)
        many = u.reshape(-1, *u.shape[-2:])
        return np.stack([known.forward(one) for one in many]).reshape(*u.shape[:-1], -1)

    def step(self, t, x, u):
        return x @ self.known.A[t].T + u @ self.known.B[t].T + self.known.c[t]

    def path(self, x0, x, u):
        self.asked.append(len(u))
        return dense_path(self.known.A, self.known.B, x0, x, u)

    def outputs(self, x):
        return x

    def output_slopes(self, x):
        return np.eye(x.shape[-1])[None]


class Pendulum:
    """A pendulum pushed hard over long steps, seen through bent outputs: a step to the linear optimum often goes wrong.

    x = (angle, rate); y = (sin, cos, rate^3 / 10).
    """

    dt, gravity = 0.2, 15.0

    def step(self, t, x, u):
        rate = x[..., 1] + self.dt * (self.gravity * np.sin(x[..., 0]) + 8 * np.tanh(u[..., 0]))
        return np.stack([x[..., 0] + self.dt * rate, rate], axis=-1)

    def rollout(self, x0, u):
        x, found = np.broadcast_to(x0, (*u.shape[:-2], 2)), []
        for t in range(u.shape[-2]):
            x = self.step(t, x, u[..., t, :])
            found.append(x)
        return np.stack(found, axis=-2)

    def path(self, x0, x, u):
        earlier = np.concatenate([x0[None], x[:-1]])
        A, B = np.zeros((len(u), 2, 2)), np.zeros((len(u), 2, 1))
        A[:, 1, 0], A[:, 1, 1] = self.dt * self.gravity * np.cos(earlier[:, 0]), 1
        B[:, 1, 0] = self.dt * 8 / np.cosh(u[:, 0]) ** 2
        A[:, 0] = self.dt * A[:, 1] + [1, 0]
        B[:, 0] = self.dt * B[:, 1]
        return dense_path(A, B, x0, x, u)

    def outputs(self, x):
        return np.stack([np.sin(x[..., 0]), np.cos(x[..., 0]), x[..., 1] ** 3 / 10], axis=-1)

    def output_slopes(self, x):
        D = np.zeros((len(x), 3, 2))
        D[:, 0, 0], D[:, 1, 0], D[:, 2, 1] = np.cos(x[:, 0]), -np.sin(x[:, 0]), 0.3 * x[:, 1] ** 2
        return D


def random_task(seed: int, M: int, p: int, n: int, bound: float = np.inf, rate: float | None = None) -> Task:
    rng = np.random.default_rng([seed, 2])
    before = None if rate is None else np.zeros(n)
    limits = ControlLimits(
        np.full((M, n), -bound), np.full((M, n), bound), None if rate is None else np.full(n, rate), before
    )
    return Task(rng.standard_normal((M, p)), rng.uniform(0.1, 1, (M, p)), rng.uniform(0.1, 1, (M, n)), limits)


def slopes_by_differences(f, x, size=1e-5):
    """df/dx of a vector function by central differences."""
    columns = [(f(x + size * d) - f(x - size * d)) / (2 * size) for d in np.eye(len(x))]
    return np.stack(columns, axis=-1)
