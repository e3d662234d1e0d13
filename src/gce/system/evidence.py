"""What episodes tell of the system they are of: the sums its operator follows from, and how its episodes begin.

Noise out of recordings whose velocities are differences of their positions.

Where v_t = (p_t - p_{t-1}) / dt holds, p and v say the same thing twice. With noise of equal size on both (in
normalised units, c = dt std_v / std_p), the most likely path is

    argmin over p of  sum_t (p_t - p~_t)^2 + sum_{t>=1} ((p_t - p_{t-1}) / c - v~_t)^2

one banded solve, whatever the size of the noise; a recording without noise stays as it is. The disagreement of the two
also tells the size of the noise: var(v~_t - (p~_t - p~_{t-1}) / c) = (1 + 2 / c^2) var(noise).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import solveh_banded
from torch import Tensor, nn

from gce.errors import InputError, real
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.model.model import Model
from gce.model.step import Stepper, rollout
from gce.operators import Operator
from gce.operators.additive import SHARED, Additive
from gce.operators.pairs import PairSums
from gce.operators.prior import ColouredNoise
from gce.operators.regression import FieldSums, Moments, NodeSums, Sums
from gce.trajectory import Episode, check_one_system


def smooth(
    observations: Float[np.ndarray, "steps nodes d"],
    kinematics: Sequence[tuple[int, int]],
    ratios: Sequence[float],
    at_rest: bool,
) -> Float[np.ndarray, "steps nodes d"]:
    """Normalised observations with noise taken out of every (position, velocity) pair.

    ratios: c of each pair; at_rest: whether recordings open with velocities of zero.
    """
    smoothed = observations.astype(np.float64)
    for (position, velocity), c in zip(kinematics, ratios, strict=True):
        p, v = smoothed[..., position], smoothed[1:, :, velocity]
        steps = len(p)
        # I + D'D in banded form, D p = (p_t - p_{t-1}) / c.
        bands = np.zeros((2, steps))
        bands[0, 1:] = -1 / c**2
        bands[1] = 1 + 2 / c**2
        bands[1, [0, -1]] = 1 + 1 / c**2
        right = p.copy()
        right[1:] += v / c
        right[:-1] -= v / c
        path = solveh_banded(bands, right)
        smoothed[..., position] = path
        smoothed[1:, :, velocity] = np.diff(path, axis=0) / c
        if at_rest:
            smoothed[0, :, velocity] = 0
    return smoothed


def noise_variance(
    observations: Float[np.ndarray, "steps nodes d"],
    kinematics: Sequence[tuple[int, int]],
    ratios: Sequence[float],
) -> float:
    """The variance of the noise on normalised observations, from how far positions and velocities disagree."""
    found = []
    for (position, velocity), c in zip(kinematics, ratios, strict=True):
        gap = observations[1:, :, velocity] - np.diff(observations[..., position], axis=0) / c
        found.append(np.mean(np.square(gap)) / (1 + 2 / c**2))
    return float(np.mean(found)) if found else 0.0


@dataclass(frozen=True)
class Starts(Additive):
    """The first observations of episodes: sums from which their mean and spread follow.

    total, squares: of the raw normalised first observations; smoothed: of the smoothed ones; noise: summed variance.
    """

    count: int
    total: np.ndarray
    squares: np.ndarray
    smoothed: np.ndarray
    noise: float

    def posterior(self, observation: np.ndarray) -> np.ndarray:
        """The likeliest start behind a noisy first observation, drawn to the mean of the starts seen.

        The share it keeps of its own is the share of the starts' variance that is not noise: all of it without noise.
        """
        if self.share == 1:
            return observation
        mean = self.smoothed / self.count
        return mean + self.share * (observation - mean)

    @property
    def share(self) -> float:
        """The share of the starts' variance that is not noise."""
        if self.count < 2 or self.noise == 0:
            return 1.0
        spread = self.squares.sum() / self.count - np.square(self.total / self.count).sum()
        spread = spread / self.total.size * self.count / (self.count - 1)
        return float(np.clip(1 - self.noise / self.count / max(spread, 1e-12), 0, 1))


@dataclass(frozen=True)
class Evidence(Additive):
    """All that some episodes tell of their system; it adds up, and what an episode told can be taken out again.

    coloured: the noise, where the sums are of rows made white.
    """

    sums: Sums
    starts: Starts
    coloured: ColouredNoise | None = field(default=None, metadata=SHARED)

    def kept(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, JSON values) for a file, starts apart."""
        sums, coloured = self.sums, self.coloured
        tensors = {name: getattr(sums.moments, name) for name in ("gram", "cross", "square")}
        for part, found in (("fields", sums.fields), ("nodes", sums.nodes), ("pairs", sums.pairs)):
            values = {} if found is None else vars(found)
            tensors |= {f"{part}_{name}": torch.as_tensor(v) for name, v in values.items() if v is not None}
        if coloured is not None:
            tensors["noise_size"] = coloured.size
        return tensors, {
            "rows": sums.moments.rows,
            "noise_correlation": None if coloured is None else coloured.correlation,
        }

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], text: dict[str, Any], starts: Starts) -> Evidence:
        """From what `kept` gave."""
        moments = Moments(tensors["gram"], tensors["cross"], tensors["square"], rows_of(text))
        fields = nodes = pairs = coloured = None
        if "fields_gram" in tensors:
            fields = FieldSums(*(tensors[f"fields_{name}"] for name in ("gram", "cross", "square", "mixed")))
        if "nodes_X" in tensors:
            nodes = NodeSums(*(tensors[f"nodes_{name}"] for name in ("X", "Y", "node_type")))
        if "pairs_gram" in tensors:
            gram, X, Y, columns = (tensors[f"pairs_{name}"] for name in ("gram", "X", "Y", "columns"))
            pairs = PairSums(gram, X, Y, columns, int(tensors["pairs_num_inputs"]), tensors.get("pairs_near"))
        if "noise_size" in tensors:
            coloured = ColouredNoise(float(text["noise_correlation"]), tensors["noise_size"])
        return cls(Sums(moments, fields, nodes, pairs), starts, coloured)

    def faded(self, share: float) -> Evidence:
        """With what was told of the dynamics counting so much less; episodes begin as they did."""
        return Evidence(self.sums.faded(share), self.starts, self.coloured)

    def operator(self, model: Model, topology: Topology, ridge: float | None) -> Operator:
        """What follows from it."""
        return operators_of(model, [self], topology, ridge)[0]


def operators_of(
    model: Model, evidences: Sequence[Evidence], topology: Topology, ridge: float | None
) -> list[Operator]:
    """What follows from each of some evidences of one system."""
    with torch.no_grad():
        operators = model.fit_sums([evidence.sums for evidence in evidences], topology, ridge)
    pairs = zip(evidences, operators, strict=True)
    return [operator if e.coloured is None else e.coloured.restored(operator) for e, operator in pairs]


@dataclass(frozen=True)
class Seen:
    """What one episode tells, and itself in normalised units.

    halves: the sums of its first and its second half. first: its first observation as it was; observations: all, with
    the noise taken out as far as that is possible.
    """

    halves: tuple[Sums, Sums]
    starts: Starts
    first: Float[np.ndarray, "nodes d"]
    observations: Float[np.ndarray, "steps_plus_1 nodes d"]
    inputs: Float[Tensor, "steps nodes a"]
    coloured: ColouredNoise | None = None

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(self.halves[0] + self.halves[1], self.starts, self.coloured)

    @property
    def path(self) -> tuple[np.ndarray, Tensor]:
        return self.observations, self.inputs


def total(seen: Sequence[Seen]) -> Evidence:
    return reduce(add, (s.evidence for s in seen))


def see(
    model: Model, episodes: Sequence[Episode], graph: Graph, coloured: ColouredNoise | None = None, opening: bool = True
) -> list[Seen]:
    """What each episode tells; noise is taken out first where that is possible, and made white where it is coloured.

    opening: otherwise they are cut out of the middle, and their first steps only say what came before.
    """
    topology, c = Topology.of(graph, model.device), model.config
    check_one_system(c, episodes, graph)
    lengths = [episode.length for episode in episodes]
    raw = [normalised(model, episode.observations) for episode in episodes]
    at_rest = opening and c.rest_start
    clean = [smooth(o, c.kinematics, model.ratios, at_rest) if c.kinematics else o for o in raw]
    acted = np.concatenate([episode.actions for episode in episodes])
    known = [episode.exogenous for episode in episodes if episode.exogenous is not None]
    exogenous = np.concatenate(known) if len(known) == len(episodes) else None
    inputs = model.inputs(acted, exogenous, graph.num_nodes).split(lengths)
    tensors = model.tensor(np.concatenate(clean)).split([length + 1 for length in lengths])
    return [
        _seen(model, *parts, topology, coloured, opening) for parts in zip(raw, clean, tensors, inputs, strict=True)
    ]


def _seen(
    model: Model,
    raw: Float[np.ndarray, "steps_plus_1 nodes d"],
    clean: Float[np.ndarray, "steps_plus_1 nodes d"],
    observations: Float[Tensor, "steps_plus_1 nodes d"],
    inputs: Float[Tensor, "steps nodes a"],
    topology: Topology,
    coloured: ColouredNoise | None,
    opening: bool,
) -> Seen:
    """What one episode tells, from its observations as they were, and with the noise taken out."""
    with torch.no_grad():
        x, X, Y = _rows(model, observations, inputs, topology)
        if coloured is not None:
            X, Y, x = coloured.whitened(X), coloured.whitened(Y), x[1:]
        if not opening:
            X, Y, x = X[1:], Y[1:], x[1:]
        half = (len(X) + 1) // 2
        (early,), (late,) = (
            model.sums(X[rows], Y[rows], x[:-1][rows], topology) for rows in (slice(half), slice(half, None))
        )
    noise = noise_variance(raw, model.config.kinematics, model.ratios)
    starts = Starts(1, raw[0], np.square(raw[0]), clean[0], noise)
    if not opening:
        starts = starts - starts
    return Seen((early, late), starts, raw[0], clean, inputs, coloured)


def coloured_noise_of(model: Model, seen: Sequence[Seen], operator: Operator, graph: Graph) -> ColouredNoise:
    """The coloured noise in what an operator leaves unexplained of the free coordinates in episodes."""
    topology, free, found = Topology.of(graph, model.device), len(model.free), []
    own: Tensor | float = 0.0 if operator.constants is None else operator.constants[:, :free]
    for s in seen:
        with torch.no_grad():
            _, X, Y = _rows(model, model.tensor(s.observations), s.inputs, topology)
            found.append(Y[..., :free].double() - X.double() @ operator.coefficients[:, :free].double() - own)
    return ColouredNoise.of(found)


def _rows(
    model: Model, observations: Float[Tensor, "steps_plus_1 nodes d"], inputs: Tensor, topology: Topology
) -> tuple[Tensor, Tensor, Tensor]:
    """(states, regressors, targets) along an episode."""
    x = model.states(model.merge(observations, topology), inputs[..., : model.config.num_actions])
    psi = model.features(x, topology)
    X = model.regressors(psi[:-1], inputs, topology, opening_mask(model, len(inputs), 1))
    return x, X, model.targets(x[:-1], x[1:], psi[1:], topology)


def normalised(model: Model, observations: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch d"]:
    return model.arrays.normalise(observations.astype(np.float64))


def opening_states(
    model: Model, firsts: Sequence[Float[np.ndarray, "nodes d"]], starts: Sequence[Starts]
) -> Float[Tensor, "episodes nodes c"]:
    """The states that episodes of systems of one size open with, first observations read with the starts seen."""
    observations = np.stack(firsts)
    if model.config.rest_start:
        observations[..., [v for _, v in model.config.kinematics]] = 0
    likeliest = model.tensor(np.stack([s.posterior(o) for s, o in zip(starts, observations, strict=True)]))
    nothing = likeliest.new_zeros(len(likeliest), 0, likeliest.shape[1], model.config.num_actions)
    return model.states(likeliest[:, None], nothing)[:, 0]


def opening_paths(
    model: Model,
    graphs: Sequence[Graph],
    operators: Sequence[Operator],
    openings: Sequence[Float[Tensor, "_ c"]],
    inputs: Sequence[Float[Tensor, "_ _ a"]],
) -> list[Float[np.ndarray, "_ _ d"]]:
    """Normalised observations of episodes of several systems from their openings on, as one rollout of all graphs.

    Where one has fewer steps than the longest, its path goes on without inputs.
    """
    topology = Topology.of(list(graphs), model.device)
    steps = max(len(a) for a in inputs)
    padded = torch.cat([nn.functional.pad(a, (0, 0, 0, 0, 0, steps - len(a))) for a in inputs], dim=1)
    x = torch.cat(list(openings))
    with torch.no_grad():
        step = Stepper(model, operators, topology)
        fresh = opening_mask(model, steps, topology.num_nodes)
        states = rollout(step, model.features(x, topology), padded, fresh)
    path = torch.cat([x[None], states])[..., : model.config.num_observations].double().cpu().numpy()
    return np.split(path, np.cumsum(topology.splits)[:-1], axis=1)


def opening_mask(model: Model, steps: int, nodes: int, opening: bool = True) -> Float[Tensor, "steps nodes 1"]:
    """1 where a step opens an episode: at the first, if at all."""
    fresh = torch.zeros(steps, nodes, 1, dtype=model.dtype, device=model.device)
    fresh[0] = float(opening)
    return fresh


def rows_of(text: dict[str, Any]) -> float:
    """How many rows sums are of, whole unless some were forgotten."""
    rows = float(text["rows"])
    return int(rows) if rows.is_integer() else rows


def faded_by(forget: float, episode: Episode, opening: bool) -> float:
    """What is left of what was known before an episode, checked."""
    if not 0 < real("forget", forget) <= 1:
        raise InputError(f"forget is {forget}, expected a number above 0 and up to 1, such as 0.99")
    if not opening and episode.length < 2:
        raise InputError("an episode from the middle of a run has 1 step, which only says what came before; give 2")
    return float(forget ** (episode.length - (not opening)))
