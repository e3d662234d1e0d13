"""The model: state, features, operator, and the way back, joined.

The state x of a node is its normalised observation, with the previous observation and the previous action where they
are needed. Features are psi = [x, phi(x)], phi from the encoder. One step, in the names of the paper,

    alpha = gibbs_weights(phi);   X = form.regressors(psi, a, alpha);   y = C' X

y holds the increments of the free coordinates and the next phi. The other coordinates of the next state follow:
positions whose velocities are their differences, the previous observation, the previous action. A rollout goes on
from the predicted state, whose features it takes anew (reprojection, van Goor et al. 2023), or from the predicted
features themselves, which keeps it linear.

C is fitted in closed form to the episodes of a system (`adapt`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.config import ModelConfig
from gce.decoder import Decoder
from gce.encoder import Encoder, EncoderShape
from gce.implicit import ImplicitLayer
from gce.inputs import InputLayer
from gce.operators import Form, Operator, Shape, make_form
from gce.potentials import make_potential
from gce.regression import FieldRows, Regression, Sums
from gce.topology import Topology


class Model(nn.Module):
    """Encoder, potential and the operator's prior; `step` advances states by a fitted operator."""

    observation_mean: Tensor
    observation_std: Tensor
    action_std: Tensor
    exogenous_std: Tensor
    held: Tensor
    """Whether a free coordinate never moves at nodes of a type (a mass on a rail keeps its height); phi always may."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c = self.config = config
        layer = InputLayer(
            num_observations=c.num_observations,
            num_state=c.num_state,
            num_previous_actions=c.previous_action * c.num_actions,
            num_relations=c.num_relations,
            num_node_types=c.num_node_types,
            num_node_attributes=c.num_node_attributes,
            num_edge_attributes=c.num_edge_attributes,
            points=c.points,
            absolute=not c.selects,
            invariant=c.implicit,
        )
        shape = EncoderShape(
            num_relations=c.num_relations,
            num_node_types=c.num_node_types,
            num_features=c.features,
            num_linear=c.linear_features,
            node_width=c.node_width,
            edge_width=c.edge_width,
            rounds=c.rounds,
            conservative=c.conservative,
        )
        self.encoder = Encoder(layer, shape, c.bound)
        self.implicit = ImplicitLayer(layer, c.num_node_types, c.dt, c.drag) if c.implicit else None
        self.potential = make_potential(c.potential, c.num_phi, c.potential_value, c.potential_learned)
        width = len(c.regressed_state) + c.num_phi
        self.form: Form = make_form(c.form, Shape(width, c.num_inputs, c.num_relations, c.num_node_types), c.own_block)
        positions = [p for p, _ in c.kinematics]
        self.free = [k for k in range(c.num_observations) if k not in positions and c.selects]
        self.num_effects = len(layer.pairs) if c.implicit else len(self.free)
        self.num_targets = self.num_effects + c.num_phi
        sizes = (c.num_phi, c.num_observations, c.num_relations, c.num_node_types, c.node_width, c.edge_width)
        self.decoder = None if c.selects else Decoder(*sizes)
        self.register_buffer("observation_mean", torch.zeros(c.num_observations))
        self.register_buffer("observation_std", torch.ones(c.num_observations))
        self.register_buffer("action_std", torch.ones(c.num_actions))
        self.register_buffer("exogenous_std", torch.ones(c.num_exogenous))
        self.register_buffer("held", torch.zeros(c.num_node_types, len(self.free) + c.num_phi, dtype=torch.bool))

    def with_form(self, form: str) -> Model:
        """The same encoder and potential under another form of the operator."""
        other = Model(replace(self.config, form=form))
        other.load_state_dict(self.state_dict())
        return other.eval()

    @property
    def device(self) -> torch.device:
        return self.observation_std.device

    @property
    def dtype(self) -> torch.dtype:
        return self.observation_std.dtype

    # ---- units ----

    def normalise(self, observations: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return (observations - self.observation_mean) / self.observation_std

    def denormalise(self, observations: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return observations * self.observation_std + self.observation_mean

    def merge(
        self, observations: Float[Tensor, "*batch nodes d"], topology: Topology
    ) -> Float[Tensor, "*batch nodes d"]:
        """Tied coordinates at their mean, which is one of physical quantities, not of normalised ones."""
        if topology.tied is None:
            return observations
        physical = self.denormalise(observations).movedim(-2, 0)
        return self.normalise(topology.merge(physical).movedim(0, -2))

    # ---- states and features ----

    def states(
        self,
        observations: Float[Tensor, "*batch steps nodes d"],
        actions: Float[Tensor, "*batch steps_less nodes a"],
        before: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "*batch steps nodes c"]:
        """The states along normalised observations and the actions between them.

        before: (observation, action) one step earlier; None where the stretch opens an episode (the first observation
            stands for the one before it, and the action before is 0).
        """
        parts = [observations]
        if self.config.history == 2:
            earlier = observations[..., :1, :, :] if before is None else before[0].unsqueeze(-3)
            parts.append(torch.cat([earlier, observations[..., :-1, :, :]], dim=-3))
        if self.config.previous_action:
            shape = (*observations.shape[:-3], 1, *actions.shape[-2:])
            earlier = actions.new_zeros(shape) if before is None else before[1].unsqueeze(-3)
            parts.append(torch.cat([earlier, actions[..., : observations.shape[-3] - 1, :, :]], dim=-3))
        return torch.cat(parts, dim=-1)

    def features(self, x: Float[Tensor, "*batch nodes c"], topology: Topology) -> Float[Tensor, "*batch nodes f"]:
        """psi = [x, phi(x)]."""
        return torch.cat([x, self.encoder(x, topology)], dim=-1)

    def decoded(self, psi: Float[Tensor, "*batch nodes f"], topology: Topology) -> Float[Tensor, "*batch nodes d"]:
        """The normalised observations behind features, ties merged."""
        if self.decoder is None:
            return psi[..., : self.config.num_observations]
        o = self.decoder.on(topology)(nodes_first(psi[..., self.config.num_state :]))
        return self.merge(o.reshape(len(o), *psi.shape[:-2], -1).movedim(0, -2), topology)

    def regressors(
        self,
        psi: Float[Tensor, "*batch nodes f"],
        inputs: Float[Tensor, "*batch nodes a"],
        topology: Topology,
        fresh: Float[Tensor, "*batch #nodes 1"] | None = None,
    ) -> Float[Tensor, "*batch nodes D"]:
        """The form's regressors; at fresh states (1) all but the inputs is switched off."""
        acting, going = self.acting_inputs(nodes_first(inputs)), self.going(fresh)
        rows, c = nodes_first(psi), self.config.num_state
        state = self.state_regressors(topology)(rows[..., :c], rows[..., c:], acting)
        X = torch.cat(
            [state if going is None else state * going, self.input_regressors(acting, going, topology)], dim=-1
        )
        return X.reshape(X.shape[0], *psi.shape[:-2], X.shape[-1]).movedim(0, -2)

    def acting_inputs(self, inputs: Float[Tensor, "nodes rows a"]) -> Float[Tensor, "nodes rows a"]:
        """The inputs a step feels at once: a late action shows through the previous action in the state, only there."""
        if not self.config.late_action:
            return inputs
        return torch.cat(
            [torch.zeros_like(inputs[..., : self.config.num_actions]), inputs[..., self.config.num_actions :]], dim=-1
        )

    def going(self, fresh: Float[Tensor, "*batch #nodes 1"] | None) -> Float[Tensor, "#nodes rows 1"] | None:
        """0 at fresh states, otherwise 1; None where no state is fresh."""
        return None if fresh is None or not self.config.fresh_start else 1 - nodes_first(fresh)

    def state_regressors(self, topology: Topology) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """What turns x, phi and the acting inputs, nodes first, into the regressors of the history."""
        chosen, score = self.config.regressed_state, self.potential.on(topology)

        def regressors(x: Tensor, phi: Tensor, acting: Tensor) -> Tensor:
            weights = topology.softmax(score(phi)) if self.form.weighted else None
            features = torch.cat([x[..., chosen], phi], dim=-1) if chosen else phi
            return self.form.state_regressors(features, acting, weights, topology)

        return regressors

    def input_regressors(
        self, acting: Float[Tensor, "nodes rows a"], going: Float[Tensor, "#nodes rows 1"] | None, topology: Topology
    ) -> Float[Tensor, "nodes rows columns"]:
        """Those of the inputs, then constants."""
        constants = self.form.constants(acting, topology)
        if self.config.implicit:  # a body made of pairs knows no constant force
            constants = torch.zeros_like(constants)
        elif going is not None:
            constants = constants * going
        return torch.cat([self.form.action_regressors(acting, topology), constants], dim=-1)

    def targets(
        self,
        x: Float[Tensor, "*batch nodes c"],
        next_x: Float[Tensor, "*batch nodes c"],
        next_psi: Float[Tensor, "*batch nodes f"],
    ) -> Float[Tensor, "*batch nodes m"]:
        """Increments of the free coordinates, then the next phi."""
        return torch.cat([(next_x - x)[..., self.free], next_psi[..., self.config.num_state :]], dim=-1)

    def num_needed(self, reproject: bool) -> int:
        """How many of the first targets a rollout needs: those that move the state, if features are taken anew."""
        return self.num_effects if reproject and self.config.selects else self.num_targets

    def next_state(
        self,
        x: Float[Tensor, "nodes rows c"],
        o: Float[Tensor, "nodes rows d"],
        inputs: Float[Tensor, "nodes rows a"],
        topology: Topology,
    ) -> Float[Tensor, "nodes rows c"]:
        """The state of the next observation, ties merged; the observation and the action before follow where known."""
        c = self.config
        if topology.tied is not None:
            o = self.merge(o.movedim(0, -2), topology).movedim(-2, 0)
        parts = [o, *([x[..., : c.num_observations]] if c.history == 2 else [])]
        parts += [inputs[..., : c.num_actions]] if c.previous_action else []
        return o if len(parts) == 1 else torch.cat(parts, dim=-1)

    @property
    def ratios(self) -> list[float]:
        """dt std_v / std_p of each kinematic pair: p' = p + ratio v' in coordinates of mean-free velocities."""
        std = self.observation_std
        return [float(self.config.dt * std[velocity] / std[position]) for position, velocity in self.config.kinematics]

    def way_back(self, topology: Topology) -> WayBack:
        """What the targets say of the next state."""
        if self.decoder is not None:
            return Decoding(self, topology, self.decoder.on(topology))
        return Motion(self, topology, *self.motion())

    def motion(self) -> tuple[Float[Tensor, "d d"], Float[Tensor, "free d"]]:
        """(keep, spread): o' = keep' o + spread' increments of the free coordinates."""
        keep = torch.eye(self.config.num_observations, dtype=self.observation_std.dtype)
        for (position, velocity), ratio in zip(self.config.kinematics, self.ratios, strict=True):
            keep[velocity, position] = ratio
        keep = keep.to(self.observation_std.device)
        return keep, keep[self.free]

    # ---- operators ----

    def channels(self, x: Float[Tensor, "*batch nodes c"], topology: Topology) -> Channels | None:
        """The vector channels of the free coordinates, where the model has them."""
        layer = self.implicit
        if layer is None:
            return None
        held, speeds = self._held_points(topology), self._speeds
        Z = layer(x, topology, held)[..., self._speed_order, :]
        return Channels(Z, lambda changes: layer.behind(changes[..., speeds, :], x, topology, held))

    def channelled(
        self, operators: Sequence[Operator], x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> Float[Tensor, "*batch nodes free"]:
        """What the channels do to the free coordinates, each graph's with its operator's coefficients."""
        assert self.implicit is not None
        coefficients = torch.stack([o.channels for o in operators if o.channels is not None])
        return self.implicit.combined(x, topology, self._held_points(topology), coefficients)[..., self._speed_order]

    def pushed(
        self, pushes: Float[Tensor, "*batch nodes pairs"], x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> Float[Tensor, "*batch nodes free"]:
        """What pushes along pairs do to the free coordinates."""
        assert self.implicit is not None
        return self.implicit.pushed(pushes, x, topology, self._held_points(topology))[..., self._speed_order]

    def effects(
        self,
        operators: Sequence[Operator],
        x: Float[Tensor, "*batch nodes c"],
        next_x: Float[Tensor, "*batch nodes c"],
        topology: Topology,
    ) -> Float[Tensor, "*batch nodes e"]:
        """What operators should have said: increments of the free coordinates, or pushes behind what channels leave."""
        moved = (next_x - x)[..., self.free]
        if self.implicit is None:
            return moved
        left = (moved - self.channelled(operators, x, topology)) * self._moving(topology)
        held = self._held_points(topology)
        return self.implicit.behind(left[..., self._speeds].unsqueeze(-1), x, topology, held).squeeze(-1)

    def _moving(self, topology: Topology) -> Float[Tensor, "nodes free"]:
        return (~self.held[topology.node_type][:, : len(self.free)]).to(self.observation_std.dtype)

    @property
    def _speeds(self) -> list[int]:
        """Where each velocity coordinate of the points stands among the free coordinates."""
        return [self.free.index(c) for point in self.config.points for c in point[2:]]

    @property
    def _speed_order(self) -> Tensor:
        return torch.argsort(torch.tensor(self._speeds))

    def _held_points(self, topology: Topology) -> Tensor:
        return self.held[topology.node_type][:, self._speeds].reshape(topology.num_nodes, -1, 2).all(-1)

    def regression(self, num_targets: int) -> Regression:
        """Of the first targets; pushes along pairs are not held."""
        held = self.held if self.implicit is None else self.held.new_zeros(len(self.held), self.num_targets)
        return Regression(self.form, held[:, :num_targets], self.config.node_constants)

    def sums(
        self,
        X: Float[Tensor, "*batch nodes D"],
        Y: Float[Tensor, "*batch nodes m"],
        topology: Topology,
        channels: Channels | None = None,
    ) -> list[Sums]:
        """What the rows of each graph contribute to its operator. Y may hold the first targets only."""
        Y, fields = self._beside(Y, topology, channels)
        return self.regression(Y.shape[-1]).sums(nodes_first(X), nodes_first(Y), topology, fields)

    def _beside(self, Y: Tensor, topology: Topology, channels: Channels | None) -> tuple[Tensor, FieldRows | None]:
        """Targets of the operator beside channels, with pushes in the place of increments, and rows of the channels."""
        if channels is None:
            return Y, None
        free, moving = len(self.free), self._moving(topology).to(Y.dtype).unsqueeze(-1)
        y, Z = Y[..., :free].unsqueeze(-1) * moving, channels.fields * moving
        pushes = channels.behind(torch.cat([y, Z], dim=-1))
        rows = (part.movedim(-3, 0).flatten(1, -3) for part in (y, Z, pushes[..., 1:]))
        fields = FieldRows(next(rows).squeeze(-1), *rows)
        return torch.cat([pushes[..., 0], Y[..., free:]], dim=-1), fields

    def fit(self, sums: Sums, topology: Topology, ridge: float | None = None, joint: bool = True) -> Operator:
        """The operator of one system, in closed form."""
        regression = self.regression(sums.moments.cross.shape[-1])
        return regression.fit(sums, topology, self.config.ridge if ridge is None else ridge, joint)

    def fit_all(
        self,
        X: Float[Tensor, "systems *batch nodes D"],
        Y: Float[Tensor, "systems *batch nodes m"],
        states: Float[Tensor, "systems *batch nodes c"],
        topology: Topology,
    ) -> list[Operator]:
        """The operators of systems that share a topology (and of each of its graphs), from their rows."""
        Y, fields = self._beside(Y, topology, self.channels(states, topology))
        regression = self.regression(Y.shape[-1])
        sums = regression.sums(nodes_first(X), nodes_first(Y), topology, fields, len(X))
        return regression.fit_all(sums, topology, self.config.ridge)

    def stepper(self, operators: Sequence[Operator], topology: Topology, reproject: bool | None = None) -> Stepper:
        """One step under an operator for each graph of the union, for `rollout`.

        reproject: take the features of the predicted state anew; otherwise go on with the predicted features. By
            default as the model was trained.
        """
        return Stepper(self, operators, topology, self.config.reproject if reproject is None else reproject)


def nodes_first(values: Float[Tensor, "*batch nodes d"]) -> Float[Tensor, "nodes rows d"]:
    """The batch as one axis, after the nodes; of one if there is none."""
    return values.movedim(-2, 0).reshape(values.shape[-2], values.shape[:-2].numel(), values.shape[-1])


@dataclass(frozen=True, eq=False)
class Channels:
    """Vector channels Z along some states, and the pushes along pairs behind any changes of the free coordinates."""

    fields: Float[Tensor, "*batch nodes free k"]
    behind: Callable[[Tensor], Tensor]


WayBack = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(state, targets, inputs), nodes first, to the next state."""


@dataclass(frozen=True)
class Motion:
    """The next state from the increments of the free coordinates: o' = keep' o + spread' increments, ties merged."""

    model: Model
    topology: Topology
    keep: Float[Tensor, "d d"]
    spread: Float[Tensor, "free d"]

    def __call__(
        self,
        x: Float[Tensor, "nodes rows c"],
        y: Float[Tensor, "nodes rows m"],
        inputs: Float[Tensor, "nodes rows a"],
    ) -> Float[Tensor, "nodes rows c"]:
        o = x[..., : len(self.keep)] @ self.keep + y[..., : len(self.spread)] @ self.spread
        return self.model.next_state(x, o, inputs, self.topology)


@dataclass(frozen=True)
class Decoding:
    """The next state from the next phi: the observation as the decoder finds it, ties merged, and the rest as known."""

    model: Model
    topology: Topology
    decode: Callable[[Tensor], Tensor]

    def __call__(
        self,
        x: Float[Tensor, "nodes rows c"],
        y: Float[Tensor, "nodes rows m"],
        inputs: Float[Tensor, "nodes rows a"],
    ) -> Float[Tensor, "nodes rows c"]:
        return self.model.next_state(x, self.decode(y), inputs, self.topology)


@dataclass(frozen=True)
class Drive:
    """What acts on steps, known before they are taken.

    inputs: all there are; acting: those felt at once; push: what these and constants add to the targets; going: 0 at
        fresh states, where nothing else acts.
    """

    inputs: Float[Tensor, "nodes rows a"]
    acting: Float[Tensor, "nodes rows a"]
    push: Float[Tensor, "nodes rows m"]
    going: Float[Tensor, "#nodes rows 1"] | None

    def by_step(self, steps: int) -> list[Drive]:
        """The rows of each step apart, where the last axis of the batch is of steps."""
        parts = [self.inputs, self.acting, self.push]
        apart = [part.unflatten(1, (-1, steps)).unbind(2) for part in parts]
        going: list[Tensor | None] = [None] * steps
        if self.going is not None:
            by_step = self.going.unflatten(1, (-1, steps))
            on = (by_step == 1).all(1).all(0).flatten().tolist()
            going = [None if all_on else step for step, all_on in zip(by_step.unbind(2), on, strict=True)]
        return [Drive(*of_step) for of_step in zip(*apart, going, strict=True)]


class Stepper:
    """States into the next ones, under an operator for each graph of a union, or for each part of the batch.

    The latter is for systems that share a topology of one graph: the batch holds them one after another.
    All that depends on the topology, the parameters and the operators alone is looked up when it is made. With
    `reproject`, targets other than the free coordinates are not needed, and not computed.
    """

    def __init__(self, model: Model, operators: Sequence[Operator], topology: Topology, reproject: bool) -> None:
        self.model, self.operators, self.topology, self.reproject = model, operators, topology, reproject
        self.num_state = model.config.num_state
        self.encode = model.encoder.on(topology) if reproject else None
        self.regressors = model.state_regressors(topology)
        self.way_back = model.way_back(topology)
        self.by_nodes = len(operators) == len(topology.splits)
        num_targets = model.num_needed(reproject)
        C = self._by_group(num_targets).to(model.observation_std.dtype)
        states = model.form.num_state_regressors(topology)
        self.from_state, self.from_inputs = C[:, :states], C[:, states:]
        self.moving = model._moving(topology).to(C.dtype).unsqueeze(1) if bool(model.held.any()) else None
        found = [o.constants[:, :num_targets].to(C.dtype) for o in operators if o.constants is not None]
        self.constants = torch.cat(found).unsqueeze(1) if found and self.by_nodes else None
        if found and not self.by_nodes:
            self.constants = torch.stack(found, dim=1)

    def _by_group(self, num_targets: int) -> Float[Tensor, "groups D m"]:
        """Coefficients of groups of nodes, all of one size: of each graph, or of each node."""
        found = [operator.coefficients[..., :num_targets] for operator in self.operators]
        if not self.model.form.shared:
            return torch.cat(found)
        C, sizes = torch.stack(found), self.topology.splits
        if not self.by_nodes or len(set(sizes)) == 1:
            return C
        return C.repeat_interleave(torch.tensor(sizes, device=C.device), dim=0)

    def drive(self, inputs: Float[Tensor, "*batch nodes a"], fresh: Float[Tensor, "*batch #nodes 1"] | None) -> Drive:
        inputs, going = nodes_first(inputs), self.model.going(fresh)
        acting = self.model.acting_inputs(inputs)
        X = self.model.input_regressors(acting, going, self.topology)
        push = self._apply(X, self.from_inputs)
        if self.constants is not None:
            own = self.constants.repeat_interleave(inputs.shape[1] // self.constants.shape[1], dim=1)
            push = push + (own if going is None else own * going)
        return Drive(inputs, acting, push, going)

    def targets(
        self, x: Float[Tensor, "nodes rows c"], phi: Float[Tensor, "nodes rows p"], drive: Drive
    ) -> Float[Tensor, "nodes rows m"]:
        """What the operators say."""
        y = self._apply(self.regressors(x, phi, drive.acting), self.from_state)
        return drive.push + (y if drive.going is None else y * drive.going)

    def move(
        self, x: Float[Tensor, "nodes rows c"], phi: Float[Tensor, "nodes rows p"], drive: Drive
    ) -> tuple[Float[Tensor, "nodes rows c"], Float[Tensor, "nodes rows p"]]:
        """(next state, next phi)."""
        model, effects = self.model, self.model.num_effects
        y = self.targets(x, phi, drive)
        following_phi = y[..., effects:]
        if model.implicit is not None:
            rows = x.movedim(0, -2)
            moved = model.channelled(self.operators, rows, self.topology)
            y = (moved + model.pushed(y[..., :effects].movedim(0, -2), rows, self.topology)).movedim(-2, 0)
        if self.moving is not None:
            free = self.moving.shape[-1]
            y = torch.cat([y[..., :free] * self.moving, y[..., free:]], dim=-1)
        following = self.way_back(x, y, drive.inputs)
        return following, following_phi if self.encode is None else self.encode(following)

    def _apply(self, X: Float[Tensor, "nodes rows D"], C: Float[Tensor, "groups D m"]) -> Float[Tensor, "nodes rows m"]:
        """C' x of every row under its group's operator."""
        if self.by_nodes:
            return torch.bmm(X.reshape(len(C), -1, X.shape[-1]), C).reshape(*X.shape[:-1], -1)
        parts = X.unflatten(1, (len(C), -1)).transpose(0, 1)
        return torch.bmm(parts.flatten(1, 2), C).reshape(*parts.shape[:-1], -1).transpose(0, 1).flatten(1, 2)

    def __call__(
        self,
        psi: Float[Tensor, "*batch nodes f"],
        inputs: Float[Tensor, "*batch nodes a"],
        fresh: Float[Tensor, "*batch #nodes 1"] | None = None,
    ) -> tuple[Float[Tensor, "*batch nodes c"], Float[Tensor, "*batch nodes f"]]:
        """(next state, next features) of a batch."""
        rows, c = nodes_first(psi), self.model.config.num_state
        moved = self.move(rows[..., :c], rows[..., c:], self.drive(inputs, fresh))
        x, phi = (part.reshape(len(part), *psi.shape[:-2], -1).movedim(0, -2) for part in moved)
        return x, torch.cat([x, phi], dim=-1)
