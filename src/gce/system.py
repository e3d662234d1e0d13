"""A model adapted to one system: predictions, intervals, linearisation, and updates as recordings come in."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.errors import InputError
from gce.graph import Graph
from gce.model import Model
from gce.operators import Operator
from gce.regression import Sums
from gce.rollout import rollout
from gce.smoothing import noise_variance, smooth
from gce.topology import Topology
from gce.trajectory import Episode


@dataclass(frozen=True)
class Starts:
    """The first observations of the adaptation episodes: sums from which their mean and spread follow.

    total, squares: of the raw normalised first observations; smoothed: of the smoothed ones; noise: summed variance.
    """

    count: int
    total: np.ndarray
    squares: np.ndarray
    smoothed: np.ndarray
    noise: float

    def __add__(self, other: Starts) -> Starts:
        return Starts(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            self.smoothed + other.smoothed,
            self.noise + other.noise,
        )

    def posterior(self, observation: np.ndarray) -> np.ndarray:
        """The likeliest start behind a noisy first observation, drawn to the mean of the starts seen.

        The share it keeps of its own is the share of the starts' variance that is not noise: all of it without noise.
        """
        if self.count < 2 or self.noise == 0:
            return observation
        spread = self.squares.sum() / self.count - np.square(self.total / self.count).sum()
        spread = spread / self.total.size * self.count / (self.count - 1)
        share = float(np.clip(1 - self.noise / self.count / max(spread, 1e-12), 0, 1))
        mean = self.smoothed / self.count
        return mean + share * (observation - mean)


@dataclass(frozen=True, eq=False)
class System:
    """A model with the operator of one system.

    spread: what the model leaves unexplained so many steps ahead, as standard deviations of the normalised
        observation [steps, coordinates], measured on the adaptation episodes.
    """

    model: Model
    graph: Graph
    sums: Sums
    operator: Operator
    starts: Starts
    spread: Float[np.ndarray, "steps d"]
    ridge: float | None = None

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
        """The conditional mean of the observations that actions lead to, the given one first.

        opening: whether the observation opens an episode (the system was just released); otherwise `before` is the
            (observation, action) one step earlier, where the model needs it.
        """
        model = self.model
        start = self._start(observation, opening)
        inputs = model_inputs(model, actions, exogenous, self.graph)
        with torch.no_grad():
            x = self._state(start, opening, before)
            states = self._roll(x, inputs, opening, reproject)
            path = torch.cat([x[None], states])[..., : model.config.num_observations]
            predicted = model.denormalise(path).double().numpy()
        predicted[0] = observation
        return predicted

    def intervals(
        self, predicted: Float[np.ndarray, "steps nodes d"], level: float = 0.9
    ) -> tuple[np.ndarray, np.ndarray]:
        """(low, high) around a prediction, within which `level` of what happens lies."""
        if not 0 < level < 1:
            raise InputError(f"level is {level}, expected a share between 0 and 1 such as 0.9")
        reach = np.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64)).item()
        steps = np.minimum(np.arange(len(predicted)), len(self.spread) - 1)
        margin = reach * self.spread[steps][:, None, :] * self.model.observation_std.double().numpy()
        return predicted - margin, predicted + margin

    def covariance(self, steps: int) -> Float[np.ndarray, "d d"]:
        """The covariance of the free coordinates' one-step residuals, grown as independent steps would."""
        free = len(self.model.free)
        residual = self.operator.residual
        residual = residual.mean(0) if residual.ndim == 3 else residual
        scale = self.model.observation_std[self.model.free].double()
        return (steps * residual[:free, :free] * scale[:, None] * scale).numpy()

    def linearise(
        self,
        states: Float[Tensor, "steps nodes c"],
        actions: Float[Tensor, "steps nodes a"],
        opening: bool = False,
    ) -> tuple[Float[Tensor, "steps s s"], Float[Tensor, "steps s u"], Float[Tensor, "steps s"]]:
        """(A, B, c) at each step of a path: next state = A x + B a + c around (x, a), nodes flattened."""
        topology = self.topology
        step = self.model.stepper([self.operator], topology)
        fresh = torch.zeros(len(states), 1, 1)
        fresh[0] = float(opening)

        def following(x: Tensor, a: Tensor, f: Tensor) -> Tensor:
            nodes = topology.num_nodes
            after, _ = step(self.model.features(x.reshape(nodes, -1), topology), a.reshape(nodes, -1), f)
            return after.reshape(-1)

        x, a = states.flatten(1), actions.flatten(1)
        A, B = torch.func.vmap(torch.func.jacfwd(following, argnums=(0, 1)))(x, a, fresh)
        after = torch.func.vmap(following)(x, a, fresh)
        return A, B, after - torch.einsum("tij,tj->ti", A, x) - torch.einsum("tij,tj->ti", B, a)

    def update(self, episode: Episode) -> System:
        """Adapted to one more episode: the same as adapting to all at once."""
        more, starts = collect(self.model, [episode], self.graph)
        return fitted(
            self.model,
            self.graph,
            self.sums + more,
            self.starts + starts,
            self.ridge,
            self.spread,
        )

    def state(
        self, observation: np.ndarray, opening: bool, before: tuple[np.ndarray, np.ndarray] | None = None
    ) -> Float[Tensor, "nodes c"]:
        """The model's state at an observation; `before` is (observation, action) one step earlier, where needed."""
        return self._state(self._start(observation, opening), opening, before)

    def outputs_at(self, observations: Float[np.ndarray, "M nodes d"], on: str) -> Float[np.ndarray, "M p"]:
        """Normalised observations, or (on "features") the features there when nothing is pushed, flat."""
        o = self.model.normalise(torch.tensor(observations, dtype=torch.float64))
        if on == "observations":
            return o.flatten(1).numpy()
        still = torch.zeros(len(o), 0, self.graph.num_nodes, self.model.config.num_actions)
        with torch.no_grad():
            states = self.model.states(o.float()[:, None], still)[:, 0]
            return self.model.features(states, self.topology).flatten(1).double().numpy()

    # ---- inside ----

    @property
    def topology(self) -> Topology:
        return Topology.of(self.graph)

    def _start(self, observation: np.ndarray, opening: bool) -> np.ndarray:
        """The normalised observation a prediction starts from."""
        c = self.model.config
        expected = (self.graph.num_nodes, c.num_observations)
        if observation.shape != expected:
            raise InputError(f"the observation has shape {observation.shape}, this system's have {expected}")
        if not np.isfinite(observation).all():
            raise InputError("the observation holds numbers that are not finite")
        start = self.model.normalise(torch.as_tensor(observation, dtype=torch.float64)).numpy()
        if not opening:
            return start
        if c.rest_start:
            start[:, [v for _, v in c.kinematics]] = 0
        return self.starts.posterior(start)

    def _state(self, start: np.ndarray, opening: bool, before: tuple[np.ndarray, np.ndarray] | None) -> Tensor:
        model = self.model
        observation = torch.as_tensor(start, dtype=torch.float32)[None]
        nothing = torch.zeros(0, len(start), model.config.num_actions)
        if opening or before is None:
            return model.states(observation, nothing)[0]
        earlier = model.normalise(torch.as_tensor(before[0], dtype=torch.float32))
        action = torch.as_tensor(before[1], dtype=torch.float32) / model.action_std
        return model.states(observation, nothing, (earlier, action))[0]

    def _roll(self, x: Tensor, inputs: Tensor, opening: bool, reproject: bool | None) -> Tensor:
        topology = self.topology
        fresh = torch.zeros(len(inputs), topology.num_nodes, 1)
        fresh[0] = float(opening)
        step = self.model.stepper([self.operator], topology, reproject)
        return rollout(step, self.model.features(x, topology), inputs, fresh)


def predict_together(
    systems: Sequence[System], observations: Sequence[np.ndarray], actions: Sequence[np.ndarray]
) -> list[Float[np.ndarray, "steps_plus_1 nodes d"]]:
    """What `predict` says of each of several systems of one model, as one rollout of all their graphs."""
    model, topology = systems[0].model, Topology.of([system.graph for system in systems])
    inputs = torch.cat([model_inputs(model, a, None, s.graph) for a, s in zip(actions, systems, strict=True)], dim=1)
    fresh = torch.zeros(len(inputs), topology.num_nodes, 1)
    fresh[0] = 1.0
    starts = [
        system._state(system._start(o, True), True, None) for o, system in zip(observations, systems, strict=True)
    ]
    with torch.no_grad():
        step = model.stepper([system.operator for system in systems], topology)
        states = rollout(step, model.features(torch.cat(starts), topology), inputs, fresh)
        paths = model.denormalise(states[..., : model.config.num_observations]).double()
    return [
        np.concatenate([o[None], path.numpy()])
        for o, path in zip(observations, paths.split(topology.splits, dim=1), strict=True)
    ]


def adapt(model: Model, episodes: Sequence[Episode], ridge: float | None = None) -> System:
    """Fit the operator of the system that some episodes are of, in closed form."""
    episodes = list(episodes)
    if not episodes:
        raise InputError("there is no episode to adapt to; give at least one")
    graph = episodes[0].graph
    sums, starts = collect(model, episodes, graph)
    system = fitted(model, graph, sums, starts, ridge, np.zeros((1, model.config.num_observations)))
    return replace(system, spread=measure_spread(system, episodes))


def fitted(model: Model, graph: Graph, sums: Sums, starts: Starts, ridge: float | None, spread: np.ndarray) -> System:
    if not bool(torch.isfinite(sums.moments.gram).all() and torch.isfinite(sums.moments.cross).all()):
        raise InputError("the episodes lead to numbers that are not finite; look for values far out of the usual range")
    with torch.no_grad():
        operator = model.fit(sums, Topology.of(graph), ridge)
    rows, regressors = sums.moments.rows, sums.moments.gram.shape[-1]
    if rows < regressors:
        warnings.warn(
            f"{rows} samples for {regressors} regressors: the ridge decides what the data leave open; "
            "adapt to more episodes if you can",
            stacklevel=3,
        )
    return System(model, graph, sums, operator, starts, spread, ridge)


def collect(model: Model, episodes: Sequence[Episode], graph: Graph) -> tuple[Sums, Starts]:
    """The sums of the regression over some episodes, smoothed first where that is possible."""
    total: Sums | None = None
    starts: Starts | None = None
    topology, c = Topology.of(graph), model.config
    for k, episode in enumerate(episodes):
        check_fits(model, episode, graph, k)
        raw = model.normalise(torch.as_tensor(episode.observations, dtype=torch.float64)).numpy()
        clean = smooth(raw, c.kinematics, model.ratios, c.rest_start) if c.kinematics else raw
        noise = noise_variance(raw, c.kinematics, model.ratios)
        with torch.no_grad():
            observations = model.merge(torch.as_tensor(clean, dtype=torch.float32), topology)
            inputs = model_inputs(model, episode.actions, episode.exogenous, graph)
            x = model.states(observations, inputs[..., : c.num_actions])
            psi = model.features(x, topology)
            fresh = torch.zeros(episode.length, 1, 1)
            fresh[0] = 1.0
            X = model.regressors(psi[:-1], inputs, topology, fresh)
            Z = model.channels(x[:-1], topology)
            (sums,) = model.sums(X, model.targets(x[:-1], x[1:], psi[1:]), topology, Z)
        start = Starts(1, raw[0], np.square(raw[0]), clean[0], noise)
        total = sums if total is None else total + sums
        starts = start if starts is None else starts + start
    assert total is not None
    assert starts is not None
    return total, starts


def measure_spread(system: System, episodes: Sequence[Episode]) -> Float[np.ndarray, "steps d"]:
    """Root mean square error of predicting the adaptation episodes from their starts, step by step."""
    steps = max(episode.length for episode in episodes)
    squares = np.zeros((steps + 1, system.model.config.num_observations))
    counts = np.zeros((steps + 1, 1))
    unit = system.model.observation_std.double().numpy()
    for episode in episodes:
        predicted = system.predict(episode.observations[0].astype(float), episode.actions, exogenous=episode.exogenous)
        wrong = np.square((predicted - episode.observations) / unit)
        squares[: len(wrong)] += wrong.mean(axis=1)
        counts[: len(wrong)] += 1
    return np.sqrt(squares / counts)


def model_inputs(
    model: Model, actions: np.ndarray, exogenous: np.ndarray | None, graph: Graph
) -> Float[Tensor, "steps nodes a"]:
    """Normalised actions, then normalised exogenous inputs."""
    c = model.config
    expected = (graph.num_nodes, c.num_actions)
    if actions.ndim != 3 or actions.shape[1:] != expected:
        raise InputError(f"the actions have shape {actions.shape}, expected (steps, {expected[0]}, {expected[1]})")
    if len(actions) == 0:
        raise InputError("there are no actions; give those of at least one step")
    inputs = torch.as_tensor(actions, dtype=torch.float32) / model.action_std
    if c.num_exogenous == 0:
        return inputs
    if exogenous is None or exogenous.shape != (len(actions), graph.num_nodes, c.num_exogenous):
        raise InputError(f"the model needs {c.num_exogenous} exogenous inputs a node at every step; give them")
    return torch.cat([inputs, torch.as_tensor(exogenous, dtype=torch.float32) / model.exogenous_std], dim=-1)


def check_fits(model: Model, episode: Episode, graph: Graph, k: int) -> None:
    """An episode of another system, or of something the model was not made for, is refused."""
    c, g = model.config, episode.graph
    if g is not graph and not g.equals(graph):
        raise InputError(f"episode {k} is of another graph than episode 0; adapt to episodes of one system at a time")
    for what, found, expected in (
        ("coordinates", episode.observations.shape[2], c.num_observations),
        ("action coordinates", episode.actions.shape[2], c.num_actions),
        ("node attributes", g.node_attributes.shape[1], c.num_node_attributes),
        ("edge attributes", g.edge_attributes.shape[1], c.num_edge_attributes),
    ):
        if found != expected:
            raise InputError(f"episode {k} has {found} {what}, the model was made for {expected}")
    for what, found, expected in (
        ("relation", int(g.edge_type.max()), c.num_relations),
        ("node", int(g.node_type.max()), c.num_node_types),
    ):
        if found >= expected:
            raise InputError(
                f"episode {k} has {what} type {found}, the model knows 0 to {expected - 1}; train it on such data"
            )
