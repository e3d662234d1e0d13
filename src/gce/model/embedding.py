"""What a state is, its features, and the way back to the next state.

The state x of a node is its normalised observation, with the previous observation and the previous action where they
are needed. Features are psi = [x, phi(x)], phi from the encoder. A form's regressors are made of psi, the inputs and

    alpha = gibbs_weights(phi)

What an operator predicts from them are the increments of the free coordinates and the next phi; the other coordinates
of the next state follow: positions whose velocities are their differences, the previous observation, the previous
action. Beside implicit features an operator predicts pushes along pairs in the place of increments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gce.features.bodies import ImplicitLayer
from gce.features.decoder import Decoder
from gce.features.encoder import Encoder, EncoderShape
from gce.features.inputs import InputLayer
from gce.features.network import TIMES, NetworkEncoder, Reach
from gce.graphs.topology import Topology
from gce.model.config import ModelConfig
from gce.model.units import Units
from gce.operators import Form, Operator, Shape, make_form
from gce.operators.prior import Memory
from gce.potentials import make_potential


class Embedding(Units):
    """Encoder, potential and form, in the units of the data they were prepared for."""

    held: Tensor
    """Whether a free coordinate never moves at nodes of a type (a mass on a rail keeps its height); phi always may."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.num_observations, config.num_actions, config.num_exogenous)
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
        self.encoder = NetworkEncoder(layer) if c.network else Encoder(layer, shape, c.bound)
        self.reach = Reach(c.num_node_types, c.num_node_attributes) if c.network else None
        self.implicit = ImplicitLayer(layer, c.num_node_types, c.dt, c.drag) if c.implicit else None
        self.potential = make_potential(c.potential, c.num_phi, c.potential_value, c.potential_learned)
        times = TIMES if c.network else 1
        width, acting = times * (len(c.regressed_state) + c.num_phi), times * c.num_inputs
        self.form: Form = make_form(c.form, Shape(width, acting, c.num_relations, c.num_node_types), c.own_block)
        positions = [p for p, _ in c.kinematics]
        self.free = [k for k in range(c.num_observations) if k not in positions and c.selects]
        self.num_effects = len(layer.pairs) if c.implicit else len(self.free)
        self.num_targets = self.num_effects + c.num_phi
        sizes = (c.num_phi, c.num_observations, c.num_relations, c.num_node_types, c.node_width, c.edge_width)
        self.decoder = None if c.selects else Decoder(*sizes)
        regressors = width + acting + c.num_node_types  # of the form that networks have
        self.memory = Memory(regressors, self.num_targets, c.memory) if c.memory else None
        self.register_buffer("held", torch.zeros(c.num_node_types, len(self.free) + c.num_phi, dtype=torch.bool))

    @property
    def remembered(self) -> Memory | None:
        """What was trained on, if anything of it was kept."""
        return None if self.memory is None or self.memory.empty else self.memory

    @property
    def device(self) -> torch.device:
        return self.observation_std.device

    @property
    def dtype(self) -> torch.dtype:
        return self.observation_std.dtype

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
        widened = None if self.reach is None else self.reach.on(topology, self.encoder.inputs)

        def regressors(x: Tensor, phi: Tensor, acting: Tensor) -> Tensor:
            weights = topology.softmax(score(phi), self.potential.at_most_own) if self.form.weighted else None
            features = torch.cat([x[..., chosen], phi], dim=-1) if chosen else phi
            features = features if widened is None else widened(features)
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
        acting = acting if self.reach is None else self.reach.on(topology, self.encoder.inputs)(acting)
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

    # ---- vector channels ----

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
        left = (moved - self.channelled(operators, x, topology)) * self.moving(topology)
        held = self._held_points(topology)
        return self.implicit.behind(left[..., self._speeds].unsqueeze(-1), x, topology, held).squeeze(-1)

    def moving(self, topology: Topology) -> Float[Tensor, "nodes free"]:
        """1 where a free coordinate may move, 0 where it is held; a body's points are held whole."""
        held = self.held[topology.node_type][:, : len(self.free)]
        if self.implicit is not None:
            held = self._held_points(topology).repeat_interleave(2, dim=1)[:, self._speed_order]
        return (~held).to(self.observation_std.dtype)

    def at_rest_where_held(
        self, x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> Float[Tensor, "*batch nodes c"]:
        """A state to go on from: what is held has no velocity. It trembles a little in recordings, and nothing that a
        step does would ever stop it."""
        velocities = [v for _, v in self.config.kinematics if v in self.free]
        moving = self.moving(topology)[:, [self.free.index(v) for v in velocities]]
        still = x.clone()
        still[..., velocities] *= moving.to(x.dtype)
        return still

    @property
    def _speeds(self) -> list[int]:
        """Where each velocity coordinate of the points stands among the free coordinates."""
        return [self.free.index(c) for point in self.config.points for c in point[2:]]

    @property
    def _speed_order(self) -> Tensor:
        return torch.argsort(torch.tensor(self._speeds))

    def _held_points(self, topology: Topology) -> Bool[Tensor, "nodes points"]:
        """Points that never move, and those tied to them: a corner that one box holds, all do."""
        held = self.held[topology.node_type][:, self._speeds].reshape(topology.num_nodes, -1, 2).all(-1)
        if topology.tied is None:
            return held
        ids = topology.tied[:, [point[0] for point in self.config.points]]
        return torch.isin(ids, ids[held])


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

    model: Embedding
    topology: Topology
    keep: Float[Tensor, "d d"]
    spread: Float[Tensor, "free d"]

    def __call__(
        self,
        x: Float[Tensor, "nodes rows c"],
        y: Float[Tensor, "nodes rows m"],
        inputs: Float[Tensor, "nodes rows a"],
    ) -> Float[Tensor, "nodes rows c"]:
        o = x[..., : self.keep.shape[0]] @ self.keep + y[..., : self.spread.shape[0]] @ self.spread
        return self.model.next_state(x, o, inputs, self.topology)


@dataclass(frozen=True)
class Decoding:
    """The next state from the next phi: the observation as the decoder finds it, ties merged, and the rest as known."""

    model: Embedding
    topology: Topology
    decode: Callable[[Tensor], Tensor]

    def __call__(
        self,
        x: Float[Tensor, "nodes rows c"],
        y: Float[Tensor, "nodes rows m"],
        inputs: Float[Tensor, "nodes rows a"],
    ) -> Float[Tensor, "nodes rows c"]:
        return self.model.next_state(x, self.decode(y), inputs, self.topology)
