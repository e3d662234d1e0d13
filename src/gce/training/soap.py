"""SOAP: Adam in the eigenvectors of the mean outer products of a matrix's gradients (Vyas et al. 2024).

    L <- b L + (1 - b) G G',   R <- b R + (1 - b) G' G,   Q_L, Q_R: their eigenvectors
    W <- W - rate Q_L U Q_R',   U = Q_L' M Q_R / sqrt(mean of (Q_L' G Q_R)^2),   M: mean of G

The eigenvectors Q follow by a power iteration every ten steps. What is no matrix takes Adam's steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

MEMORY = 0.95
"""How much of its means a step keeps."""
EVERY = 10
SMALLEST = 1e-8


class Soap(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group["lr"])

    def _move(self, parameter: Tensor, grad: Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state |= {"step": 0, "mean": torch.zeros_like(grad), "square": torch.zeros_like(grad)}
            if grad.ndim == 2 and min(grad.shape) > 1:
                for side, outer in (("left", grad @ grad.T), ("right", grad.T @ grad)):
                    tiny = 1e-12 * torch.eye(len(outer), device=grad.device)
                    state |= {side: outer, f"{side}_basis": torch.linalg.eigh(outer + tiny)[1].flip(1).contiguous()}
        state["step"] += 1
        matrix, kept = "left" in state, 1 - MEMORY ** int(state["step"])
        Q = (state["left_basis"], state["right_basis"]) if matrix else None
        state["mean"].lerp_(grad, 1 - MEMORY)
        state["square"].lerp_((grad if Q is None else Q[0].T @ grad @ Q[1]).square(), 1 - MEMORY)
        mean = state["mean"] if Q is None else Q[0].T @ state["mean"] @ Q[1]
        along = mean / kept / ((state["square"] / kept).sqrt() + SMALLEST)
        parameter.sub_(along if Q is None else Q[0] @ along @ Q[1].T, alpha=rate)
        if matrix:
            state["left"].lerp_(grad @ grad.T, 1 - MEMORY)
            state["right"].lerp_(grad.T @ grad, 1 - MEMORY)
            if int(state["step"]) % EVERY == 0:
                for axis, side in enumerate(("left", "right")):
                    self._follow(state, side, axis)

    def _follow(self, state: dict[str, Any], side: str, axis: int) -> None:
        """The eigenvectors of one side, by a power iteration; the largest first."""
        Q, outer = state[f"{side}_basis"], state[side]
        order = (Q * (outer @ Q)).sum(0).argsort(descending=True)
        state["square"] = state["square"].index_select(axis, order)
        state[f"{side}_basis"] = torch.linalg.qr(outer @ Q[:, order])[0].contiguous()  # bit for bit as from a file
