"""The only regularised solve in the package.

With regressors X [rows, D] and targets Y [rows, m],

    C = (X'X / rows + diag(ridge))^-1 X'Y / rows

which minimises the mean of |y - C'x|^2 plus the ridge on C: added to the covariance operator, as in the paper. All that
data contribute are the sums in `Moments`, which add up: adapting on episodes one by one equals adapting on all at once.

Statistics that add up: sums over episodes, from which any episode can be taken out again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from operator import add, sub
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from torch import Tensor

Sums = TypeVar("Sums", bound="Additive")
SHARED: dict[str, Any] = {"shared": True}
"""Metadata of a field that both operands have in common (the type of a node): it is carried over, not added."""


class Additive:
    """A frozen dataclass whose fields are sums. a + b holds what both were made of; (a + b) - b is a, up to rounding.

    Every field takes part, so that a field added later cannot be forgotten. A field that is None in both stays None.
    """

    def __add__(self: Sums, other: Sums) -> Sums:
        return self._combined(other, add)

    def __sub__(self: Sums, other: Sums) -> Sums:
        return self._combined(other, sub)

    def _combined(self: Sums, other: Sums, operation: Callable[[Any, Any], Any]) -> Sums:
        values = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if (mine is None) != (theirs is None):
                raise ValueError(f"{type(self).__name__}.{field.name} is known on one side only")
            values[field.name] = mine if mine is None or "shared" in field.metadata else operation(mine, theirs)
        return type(self)(**values)


@dataclass(frozen=True)
class Moments(Additive):
    """gram X'X, cross X'Y, square Y'Y and the number of rows; `*sets` are independent regressions."""

    gram: Float[Tensor, "*sets D D"]
    cross: Float[Tensor, "*sets D m"]
    square: Float[Tensor, "*sets m m"]
    rows: int

    @classmethod
    def of(cls, X: Float[Tensor, "*sets rows D"], Y: Float[Tensor, "*sets rows m"]) -> Moments:
        X, Y = X.double(), Y.double()
        return cls(X.mT @ X, X.mT @ Y, Y.mT @ Y, X.shape[-2])


@dataclass(frozen=True)
class Solution:
    """coefficients C; residual: the mean of (Y - X C)'(Y - X C); system: the matrix that was inverted."""

    coefficients: Float[Tensor, "*sets D m"]
    residual: Float[Tensor, "*sets m m"]
    system: Float[Tensor, "*sets D D"]

    @property
    def condition(self) -> Float[Tensor, "*sets"]:
        return condition_number(self.system)


def solve(
    moments: Moments,
    ridge: Float[Tensor, " D"],
    split: int | None = None,
) -> Solution:
    """Solve in float64 by Cholesky; gradients flow through.

    split: regress the first `split` columns and the rest separately, as the paper's appendix does for history and
        action; None solves jointly.
    """
    gram, cross = moments.gram / moments.rows, moments.cross / moments.rows
    system = gram + torch.diag(ridge.double())
    # A regressor that is always zero and not penalised has coefficient zero, whatever stands here.
    system = system + torch.diag_embed((system.diagonal(dim1=-2, dim2=-1) == 0).double())
    if split is not None:
        apart = torch.ones_like(gram)
        apart[..., :split, split:] = apart[..., split:, :split] = 0
        system = system * apart
    C = torch.cholesky_solve(cross, _cholesky(system))
    square = moments.square / moments.rows
    residual = square - C.mT @ cross - cross.mT @ C + C.mT @ gram @ C
    return Solution(C, (residual + residual.mT) / 2, system)


@dataclass(frozen=True)
class Prior:
    """What is known of the coefficients c of one target: their ridge, and rows A of `below` with A c <= 0."""

    ridge: Float[Tensor, " D"]
    below: Float[Tensor, "*sets rows D"]


def solve_below(moments: Moments, prior: Prior) -> Float[Tensor, "sets D"]:
    """The coefficients c of one target with A c <= 0, of several sets of rows.

    With S = L L' the matrix to invert, c = S^-1 (g - A'l), and the multipliers l >= 0 minimise |L^-1 (g - A'l)|: a
    least squares problem of its own (Lawson and Hanson 1974, chapter 23). No gradient flows through the multipliers.
    """
    solution = solve(moments, prior.ridge)
    c = solution.coefficients[..., 0]
    broken = ((prior.below @ c.unsqueeze(-1)) > 0).flatten(1).any(1)
    if not bool(broken.any()):
        return c
    A = prior.below[broken] / prior.below[broken].norm(dim=-1, keepdim=True)
    factor = _cholesky(solution.system[broken]).detach()
    B = torch.linalg.solve_triangular(factor, A.mT, upper=False)
    problems = torch.cat([B, factor.mT @ c[broken].detach().unsqueeze(-1)], dim=-1).numpy()
    multipliers = torch.as_tensor(np.stack([nnls(one[:, :-1], one[:, -1])[0] for one in problems]))
    change = torch.cholesky_solve(A.mT @ multipliers.unsqueeze(-1), factor).squeeze(-1)
    return c - torch.zeros_like(c).index_put((broken,), change)


def condition_number(system: Float[Tensor, "*sets D D"]) -> Float[Tensor, "*sets"]:
    """The largest eigenvalue over the smallest."""
    spectrum = torch.linalg.eigvalsh(system.detach())
    return spectrum[..., -1] / spectrum[..., 0].clamp_min(torch.finfo(torch.float64).tiny)


def _cholesky(system: Tensor) -> Tensor:
    """Where the ridge is too small for the data, the smallest jitter that makes the matrix definite is added."""
    if not bool(torch.isfinite(system).all()):
        raise ValueError("the regression holds numbers that are not finite")
    factor, info = torch.linalg.cholesky_ex(system)
    jitter = 1e-14 * system.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-300)
    while bool(info.any()):
        eye = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
        factor, info = torch.linalg.cholesky_ex(system + jitter[..., None, None] * eye)
        jitter = 10 * jitter
    return factor
