"""The contract of a kind of features.

The state x of a node is its normalised observation, with the previous observation and the previous action where they
are needed. A kind of features turns x into psi = [x, phi(x)], says what the operator is fitted on, and turns what the
operator predicts into the next state:

    phi   = on(topology)(x)                 the features beside the state
    X     = form(spread(topology)([x, phi]))  regressors; `regressed_state` says which of x
    y     = C' X                            targets: `num_effects` that move the state, then the next phi
    dx    = increments(operators, y, x)     of the free coordinates

Everything that only one kind needs (settings, priors, whitening, kernels) is an answer to a method or attribute here.
A new kind is a file with a subclass, registered in `gce.features`; other rooms never ask which kind they have.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gce.errors import InputError
from gce.features.inputs import InputLayer, Points, place_coordinates
from gce.graphs.topology import Topology
from gce.names import add, registered
from gce.operators import Operator
from gce.operators.prior import TrainingPrior
from gce.operators.regression import FieldRows, Prior

Layer = TypeVar("Layer", bound=InputLayer)
MANY_NODES = 40
"""Beyond which the model is not linearised anew at every step of a path: derivatives would take minutes."""


@dataclass(frozen=True)
class StateShape:
    """What a node's state holds, and the sizes of the data it is of; JSON values.

    kinematics: (position, velocity) pairs of coordinates with v_t = (p_t - p_{t-1}) / dt.
    fresh_start: whether the first step of an episode is free of all but the action (a simulator that has not
        computed any force yet); rest_start: whether episodes open with velocities of zero.
    history: 1 or 2 observations in the state; previous_action: whether the state holds it; late_action: whether an
        action shows only through it, one step late.
    points: the coordinates (x, y, vx, vy) of each point of a node, for observations that are points in the plane.
    hyperedges: whether a model uses the hyperedges of the data, where there are any.
    """

    num_observations: int
    num_actions: int
    num_relations: int
    num_node_types: int
    num_node_attributes: int = 0
    num_edge_attributes: int = 0
    num_exogenous: int = 0
    num_hyperedge_types: int = 0
    world: str | None = None
    dt: float = 1.0
    kinematics: tuple[tuple[int, int], ...] = ()
    fresh_start: bool = False
    rest_start: bool = False
    history: int = 1
    previous_action: bool = False
    late_action: bool = False
    points: Points = ()
    hyperedges: bool = True

    @property
    def num_state(self) -> int:
        return self.history * self.num_observations + self.previous_action * self.num_actions

    @property
    def num_inputs(self) -> int:
        """Columns that act on a step: actions, then exogenous inputs."""
        return self.num_actions + self.num_exogenous

    def input_layer(self, layer: type[Layer], **options: bool) -> Layer:
        """What an encoder sees of such states."""
        return layer(
            num_observations=self.num_observations,
            num_state=self.num_state,
            num_previous_actions=self.previous_action * self.num_actions,
            num_relations=self.num_relations,
            num_node_types=self.num_node_types,
            num_node_attributes=self.num_node_attributes,
            num_edge_attributes=self.num_edge_attributes,
            points=self.points,
            **options,
        )


@dataclass(frozen=True)
class FeaturesConfig:
    """The settings of one kind of features; JSON values. kind: its name."""

    kind: ClassVar[str] = ""


Encode = Callable[[Tensor], Tensor]
"""States [nodes, batch, state] of one topology to phi [nodes, batch, features]."""


class Features(nn.Module, ABC):
    """States [*batch, nodes, state] to features psi = [x, phi(x)], and all that follows from the kind of phi.

    free: coordinates of the observation that the operator predicts; the others follow (positions from velocities).
    held: whether a target never moves at nodes of a type (a mass on a rail keeps its height); phi always may.
    """

    name: ClassVar[str]
    Config: ClassVar[type[FeaturesConfig]]
    method: ClassVar[str] = "structured"
    """The method that models with this kind are of, unless their file says another (`gce.names`)."""
    formerly: ClassVar[dict[str, Any]] = {}
    """The flat setting by which commands and older files ask for this kind, such as {"network": True}."""
    settings: ClassVar[dict[str, Any]] = {}
    """Settings of a model that this kind wants unless told otherwise, over those of a world; see `settings_for`."""
    training_settings: ClassVar[dict[str, Any]] = {}
    """How to train such a model where not as any other: iterations, horizon, and fields of `TrainingConfig`."""
    dynamics: ClassVar[str] = "gce.dynamics.state:StateDynamics"
    """The dynamics that planners use, as "module:class"; imported when a plan is made."""
    adapted: ClassVar[str] = "gce.system.system:System"
    """The class of systems adapted to, as "module:class"."""
    trained: ClassVar[str] = "gce.training.learning:training_of"
    """What makes a training of a model, as "module:function"."""
    structured: ClassVar[bool] = True
    """Whether a world's preset and metadata say what a model should know; otherwise the structure found in the data."""
    selects: ClassVar[bool] = True
    """Whether the observation is among the features; otherwise `decoder` finds it."""
    planned_in_features: ClassVar[bool] = False
    """Whether plans are made in feature space, with the goal encoded, as in the paper."""
    linear: ClassVar[bool] = True
    """Whether a step in feature space is the operator alone: then it has a spectrum, and plans may stay there."""
    filtered: ClassVar[bool] = True
    """Whether errors of targets enter states alike everywhere, as filters take it."""
    batched: ClassVar[bool] = True
    """Whether systems on equal graphs may be fitted as one batch."""
    hyper: ClassVar[bool] = False
    """Whether features hold what hyperedges say."""
    lasting_noise: ClassVar[bool] = False
    """Whether noise that lasts is looked for in the residuals of a fit, and its rows made white."""
    copies: ClassVar[int] = 1
    """How often each signal stands among the regressors; see `spread`."""
    note: ClassVar[str] = ""
    """What a person who looks at such a model should know."""
    added: ClassVar[tuple[str, ...]] = ()
    """Tensors that files written before lack; they stay as they were made."""

    held: Tensor

    def __init__(self, shape: StateShape, config: FeaturesConfig) -> None:
        super().__init__()
        self.shape, self.config = shape, config
        positions = [p for p, _ in shape.kinematics]
        self.free = [k for k in range(shape.num_observations) if k not in positions and self.selects]

    def prepared(self) -> None:
        """To be called at the end of a kind's constructor, when its sizes are known."""
        shape = (self.shape.num_node_types, len(self.free) + self.num_phi)
        self.register_buffer("held", torch.zeros(shape, dtype=torch.bool))

    # ---- what a kind must answer ----

    @property
    @abstractmethod
    def inputs(self) -> InputLayer:
        """What the kind sees of nodes and edges, in learned units."""

    @property
    @abstractmethod
    def num_phi(self) -> int:
        """How many features stand beside the state."""

    @abstractmethod
    def on(self, topology: Topology) -> Encode:
        """What encodes states of a topology; what depends on the topology alone is looked up here."""

    @abstractmethod
    def reach(self, topology: Topology) -> int:
        """How many edges away a node's next state may depend on others."""

    # ---- what most kinds answer alike ----

    @classmethod
    def settings_for(cls, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a model that go with those asked for."""
        return cls.settings

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuse the `ModelConfig` of a model that this kind cannot serve."""
        wanted = cls.settings.get("form", "")
        if "local" in (config.form, wanted) and config.form != wanted:
            raise InputError(
                f"features of the kind {cls.name!r} do not go with the form {config.form!r}: the form 'local' is for "
                "network features, and these need it; choose both or neither"
            )

    def forward(
        self, x: Float[Tensor, "*batch nodes state"], topology: Topology
    ) -> Float[Tensor, "*batch nodes features"]:
        """psi = [x, phi(x)]."""
        return torch.cat([x, self.phi(x, topology)], dim=-1)

    def phi(self, x: Float[Tensor, "*batch nodes state"], topology: Topology) -> Float[Tensor, "*batch nodes phi"]:
        rows = x.movedim(-2, 0)
        phi = self.on(topology)(rows.reshape(len(rows), -1, x.shape[-1]))
        return phi.reshape(*rows.shape[:-1], -1).movedim(0, -2)

    @property
    def regressed_state(self) -> list[int]:
        """The coordinates of x that the operator acts on beside phi: all but places in the plane."""
        s = self.shape
        places = place_coordinates(s.points, s.num_observations, s.history)
        return [c for c in range(s.num_state) if c not in places]

    @property
    def width(self) -> int:
        """How many features of a node the operator acts on, without copies."""
        return len(self.regressed_state) + self.num_phi

    @property
    def num_effects(self) -> int:
        """How many of the first targets move the state."""
        return len(self.free)

    @property
    def num_targets(self) -> int:
        return self.num_effects + self.num_phi

    def form_named(self, name: str) -> str:
        """The form of the operator behind a name, where a kind has forms of its own."""
        return name

    @property
    def acting(self) -> Bool[Tensor, "types inputs"] | None:
        """Which inputs nodes of a type have, where that is kept; found in the data before training."""
        return None

    @property
    def costs(self) -> dict[str, float]:
        """Q1, Q2 and the terminal weight of plans in features, by their names in `Problem`, unless told otherwise."""
        return {}

    @property
    def joint(self) -> bool:
        """Whether operators of history and action, and of different neighbours, are fitted in one regression."""
        return True

    def spread(self, topology: Topology) -> Callable[[Tensor], Tensor] | None:
        """What puts signals [nodes, batch, d] beside `copies` - 1 images of them that reach beyond neighbours."""
        return None

    def constants(self, values: Tensor) -> Tensor:
        """The regressors of constants."""
        return values

    def future_phi(
        self,
        x: Float[Tensor, "*batch nodes state"],
        topology: Topology,
        phi: Float[Tensor, "*batch nodes phi"] | None = None,
    ) -> Float[Tensor, "*batch nodes phi"]:
        """The features that the operator predicts of states x, by default those it acts on; phi: these, where known."""
        return self.phi(x, topology) if phi is None else phi

    def decoder_on(self, topology: Topology) -> Callable[[Tensor], Tensor] | None:
        """What finds normalised observations from phi [nodes, batch, phi], where features do not hold them."""
        return None

    def moving(self, topology: Topology) -> Float[Tensor, "nodes free"]:
        """1 where a free coordinate may move, 0 where it is held."""
        return (~self.held[topology.node_type][:, : len(self.free)]).to(self.inputs.unit_std.dtype)

    @property
    def held_targets(self) -> Bool[Tensor, "types targets"]:
        """Which targets of a regression never move."""
        return self.held

    @property
    def prior(self) -> Prior | None:
        """What is known of the coefficients of vector channels, where the kind has them."""
        return None

    @property
    def training_prior(self) -> TrainingPrior | None:
        """What the systems trained on tell of a new one, where the kind keeps it."""
        return None

    def beside_channels(
        self, targets: Float[Tensor, "*batch nodes m"], x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> tuple[Float[Tensor, "*batch nodes m2"], FieldRows | None]:
        """Targets of the operator, and the rows of vector channels that explain the state first, if there are any."""
        return targets, None

    def increments(
        self,
        operators: Sequence[Operator],
        targets: Float[Tensor, "nodes rows m"],
        x: Float[Tensor, "nodes rows c"],
        topology: Topology,
    ) -> Float[Tensor, "nodes rows m2"]:
        """What targets do to the free coordinates; what follows in the row is left to who asks."""
        return targets

    def effects(
        self,
        operators: Sequence[Operator],
        x: Float[Tensor, "*batch nodes c"],
        next_x: Float[Tensor, "*batch nodes c"],
        topology: Topology,
    ) -> Float[Tensor, "*batch nodes effects"]:
        """What operators should have predicted to move x to the next x."""
        return (next_x - x)[..., self.free]

    def anchored(self, topology: Topology) -> bool:
        """Whether plans are made around one state: where derivatives along a path would take too long."""
        return topology.num_nodes > MANY_NODES

    def measure(
        self,
        mean: Float[Tensor, " d"],
        std: Float[Tensor, " d"],
        step: Float[Tensor, " d"],
        push: Float[Tensor, " a"],
    ) -> None:
        """Hear of the observations' means and spreads, the spreads of their increments and of actions, first of all."""
        return None

    @torch.no_grad()
    def prepare(self, samples: Iterable[tuple[Float[Tensor, "_ _ state"], Topology]]) -> None:
        """Learn units from states on some graphs, before training."""
        self.inputs.set_units(samples)


KINDS: dict[str, type[Features]] = {}


def register_features(kind: Any) -> Any:
    """Make a kind of features known by its name, as a decorator or a call; one that breaks the contract is refused."""
    add(KINDS, kind, Features, needs=("Config",))
    try:
        config: Any = kind.Config
        derived = isinstance(config, type) and issubclass(config, FeaturesConfig)
        if not (derived and is_dataclass(config) and getattr(config, "kind", None) == kind.name):
            raise InputError(
                f"{kind.__name__}.Config must be a dataclass derived from FeaturesConfig with kind = {kind.name!r}"
            )
        if len(inspect.signature(kind).parameters) != 2:
            raise InputError(f"{kind.__name__} must be made from a StateShape and its Config alone")
    except InputError:
        del KINDS[kind.name]
        raise
    return kind


def kind_named(name: str) -> type[Features]:
    return registered(KINDS, name, "kind of features")
