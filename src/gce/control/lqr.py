"""Exact finite-horizon LQR along time-varying affine dynamics, without limits (Riccati).

    minimise sum_{t=1..M} |E_t x_t - e_t|^2 + |w_t * u_{t-1}|^2,   x_t = A x_{t-1} + B u_{t-1} + c

In z = [x; 1] the dynamics are linear and the cost is quadratic, Q_t = [E -e]'[E -e], so backwards from P_M = Q_M

    K = (R + B'PB)^-1 B'PA,   P <- Q + A'P(A - BK),   u = -K z,   cost-to-go = z'Pz
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve

from gce.control.tracking import DensePath


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
