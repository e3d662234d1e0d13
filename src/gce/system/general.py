"""A model of the general method adapted to one system: its operators, and all that a `System` offers by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.model.hierarchy import Hierarchy, learner
from gce.model.model import Model
from gce.operators import Operator
from gce.operators.hierarchy import HierarchySums, Strengths
from gce.system.evidence import Evidence, Starts, faded_by, rows_of
from gce.system.left_out import Fit, recorded, starts_of
from gce.system.system import Path, System
from gce.system.uncertainty import Range, Spread, jacobian, of_fit
from gce.trajectory import Episode


@dataclass(frozen=True)
class Told(Evidence):
    """What episodes tell: the sums of the hierarchy."""

    sums: HierarchySums  # type: ignore[assignment]


@dataclass(frozen=True, eq=False, repr=False)
class GeneralSystem(System):
    """strengths: of the parts; dense: W, None where it was left out. The operator holds M = V + C."""

    evidence: Told
    strengths: Strengths = Strengths(math.inf, math.inf, ())
    dense: Tensor | None = None

    @classmethod
    def adapted(
        cls,
        model: Model,
        episodes: Sequence[Episode],
        ridge: float | None = None,
        measure: bool = True,
        strengths: Strengths | None = None,
    ) -> GeneralSystem:
        """strengths: given, or as left-out rollouts say."""
        if ridge is not None:
            raise InputError(
                "a model of the general method chooses its own strengths by left-out rollouts; leave the ridge out, or "
                "give `strengths`"
            )
        graph = episodes[0].graph
        fit = Fit(model, graph, [recorded(model, episode, episodes) for episode in episodes])
        latent = fit.latent() if strengths is None else model.tensor(np.asarray(strengths.latent))
        halves = fit.halves(latent)
        strengths = fit.strengths(latent, halves) if strengths is None else strengths
        starts = reduce(add, (starts_of(model, episode) for episode in episodes))
        spread = fit.spread(halves, strengths) if measure else Spread.nothing(model.config.num_observations)
        system = cls.of(model, graph, Told(halves[0] + halves[1], starts), spread, strengths)
        system = replace(system, reach=Range.of(fit.paths))
        return replace(system, warnings=of_fit(system, [o for o, _ in fit.paths])) if measure else system

    @classmethod
    def of(cls, model: Model, graph: Graph, told: Told, spread: Spread, strengths: Strengths) -> GeneralSystem:
        """All that follows from sums."""
        sums, features = told.sums, learner(model)
        if not bool(torch.isfinite(sums.HH).all() and torch.isfinite(sums.HY).all()):
            raise InputError(
                "the episodes lead to numbers that are not finite; look for values far out of the usual range"
            )
        V = features.V.detach()
        M = sums.shifted(V, features.gram, strengths.shift)
        W = sums.dense(M, strengths.dense)
        gram = features.gram.double()
        inverted = gram if math.isinf(strengths.shift) else sums.HH + strengths.shift * gram
        operator = Operator(model.form, M, sums.residual(M, W), inverted[None], 0.0, sums.rows)
        return cls(model, graph, told, operator, spread, strengths=strengths, dense=W)

    def update(self, episode: Episode, forget: float = 1.0, opening: bool = True) -> GeneralSystem:
        """Adapted to one more episode, with the strengths and the latent numbers found before."""
        share = faded_by(forget, episode, opening)
        fit = Fit(self.model, self.graph, [recorded(self.model, episode, [episode], self.graph)])
        spread, starts = self.spread, starts_of(self.model, episode)
        if opening:
            spread = spread + fit.errors([(0, 0, episode.length)], self.hierarchy)
        else:
            starts = starts - starts
        first = int(not opening)
        latent = self.model.tensor(np.asarray(self.strengths.latent))
        sums = fit.sums(latent, [(0, first, episode.length - first)])
        known = Told(self.evidence.sums.faded(share), self.evidence.starts)
        told = known + Told(sums, starts)
        reach = Range.of(fit.paths) if self.reach is None else self.reach | Range.of(fit.paths)
        return replace(GeneralSystem.of(self.model, self.graph, told, spread, self.strengths), reach=reach)

    @cached_property
    def hierarchy(self) -> Hierarchy:
        return Fit(self.model, self.graph, []).under(self.operator.coefficients, self.dense, self.strengths.latent)

    def kept(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {name: value for name, value in vars(self.evidence.sums).items() if isinstance(value, Tensor)}
        parts = {"shift": self.strengths.shift, "dense": self.strengths.dense}
        strengths = {name: None if math.isinf(value) else value for name, value in parts.items()}
        return tensors, {"rows": self.evidence.sums.rows, "strengths": strengths}

    @classmethod
    def restored(
        cls,
        model: Model,
        graph: Graph,
        tensors: dict[str, Tensor],
        text: dict[str, Any],
        starts: Starts,
        spread: Spread,
    ) -> GeneralSystem:
        names = ("HH", "HY", "YY", "ZZ", "ZY", "ZH", "latent")
        sums = HierarchySums(rows_of(text), *(tensors[name] for name in names))
        if sums.latent.shape != (learner(model).config.latent,):
            raise ValueError(f"latent has shape {tuple(sums.latent.shape)}, the model's {learner(model).config.latent}")
        given = text["strengths"]
        shift, dense = (math.inf if given[name] is None else float(given[name]) for name in ("shift", "dense"))
        strengths = Strengths(shift, dense, tuple(sums.latent.tolist()))
        return cls.of(model, graph, Told(sums, starts), spread, strengths)

    def of_first(self, episodes: Sequence[Episode], counts: Sequence[int]) -> Sequence[System]:
        return [GeneralSystem.adapted(self.model, episodes[:k], measure=False) for k in counts]

    @staticmethod
    def together(
        systems: Sequence[Any],
        observations: Sequence[np.ndarray],
        actions: Sequence[np.ndarray],
        exogenous: np.ndarray | None = None,
    ) -> list[Float[np.ndarray, "steps_plus_1 nodes d"]]:
        parts = zip(systems, observations, actions, strict=True)
        return [system.predict(o, a, exogenous=exogenous) for system, o, a in parts]

    # ---- inside ----

    def _along(self, x: Tensor, psi: Tensor, inputs: Tensor, opening: bool, anew: bool | None) -> tuple[Tensor, Tensor]:
        if anew is False:
            raise InputError(
                "a model of the general method takes its features anew at every step; it has no rollouts in feature "
                "space (leave reproject, or --linear, out)"
            )
        states = self.hierarchy.rollout(x[:, None], inputs[:, :, None])[:, :, 0]
        return states, self.model.features(states, self.topology)

    def _check_covariance(self, features: bool) -> None:
        if features:
            raise InputError("the general method has no rollouts of features; ask for the covariance of observations")

    def _covariances(self, path: Path, opening: bool, anew: bool) -> Float[Tensor, "steps_plus_1 s s"]:
        """P' = A P A' + G Sigma G', A and G how a step answers to its state and to an error of y."""
        nodes, c = self.graph.num_nodes, self.model.config
        Sigma = torch.block_diag(*self.operator.residual.expand(nodes, -1, -1))
        still = [path.states.new_zeros(nodes * size) for size in (c.num_state, len(self.model.free))]
        P = torch.zeros(nodes * c.num_state, nodes * c.num_state, dtype=torch.float64)
        found = [P]
        for x, a in zip(path.states[:-1], path.inputs.unsqueeze(2), strict=True):
            A, G = (jacobian(partial(self._after, x.flatten(), a, k), still[k]).double() for k in (0, 1))
            P = A @ P @ A.T + G @ Sigma @ G.T
            found.append(P)
        return torch.stack(found)

    def _after(self, x: Tensor, inputs: Tensor, moved: int, by: Tensor) -> Tensor:
        """The state after a step from x, moved by something (0), or with an error of the targets (1)."""
        nodes = self.graph.num_nodes
        start, error = (x + by, None) if moved == 0 else (x, by.reshape(nodes, 1, -1))
        return self.hierarchy.step(start.reshape(nodes, 1, -1), inputs, error).flatten()

    def _slopes(self, x: Tensor, inputs: Tensor, opening: bool) -> tuple[Tensor, Tensor, Tensor]:
        nodes, step = self.graph.num_nodes, self.hierarchy.step

        def after(x: Tensor, a: Tensor) -> Tensor:
            return step(x.reshape(nodes, 1, -1), a.reshape(nodes, 1, -1)).flatten()

        at = x.flatten(1), inputs.flatten(1)
        A, B = torch.func.vmap(torch.func.jacfwd(after, argnums=(0, 1)))(*at)
        return A, B, torch.func.vmap(after)(*at)
