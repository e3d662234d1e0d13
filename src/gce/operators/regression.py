"""The regression that an operator comes from: sums over episodes, and the fit in closed form.

Targets that are held at nodes of some types (a mass on a rail keeps its height) have sums of their own, without these
nodes' rows. Vector channels Z, where a model has them, are fitted first, one coefficient each; what they leave is
explained by the form's regressors X as pushes along pairs.

Nodes may have constants b_i of their own beside what all share, y = C'x + b_i, with kappa |b_i|^2 added to the sum of
squares: what is unknown of a node but does not change (Wooldridge 2010, chapter 10). Minimised over b_i, each node
takes its sums s_i s_i' / (k + kappa) off the moments, k its number of rows.

The only regularised solve in the package.

With regressors X [rows, D] and targets Y [rows, m],

    C = (X'X / rows + diag(ridge))^-1 X'Y / rows

which minimises the mean of |y - C'x|^2 plus the ridge on C: added to the covariance operator, as in the paper. All that
data contribute are the sums in `Moments`, which add up: adapting on episodes one by one equals adapting on all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import nnls
from torch import Tensor

from gce.errors import InputError
from gce.graphs.topology import Topology
from gce.operators.additive import SHARED, Additive, cholesky
from gce.operators.forms import Form, Operator, condition_number, residual_by_target
from gce.operators.pairs import PairSums, Solved


@dataclass(frozen=True)
class Moments(Additive):
    """gram X'X, cross X'Y, square Y'Y and the number of rows; `*sets` are independent regressions."""

    gram: Float[Tensor, "*sets D D"]
    cross: Float[Tensor, "*sets D m"]
    square: Float[Tensor, "*sets m m"]
    rows: float

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
    groups: Int[Tensor, " D"] | None = None,
) -> Solution:
    """Solve in float64 by Cholesky; gradients flow through.

    groups: columns of one number are regressed together and others apart, as the paper's appendix does; None solves
        jointly.
    """
    gram, cross = moments.gram / moments.rows, moments.cross / moments.rows
    system = gram + torch.diag(ridge.double())
    # A regressor that is always zero and not penalised has coefficient zero, whatever stands here.
    system = system + torch.diag_embed((system.diagonal(dim1=-2, dim2=-1) == 0).double())
    if groups is not None:
        system = system * (groups.unsqueeze(0) == groups.unsqueeze(1))
    C = torch.cholesky_solve(cross, cholesky(system))
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
    factor = cholesky(solution.system[broken]).detach()
    B = torch.linalg.solve_triangular(factor, A.mT, upper=False)
    problems = torch.cat([B, factor.mT @ c[broken].detach().unsqueeze(-1)], dim=-1).numpy()
    multipliers = torch.as_tensor(np.stack([nnls(one[:, :-1], one[:, -1])[0] for one in problems]))
    change = torch.cholesky_solve(A.mT @ multipliers.unsqueeze(-1), factor).squeeze(-1)
    return c - torch.zeros_like(c).index_put((broken,), change)


@dataclass(frozen=True)
class FieldSums(Additive):
    """Sums over rows of vector channels Z for each free coordinate y: Z'Z, Z'y, y'y; and X'P, where P are the pushes
    along pairs that are behind the channels."""

    gram: Float[Tensor, "free k k"]
    cross: Float[Tensor, "free k"]
    square: Float[Tensor, " free"]
    mixed: Float[Tensor, "*nodes D pairs k"]

    def left(self, channels: Float[Tensor, " k"]) -> Float[Tensor, " free"]:
        """The sums of squares that the channels leave of the free coordinates."""
        kept = torch.einsum("k,fkl,l->f", channels, self.gram, channels) - 2 * self.cross @ channels
        return self.square + kept


@dataclass(frozen=True)
class FieldRows:
    """Increments y of the free coordinates, the channels Z that explain them, and the pushes P behind the channels."""

    increments: Float[Tensor, "nodes batch free"]
    channels: Float[Tensor, "nodes batch free k"]
    pushes: Float[Tensor, "nodes batch pairs k"]


@dataclass(frozen=True)
class NodeSums(Additive):
    """Sums of the regressors and of the targets of each node, of a type, which constants of its own follow from."""

    X: Float[Tensor, "nodes D"]
    Y: Float[Tensor, "nodes m"]
    node_type: Int[Tensor, " nodes"] = field(metadata=SHARED)

    def without(self, moments: Moments, share: Float[Tensor, "sets nodes"]) -> Moments:
        """The moments after the nodes' constants; share: 1 / (k + kappa) where the targets of a set move."""
        X, Y = share.unsqueeze(-1) * self.X, share.unsqueeze(-1) * self.Y
        return replace(
            moments,
            gram=moments.gram - X.mT @ self.X,
            cross=moments.cross - X.mT @ self.Y,
            square=moments.square - Y.mT @ self.Y,
        )


@dataclass(frozen=True)
class Sums(Additive):
    """All that episodes contribute to the operator of their system; they add up, and can be taken out again."""

    moments: Moments
    fields: FieldSums | None = None
    nodes: NodeSums | None = None
    pairs: PairSums | None = None


@dataclass(frozen=True, eq=False)
class Regression:
    """Sums and fits for targets, those that move the state first.

    held: whether a target never moves at nodes of a type. node_constants: kappa of constants of single nodes, where
        there are any. prior: of the coefficients of vector channels, where there are any. acting: which inputs nodes of
        a type may have, all where it is not known; for forms with operators of single pairs.
    """

    form: Form
    held: Bool[Tensor, "types m"]
    node_constants: float = 0.0
    prior: Prior | None = None
    acting: Bool[Tensor, "types a"] | None = None

    def sums(
        self,
        X: Float[Tensor, "nodes batch D"],
        Y: Float[Tensor, "nodes batch m"],
        topology: Topology,
        fields: FieldRows | None = None,
        systems: int = 1,
    ) -> list[Sums]:
        """The sums of each graph; of each of the `systems` that the batch consists of, one after another."""
        X, Y = X.double(), Y.double()
        by_graph = zip(X.split(topology.splits), Y.split(topology.splits), strict=True)
        types = topology.node_type.split(topology.splits)
        graphs = [
            (x.unflatten(1, (systems, -1)).transpose(0, 1), y.unflatten(1, (systems, -1)).transpose(0, 1), node_type)
            for (x, y), node_type in zip(by_graph, types, strict=True)
        ]
        history = self.form.num_state_regressors(topology)
        if self.form.pairs:
            near = self.form.reach(topology)
            return [s for graph, one in zip(graphs, near, strict=True) for s in self._paired(*graph, history, one)]
        moments = [m for graph in graphs for m in self._moments(*graph, history)]
        if fields is None and self.node_constants and self.form.shared:  # otherwise nodes have all of their own
            nodes = [NodeSums(x, y, t) for X, Y, t in graphs for x, y in zip(X.sum(2), Y.sum(2), strict=True)]
            return [Sums(m, None, of_graph) for m, of_graph in zip(moments, nodes, strict=True)]
        if fields is None:
            return [Sums(m) for m in moments]
        rows = (X, fields.increments, fields.channels, fields.pushes)
        of_fields = [
            self._fields(*part)
            for of_graph in zip(*(row.split(topology.splits) for row in rows), strict=True)
            for part in zip(*(row.chunk(systems, dim=1) for row in of_graph), strict=True)
        ]
        return [Sums(m, of_graph) for m, of_graph in zip(moments, of_fields, strict=True)]

    def _paired(
        self,
        X: Float[Tensor, "systems nodes batch D"],
        Y: Float[Tensor, "systems nodes batch m"],
        node_type: Int[Tensor, " nodes"],
        history: int,
        near: Bool[Tensor, "nodes nodes"] | None,
    ) -> list[Sums]:
        """The sums of each system; what inputs do is kept apart, pair by pair."""
        if len(self.patterns[0]) > 1:
            raise InputError(f"the form {self.form.name!r} is for features of which none is held; choose another form")
        state, inputs, rest = X.split([history, a := self.form.shape.num_actions, X.shape[-1] - history - a], dim=-1)
        X = torch.cat([state, torch.zeros_like(inputs), rest], dim=-1)
        pairs = [PairSums.of(*part, node_type, self.acting, near) for part in zip(inputs, X, Y, strict=True)]
        return [Sums(m, pairs=p) for m, p in zip(self._moments(X, Y, node_type, history), pairs, strict=True)]

    def _moments(
        self,
        X: Float[Tensor, "systems nodes batch D"],
        Y: Float[Tensor, "systems nodes batch m"],
        node_type: Int[Tensor, " nodes"],
        history: int,
    ) -> list[Moments]:
        """The sums of each system, for each pattern of held targets one after another."""
        patterns = self.patterns[0]
        rows = X.shape[2] * (X.shape[1] if self.form.shared else 1)
        if self.form.shared:
            # Nodes of types that hold the same targets add up once; a pattern then takes those that move.
            types, which = self._types
            chosen = [(which[node_type] == k).nonzero().squeeze(1) for k in range(len(types))]
            by_kind = [Moments.of(X[:, mine].flatten(1, 2), Y[:, mine].flatten(1, 2)) for mine in chosen]
            keep = (~types.T).to(X.dtype)
            sums = [
                torch.tensordot(keep, torch.stack([getattr(m, name) for m in by_kind]), 1).transpose(0, 1)
                for name in ("gram", "cross", "square")
            ]
        else:
            keep = (~patterns[:, node_type]).to(X.dtype)[..., None, None]
            each = Moments.of(X, Y)
            if self.form.averaged:  # of the history, what it tells of the mean of all nodes
                told = X[..., :history].mT @ Y.mean(1, keepdim=True)
                each = replace(each, cross=torch.cat([told, each.cross[..., history:, :]], dim=-2))
            sums = [keep * value.unsqueeze(1) for value in (each.gram, each.cross, each.square)]
        return [Moments(gram, cross, square, rows) for gram, cross, square in zip(*sums, strict=True)]

    def _fields(self, X: Tensor, Y: Tensor, Z: Tensor, P: Tensor) -> FieldSums:
        x, y, z, p = X.double(), Y.double(), Z.double(), P.double()
        if self.form.shared:
            x, p = x.flatten(0, 1).unsqueeze(0), p.flatten(0, 1).unsqueeze(0)
        mixed = (x.mT @ p.flatten(2)).unflatten(2, p.shape[2:])
        y, z = y.flatten(0, 1).T.unsqueeze(-1), z.flatten(0, 1).transpose(0, 1)  # coordinates first
        cross = (z.mT @ y).squeeze(-1)
        return FieldSums(z.mT @ z, cross, y.square().sum((1, 2)), mixed[0] if self.form.shared else mixed)

    @cached_property
    def _types(self) -> tuple[Bool[Tensor, "kinds patterns"], Int[Tensor, " types"]]:
        """The different rows of the patterns, and which of them each node type has."""
        return torch.unique(self.patterns[0].T, dim=0, return_inverse=True)

    @cached_property
    def patterns(self) -> tuple[Bool[Tensor, "patterns types"], Int[Tensor, " m"]]:
        """The different columns of `held`, and which of them each target has."""
        return torch.unique(self.held.T, dim=0, return_inverse=True)

    def fit(self, sums: Sums, topology: Topology, ridge: float, joint: bool = True) -> Operator:
        """The operator of one system, in closed form.

        joint: history and action in one regression; otherwise separately, as in the paper's appendix.
        """
        return self.fit_all([sums], topology, ridge, joint)[0]

    def fit_all(self, sums: Sequence[Sums], topology: Topology, ridge: float, joint: bool = True) -> list[Operator]:
        """The operators of several systems, solved at once where they have equally many rows (and nodes)."""
        if len({(s.moments.rows, s.moments.gram.shape) for s in sums}) > 1:
            return [self.fit(s, topology, ridge, joint) for s in sums]
        channels = self._channels(sums)
        left = [s.moments if c is None else _left_by(s, c) for s, c in zip(sums, channels, strict=True)]
        shares = [self._share(s) for s in sums]
        moments = [
            m if share is None or s.nodes is None else s.nodes.without(m, share)
            for m, s, share in zip(left, sums, shares, strict=True)
        ]
        pairs = [s.pairs.solved(s.moments.rows, ridge, joint) for s in sums if s.pairs is not None]
        if joint and pairs:
            moments = [_without(m, p) for m, p in zip(moments, pairs, strict=True)]
        D, expected = moments[0].gram.shape[-1], self.form.num_regressors(topology)
        if expected != D:
            raise ValueError(f"the sums are of {D} regressors, the form has {expected}")
        gram, cross, square = (torch.stack([getattr(m, n) for m in moments]) for n in ("gram", "cross", "square"))
        penalty = torch.full((D,), ridge, dtype=torch.float64, device=gram.device)
        penalty[D - self.form.num_constants(topology) :] = 0
        groups = None if joint and not self.form.averaged else self.form.groups(topology).to(gram.device)
        solution = solve(Moments(gram, cross, square, moments[0].rows), penalty, groups)
        patterns, which = self.patterns
        moving = (~patterns[:, topology.node_type]).double().mean(-1)
        moving = moving if self.form.shared else torch.ones_like(moving)
        residuals = residual_by_target(solution.residual.transpose(0, 1), which, moving)
        coefficients = solution.coefficients[:, which, ..., torch.arange(len(which))].movedim(0, -1)
        operators = []
        for k, (of_system, of_channels, share) in enumerate(zip(sums, channels, shares, strict=True)):
            C, residual, rows = coefficients[k], residuals[k], moments[k].rows
            if of_system.fields is not None and of_channels is not None:
                residual = _with_channels(residual, of_system.fields, of_channels, rows)
            constants = None
            if share is not None and of_system.nodes is not None:
                constants = share[which].T * (of_system.nodes.Y - of_system.nodes.X @ C)
            of_pairs = pairs[k].operators(C) if pairs else None
            system = solution.system[k]
            operators.append(Operator(self.form, C, residual, system, ridge, rows, of_channels, constants, of_pairs))
        return operators

    def _channels(self, sums: Sequence[Sums]) -> Sequence[Tensor | None]:
        """The coefficients of vector channels of each system: one regression over all rows and coordinates, each
        channel in units of its own size."""
        fields = [s.fields for s in sums if s.fields is not None]
        if not fields or self.prior is None:
            return [None] * len(sums)
        gram, cross = (torch.stack([getattr(f, name).sum(0) for f in fields]) for name in ("gram", "cross"))
        rows = sums[0].moments.rows
        size = torch.diagonal(gram, dim1=1, dim2=2).div(rows).clamp_min(1e-12).sqrt()
        scaled = gram / size.unsqueeze(2) / size.unsqueeze(1)
        moments = Moments(scaled, (cross / size).unsqueeze(2), cross.new_zeros(len(fields), 1, 1), rows)
        return (solve_below(moments, Prior(self.prior.ridge, self.prior.below / size.unsqueeze(1))) / size).unbind()

    def _share(self, sums: Sums) -> Float[Tensor, "sets nodes"] | None:
        """1 / (k + kappa) of each node where the targets of a set move, where nodes have constants of their own."""
        if sums.nodes is None:
            return None
        moving = (~self.patterns[0][:, sums.nodes.node_type]).double()
        return moving / (sums.moments.rows / len(sums.nodes.X) + self.node_constants)


def _with_channels(
    residual: Float[Tensor, "*nodes m m"], fields: FieldSums, channels: Float[Tensor, " k"], rows: float
) -> Float[Tensor, "r r"]:
    """The residual with the free coordinates in the place of pushes.

    Of what the channels leave, the operator's share and how it varies together are not followed.
    """
    pairs = fields.mixed.shape[-2]
    features = residual[..., pairs:, pairs:]
    features = features if features.ndim == 2 else features.mean(0)
    return torch.block_diag(torch.diag(fields.left(channels) / rows), features)


def _without(moments: Moments, solved: Solved) -> Moments:
    """What the inputs of pairs leave to the form's regressors (Frisch and Waugh 1933)."""
    gram, cross, square = solved.explained(moments.gram.shape[-1])
    return replace(moments, gram=moments.gram - gram, cross=moments.cross - cross, square=moments.square - square)


def _left_by(sums: Sums, channels: Float[Tensor, " k"]) -> Moments:
    """What channels leave to the form's regressors."""
    assert sums.fields is not None
    beyond = sums.moments.cross.shape[-1] - sums.fields.mixed.shape[-2]
    explained = torch.nn.functional.pad(sums.fields.mixed @ channels, (0, beyond))
    return replace(sums.moments, cross=sums.moments.cross - explained)


def moments_of(
    form: Form, X: Float[Tensor, "nodes *batch D"], Y: Float[Tensor, "nodes *batch m"], topology: Topology
) -> list[Moments]:
    """The sums of each graph of a union, or of each of its nodes where nodes have their own operators."""
    first = 0 if form.shared else 1
    graphs = zip(X.split(topology.splits), Y.split(topology.splits), strict=True)
    return [Moments.of(x.flatten(first, -2), y.flatten(first, -2)) for x, y in graphs]
