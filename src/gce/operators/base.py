"""What a form of the embedding operator is: regressors from features and actions, and the operator fitted on them.

Every form writes the conditional mean of the next features as a linear map of some regressors,

    E[psi^O_i | h, a] = C' x_i(psi, a, alpha)

and the forms differ in x_i and in whether all nodes share C. The fitted operator is a value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gce.graphs.topology import Topology
from gce.operators.ridge import Moments, condition_number


@dataclass(frozen=True)
class Shape:
    """Sizes a form needs: features psi and actions of a node, and the numbers of relation and node types."""

    num_features: int
    num_actions: int
    num_relations: int
    num_node_types: int


class Form(ABC):
    """Regressors of the next features; one row a node."""

    name: ClassVar[str]
    controllable: ClassVar[bool] = True
    """Whether the next features are affine in the actions, so that a plan is a quadratic problem."""
    shared: ClassVar[bool]
    """Whether all nodes have one operator; otherwise each has its own."""
    weighted: ClassVar[bool] = False
    """Whether the regressors use Gibbs weights."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @abstractmethod
    def num_regressors(self, topology: Topology) -> int: ...

    @abstractmethod
    def num_state_regressors(self, topology: Topology) -> int:
        """How many of the first regressors are of the history; the rest are of the action, then the constant."""

    @abstractmethod
    def state_regressors(
        self,
        features: Float[Tensor, "nodes *batch features"],
        actions: Float[Tensor, "nodes *batch action"],
        weights: Float[Tensor, "edges ..."] | None,
        topology: Topology,
    ) -> Float[Tensor, "nodes *batch columns"]:
        """Those of the history; only a form that entangles both looks at the actions."""

    @abstractmethod
    def action_regressors(
        self, actions: Float[Tensor, "nodes *batch action"], topology: Topology
    ) -> Float[Tensor, "nodes *batch columns"]:
        """Those of the actions alone."""

    def constants(self, like: Float[Tensor, "nodes *batch d"], topology: Topology) -> Float[Tensor, "nodes *batch k"]:
        """A constant for each node type where all nodes share an operator, otherwise one."""
        if not self.shared:
            return like.new_ones((*like.shape[:-1], 1))
        ones = torch.nn.functional.one_hot(topology.node_type, self.shape.num_node_types).to(like.dtype)
        return ones.reshape(len(ones), *[1] * (like.ndim - 2), -1).expand(*like.shape[:-1], -1)

    def regressors(
        self,
        features: Float[Tensor, "nodes *batch features"],
        actions: Float[Tensor, "nodes *batch action"],
        weights: Float[Tensor, "edges ..."] | None,
        topology: Topology,
    ) -> Float[Tensor, "nodes *batch regressors"]:
        """All of them: history, actions, constants."""
        parts = self.state_regressors(features, actions, weights, topology), self.action_regressors(actions, topology)
        return torch.cat([*parts, self.constants(features, topology)], dim=-1)

    def moments(
        self, X: Float[Tensor, "nodes *batch D"], Y: Float[Tensor, "nodes *batch m"], topology: Topology
    ) -> list[Moments]:
        """The sums of each graph of a union, or of each of its nodes where nodes have their own operators."""
        graphs = zip(X.split(topology.splits), Y.split(topology.splits), strict=True)
        if self.shared:
            return [Moments.of(x.flatten(0, -2), y.flatten(0, -2)) for x, y in graphs]
        return [Moments.of(x.flatten(1, -2), y.flatten(1, -2)) for x, y in graphs]

    def num_constants(self, topology: Topology) -> int:
        """How many of the last regressors are constants, which no ridge penalises."""
        return self.shape.num_node_types if self.shared else 1


@dataclass(frozen=True, eq=False)
class Operator:
    """A fitted operator.

    coefficients: C, [regressors, targets], with a first axis of nodes where nodes have their own.
    channels: coefficients of the model's vector channels, where it has them.
    constants: of single nodes, beside what all share, where the model has them.
    residual: covariance of what one step leaves unexplained, of the free coordinates first; system: the matrices that
        were inverted, one for each set of targets with rows of its own; rows: samples used.
    """

    form: Form
    coefficients: Float[Tensor, "*nodes D m"]
    residual: Float[Tensor, "*sets r r"]
    system: Float[Tensor, "sets *nodes D D"]
    ridge: float
    rows: int
    channels: Float[Tensor, " k"] | None = None
    constants: Float[Tensor, "nodes m"] | None = None

    @property
    def condition(self) -> Float[Tensor, "*nodes"]:
        """Of the worst of the matrices inverted."""
        return condition_number(self.system).amax(0)

    def apply(self, X: Float[Tensor, "nodes *batch D"]) -> Float[Tensor, "nodes *batch m"]:
        """C' x of every node."""
        C = self.coefficients.to(X.dtype)
        return X @ C if C.ndim == 2 else torch.einsum("n...d,ndm->n...m", X, C)


@torch.no_grad()
def residual_by_target(
    residuals: Float[Tensor, "sets *nodes m m"],
    which: Int[Tensor, " m"],
    shares: Float[Tensor, " sets"],
) -> Float[Tensor, "*nodes m m"]:
    """One covariance from regressions on different rows.

    Target i belongs to set which[i]: its variance is that of the rows of its set, a share of all rows that the mean was
    taken over. How targets vary together is taken from the smallest set, whose rows count for all targets where sets
    are nested. The result is semi-definite.
    """
    tiny = torch.finfo(residuals.dtype).tiny
    variances = torch.diagonal(residuals, dim1=-2, dim2=-1).clamp_min(0)
    own = variances / shares.clamp_min(tiny).reshape(-1, *[1] * (variances.ndim - 1))
    own = own[which, ..., torch.arange(len(which), device=which.device)].movedim(0, -1)
    smallest = torch.where(shares > 0, shares, torch.inf).argmin()
    deviation = variances[smallest].sqrt()
    scale = torch.where(deviation > 0, own.sqrt() / deviation.clamp_min(tiny), 0.0)
    together = residuals[smallest] * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    return together + torch.diag_embed(own - torch.diagonal(together, dim1=-2, dim2=-1))


def relation_sums(
    values: Float[Tensor, "nodes *batch d"], topology: Topology, num_relations: int
) -> Float[Tensor, "nodes *batch columns"]:
    """Columns r*d to (r+1)*d: the sum of the values of the neighbours in relation r."""
    return _columns(topology.by_relation(num_relations).sum(topology.sent(values)), num_relations)


def slot_table(values: Float[Tensor, "edges *batch d"], topology: Topology) -> Float[Tensor, "nodes *batch columns"]:
    """Columns k*d to (k+1)*d: what the k-th edge into each node brings, 0 where there are fewer edges."""
    return _columns(topology.by_slot.sum(values), topology.max_degree)


def _columns(table: Float[Tensor, "places *batch d"], width: int) -> Float[Tensor, "nodes *batch columns"]:
    """The `width` places of each node, one after another, side by side."""
    return table.unflatten(0, (-1, width)).movedim(1, -2).flatten(-2)
