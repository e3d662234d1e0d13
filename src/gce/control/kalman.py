"""The extended Kalman filter in the planner's state space (Kalman 1960; Joseph form, Bucy & Joseph 1968).

    x' = f(x, u) + noise of covariance Q,   y = outputs(x) + noise of variances r, independent

What is known of x is a mean and a covariance P. A step predicts with A = df/dx at the mean, an observation corrects:

    P <- A P A' + Q,   K = P H' (H P H' + R)^-1,   x <- x + K (y - outputs(x)),   P <- (I - K H) P (I - K H)' + K R K'

The last form keeps P positive semi-definite whatever K's rounding. Dense: for some hundreds of states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve

from gce.control.graph_path import LinearPath
from gce.control.settle import Dynamics
from gce.control.tracking import DensePath, dense

Array = np.ndarray


@dataclass(frozen=True)
class Belief:
    """What is known of a state: its mean and covariance."""

    mean: Float[Array, " s"]
    covariance: Float[Array, "s s"]


@dataclass(frozen=True)
class Correction:
    """A belief after an observation; surprise: e'S^-1 e of the innovation e, in the mean its length where Q and r hold;
    likelihood: the logarithm of the observation's density."""

    belief: Belief
    surprise: float
    likelihood: float


def predict(belief: Belief, dynamics: Dynamics, u: Float[Array, " n"], Q: Float[Array, "s s"]) -> Belief:
    """One step, the first of `dynamics`, under the controls u."""
    after = dynamics.rollout(belief.mean, u[None])
    path = dynamics.path(belief.mean, after, u[None])
    if not isinstance(path, DensePath | LinearPath):
        raise TypeError("the filter needs matrices along the path")
    A = path.transition(0)
    P = A @ (A @ belief.covariance).T + Q
    return Belief(after[0], (P + P.T) / 2)


def correct(belief: Belief, dynamics: Dynamics, y: Float[Array, " p"], r: Float[Array, " p"]) -> Correction:
    """An observation y of the outputs with noise of variances r > 0."""
    x, P = belief.mean, belief.covariance
    H = dense(dynamics.output_slopes(x[None]), 1)[0]
    e = y - dynamics.outputs(x)
    S = cho_factor(H @ P @ H.T + np.diag(r), lower=True)
    K = cho_solve(S, H @ P).T
    left = np.eye(len(x)) - K @ H
    covariance = left @ P @ left.T + (K * r) @ K.T
    surprise = float(e @ cho_solve(S, e))
    density = -0.5 * (surprise + 2 * np.log(np.diag(S[0])).sum() + len(e) * np.log(2 * np.pi))
    return Correction(Belief(x + K @ e, (covariance + covariance.T) / 2), surprise, float(density))
