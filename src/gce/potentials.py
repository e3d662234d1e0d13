"""Pair-wise potentials f and the Boltzmann-Gibbs weights they give (paper, equation 'Gibbs measure').

    alpha_ij = exp f(psi_i, psi_j) / sum over k in E(i) of exp f(psi_i, psi_k)

E(i) is the inclusive neighbourhood. Hyper-parameters are positive and kept as logarithms; they are learned with the
encoder, or stay what they were given. A potential of your own derives from `Potential` and is made known by
`register_potential`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.errors import InputError
from gce.graphs.topology import Topology
from gce.names import add, registered

TINY = torch.finfo(torch.float32).tiny
MOST_HEADS = 64
NEAR, FAR = 2.0, 20.0
"""Bandwidths that heads of attention begin with."""
FASTER = 10.0
"""How much further than other weights a step of training moves queries and keys."""
FEATURE_UNIT = 50.0
"""What queries and keys divide features by."""


class Potential(nn.Module, ABC):
    """f on the features of receivers i and senders j, one number an edge.

    at_most_own: whether f is at most zero, and zero of a node and itself. Every neighbourhood includes the node, so the
        sum of exp f is at least one then.
    """

    name: ClassVar[str]
    at_most_own: ClassVar[bool] = False
    valued: ClassVar[bool] = False
    """Whether it has a hyper-parameter."""
    attributed: ClassVar[bool] = False
    """Whether it sees the attributes of nodes beside their features; the number of features then counts both."""
    heads: int = 1
    """How many scores an edge has, on a last axis where there are several; each makes a mean field of its own."""

    @classmethod
    def make(cls, num_features: int, value: float, learned: bool) -> Potential:
        """One for features of that number; value: its hyper-parameter, if it has one, and whether that is learned."""
        return cls()

    def measure(self, mean: Tensor, std: Tensor) -> None:
        """Take units of the attributes of nodes, before training; empty where there are none."""
        return

    @property
    def concentration(self) -> float | None:
        """c where f = -c |psi_i - psi_j|^2, None where f has another form."""
        return None

    @abstractmethod
    def forward(
        self, receivers: Float[Tensor, "edges *batch d"], senders: Float[Tensor, "edges *batch d"]
    ) -> Float[Tensor, "edges ..."]: ...

    def on(self, topology: Topology) -> Callable[[Tensor], Tensor]:
        """What scores the edges of a topology by features; what only hyper-parameters decide is worked out here."""
        return lambda features: self(topology.received(features), topology.sent(features))


POTENTIALS: dict[str, type[Potential]] = {}
"""The potentials by name."""


def register_potential(cls: Any) -> Any:
    """Make a potential known by its name, as a decorator or a call; `del POTENTIALS[name]` takes it out again."""
    return add(POTENTIALS, cls, Potential)


class _Distance(Potential):
    """A potential of psi_i - psi_j alone, whose sign does not matter."""

    at_most_own = True

    @abstractmethod
    def of_difference(self) -> Callable[[Tensor], Tensor]: ...

    def forward(self, receivers: Tensor, senders: Tensor) -> Tensor:
        return self.of_difference()(receivers - senders)

    def on(self, topology: Topology) -> Callable[[Tensor], Tensor]:
        score = self.of_difference()
        return lambda features: topology.by_distance(score, features)


class _Scaled(Potential):
    """A potential with one positive hyper-parameter."""

    valued = True

    def __init__(self, value: float = 1.0, learned: bool = True) -> None:
        super().__init__()
        if not 0 < value < math.inf:
            raise InputError(f"a potential's hyper-parameter must be positive, got {value}")
        self._log = nn.Parameter(torch.tensor(math.log(value)), requires_grad=learned)

    @classmethod
    def make(cls, num_features: int, value: float, learned: bool) -> Potential:
        return cls(value, learned)

    @property
    def value(self) -> Tensor:
        return self._log.exp()


@register_potential
class Gaussian(_Distance, _Scaled):
    """f = -|psi_i - psi_j|^2 / (2 sigma^2); value: the bandwidth sigma."""

    name = "gaussian"

    def of_difference(self) -> Callable[[Tensor], Tensor]:
        # A bandwidth whose square underflows must not make 0 / 0 of a node and itself.
        factor = -1 / (2 * self.value**2).clamp_min(TINY)
        return lambda difference: difference.square().sum(-1) * factor

    @property
    def concentration(self) -> float:
        return 1 / max(2 * float(self.value.detach()) ** 2, TINY)


@register_potential
class Laplace(_Distance, _Scaled):
    """f = -|psi_i - psi_j|_1 / lambda; value: the scale lambda."""

    name = "laplace"

    def of_difference(self) -> Callable[[Tensor], Tensor]:
        factor = -1 / self.value.clamp_min(TINY)
        return lambda difference: difference.abs().sum(-1) * factor


@register_potential
class VonMisesFisher(_Scaled):
    """f = kappa cos(psi_i, psi_j); value: the concentration kappa."""

    name = "vmf"

    def forward(self, receivers: Tensor, senders: Tensor) -> Tensor:
        return self.value * nn.functional.cosine_similarity(receivers, senders, dim=-1, eps=1e-8)


@register_potential
class Neural(Potential):
    """f = MLP([psi_i, psi_j])."""

    name = "mlp"

    def __init__(self, num_features: int, width: int = 32) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(2 * num_features, width), nn.SiLU(), nn.Linear(width, 1))

    @classmethod
    def make(cls, num_features: int, value: float, learned: bool) -> Potential:
        return cls(num_features)

    def forward(self, receivers: Tensor, senders: Tensor) -> Tensor:
        return self.score(torch.cat([receivers, senders], dim=-1)).squeeze(-1)


@register_potential
class Constant(Potential):
    """f = 0: every neighbour weighs the same, the mean field is the mean."""

    name, at_most_own = "constant", True

    def forward(self, receivers: Tensor, senders: Tensor) -> Tensor:
        return receivers.new_zeros(receivers.shape[:-1])

    @property
    def concentration(self) -> float:
        return 0.0


@register_potential
class Identity(Potential):
    """f = 0 of a node and itself, otherwise minus infinity: no neighbour counts. To compare with."""

    name, at_most_own = "identity", True

    def forward(self, receivers: Tensor, senders: Tensor) -> Tensor:
        same = (receivers == senders).all(-1)
        return torch.where(same, 0.0, -torch.inf).to(receivers.dtype)

    def on(self, topology: Topology) -> Callable[[Tensor], Tensor]:
        own = torch.where(topology.senders == topology.receivers, 0.0, -torch.inf)
        return lambda phi: own.to(phi).reshape(-1, *[1] * (phi.ndim - 2)).expand(-1, *phi.shape[1:-1])


@register_potential
class Attention(Potential):
    """f_h = q_i^h . k_j^h / sqrt(d) - |psi_i - psi_j|^2 / (2 sigma_h^2) of several heads h.

    Queries q and keys k are learned maps of a node's attributes, in units of their spread, and of its features, which
    count for less at first since they change with the state. Heads begin almost without the distance: where it decides,
    content has hardly a gradient. Where nodes have no attributes, the first of several begins as a Gaussian instead.

    value: how many heads there are; width: d.
    """

    name, valued, attributed = "attention", True, True
    mean: Tensor
    unit: Tensor

    def __init__(self, num_features: int, heads: int = 2, width: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(num_features, heads * width)
        self.key = nn.Linear(num_features, heads * width, bias=False)
        with torch.no_grad():
            for weights in (*self.query.parameters(), *self.key.parameters()):
                weights.div_(FASTER)
        self._log = nn.Parameter(torch.full((heads,), FAR).log())
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("unit", torch.full((num_features,), FEATURE_UNIT))

    @classmethod
    def make(cls, num_features: int, value: float, learned: bool) -> Potential:
        if not 1 <= value <= MOST_HEADS or value != int(value):
            raise InputError(f"attention has {value:g} heads, expected a whole number from 1 to {MOST_HEADS}")
        return cls(num_features, int(value))

    @torch.no_grad()
    def measure(self, mean: Tensor, std: Tensor) -> None:
        first = len(self.mean) - len(mean)
        self.mean[first:], self.unit[first:] = mean, std
        if not len(mean) and self.heads > 1:
            self._log[0] = math.log(NEAR)
            self.key.weight[: len(self.key.weight) // self.heads] = 0

    def forward(self, receivers: Tensor, senders: Tensor) -> Tensor:
        """Without attributes: of nodes that are means of several."""
        query, key = self.query(self._seen(receivers, None)), self.key(self._seen(senders, None))
        return self._score(query, key, (receivers - senders).square().sum(-1))

    def on(self, topology: Topology) -> Callable[[Tensor], Tensor]:
        def score(phi: Tensor) -> Tensor:
            seen = self._seen(phi, topology.node_attributes)
            ends = topology.received(self.query(seen)), topology.sent(self.key(seen))
            return self._score(*ends, topology.by_distance(lambda gap: gap.square().sum(-1), phi))

        return score

    def _seen(self, features: Tensor, attributes: Tensor | None) -> Tensor:
        """What queries and keys are made of."""
        count = len(self.mean) - features.shape[-1]
        beside = self.mean[-count:] if attributes is None else attributes
        if count:
            beside = beside.to(features).reshape(-1, *[1] * (features.ndim - 2), count)
            features = torch.cat([features, beside.expand(*features.shape[:-1], count)], dim=-1)
        return (features - self.mean) / self.unit

    def _score(self, queries: Tensor, keys: Tensor, squares: Tensor) -> Tensor:
        products = (queries * keys).unflatten(-1, (self.heads, -1))
        content = products.sum(-1) * (FASTER**2 / math.sqrt(products.shape[-1]))
        scores = content - squares.unsqueeze(-1) / (2 * (2 * self._log).exp().clamp_min(TINY))
        return scores if self.heads > 1 else scores.squeeze(-1)


def make_potential(
    name: str, num_features: int, value: float = 1.0, learned: bool = True, num_attributes: int = 0
) -> Potential:
    """A potential by name; value: its hyper-parameter where it has one; learned: whether training changes that."""
    known = registered(POTENTIALS, name, "potential")
    return known.make(num_features + num_attributes * known.attributed, value, learned)


def gibbs_weights(
    potential: Potential, features: Float[Tensor, "nodes *batch d"], topology: Topology
) -> Float[Tensor, "edges ..."]:
    """alpha, one number an edge (and head, the last axis); those into a node add up to one."""
    return topology.softmax(potential.on(topology)(features), potential.at_most_own)


def mean_field(
    weights: Float[Tensor, "edges ..."], features: Float[Tensor, "nodes *batch d"], topology: Topology
) -> Float[Tensor, "nodes *batch fields"]:
    """sum over j in E(i) of alpha_ij psi_j; those of several heads side by side."""
    if weights.ndim < features.ndim:
        return topology.weighted_sum(weights, features)
    return torch.cat([topology.weighted_sum(head, features) for head in weights.unbind(-1)], dim=-1)
