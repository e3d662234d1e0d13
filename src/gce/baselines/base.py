"""What a baseline is: one interface for seven methods, the same as our own model's.

    model = train("cko", data, folder)        or        model = load(folder)
    adapted = adapt(model, episodes)          the episodes of one system
    adapted.predict(observation, actions)     from an episode's first observation, in physical units

The state of a node is its normalised observation, with the previous action where an action shows only one step late.
An adapted baseline is three functions of tensors without side effects,

    x_0 = encode(state),   x_{t+1} = step(x_t, a_t),   o_t = decode(x_t)

in double precision, x flat; a planner needs nothing else, since they can be differentiated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.errors import InputError
from gce.features.base import StateShape
from gce.graphs.graph import Graph
from gce.graphs.topology import Topology
from gce.model.model import Units
from gce.training.preparation import config_for, take_units
from gce.trajectory import Dataset, Episode, check_one_system

FAR = 10.0
"""The error, in standard deviations, beyond which a prediction is no worse."""
TANGENTS = 2000
"""How many directions are differentiated at once, which bounds the memory."""


C = TypeVar("C", bound=StateShape)


def configure(kind: type[C], data: Dataset, **chosen: Any) -> C:
    """The configuration of a baseline for a data set; `chosen` overrides what is found and sets the method's sizes."""
    config = config_for(data)
    read = {field.name: getattr(config, field.name) for field in fields(StateShape)}
    return kind(**{**read, "history": 1, **chosen})


class Baseline(Units, ABC):
    """A method in the units of its data."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised where what a trained model predicts or plans changes: runs that are kept are of a version."""
    config_class: ClassVar[type[StateShape]]

    @abstractmethod
    def fit(self, episodes: Sequence[Episode]) -> Adapted:
        """Adapted to the episodes of one system, which have been checked."""

    def set_units(self, data: Dataset, seed: int = 0) -> None:
        """Learn the units from some episodes of a data set."""
        take_units(self, data, seed)


class Adapted(ABC):
    """A baseline adapted to one system.

    model: in double precision, for its units; graph: of the system.
    """

    def __init__(self, model: Baseline, graph: Graph) -> None:
        self.model, self.graph, self.topology = model, graph, Topology.of(graph)

    # ---- what a method defines ----

    @abstractmethod
    def encode(self, state: Float[Tensor, "*batch nodes c"]) -> Float[Tensor, "*batch s"]: ...

    @abstractmethod
    def step(self, x: Float[Tensor, "*batch s"], inputs: Float[Tensor, "*batch nodes i"]) -> Float[Tensor, "*batch s"]:
        """The next x; inputs: normalised actions, then exogenous inputs."""

    @abstractmethod
    def decode(self, x: Float[Tensor, "*batch s"]) -> Float[Tensor, "*batch nodes d"]:
        """The normalised observation."""

    def features(self, x: Float[Tensor, "*batch s"]) -> Float[Tensor, "*batch nodes f"]:
        """What x holds of each node; nothing where it is of the whole system."""
        return x.new_zeros(*x.shape[:-1], self.graph.num_nodes, 0)

    def slopes(
        self, x: Float[Tensor, "M s"], inputs: Float[Tensor, "M nodes i"]
    ) -> tuple[Float[Tensor, "M s s"], Float[Tensor, "M s n"]]:
        """(d step / d x, d step / d inputs) at every row, nodes and inputs flattened."""
        by_x, by_u = derivatives(self.step, x, inputs)
        return by_x, by_u.flatten(-2)

    def output_slopes(self, x: Float[Tensor, "M s"]) -> Float[Tensor, "T p s"]:
        """d observe / d x at every row, nodes and coordinates flattened; one for all (T = 1) where it is linear."""
        return derivatives(lambda x: self.observe(x).flatten(-2), x)[0]

    # ---- what everyone uses ----

    def observe(self, x: Float[Tensor, "*batch s"]) -> Float[Tensor, "*batch nodes d"]:
        """The normalised observation, tied coordinates merged."""
        return self.model.merge(self.decode(x), self.topology)

    def start(
        self, observation: Float[np.ndarray, "nodes d"], before: tuple[np.ndarray, np.ndarray] | None = None
    ) -> Float[Tensor, " s"]:
        """x_0 of an observation in physical units. before: (observation, action) one step earlier, None for none."""
        c = self.model.config
        expected = (self.graph.num_nodes, c.num_observations)
        if observation.shape != expected:
            raise InputError(f"the observation has shape {observation.shape}, this system's have {expected}")
        if not np.isfinite(observation).all():
            raise InputError("the observation holds numbers that are not finite; give one without gaps")
        state = self.model.normalise(torch.as_tensor(observation, dtype=torch.float64))
        if c.previous_action:
            action = np.zeros((len(state), c.num_actions)) if before is None else before[1]
            state = torch.cat([state, torch.as_tensor(action, dtype=torch.float64) / self.model.action_std], dim=-1)
        with torch.no_grad():
            return self.encode(state)

    def outputs_at(self, observations: Float[np.ndarray, "M nodes d"], on: str) -> Float[np.ndarray, "M p"]:
        """Normalised observations, or (on "features") x there when nothing is pushed, flat."""
        if on == "observations":
            return self.model.normalise(torch.tensor(observations)).flatten(-2).numpy()
        return torch.stack([self.start(o) for o in observations]).numpy()

    @torch.no_grad()
    def rollout(
        self, x: Float[Tensor, "*batch s"], inputs: Float[Tensor, "*batch steps nodes i"]
    ) -> Float[Tensor, "*batch steps s"]:
        """x_1..x_M."""
        path = []
        for u in inputs.unbind(-3):
            x = self.step(x, u)
            path.append(x)
        return torch.stack(path, dim=-2)

    def predict(
        self,
        observation: Float[np.ndarray, "nodes d"],
        actions: Float[np.ndarray, "steps nodes a"],
        exogenous: Float[np.ndarray, "steps nodes e"] | None = None,
        before: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Float[np.ndarray, "steps_plus_1 nodes d"]:
        """The observations that actions lead to, in physical units, the given one first."""
        x = self.start(observation, before)
        path = self.rollout(x, self.model.inputs(actions, exogenous, self.graph.num_nodes))
        with torch.no_grad():
            predicted = self.model.denormalise(self.observe(path)).numpy()
        return np.concatenate([observation[None], predicted])

    @torch.no_grad()
    def miss(self, states: Float[Tensor, "episodes _ nodes c"], inputs: Float[Tensor, "episodes _ nodes i"]) -> float:
        """Root mean square error of predicting episodes from their starts, mean over steps and episodes."""
        states = states.double()
        path = self.observe(self.rollout(self.encode(states[:, 0]), inputs.double()))
        wrong = path - states[:, 1:, :, : self.model.config.num_observations]
        return float(torch.nan_to_num(wrong.square().mean((-1, -2)).sqrt(), nan=FAR).clamp(max=FAR).mean())


class Selecting(Adapted):
    """The observation is among what x holds of each node, and stands first."""

    def decode(self, x: Float[Tensor, "*batch s"]) -> Float[Tensor, "*batch nodes d"]:
        return x.unflatten(-1, (self.graph.num_nodes, -1))[..., : self.model.config.num_observations]

    def output_slopes(self, x: Float[Tensor, "M s"]) -> Float[Tensor, "T p s"]:
        return super().output_slopes(x[:1])


def derivatives(function: Callable[..., Tensor], *rows: Tensor) -> list[Tensor]:
    """d function / d each argument at every row [M, outputs, ...], backwards, some rows at a time.

    function: acts on each row alone, [M, ...] to [M, outputs].
    """
    gradients: list[list[Tensor]] = [[] for _ in rows]
    size = sum(argument[0].numel() for argument in rows)
    for part in zip(*(argument.split(max(1, TANGENTS // size)) for argument in rows), strict=True):
        leaves = [argument.detach().requires_grad_(True) for argument in part]
        with torch.enable_grad():
            values = function(*leaves)
        outputs = values.shape[1]
        every = torch.eye(outputs, dtype=values.dtype)[:, None, :].expand(-1, len(values), -1)
        slopes = torch.autograd.grad(
            values, leaves, every, is_grads_batched=True, allow_unused=True, materialize_grads=True
        )
        for pieces, slope in zip(gradients, slopes, strict=True):
            pieces.append(slope.transpose(0, 1))
    return [torch.cat(pieces) for pieces in gradients]


def adapt(model: Baseline, episodes: Sequence[Episode]) -> Adapted:
    """Adapt to the system that some episodes are of."""
    episodes = list(episodes)
    if not episodes:
        raise InputError("there is no episode to adapt to; give at least one")
    check_one_system(model.config, episodes, episodes[0].graph)
    return model.fit(episodes)
