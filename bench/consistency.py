"""Consistency: the predicted conditional embedding converges to the true one, at the rate the paper proves.

A ring of N nodes with K states each, as one-hot features (a characteristic kernel on a finite set). Each node's next
state is drawn from a mixture over its inclusive neighbourhood whose conditional embedding is known and is exactly of
the form that is fitted:

    tensor    E[psi_i'] = 1/3 sum_j P_ij [psi_j (x) psi^a_j]
    dense     E[psi_i'] = b/3 sum_j P_ij psi_j + (1 - b)/3 sum_j R_ij a_j
    hom       the same with P and R by relation (itself, from the left, from the right)
    hom_mean  the same with one P on the Gibbs mean, b P (sum_j alpha_ij psi_j), and one R

The action is one-hot too. With T samples and a ridge falling as T^-1/2, the distance between the predicted and the
true embedding (the maximum mean discrepancy) falls as T^-1/2. `bound` is the paper's (Propositions 1 and 2) for one
operator, with its unspecified constant c set to the largest squared norm of a feature.

    python -m bench.consistency --out results
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gce.graphs.graph import Graph, ring
from gce.graphs.topology import Topology
from gce.metrics import mmd
from gce.operators import PAPER_FORMS, Form, Shape, make_form
from gce.operators.regression import moments_of, solve
from gce.potentials import Gaussian, gibbs_weights
from gce.progress import progress, run_module
from gce.views import style

NODES, STATES, ACTIONS = 6, 4, 3
SAMPLES = (200, 600, 2_000, 6_000, 20_000, 60_000)
HISTORY_SHARE = 0.7
CONFIDENCE = 0.05


@dataclass(frozen=True)
class Chain:
    """A ring whose next-state distributions are known, well specified for one form."""

    form: str
    topology: Topology
    kernels: Float[Tensor, "edges states states"]
    pushes: Float[Tensor, "edges actions states"]
    joint: Float[Tensor, "edges states actions states"]
    potential: Gaussian

    @classmethod
    def draw(cls, form: str, seed: int) -> Chain:
        rng = np.random.default_rng(seed)
        # Relations of a ring: 0 itself, 1 from the left, 2 from the right.
        pairs = ring(NODES)
        edges = np.concatenate([pairs, pairs[:, ::-1]])
        kinds = np.repeat([1, 2], NODES)
        topology = Topology.of(Graph.from_edges(NODES, edges, edge_type=kinds, self_type=0))

        def distributions(*shape: int) -> Tensor:
            return torch.as_tensor(rng.dirichlet(np.full(STATES, 0.5), shape))

        # tensor and dense have operators of their own on every edge, hom one a relation, hom_mean a single one.
        owner = {
            "hom": topology.edge_type,
            "hom_mean": torch.zeros_like(topology.edge_type),
        }.get(form, torch.arange(topology.num_edges))
        kernels = distributions(topology.num_edges, STATES)[owner]
        pushes = distributions(topology.num_edges, ACTIONS)[owner]
        joint = distributions(topology.num_edges, STATES, ACTIONS)[owner]
        return cls(form, topology, kernels, pushes, joint, Gaussian(1.0, learned=False).double())

    def draw_inputs(
        self, count: int, rng: np.random.Generator
    ) -> tuple[Int[Tensor, "nodes count"], Int[Tensor, "nodes count"]]:
        shape = (count, NODES)
        return torch.as_tensor(rng.integers(0, STATES, shape)).T, torch.as_tensor(rng.integers(0, ACTIONS, shape)).T

    def embedding(
        self, states: Int[Tensor, "nodes count"], actions: Int[Tensor, "nodes count"]
    ) -> Float[Tensor, "nodes count states"]:
        """The true conditional embedding: the distribution of each node's next state."""
        t = self.topology
        h, a = states[t.senders], actions[t.senders]
        edge = torch.arange(t.num_edges)[:, None].expand_as(h)
        if self.form == "tensor":
            return t.sum(self.joint[edge, h, a]) / 3
        history = t.sum(self._weights(states).unsqueeze(-1) * self.kernels[edge, h])
        return HISTORY_SHARE * history + (1 - HISTORY_SHARE) * t.sum(self.pushes[edge, a]) / 3

    def _weights(self, states: Int[Tensor, "nodes count"]) -> Float[Tensor, "edges count"]:
        if self.form == "hom_mean":
            return gibbs_weights(self.potential, one_hot(states, STATES), self.topology)
        return torch.full((self.topology.num_edges, states.shape[1]), 1 / 3, dtype=torch.float64)

    def make_form(self) -> Form:
        # The tensor form builds [1, a] itself: the first action is its 1.
        actions = ACTIONS - 1 if self.form == "tensor" else ACTIONS
        return make_form(self.form, Shape(STATES, actions, 3, 1), own_block=False)

    def regressors(self, form: Form, states: Tensor, actions: Tensor) -> Tensor:
        features, pushes = one_hot(states, STATES), one_hot(actions, ACTIONS)
        if self.form == "tensor":
            pushes = pushes[..., 1:]
        weights = self._weights(states) if form.weighted else None
        return form.regressors(features, pushes, weights, self.topology)


def one_hot(values: Int[Tensor, "*batch"], size: int) -> Float[Tensor, "*batch size"]:
    return torch.nn.functional.one_hot(values, size).double()


@dataclass(frozen=True)
class Curve:
    """Errors of one form over sample sizes; slope: of log error in log T."""

    form: str
    samples: tuple[int, ...]
    error: tuple[float, ...]
    bound: tuple[float, ...]

    @property
    def slope(self) -> float:
        return float(np.polyfit(np.log(self.samples), np.log(self.error), 1)[0])


def measure(form_name: str, samples: Sequence[int] = SAMPLES, seeds: int = 5, probes: int = 200) -> Curve:
    """The distance between predicted and true embedding, root mean square over inputs, nodes and seeds."""
    squares, bounds = np.zeros(len(samples)), np.zeros(len(samples))
    for seed in range(seeds):
        chain = Chain.draw(form_name, seed)
        form, rng = chain.make_form(), np.random.default_rng([seed, 1])
        probe = chain.draw_inputs(probes, rng)
        truth, X_probe = chain.embedding(*probe), chain.regressors(form, *probe)
        for k, count in enumerate(samples):
            states, actions = chain.draw_inputs(count, rng)
            distribution = chain.embedding(states, actions)
            drawn = (
                torch.multinomial(
                    distribution.transpose(0, 1).flatten(0, 1),
                    1,
                    generator=torch.Generator().manual_seed(seed * 1000 + k),
                )
                .reshape(count, NODES)
                .T
            )
            X = chain.regressors(form, states, actions)
            (moments,) = moments_of(form, X, one_hot(drawn, STATES), chain.topology)
            ridge = 0.1 / math.sqrt(count)
            penalty = torch.full((X.shape[-1],), ridge, dtype=torch.float64)
            solution = solve(moments, penalty)
            C = solution.coefficients
            predicted = X_probe @ C if C.ndim == 2 else torch.einsum("ncd,ndm->ncm", X_probe, C)
            squares[k] += np.square(mmd(predicted.numpy(), truth.numpy())).mean() / seeds
            bounds[k] += paper_bound(moments.gram / moments.rows, moments.rows, ridge) / seeds
    return Curve(form_name, tuple(samples), tuple(np.sqrt(squares).tolist()), tuple(bounds.tolist()))


def paper_bound(gram: Float[Tensor, "*sets D D"], rows: int, ridge: float) -> float:
    """E_1 + E_2 of the paper for the operator on regressors of this covariance, worst over independent regressions.

    E_1 = sqrt(lmax(C_OO) / lmin) (c l / (T lmin) + lambda) / (lmin + lambda),   l = log(2d / delta)
    E_2 = (sqrt(2 l v / T) + 2 l L / 3T) / ((1 - c l / (T lmin)) lmin + lambda)

    lmin is the smallest eigenvalue that is not zero by construction (one-hot features of a node add up to one).
    """
    spectrum = torch.linalg.eigvalsh(gram.reshape(-1, *gram.shape[-2:]))
    worst = 0.0
    for values in spectrum:
        active = values[values > 1e-8 * values[-1]]
        smallest, d = float(active[0]), gram.shape[-1]
        L = float(torch.diagonal(gram, dim1=-2, dim2=-1).sum(-1).max())
        log = math.log(2 * d / CONFIDENCE)
        deviation = L * log / (rows * smallest)
        first = math.sqrt(1 / smallest) * (deviation + ridge) / (smallest + ridge)
        spread = math.sqrt(2 * log * L / rows) + 2 * log * L / (3 * rows)
        second = spread / (max(1 - deviation, 0.0) * smallest + ridge)
        worst = max(worst, first + second)
    return worst


def chart(curves: Sequence[Curve], path: Path) -> None:
    figure, (left, right) = style.panels(9, 3.8, 1, 2)
    for curve in curves:
        colour = style.colour_of(curve.form)
        left.loglog(curve.samples, curve.error, "o-", color=colour, label=f"{curve.form}: slope {curve.slope:.2f}")
        right.loglog(curve.samples, curve.bound, "--", color=colour)
        right.loglog(curve.samples, curve.error, "o-", color=colour, label=curve.form)
    reference = np.array(curves[0].samples, dtype=float)
    left.loglog(
        reference, curves[0].error[0] * (reference / reference[0]) ** -0.5, ":", color="grey", label="$T^{-1/2}$"
    )
    left.set(xlabel="samples T", ylabel="MMD to the true embedding")
    right.set(xlabel="samples T", title="measured, and the paper's bound (dashed)")
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    style.save(figure, path)


@dataclass
class Consistency:
    """Measure the convergence of all four forms; write consistency.json and consistency.svg."""

    out: Path = Path("results")
    """The folder to write to."""
    seeds: int = 5
    """Random systems to average over."""

    def run(self) -> None:
        torch.set_num_threads(1)
        self.out.mkdir(parents=True, exist_ok=True)
        curves = []
        with progress("measuring", len(PAPER_FORMS), "forms") as done:
            for form in PAPER_FORMS:
                curves.append(measure(form, seeds=self.seeds))
                done(1)
        for curve in curves:
            print(f"{curve.form}: slope {curve.slope:.3f}")
        rows = [{**vars(curve), "slope": curve.slope} for curve in curves]
        (self.out / "consistency.json").write_text(json.dumps(rows, indent=2) + "\n")
        chart(curves, self.out / "consistency.svg")


if __name__ == "__main__":
    run_module(Consistency, resumes=False)
