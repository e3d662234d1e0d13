"""What the systems of a training tell together, and what it counts for in the regression of a new one.

Where all systems follow the same laws, up to what their attributes say, the operator of a new one is nearly that of all
others, and a few noisy episodes of it tell less than theirs. Its regression then starts from the sums of those that
were trained on, a normal prior in other words (Lindley and Smith 1972):

    C = argmin  (1 / lambda) sum over own rows |y - C'x|^2  +  (K / rows_0) sum over training rows |y - C'x|^2

All training rows count for K rows (`memory`). Own rows count by how precise they are: lambda is what the
training's operator leaves unexplained of them, over what it leaves of its own rows, and at least 1. Noise on
observations stands in the regressors too and would bend the operator; rows that have it count for little.

The rows are white: noise of the training's systems that lasts is taken out by its correlation r (`colour`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.operators.regression import Moments
from gce.operators.whitening import Colour


class TrainingPrior(nn.Module):
    """The sums of the training's rows and the correlation of what they leave; nothing yet while rows is 0."""

    gram: Tensor
    cross: Tensor
    square: Tensor
    rows: Tensor
    correlation: Tensor

    def __init__(self, num_regressors: int, num_targets: int, counts_for: float) -> None:
        super().__init__()
        D, m, exact = num_regressors, num_targets, torch.float64
        self.counts_for = counts_for
        self.register_buffer("gram", torch.zeros(1, D, D, dtype=exact))
        self.register_buffer("cross", torch.zeros(1, D, m, dtype=exact))
        self.register_buffer("square", torch.zeros(1, m, m, dtype=exact))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))
        self.register_buffer("correlation", torch.zeros((), dtype=exact))

    def keep(self, moments: Moments, correlation: float) -> None:
        self.gram.copy_(moments.gram)
        self.cross.copy_(moments.cross)
        self.square.copy_(moments.square)
        self.rows.fill_(moments.rows)
        self.correlation.fill_(correlation)

    @property
    def empty(self) -> bool:
        return int(self.rows) == 0

    @property
    def moments(self) -> Moments:
        return Moments(self.gram, self.cross, self.square, int(self.rows))

    def colour(self, num_nodes: int) -> Colour:
        return Colour.even(float(self.correlation), num_nodes)

    def beside(self, own: Moments, C: Float[Tensor, "D free"]) -> Moments:
        """Own rows and those remembered, weighed as above and scaled to the number of own rows.

        C: the operator of those remembered.
        """
        usual = left(self.moments, C).clamp_min(1e-300)
        imprecision = float((left(own, C) / usual).mean().clamp_min(1))  # lambda
        kept, remembered = 1 / imprecision, self.counts_for / int(self.rows)
        share = own.rows / (own.rows * kept + self.counts_for)
        gram, cross, square = (
            share * (kept * mine + remembered * known)
            for mine, known in ((own.gram, self.gram), (own.cross, self.cross), (own.square, self.square))
        )
        return Moments(gram, cross, square, own.rows)


def left(moments: Moments, C: Float[Tensor, "D free"]) -> Float[Tensor, " free"]:
    """The mean square that an operator leaves unexplained of each target."""
    free = C.shape[-1]
    gram, cross, square = moments.gram[0], moments.cross[0, :, :free], moments.square[0].diagonal()[:free]
    return (square - 2 * (C * cross).sum(0) + (C * (gram @ C)).sum(0)) / moments.rows
