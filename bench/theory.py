"""What the forms of the operator need of samples and nodes, on one stochastic system whose truth is known.

N agents on a line, each of which sees all. With features p(x), K bumps that add up to one, the next place of agent i is
drawn in three steps: a neighbour j by alpha_ij = softmax_j of -|p(x_i) - p(x_j)|^2 / (2 sigma^2); a bump k by p(x_j);
a place from the normal distribution of a bump l, l by P_kl. With the probability 1 - w its action decides instead: a
neighbour j at random, a bump by Q(a_j). So its embedding is known and linear,

    E[p(o_i)] = w sum_j alpha_ij p(x_j) P V + (1 - w) / N sum_j p(a_j) Q V,    V_lm = E[p_m(normal around bump l)]

which Hom+Mean can express for every sigma, and Hom and Dense for sigma = infinity alone. Features are these bumps
(fixed), or a small network of the place that is trained with the closed form in its loop, for each form (learned). The
paper's bounds for the sum over nodes of the error (its theorems on Hom+Mean, Hom and Dense) are

    Hom+Mean  N E_h(N T) + N^2 E_a(T)      Hom  N^2 E_h(N T) + N^2 E_a(T)      Dense  N^2 E_h(T) + N^2 E_a(T)

with E(rows) of Propositions 1 and 2, of the covariance of what one operator acts on: the mean field of a node for
Hom+Mean, the features or the action of one node elsewhere.

    python -m bench.theory --out results
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from scipy.stats import wilcoxon
from torch import Tensor

from bench.consistency import paper_bound
from bench.lines import Lines, Record, write_json
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.operators import Form, Shape, make_form
from gce.operators.regression import moments_of, solve
from gce.potentials import Potential, gibbs_weights, make_potential
from gce.progress import run_module

BUMPS, HISTORY_SHARE, SPREAD = 8, 0.7, 0.15
CENTRES = torch.linspace(-1, 1, BUMPS, dtype=torch.float64)
WIDTH = 0.5 * float(CENTRES[1] - CENTRES[0])
FORMS, FEATURES = ("hom_mean", "hom", "dense"), ("fixed", "learned")
NODES, SAMPLES = (4, 8, 16, 32, 64), (50, 150, 500, 1500)
SIGMAS = {"sharp": 0.3, "uniform": math.inf}
PROBES = 100
Map = Callable[[Float[Tensor, "*batch"]], Float[Tensor, "*batch d"]]


def bumps(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch bumps"]:
    """p(x): smooth, positive, bounded, adding up to one."""
    return torch.softmax(-((x.unsqueeze(-1) - CENTRES) ** 2) / (2 * WIDTH**2), -1)


@dataclass(frozen=True)
class Agents:
    """The system: nodes, sigma, and the matrices P and Q drawn from a seed."""

    nodes: int
    sigma: float
    seed: int

    @cached_property
    def topology(self) -> Topology:
        pairs = [(j, i) for i in range(self.nodes) for j in range(self.nodes) if i != j]
        return Topology.of(Graph.from_edges(self.nodes, pairs, self_type=1))

    @cached_property
    def potential(self) -> Potential:
        name, value = ("constant", 1.0) if math.isinf(self.sigma) else ("gaussian", self.sigma)
        return make_potential(name, BUMPS, value, learned=False).double()

    @cached_property
    def matrices(self) -> tuple[Float[Tensor, "k l"], Float[Tensor, "k l"]]:
        rng = np.random.default_rng(self.seed)
        P, Q = (torch.as_tensor(rng.dirichlet(np.full(BUMPS, 0.3), BUMPS)) for _ in range(2))
        return P, Q

    def embedding(self, x: Tensor, a: Tensor, psi: Map) -> Float[Tensor, "nodes T d"]:
        """The true E[psi(o)]; of each bump's normal distribution by Gauss-Hermite quadrature."""
        z, weight = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(40))
        V = (psi(CENTRES[:, None] + SPREAD * z) * (weight / weight.sum())[:, None]).sum(1)
        return self.mixture(x, a) @ V

    def mixture(self, x: Float[Tensor, "nodes T"], a: Float[Tensor, "nodes T"]) -> Float[Tensor, "nodes T l"]:
        """How likely each agent's next place is from each bump."""
        P, Q = self.matrices
        alpha = gibbs_weights(self.potential, bumps(x), self.topology)
        field = self.topology.weighted_sum(alpha, bumps(x))
        return HISTORY_SHARE * field @ P + (1 - HISTORY_SHARE) * (bumps(a) @ Q).mean(0)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """States and actions."""
        x, a = (torch.as_tensor(rng.uniform(-1, 1, (self.nodes, count))) for _ in range(2))
        return x, a

    def next(self, x: Tensor, a: Tensor, rng: np.random.Generator) -> Float[Tensor, "nodes T"]:
        likely = self.mixture(x, a).cumsum(-1)
        bump = (torch.as_tensor(rng.uniform(size=(*x.shape, 1))) > likely).sum(-1).clamp_max(BUMPS - 1)
        return CENTRES[bump] + SPREAD * torch.as_tensor(rng.normal(size=x.shape))


class Learned(torch.nn.Module):
    """Features of a place by a network, positive and adding up to one; weights over them; places from features."""

    def __init__(self, seed: int, weighted: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, BUMPS)).double()
        self.potential = make_potential("gaussian" if weighted else "constant", BUMPS, 0.3).double()
        self.to_place = torch.nn.Linear(BUMPS, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(3 * self.layers(x.unsqueeze(-1)), -1)


@dataclass(frozen=True)
class FormFit:
    """A form in some features on a system."""

    system: Agents
    form: Form
    psi: Map
    potential: Potential

    def regressors(self, x: Tensor, a: Tensor) -> Tensor:
        psi, topology = self.psi(x), self.system.topology
        alpha = gibbs_weights(self.potential, psi, topology) if self.form.weighted else None
        return self.form.regressors(psi, bumps(a) / self.system.nodes, alpha, topology)

    def solved(self, X: Tensor, Y: Tensor) -> tuple[Tensor, float]:
        """Coefficients, and the ridge."""
        moments = moments_of(self.form, X, Y, self.system.topology)[0]
        ridge = 0.1 / math.sqrt(moments.rows) / self.system.nodes
        return solve(moments, torch.full((X.shape[-1],), ridge, dtype=torch.float64)).coefficients, ridge

    @staticmethod
    def applied(X: Tensor, C: Tensor) -> Tensor:
        return X @ C if C.ndim == 2 else torch.einsum("ntd,ndm->ntm", X, C)


def made(form: str) -> Form:
    return make_form(form, Shape(BUMPS, BUMPS, 2, 1), own_block=False)


@cache
def learned(weights: str, form: str, seed: int, iterations: int = 300) -> Learned:
    """Trained on 8 nodes: an operator from half of the samples, its errors in features and in places on the others."""
    system, rng = Agents(8, SIGMAS[weights], seed), np.random.default_rng([seed, 7])
    network = Learned(seed, made(form).weighted)
    fit = FormFit(system, made(form), network, network.potential)
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(iterations):
        x, a = system.draw(400, rng)
        o = system.next(x, a, rng)
        X, Y = fit.regressors(x, a), network(o)
        predicted = fit.applied(X[:, 200:], fit.solved(X[:, :200], Y[:, :200])[0])
        spread = Y.flatten(0, 1).var(0).sum().clamp_min(1e-6)
        forward = (predicted - Y[:, 200:]).square().sum(-1).mean() / spread
        decoded = (network.to_place(predicted).squeeze(-1) - o[:, 200:]).square().mean()
        own = (network.to_place(Y).squeeze(-1) - o).square().mean()
        optimiser.zero_grad()
        (forward + decoded + own).backward()
        optimiser.step()
    return network.requires_grad_(False)


def measure(nodes: int, samples: int, weights: str, form: str, features: str, seed: int) -> dict[str, float]:
    """Errors of one fit: of the joint embedding (root of the sum over nodes) and of one node's, in units of
    the features' spread; the paper's bound, in the features' own unit."""
    system, rng = Agents(nodes, SIGMAS[weights], seed), np.random.default_rng([seed, nodes, samples])
    network = learned(weights, form, seed) if features == "learned" else None
    psi, potential = (bumps, system.potential) if network is None else (network, network.potential)
    fit = FormFit(system, made(form), psi, potential)
    x, a = system.draw(samples, rng)
    X = fit.regressors(x, a)
    C, ridge = fit.solved(X, psi(system.next(x, a, rng)))
    probe = system.draw(PROBES, rng)
    gap = (fit.applied(fit.regressors(*probe), C) - system.embedding(*probe, psi)).square().sum(-1)
    gap = gap / psi(probe[0]).flatten(0, 1).var(0).sum()
    shared, acted = fit.form.shared, X[..., :BUMPS] if form == "hom_mean" else psi(x)
    bound = nodes ** (1 if form == "hom_mean" else 2) * bounded(acted, samples * (nodes if shared else 1), ridge)
    bound += nodes**2 * bounded(bumps(a), samples, ridge)
    return {"error": float(gap.sum(0).sqrt().mean()), "error_a_node": float(gap.mean().sqrt()), "bound": bound}


def bounded(rows: Float[Tensor, "nodes T d"], count: int, ridge: float) -> float:
    """E_1 + E_2 of Propositions 1 and 2 for an operator on such rows, of which there are so many."""
    rows = rows.flatten(0, 1)
    return paper_bound(rows.T @ rows / len(rows), count, ridge)


# ---- characteristic features against polynomials ----

NOISES = (0.05, 0.1, 0.2, 0.4, 0.8)
PLACES = np.linspace(-4, 4, 161)
KINDS = ("fourier_16", "fourier_4", "polynomial_3", "polynomial_5")


def embedded(kind: str, x: Float[np.ndarray, "*batch"]) -> Float[np.ndarray, "*batch d"]:
    """Random Fourier features of a Gaussian kernel of width 0.5 (characteristic), or powers (not)."""
    name, size = kind.split("_")
    if name == "polynomial":
        return np.stack([x**k for k in range(1, int(size) + 1)], axis=-1)
    rng = np.random.default_rng(5)
    w, b = rng.normal(0, 2, int(size)), rng.uniform(0, 2 * np.pi, int(size))
    return np.sqrt(2 / int(size)) * np.cos(x[..., None] * w + b)


def discrepancy(kind: str, noise: float, seed: int, samples: int = 2000) -> dict[str, float]:
    """The MMD between the true conditional distribution and the one that a predicted embedding stands for.

    x' = +-x + noise, either sign alike: two modes that grow together. The distribution on some places whose embedding
    is nearest to the predicted one is compared by a Gaussian kernel of width 0.5, mean over ten states.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, samples)
    following = rng.choice([-1, 1], samples) * x + noise * rng.normal(size=samples)
    X, Y = (np.concatenate([embedded(kind, v), np.ones((samples, 1))], axis=1) for v in (x, following))
    C = np.linalg.solve(X.T @ X / samples + 1e-6 * np.eye(X.shape[1]), X.T @ Y / samples)
    at = np.linspace(0.1, 1, 10)
    predicted = np.concatenate([embedded(kind, at), np.ones((10, 1))], axis=1) @ C
    places = np.concatenate([embedded(kind, PLACES), np.ones((len(PLACES), 1))], axis=1).T
    unit = places.std(1, keepdims=True) + (places.std(1, keepdims=True) == 0)
    unit[-1] = 1e-2  # that weights add up to one
    kernel = np.exp(-((PLACES[:, None] - PLACES) ** 2) / (2 * 0.5**2))
    found = []
    for one, state in zip(predicted, at, strict=True):
        system = np.concatenate([places / unit, 1e-2 * np.eye(len(PLACES))])
        weights = nnls(system, np.concatenate([one / unit[:, 0], np.zeros(len(PLACES))]))[0]
        truth = sum(np.exp(-((PLACES - s * state) ** 2) / (2 * noise**2)) for s in (-1, 1))
        gap = weights / max(weights.sum(), 1e-12) - truth / truth.sum()
        found.append(math.sqrt(max(float(gap @ kernel @ gap), 0.0)))
    return {"mmd": float(np.mean(found))}


# ---- results ----


def slope(points: Sequence[tuple[float, float]]) -> float:
    x, y = np.log(np.array(points)).T
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Means over seeds, slopes in T and N, and whether errors and bounds order the forms alike."""
    told: dict[str, Any] = {}
    for weights, features in product(SIGMAS, FEATURES):
        mine = [r for r in records if (r.get("weights"), r.get("features")) == (weights, features)]

        def mean(figure: str, form: str, nodes: int, samples: int, rows: Sequence[Record] = mine) -> float:
            place = (form, nodes, samples)
            return float(np.mean([r[figure] for r in rows if (r["form"], r["nodes"], r["samples"]) == place]))

        for form, figure in product(FORMS, ("error", "error_a_node", "bound")):
            told[f"{weights}, {features}, {form}, {figure}"] = {
                "slope_in_T": slope([(t, mean(figure, form, 16, t)) for t in SAMPLES]),
                "slope_in_N": slope([(n, mean(figure, form, n, 500)) for n in NODES]),
                "least": mean(figure, form, NODES[0], SAMPLES[-1]),
            }
        cells = list(product(NODES, SAMPLES))
        orders = [[sorted(FORMS, key=lambda f: mean(e, f, *c)) for e in ("error", "bound")] for c in cells]
        told[f"{weights}, {features}, bounds order the forms as errors do"] = (
            f"{sum(error == bound for error, bound in orders)} of {len(cells)} cells"
        )
    for noise in NOISES:
        found = {k: [r["mmd"] for r in records if (r.get("kind"), r.get("noise")) == (k, noise)] for k in KINDS}
        against = {f"p, {KINDS[0]} against {k}": float(wilcoxon(found[KINDS[0]], found[k]).pvalue) for k in KINDS[1:]}
        told[f"mmd, noise {noise:g}"] = {kind: float(np.mean(values)) for kind, values in found.items()} | against
    return told


def chart(records: Sequence[Record], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    for k, form in enumerate(FORMS):
        for weights, line in (("sharp", "-"), ("uniform", ":")):
            place = (form, weights, "fixed")
            mine = [r for r in records if (r.get("form"), r.get("weights"), r.get("features")) == place]
            for axis, name, fixed, at in ((axes[0], "samples", "nodes", 16), (axes[1], "nodes", "samples", 500)):
                values = sorted({r[name] for r in mine})
                rows = [[r["error"] for r in mine if r[name] == v and r[fixed] == at] for v in values]
                axis.loglog(
                    values, np.mean(rows, axis=1), f"o{line}", color=f"C{k}", label=f"{form}, {weights} weights"
                )
    for k, kind in enumerate(KINDS):
        rows = [[r["mmd"] for r in records if r.get("kind") == kind and r["noise"] == noise] for noise in NOISES]
        axes[2].plot(NOISES, np.mean(rows, axis=1), "o-", color=f"C{k}", label=kind.replace("_", " "))
    axes[0].set(xlabel="samples T, 16 nodes", ylabel="error of the joint embedding")
    axes[1].set(xlabel="nodes N, 500 samples")
    axes[2].set(xlabel="noise", ylabel="MMD to the true distribution", xscale="log")
    for axis, places in zip(axes, (SAMPLES, NODES, NOISES), strict=True):
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
        axis.legend(fontsize=7)
    figure.savefig(path)


@dataclass
class Theory:
    """Measure errors of three forms on one known system, and distances of distributions; write theory.json and .svg."""

    out: Path = Path("results")
    """The folder to write to."""
    seeds: int = 6
    """Random systems to average over; distances of distributions are of four times as many."""

    def run(self) -> None:
        lines = Lines(self.out / "theory.jsonl")
        fits = [
            dict(zip(("seed", "nodes", "samples", "weights", "form", "features"), values, strict=True))
            for values in product(range(self.seeds), NODES, SAMPLES, SIGMAS, FORMS, FEATURES)
        ]
        distances = [
            {"kind": kind, "noise": noise, "seed": seed}
            for seed, noise, kind in product(range(4 * self.seeds), NOISES, KINDS)
        ]
        lines.fill("fitting", fits, measure, lambda records: None)
        lines.fill("comparing distributions", distances, discrepancy, lambda records: None)
        write_json(self.out / "theory.json", summary(lines.records))
        chart(lines.records, self.out / "theory.svg")


if __name__ == "__main__":
    run_module(Theory, resumes=True)
