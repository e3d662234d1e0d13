"""What the systems of a training tell together, and what it counts for in the regression of a new one.

Where all systems follow the same laws, up to what their attributes say, the operator of a new one is nearly that of all
others, and a few noisy episodes of it tell less than theirs. Its regression then starts from the sums of those that
were trained on, a normal prior in other words (Lindley and Smith 1972):

    C = argmin  (1 / lambda) sum over own rows |y - C'x|^2  +  (K / rows_0) sum over training rows |y - C'x|^2

All training rows count for K rows (`memory`). Own rows count by how precise they are: lambda is what the
training's operator leaves unexplained of them, over what it leaves of its own rows, and at least 1. Noise on
observations stands in the regressors too and would bend the operator; rows that have it count for little.

The rows are white: noise of the training's systems that lasts is taken out by its correlation r (`coloured`).

Noise that lasts, and is larger at some nodes than at others: rows of a regression made white.

What a step leaves unexplained at node i is often a disturbance e that lasts (loads of a power grid keep for a second
what they draw) and whose size s_i differs from node to node:

    e_t = r e_{t-1} + s_i n_t,      n white, of one size

Such noise has moved the state that regressors are made of, so least squares takes it for dynamics, and the
noisiest nodes outweigh all others. Rows are whitened (Cochrane and Orcutt 1949; Aitken 1936):

    (y_t - r y_{t-1}) / s_i = C' (x_t - r x_{t-1}) / s_i + (1 - r) b_i / s_i + n_t

r and s follow from the residuals of a fit, and the fit from them, in turns. White rows vary less from step to step than
plain ones and tell less, so this is for systems where few nodes have most of the noise (`uneven`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.operators import Operator
from gce.operators.regression import Moments

LONGEST = 0.99
"""The largest r: noise that never goes would be a constant."""
SMALLEST = 1e-2
"""Of s_i, as a share of the root mean square: what nodes without noise leave is what the model leaves out."""


@dataclass(frozen=True, eq=False)
class ColouredNoise:
    """correlation: r from one step to the next; size: s_i of each node, 1 in the root mean square."""

    correlation: float
    size: Float[Tensor, " nodes"]

    @staticmethod
    def even(correlation: float, num_nodes: int) -> ColouredNoise:
        """The same at all nodes."""
        return ColouredNoise(correlation, torch.ones(num_nodes, dtype=torch.float64))

    @staticmethod
    def of(residuals: Sequence[Float[Tensor, "_ nodes m"]]) -> ColouredNoise:
        """That of the residuals of some episodes, step by step; targets count alike, nodes by what is new of them."""
        unit = torch.cat(list(residuals)).square().mean((0, 1)).sqrt().clamp_min(1e-300)
        scaled = [e / unit for e in residuals]
        weight = 1 / _size(scaled, 0.0).square()
        both = torch.stack([(e[1:] * e[:-1]).sum((0, 2)) @ weight for e in scaled]).sum()
        one = torch.stack([e[:-1].square().sum((0, 2)) @ weight for e in scaled]).sum()
        r = float((both / one).clamp(0, LONGEST)) if float(one) > 0 else 0.0
        return ColouredNoise(r, _size(scaled, r))

    @property
    def uneven(self) -> float:
        """mean s^4 / (mean s^2)^2: 1 where all nodes are alike, up to their number where one has all the noise."""
        return float(self.size.pow(4).mean() / self.size.square().mean().square())

    def whitened(self, rows: Float[Tensor, "steps nodes d"]) -> Float[Tensor, "steps_less nodes d"]:
        """Rows of an episode, one after another; the first has none before it and goes."""
        rows = rows.double()  # what is left of neighbours that are alike has few digits
        return (rows[1:] - self.correlation * rows[:-1]) / self.size.unsqueeze(-1)

    def restored(self, operator: Operator) -> Operator:
        """An operator fitted to whitened rows, its constants and residual in the units of plain ones."""
        constants = operator.constants
        if constants is not None:
            constants = constants * (self.size / (1 - self.correlation)).unsqueeze(-1)
        return replace(operator, constants=constants, residual=operator.residual / (1 - self.correlation**2))


def _size(residuals: Sequence[Float[Tensor, "_ nodes m"]], r: float) -> Float[Tensor, " nodes"]:
    new = torch.cat([e[1:] - r * e[:-1] for e in residuals]).square().mean((0, 2)).sqrt()
    mean = new.square().mean().sqrt().clamp_min(1e-300)
    size = (new / mean).clamp_min(SMALLEST)
    return size / size.square().mean().sqrt()


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

    def coloured(self, num_nodes: int) -> ColouredNoise:
        return ColouredNoise.even(float(self.correlation), num_nodes)

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
