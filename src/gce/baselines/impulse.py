"""A linear baseline on a large graph as dynamics: what controls do to observations is an impulse response.

    x' = A x + B u + c,   y = D x + d       gives       y_t = free_t + sum_{k < t} G_{t-1-k} u_k,   G_k = D A^k B

A plan then needs no states: a product is a convolution over time, by fast Fourier transforms. Where the output is not
linear (a decoder), D and d are those at the goal, near which a large network such as a grid stays; the plan is made
with these, and what is expected of it is told by the decoder itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float

from gce.baselines.koopman import LinearAdapted
from gce.baselines.planning import BaselineDynamics
from gce.control.tracking import Selection

Array = np.ndarray

LARGE_STATE = 1000
"""States beyond which matrices along a path are too many numbers."""


@dataclass(frozen=True, eq=False)
class ImpulsePath:
    """y_1..y_M as a function of controls; what the planner takes for states are these outputs."""

    spectrum: Complex[Array, "frequencies p n"]
    free: Float[Array, "M p"]

    def forward(self, u: Float[Array, "M n"], affine: bool = True) -> Float[Array, "M p"]:
        M = len(self.free)
        found = np.einsum("fpn,fn->fp", self.spectrum, np.fft.rfft(u, 2 * M, axis=0), optimize=True)
        y = np.fft.irfft(found, 2 * M, axis=0)[:M]
        return y + self.free if affine else y

    def adjoint(self, weights: Float[Array, "M p"]) -> Float[Array, "M n"]:
        M = len(self.free)
        seen = np.fft.rfft(weights, 2 * M, axis=0)
        found = np.einsum("fpn,fp->fn", self.spectrum.conj(), seen, optimize=True)
        return np.fft.irfft(found, 2 * M, axis=0)[:M]


class Impulse:
    """The responses of an adapted system's observations, worked out once for all its plans.

    goal: where the output is linearised, in physical units. steps: the longest plan.
    """

    def __init__(
        self, adapted: LinearAdapted, controls: Bool[Array, "nodes a"], goal: Float[Array, "nodes d"], steps: int
    ) -> None:
        self.adapted, self.controls, self.steps = adapted, controls, steps
        at = adapted.start(goal.copy())
        self.D = adapted.output_slopes(at[None])[0].double()
        with torch.no_grad():
            self.d = adapted.observe(at).flatten() - self.D @ at

    @cached_property
    def responses(self) -> Float[Array, "M p n"]:
        nodes, a = self.controls.shape
        inputs = self.adapted.B.unflatten(-1, (nodes, -1))[..., :a].flatten(-2)
        carried = inputs[:, torch.from_numpy(self.controls.flatten())].contiguous()
        found = []
        for _ in range(self.steps):
            found.append(self.D @ carried)
            carried = self.adapted.A @ carried
        return torch.stack(found).numpy()


class ImpulseDynamics:
    """One plan's dynamics: what the planner takes for states are the outputs y_0, y_1..y_M themselves."""

    def __init__(self, plain: BaselineDynamics, impulse: Impulse, x0: Float[Array, " s"], steps: int) -> None:
        self.plain = plain
        still = plain.rollout(x0, np.zeros((steps, impulse.responses.shape[-1])))
        D, d = impulse.D.numpy(), impulse.d.numpy()
        self.y0, free = D @ x0 + d, still @ D.T + d
        self.along = ImpulsePath(np.fft.rfft(impulse.responses[:steps], 2 * steps, axis=0), free)

    def rollout(self, x0: Float[Array, " p"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M p"]:
        each = [self.along.forward(one) for one in u.reshape(-1, *u.shape[-2:])]
        return np.stack(each).reshape(*u.shape[:-1], -1)

    def path(self, x0: Float[Array, " p"], x: Float[Array, "M p"], u: Float[Array, "M n"]) -> ImpulsePath:
        return self.along

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        return self.plain.goal(observations)

    def outputs(self, x: Float[Array, "*batch p"]) -> Float[Array, "*batch p"]:
        return x

    def output_slopes(self, x: Float[Array, "M p"]) -> Selection:
        p = x.shape[-1]
        return Selection(np.arange(p), np.ones((1, p)), p)
