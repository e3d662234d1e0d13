"""A model adapted to one system: predictions, intervals, linearisation, and updates as recordings come in."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.errors import InputError, of_kind, real, table, warn
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.model.model import Model
from gce.model.step import Stepper, path_of, slopes
from gce.names import Shown
from gce.operators import Operator
from gce.operators.hierarchy import Strengths
from gce.system import uncertainty as doubts
from gce.system.evidence import (
    Evidence,
    Seen,
    Starts,
    coloured_noise_of,
    faded_by,
    normalised,
    opening_mask,
    opening_paths,
    opening_states,
    operators_of,
    see,
    total,
)
from gce.system.uncertainty import Spread, errors, jacobian, left_out, propagate, target_errors
from gce.trajectory import Episode

TURNS, SETTLED = 5, 0.02
"""How often noise that lasts is measured and the operator fitted again at most, and the change of its correlation that
is small enough to stop."""
UNEVEN = 12.0
"""How uneven such noise has to be for rows to be made white."""


@dataclass(frozen=True, eq=False)
class Path:
    """A rollout in normalised units, the start first: states x, features psi, and the inputs between them."""

    states: Float[Tensor, "steps_plus_1 nodes c"]
    features: Float[Tensor, "steps_plus_1 nodes f"]
    inputs: Float[Tensor, "steps nodes a"]


@dataclass(frozen=True, eq=False, repr=False)
class System(Shown):
    """A model with the operator of one system.

    evidence: what the episodes adapted to tell, from which the operator follows; spread: how far predictions were off
        on episodes they did not know. seen: what each episode told, in order; not kept in files. reach: the range that
        they span; warnings: what speaks against trusting the fit.
    """

    model: Model
    graph: Graph
    evidence: Evidence
    operator: Operator
    spread: Spread
    ridge: float | None = None
    seen: tuple[Seen, ...] = ()
    reach: doubts.Range | None = None
    warnings: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        known = {"method": self.model.method, "nodes": self.graph.num_nodes, "rows": self.operator.rows}
        return {**known, "warnings": len(self.warnings)} if self.warnings else known

    @classmethod
    def adapted(
        cls, model: Model, episodes: Sequence[Episode], ridge: float | None, measure: bool, strengths: Strengths | None
    ) -> System:
        """What `adapt` gives."""
        if strengths is not None:
            raise InputError(f"a model of the method {model.method} has no strengths to give; leave them out")
        return _adapted(model, list(episodes), ridge, measure)

    def predict(
        self,
        observation: Float[np.ndarray, "nodes d"],
        actions: Float[np.ndarray, "steps nodes a"],
        *,
        exogenous: Float[np.ndarray, "steps nodes e"] | None = None,
        opening: bool = True,
        before: tuple[np.ndarray, np.ndarray] | None = None,
        reproject: bool | None = None,
    ) -> Float[np.ndarray, "steps_plus_1 nodes d"]:
        """The conditional mean of the observations that actions lead to, the given one first."""
        path = self.rollout(
            observation, actions, exogenous=exogenous, opening=opening, before=before, reproject=reproject
        )
        seen = path.states[..., : self.model.config.num_observations]
        predicted = self.model.denormalise(seen).detach().cpu().double().numpy()
        predicted[0] = observation
        if opening:
            doubts.of_start(self, predicted[0])
        doubts.of_prediction(self, predicted, actions)
        return predicted

    def rollout(
        self,
        observation: Float[np.ndarray, "nodes d"],
        actions: Float[np.ndarray, "steps nodes a"],
        *,
        exogenous: Float[np.ndarray, "steps nodes e"] | None = None,
        opening: bool = True,
        before: tuple[np.ndarray, np.ndarray] | None = None,
        reproject: bool | None = None,
    ) -> Path:
        """States and features along the path that actions lead to.

        opening: whether the observation opens an episode (the system was just released); otherwise `before` is the
            (observation, action) one step earlier, where the model needs it.
        reproject: take the features of each predicted state anew; otherwise the rollout stays in feature space. By
            default as the model was trained.
        """
        x = self.state(observation, opening, before)
        inputs = self.model.inputs(actions, exogenous, self.graph.num_nodes)
        with torch.no_grad():
            psi = self.model.features(x, self.topology)
            states, features = self._along(x, psi, inputs, opening, reproject)
        return Path(torch.cat([x[None], states]), torch.cat([psi[None], features]), inputs)

    def intervals(
        self, predicted: Float[np.ndarray, "steps nodes d"], level: float = 0.9
    ) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) around a prediction, within which `level` of what happens lies.

        They speak of what happens, not of what a noisy sensor reads.
        """
        if not 0 < real("level", level) < 1:
            raise InputError(f"level is {level}, expected a share between 0 and 1 such as 0.9")
        if len(self.spread.counts) == 0:
            raise InputError("this system was adapted without measuring how far it is off; adapt with measure=True")
        reach = np.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64)).item()
        unit = self.model.arrays.observation_std
        margin = reach * self.spread.deviations(len(predicted))[:, None, :] * unit
        return predicted - margin, predicted + margin

    def covariance(
        self,
        observation: Float[np.ndarray, "nodes d"],
        actions: Float[np.ndarray, "steps nodes a"],
        *,
        features: bool = False,
        exogenous: Float[np.ndarray, "steps nodes e"] | None = None,
        opening: bool = True,
        before: tuple[np.ndarray, np.ndarray] | None = None,
        reproject: bool | None = None,
    ) -> Float[np.ndarray, "steps_plus_1 n n"]:
        """The covariance of what actions lead to, after each step, all nodes together (nodes x coordinates).

        It follows from the residuals of the fit (`uncertainty`): noise of the system, and what the model leaves out.
        features: of the features psi in normalised units, not of the observations.
        """
        self._check_covariance(features)
        path = self.rollout(
            observation, actions, exogenous=exogenous, opening=opening, before=before, reproject=reproject
        )
        reproject = self.model.config.reproject if reproject is None else reproject
        P = self._covariances(path, opening, reproject)
        nodes, c = self.graph.num_nodes, self.model.config
        if features and reproject:
            J = [jacobian(lambda z: self._features(z).flatten(), z).double() for z in path.states.flatten(1)]
            P = torch.stack([j @ p @ j.T for j, p in zip(J, P, strict=True)])
        if features:
            return doubts.of_covariance(P.cpu().numpy())
        seen = torch.arange(P.shape[-1]).reshape(nodes, -1)[:, : c.num_observations].flatten()
        unit = self.model.observation_std.double().repeat(nodes)
        return doubts.of_covariance((P[:, seen][:, :, seen] * unit[:, None] * unit).cpu().numpy())

    def linearise(
        self,
        states: Float[Tensor, "steps nodes c"],
        actions: Float[Tensor, "steps nodes a"],
        opening: bool = False,
    ) -> tuple[Float[Tensor, "steps s s"], Float[Tensor, "steps s u"], Float[Tensor, "steps s"]]:
        """(A, B, c) at each step of a path: next state = A x + B a + c around (x, a), nodes flattened."""
        A, B, after = self._slopes(states, actions, opening)
        c = after - torch.einsum("tij,tj->ti", A, states.flatten(1)) - torch.einsum("tij,tj->ti", B, actions.flatten(1))
        return A, B, c

    def update(self, episode: Episode, forget: float = 1.0, opening: bool = True) -> System:
        """Adapted to one more episode: the operator is that of adapting to all at once.

        The spread gains the errors of predicting the episode before it was known: fewer episodes than `adapt` would
        have left, so it depends on the order of updates. forget: below 1, what was known counts so much less a step.
        opening: otherwise the episode is cut out of a run, its first step only says what came before.
        """
        share = faded_by(forget, episode, opening)
        (seen,) = see(self.model, [episode], self.graph, self.evidence.coloured, opening)
        known, spread = self.evidence.faded(share), self.spread
        if opening:
            spread += errors(self.model, self.graph, [seen], [self.evidence], self.ridge)
        later = fitted(self.model, self.graph, known + seen.evidence, spread, self.ridge)
        reach = doubts.Range.of([seen.path]) if self.reach is None else self.reach | doubts.Range.of([seen.path])
        return replace(later, seen=(*self.seen, seen) if opening and share == 1 else (), reach=reach)

    def kept(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, JSON values) that the system follows from, beside its model, graph, starts and spread."""
        tensors, text = self.evidence.kept()
        return tensors, {**text, "ridge": self.ridge}

    @classmethod
    def restored(
        cls,
        model: Model,
        graph: Graph,
        tensors: dict[str, Tensor],
        text: dict[str, Any],
        starts: Starts,
        spread: Spread,
    ) -> System:
        """From what `kept` gave."""
        return fitted(model, graph, Evidence.restored(tensors, text, starts), spread, text["ridge"])

    def of_first(self, episodes: Sequence[Episode], counts: Sequence[int]) -> Sequence[System]:
        """The same system adapted to the first of these episodes alone, so many each; their sums add up."""
        seen = self.seen or tuple(see(self.model, episodes, self.graph, self.evidence.coloured))
        parts = [total(seen[:k]) for k in counts]
        found = operators_of(self.model, parts, self.topology, self.ridge)
        return [replace(self, evidence=part, operator=one) for part, one in zip(parts, found, strict=True)]

    @staticmethod
    def together(
        systems: Sequence[Any],
        observations: Sequence[np.ndarray],
        actions: Sequence[np.ndarray],
        exogenous: np.ndarray | None = None,
    ) -> list[Float[np.ndarray, "steps_plus_1 nodes d"]]:
        """What `predict` says of each of several systems of one model, as one rollout of all their graphs."""
        model = systems[0].model
        openings = [s.state(o, True) for s, o in zip(systems, observations, strict=True)]
        inputs = [model.inputs(a, exogenous, s.graph.num_nodes) for s, a in zip(systems, actions, strict=True)]
        operators = [s.operator for s in systems]
        paths = opening_paths(model, [s.graph for s in systems], operators, openings, inputs)
        return [
            np.concatenate([o[None], model.arrays.denormalise(path[1 : len(a) + 1])])
            for o, a, path in zip(observations, actions, paths, strict=True)
        ]

    def state(
        self, observation: np.ndarray, opening: bool, before: tuple[np.ndarray, np.ndarray] | None = None
    ) -> Float[Tensor, "nodes c"]:
        """The model's state at an observation; `before` is (observation, action) one step earlier, where needed."""
        model, observation = self.model, table("the observation", observation)
        expected = (self.graph.num_nodes, model.config.num_observations)
        if observation.shape != expected:
            raise InputError(f"the observation has shape {observation.shape}, this system's have {expected}")
        start = normalised(model, observation)
        if opening:
            return opening_states(model, [start], [self.evidence.starts])[0]

        now = model.tensor(start)
        nothing = now.new_zeros(0, len(start), model.config.num_actions)
        earlier = None
        if before is not None:
            before = table("the observation before", before[0]), table("the action before", before[1])
            if (before[0].shape, before[1].shape) != (expected, (expected[0], model.config.num_actions)):
                raise InputError(f"the observation and the action before have shapes {[b.shape for b in before]}")
            earlier = (model.tensor(normalised(model, before[0])), model.tensor(before[1]) / model.action_std)
        return model.at_rest_where_held(model.states(now[None], nothing, earlier)[0], self.topology)

    def outputs_at(self, observations: Float[np.ndarray, "M nodes d"], on: str) -> Float[np.ndarray, "M p"]:
        """Normalised observations, or (on "features") the features there when nothing is pushed, flat."""
        o = normalised(self.model, observations)
        if on == "observations":
            return o.reshape(len(o), -1)
        seen = self.model.tensor(o)
        still = seen.new_zeros(len(o), 0, self.graph.num_nodes, self.model.config.num_actions)
        with torch.no_grad():
            states = self.model.states(seen[:, None], still)[:, 0]
            return self.model.features(states, self.topology).flatten(1).double().cpu().numpy()

    @cached_property
    def topology(self) -> Topology:
        return Topology.of(self.graph, self.model.device)

    # ---- inside ----

    def _along(self, x: Tensor, psi: Tensor, inputs: Tensor, opening: bool, anew: bool | None) -> tuple[Tensor, Tensor]:
        """States [steps, nodes, c] and features after each step; anew: whether these are taken of predicted states."""
        fresh = opening_mask(self.model, len(inputs), len(x), opening)
        return path_of(Stepper(self.model, [self.operator], self.topology, anew), psi, inputs, fresh)

    def _slopes(self, x: Tensor, inputs: Tensor, opening: bool) -> tuple[Tensor, Tensor, Tensor]:
        """A, B and the next states, nodes flattened."""
        step = Stepper(self.model, [self.operator], self.topology, reproject=False)
        fresh = opening_mask(self.model, len(x), 1, opening)
        by_x, by_inputs, after = slopes(step, x, inputs, fresh, apart=True)
        A, B = (torch.as_tensor(part, dtype=x.dtype).reshape(*after.flatten(1).shape, -1) for part in (by_x, by_inputs))
        return A, B, after.flatten(1)

    def _check_covariance(self, features: bool) -> None:
        if not self.model.features.selects:
            raise InputError("the model decodes its observations, whose covariance it does not know; use `intervals`")

    def _covariances(self, path: Path, opening: bool, anew: bool) -> Float[Tensor, "steps_plus_1 s s"]:
        """Of states along a path, or of features where these are not taken anew."""
        step = Stepper(self.model, [self.operator], self.topology, anew)
        fresh = opening_mask(self.model, len(path.inputs), 1, opening)
        carried = (path.states if anew else path.features).flatten(1)

        def following(t: int, z: Tensor) -> Tensor:
            psi = self._features(z) if anew else z.reshape(self.graph.num_nodes, -1)
            return step(psi, path.inputs[t], fresh[t])[0 if anew else 1].flatten()

        return propagate(following, carried, *target_errors(self.model, self.operator, self.topology, anew))

    def _features(self, state: Float[Tensor, " s"]) -> Float[Tensor, "nodes f"]:
        return self.model.features(state.reshape(self.graph.num_nodes, -1), self.topology)


def predict_together(
    systems: Sequence[System], observations: Sequence[np.ndarray], actions: Sequence[np.ndarray]
) -> list[Float[np.ndarray, "steps_plus_1 nodes d"]]:
    """What `predict` says of each of several systems of one model."""
    return type(systems[0]).together(systems, observations, actions)


def adapt(
    model: Model,
    episodes: Sequence[Episode],
    ridge: float | None = None,
    measure: bool = True,
    strengths: Strengths | None = None,
) -> System:
    """Fit the operator of the system that some episodes are of, in closed form.

    measure: how far predictions are off, for intervals; it costs a fit and a prediction for each episode.
    strengths: of the parts of a model of the general method, where left-out rollouts shall not choose them.
    """
    of_kind("the model", model, Model, "gce.load_model(folder) or gce.train(data).model gives one")
    of_kind("what to adapt to", episodes, Iterable, "give a list of episodes, such as [data[k] for k in range(8)]")
    episodes = list(episodes)
    for episode in episodes:
        of_kind("what to adapt to", episode, Episode, "data[k] of a Dataset gives one; give a list of them")
    if not episodes:
        raise InputError("there is no episode to adapt to; give at least one")
    ridge = None if ridge is None else real("ridge", ridge, 0)
    system = class_of(model).adapted(model, episodes, ridge, measure, strengths)
    for sentence in system.warnings:
        warn(sentence)
    return system


def class_of(model: Model) -> type[System]:
    """The class of systems that the model's kind of features names."""
    module, name = model.features.adapted.split(":")
    named: type[System] = getattr(importlib.import_module(module), name)
    return named


def _adapted(model: Model, episodes: list[Episode], ridge: float | None, measure: bool) -> System:
    graph, lasts = episodes[0].graph, all(episode.length > 1 for episode in episodes)
    prior = model.training_prior
    seen = see(model, episodes, graph, prior.coloured(graph.num_nodes) if prior is not None and lasts else None)
    nothing = Spread.nothing(model.config.num_observations)
    system = fitted(model, graph, total(seen), nothing, ridge)
    if model.features.lasting_noise and lasts and prior is None:
        known, coloured = 0.0, coloured_noise_of(model, seen, system.operator, graph)
        for _ in range(TURNS if coloured.uneven > UNEVEN else 0):
            seen = see(model, episodes, graph, coloured)
            system = fitted(model, graph, total(seen), nothing, ridge)
            if abs(coloured.correlation - known) < SETTLED:
                break
            known, coloured = coloured.correlation, coloured_noise_of(model, seen, system.operator, graph)
    spread = left_out(model, graph, seen, ridge) if measure else nothing
    system = replace(system, spread=spread, seen=tuple(seen), reach=doubts.Range.of([s.path for s in seen]))
    if measure:
        system = replace(system, warnings=doubts.of_fit(system, [s.observations for s in seen]))
    return system


def fitted(model: Model, graph: Graph, evidence: Evidence, spread: Spread, ridge: float | None) -> System:
    moments = evidence.sums.moments
    if not bool(torch.isfinite(moments.gram).all() and torch.isfinite(moments.cross).all()):
        raise InputError("the episodes lead to numbers that are not finite; look for values far out of the usual range")
    operator = evidence.operator(model, Topology.of(graph, model.device), ridge)
    rows, regressors = moments.rows, moments.gram.shape[-1]
    if evidence.sums.pairs is not None:
        regressors += evidence.sums.pairs.Y[..., 0].numel()
    if rows < regressors:
        warn(
            f"{rows} samples for {regressors} regressors: the ridge decides what the data leave open; "
            "adapt to more episodes if you can"
        )
    return System(model, graph, evidence, operator, spread, ridge)
