"""The forms of the embedding operator: regressors from features and actions, and the operator fitted on them.

Every form writes the conditional mean of the next features as a linear map of some regressors,

    E[psi^O_i | h, a] = C' x_i(psi, a, alpha)

and the forms differ in x_i and in whether all nodes share C. The fitted operator is a value. The four forms of the
paper ('Comparison of different embeddings') come first, from the most general to the most economical. A form of your
own derives from `Form` and is made known by `register_form`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gce.graphs.topology import Topology
from gce.names import add, registered
from gce.operators.pairs import Pairs
from gce.potentials import mean_field


@dataclass(frozen=True)
class Shape:
    """Sizes a form needs: features psi and actions of a node, the numbers of relation and node types, and of the heads
    of the potential, each of which has a mean field."""

    num_features: int
    num_actions: int
    num_relations: int
    num_node_types: int
    heads: int = 1


@dataclass(frozen=True, eq=False)
class Blocks:
    """C by rows: psi_i' = own' psi_i + sum over k of fields_k' (k-th field of i) + rest' (actions and constants).

    own: [features, targets], zero where a form has none. fields: one for all neighbours under the Gibbs weights of
    each head where the form is `weighted`, otherwise one for the sum of each relation. rest: actions, by relation
    where there are fields, then constants.
    """

    own: Float[Tensor, "width m"]
    fields: Float[Tensor, "k width m"]
    rest: Float[Tensor, "r m"]


class Form(ABC):
    """Regressors of the next features; one row a node.

    shape: sizes. own_block: whether the node's own features have a block beside those of its neighbours, for forms that
    leave the choice.
    """

    name: ClassVar[str]
    of_paper: ClassVar[bool] = False
    """Whether the form is one of the four that the paper compares."""
    controllable: ClassVar[bool] = True
    """Whether the next features are affine in the actions, so that a plan is a quadratic problem."""
    shared: ClassVar[bool]
    """Whether all nodes have one operator; otherwise each has its own."""
    weighted: ClassVar[bool] = False
    """Whether the regressors use Gibbs weights."""
    pairs: ClassVar[bool] = False
    """Whether each pair of nodes has an operator of its own for actions (`gce.operators.pairs`); the regressors then
    hold the node's own actions, from which those of all are gathered."""
    hyper: ClassVar[bool] = False
    """Whether the weights are followed by those of hyperedges, one a membership (`gce.graphs.hyperedges`)."""
    pairwise: ClassVar[str] = ""
    """The form that is left without hyperedges, of one that uses them; training takes it where they tell nothing."""
    averaged: ClassVar[bool] = False
    """Whether operators of the history are means over the nodes that they act on, each neighbour apart."""

    def __init__(self, shape: Shape, own_block: bool = True) -> None:
        self.shape, self.own_block = shape, own_block

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

    def num_constants(self, topology: Topology) -> int:
        """How many of the last regressors are constants, which no ridge penalises."""
        return self.shape.num_node_types if self.shared else 1

    def groups(self, topology: Topology) -> Int[Tensor, " D"]:
        """Which regressors are regressed together where estimators are not joint: those of one number."""
        numbers = torch.ones(self.num_regressors(topology), dtype=torch.int64)
        numbers[: self.num_state_regressors(topology)] = 0
        return numbers

    def reach(self, topology: Topology) -> Sequence[Bool[Tensor, "_ _"] | None]:
        """Of each graph, [i, j] where actions of j reach i; None for everywhere. Asked of forms with `pairs`."""
        return [None] * len(topology.splits)

    def blocks(self, coefficients: Float[Tensor, "*nodes D m"], width: int) -> Blocks | None:
        """How the rows of C split into the block of a node's own features and fields of its neighbours'.

        width: how many features of a node the operator acts on. None where the form has no such blocks, the default.
        """
        return None


FORMS: dict[str, type[Form]] = {}
"""The forms by name."""


def register_form(cls: Any) -> Any:
    """Make a form known by its name, as a decorator or a call; `del FORMS[name]` takes it out again."""
    return add(FORMS, cls, Form, needs=("shared",))


def make_form(name: str, shape: Shape, own_block: bool = True) -> Form:
    """A form by name; own_block: whether a form that has a block of a node's own features uses it."""
    return registered(FORMS, name, "form")(shape, own_block)


@register_form
class TensorForm(Form):
    """sum over j in E(i) of C_{O^i|A^jH^j} [psi_j (x) psi^a_j], an operator for every edge.

    The action feature is [1, a], so that a node without action still has an effect. History and action are entangled:
    it predicts, but a plan is not a quadratic problem.
    """

    name, of_paper, controllable, shared = "tensor", True, False, False

    def _columns(self) -> int:
        return self.shape.num_features * (1 + self.shape.num_actions)

    def num_regressors(self, topology: Topology) -> int:
        return topology.max_degree * self._columns() + 1

    def num_state_regressors(self, topology: Topology) -> int:
        return self.num_regressors(topology) - 1

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        action_features = torch.cat([torch.ones_like(features[..., :1]), actions], dim=-1)
        product = (features.unsqueeze(-1) * action_features.unsqueeze(-2)).flatten(-2)
        return slot_table(topology.sent(product), topology)

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return actions[..., :0]

    def groups(self, topology: Topology) -> Tensor:
        return _by_slot(topology, self._columns())


@register_form
class DenseForm(Form):
    """sum over j in E(i) of C_{O^i|H^j} psi_j + C_{O^i|A^j} a_j, operators for every edge."""

    name, of_paper, shared = "dense", True, False

    def num_regressors(self, topology: Topology) -> int:
        return topology.max_degree * (self.shape.num_features + self.shape.num_actions) + 1

    def num_state_regressors(self, topology: Topology) -> int:
        return topology.max_degree * self.shape.num_features

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        return slot_table(topology.sent(features), topology)

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return slot_table(topology.sent(actions), topology)

    def groups(self, topology: Topology) -> Tensor:
        return _by_slot(topology, self.shape.num_features, self.shape.num_actions)


@register_form
class HomForm(Form):
    """sum over relations r of C_r (sum of psi_j in relation r), one operator a relation, uniform weights.

    This is the compositional Koopman operator of Li et al. (2020).
    """

    name, of_paper, shared = "hom", True, True

    def num_regressors(self, topology: Topology) -> int:
        s = self.shape
        return s.num_relations * (s.num_features + s.num_actions) + s.num_node_types

    def num_state_regressors(self, topology: Topology) -> int:
        return self.shape.num_relations * self.shape.num_features

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        return relation_sums(features, topology, self.shape.num_relations)

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return relation_sums(actions, topology, self.shape.num_relations)

    def groups(self, topology: Topology) -> Tensor:
        numbers = super().groups(topology) * self.shape.num_relations
        history = self.num_state_regressors(topology)
        numbers[:history] = torch.arange(self.shape.num_relations).repeat_interleave(self.shape.num_features)
        return numbers

    def blocks(self, coefficients: Tensor, width: int) -> Blocks:
        k = self.shape.num_relations
        fields = coefficients[: k * width].unflatten(0, (k, width))
        return Blocks(torch.zeros_like(fields[0]), fields, coefficients[k * width :])


@register_form
class HomMeanForm(Form):
    """C_self psi_i + C_mean (sum over j in E(i) of alpha_ij psi_j) + actions per relation, shared by all nodes.

    own_block: with C_self, the default; without it the history acts as in the paper's equation.
    """

    name, of_paper, shared, weighted = "hom_mean", True, True, True

    def num_regressors(self, topology: Topology) -> int:
        s = self.shape
        return self.num_state_regressors(topology) + s.num_relations * s.num_actions + s.num_node_types

    def num_state_regressors(self, topology: Topology) -> int:
        return self.shape.num_features * (self.shape.heads + self.own_block)

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        if weights is None:
            raise ValueError("hom_mean needs the Gibbs weights")
        field = mean_field(weights, features, topology)
        return torch.cat([features, field], dim=-1) if self.own_block else field

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return relation_sums(actions, topology, self.shape.num_relations)

    def blocks(self, coefficients: Tensor, width: int) -> Blocks | None:
        own = coefficients[:width] if self.own_block else torch.zeros_like(coefficients[:width])
        after, heads = coefficients[width:] if self.own_block else coefficients, self.shape.heads
        return Blocks(own, after[: heads * width].unflatten(0, (heads, width)), after[heads * width :])


@register_form
class LocalForm(Form):
    """C psi_i + B a_i, each node alone and shared by all: for features and actions that hold what others do."""

    name, shared = "local", True

    def num_regressors(self, topology: Topology) -> int:
        return self.shape.num_features + self.shape.num_actions + self.shape.num_node_types

    def num_state_regressors(self, topology: Topology) -> int:
        return self.shape.num_features

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        return features

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return actions

    def blocks(self, coefficients: Tensor, width: int) -> Blocks:
        own, rest = coefficients[:width], coefficients[width:]
        return Blocks(own, own.new_zeros(0, *own.shape), rest)


PAPER_FORMS = tuple(name for name, form in FORMS.items() if form.of_paper)
"""Names of the four forms that the paper compares."""


@dataclass(frozen=True, eq=False)
class Operator:
    """A fitted operator.

    coefficients: C, [regressors, targets], with a first axis of nodes where nodes have their own.
    channels: coefficients of the model's vector channels, where it has them.
    constants: of single nodes, beside what all share, where the model has them; pairs: of their actions likewise.
    residual: covariance of what one step leaves unexplained, of the free coordinates first; system: the matrices that
        were inverted, one for each set of targets with rows of its own; rows: samples used.
    """

    form: Form
    coefficients: Float[Tensor, "*nodes D m"]
    residual: Float[Tensor, "*sets r r"]
    system: Float[Tensor, "sets *nodes D D"]
    ridge: float
    rows: float
    channels: Float[Tensor, " k"] | None = None
    constants: Float[Tensor, "nodes m"] | None = None
    pairs: Pairs | None = None

    @property
    def condition(self) -> Float[Tensor, "*nodes"]:
        """Of the worst of the matrices inverted."""
        return condition_number(self.system).amax(0)

    def apply(self, X: Float[Tensor, "nodes *batch D"]) -> Float[Tensor, "nodes *batch m"]:
        """C' x of every node."""
        C = self.coefficients.to(X.dtype)
        return X @ C if C.ndim == 2 else torch.einsum("n...d,ndm->n...m", X, C)


def condition_number(system: Float[Tensor, "*sets D D"]) -> Float[Tensor, "*sets"]:
    """The largest eigenvalue over the smallest."""
    spectrum = torch.linalg.eigvalsh(system.detach())
    return spectrum[..., -1] / spectrum[..., 0].clamp_min(torch.finfo(torch.float64).tiny)


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


def _by_slot(topology: Topology, *widths: int) -> Int[Tensor, " D"]:
    """A number for each slot of each part, which has so many columns a slot, and one for the constant."""
    slots = torch.arange(topology.max_degree)
    parts = [(slots + k * len(slots)).repeat_interleave(width) for k, width in enumerate(widths)]
    return torch.cat([*parts, torch.tensor([len(widths) * len(slots)])])


def _columns(table: Float[Tensor, "places *batch d"], width: int) -> Float[Tensor, "nodes *batch columns"]:
    """The `width` places of each node, one after another, side by side."""
    return table.unflatten(0, (-1, width)).movedim(1, -2).flatten(-2)
