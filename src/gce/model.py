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

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.encoder import Encoder, EncoderShape
from gce.implicit import ImplicitLayer
from gce.inputs import InputLayer, Points, place_coordinates
from gce.operators import Form, Operator, Shape, make_form, residual_by_target
from gce.potentials import gibbs_weights, make_potential
from gce.ridge import Moments, solve
from gce.rollout import Step
from gce.topology import Topology

CHANNEL_RIDGE = 1e-6


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides a model's shape; JSON values.

    kinematics: (position, velocity) pairs of coordinates with v_t = (p_t - p_{t-1}) / dt.
    fresh_start: whether the first step of an episode is free of all but the action (a simulator that has not
        computed any force yet); rest_start: whether episodes open with velocities of zero.
    history: 1 or 2 observations in the state; previous_action: whether the state holds it; late_action: whether an
        action shows only through it, one step late.
    points: the coordinates (x, y, vx, vy) of each point of a node, for observations that are points in the plane.
    conservative: features are net flows. implicit: vector channels of stiffly coupled points stand beside phi, and the
        operator explains what they leave; drag: with channels of a medium's resistance. With conservative or implicit
        features the operator acts on phi alone, not on x.
    reproject: whether rollouts take the features of each predicted state anew; otherwise they stay in feature space.
    """

    num_observations: int
    num_actions: int
    num_relations: int
    num_node_types: int
    num_node_attributes: int = 0
    num_edge_attributes: int = 0
    num_exogenous: int = 0
    world: str | None = None
    dt: float = 1.0
    kinematics: tuple[tuple[int, int], ...] = ()
    fresh_start: bool = False
    rest_start: bool = False
    history: int = 1
    previous_action: bool = False
    late_action: bool = False
    points: Points = ()
    conservative: bool = False
    implicit: bool = False
    drag: bool = False
    form: str = "hom_mean"
    own_block: bool = True
    potential: str = "gaussian"
    potential_value: float = 2.0
    potential_learned: bool = True
    features: int = 32
    linear_features: int = 8
    node_width: int = 64
    edge_width: int = 32
    rounds: int = 2
    bound: float = 5.0
    ridge: float = 1e-4
    reproject: bool = True

    @property
    def num_state(self) -> int:
        return self.history * self.num_observations + self.previous_action * self.num_actions

    @property
    def num_phi(self) -> int:
        return self.features + self.linear_features

    @property
    def num_inputs(self) -> int:
        """Columns that act on a step: actions, then exogenous inputs."""
        return self.num_actions + self.num_exogenous

    @property
    def regressed_state(self) -> list[int]:
        """The coordinates of x that the operator acts on beside phi: all but places in the plane."""
        if self.conservative or self.implicit:
            return []
        places = place_coordinates(self.points, self.num_observations, self.history)
        return [c for c in range(self.num_state) if c not in places]


@dataclass(frozen=True)
class FieldSums:
    """Sums over rows of vector channels Z for each free coordinate: Z'Z, Z'y, and X'Z with the form's regressors."""

    gram: Float[Tensor, "free k k"]
    cross: Float[Tensor, "free k"]
    mixed: Float[Tensor, "*nodes D free k"]

    def __add__(self, other: FieldSums) -> FieldSums:
        return FieldSums(self.gram + other.gram, self.cross + other.cross, self.mixed + other.mixed)

    def left(self, square: Float[Tensor, "*sets m m"], channels: Float[Tensor, " k"]) -> Float[Tensor, "*sets m m"]:
        """Y'Y of what the channels leave of the free coordinates; how these vary together is not followed."""
        free = len(self.gram)
        kept = torch.einsum("k,fkl,l->f", channels, self.gram, channels) - 2 * self.cross @ channels
        square = square.clone()
        alone = torch.diagonal(square, dim1=-2, dim2=-1)[..., :free] + kept
        square[..., :free, :] = square[..., :, :free] = 0
        square[..., range(free), range(free)] = alone
        return square


@dataclass(frozen=True)
class Sums:
    """All that episodes contribute to the operator of their system; they add up."""

    moments: Moments
    fields: FieldSums | None = None

    def __add__(self, other: Sums) -> Sums:
        fields = None if self.fields is None or other.fields is None else self.fields + other.fields
        return Sums(self.moments + other.moments, fields)


class Model(nn.Module):
    """Encoder, potential and the operator's prior; `step` advances states by a fitted operator."""

    observation_mean: Tensor
    observation_std: Tensor
    action_std: Tensor
    exogenous_std: Tensor
    held: Tensor
    """Whether a target never moves at nodes of a type (a mass on a rail keeps its height)."""

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
        if c.implicit:  # the operator starts as a small correction to the channels
            with torch.no_grad():
                for weights in (self.encoder.output.weight, self.encoder.linear_edge, self.encoder.linear_own):
                    weights.mul_(0.1)
        self.implicit = ImplicitLayer(layer, c.num_node_types, c.dt, c.drag) if c.implicit else None
        self.potential = make_potential(c.potential, c.num_phi, c.potential_value, c.potential_learned)
        width = len(c.regressed_state) + c.num_phi
        self.form: Form = make_form(c.form, Shape(width, c.num_inputs, c.num_relations, c.num_node_types), c.own_block)
        positions = [p for p, _ in c.kinematics]
        self.free = [k for k in range(c.num_observations) if k not in positions]
        self.num_targets = len(self.free) + c.num_phi
        self.register_buffer("observation_mean", torch.zeros(c.num_observations))
        self.register_buffer("observation_std", torch.ones(c.num_observations))
        self.register_buffer("action_std", torch.ones(c.num_actions))
        self.register_buffer("exogenous_std", torch.ones(c.num_exogenous))
        self.register_buffer("held", torch.zeros(c.num_node_types, self.num_targets, dtype=torch.bool))

    def with_form(self, form: str) -> Model:
        """The same encoder and potential under another form of the operator."""
        other = Model(replace(self.config, form=form))
        other.load_state_dict(self.state_dict())
        return other.eval()

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
        return self.normalise(topology.merge(self.denormalise(observations)))

    # ---- states and features ----

    def states(
        self,
        observations: Float[Tensor, "*batch steps nodes d"],
        actions: Float[Tensor, "*batch steps_less nodes a"],
        first: bool,
        before: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "*batch steps nodes c"]:
        """The states along normalised observations and the actions between them.

        first: whether the stretch opens an episode (nothing before: the first observation stands for the one before
            it, and the action before is 0); otherwise `before` is (observation, action) one step earlier.
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

    def regressors(
        self,
        psi: Float[Tensor, "*batch nodes f"],
        inputs: Float[Tensor, "*batch nodes a"],
        topology: Topology,
        fresh: Float[Tensor, "*batch #nodes 1"] | None = None,
    ) -> Float[Tensor, "*batch nodes D"]:
        """The form's regressors; at fresh states (1) all but the inputs is switched off."""
        phi = psi[..., self.config.num_state :]
        weights = gibbs_weights(self.potential, phi, topology) if self.form.weighted else None
        acting = [*self.config.regressed_state, *range(self.config.num_state, psi.shape[-1])]
        actions = self.config.num_actions
        if self.config.late_action:  # an action shows through the previous action in the state, and only there
            inputs = torch.cat([torch.zeros_like(inputs[..., :actions]), inputs[..., actions:]], dim=-1)
        X = self.form.regressors(psi[..., acting], inputs, weights, topology)
        if self.config.implicit:  # a body made of pairs knows no constant force
            constants = self.form.num_constants(topology)
            X = torch.cat([X[..., :-constants], torch.zeros_like(X[..., -constants:])], dim=-1)
        if fresh is None or not self.config.fresh_start:
            return X
        state, constants = self.form.num_state_regressors(topology), self.form.num_constants(topology)
        on = torch.ones(X.shape[-1], dtype=X.dtype, device=X.device)
        on[:state] = on[X.shape[-1] - constants :] = 0
        return X * torch.where(fresh.bool(), on, torch.ones_like(on))

    def targets(
        self,
        x: Float[Tensor, "*batch nodes c"],
        next_x: Float[Tensor, "*batch nodes c"],
        next_psi: Float[Tensor, "*batch nodes f"],
    ) -> Float[Tensor, "*batch nodes m"]:
        """Increments of the free coordinates, then the next phi."""
        return torch.cat([(next_x - x)[..., self.free], next_psi[..., self.config.num_state :]], dim=-1)

    def advance(
        self,
        x: Float[Tensor, "*batch nodes c"],
        increments: Float[Tensor, "*batch nodes free"],
        actions: Float[Tensor, "*batch nodes a"],
        topology: Topology,
    ) -> Float[Tensor, "*batch nodes c"]:
        """The next state from the increments of the free coordinates: the rest follows from what is known."""
        d = self.config.num_observations
        o = x[..., :d]
        moved = torch.zeros_like(o)
        moved[..., self.free] = increments
        following = o + moved
        if self.config.kinematics:
            position, velocity = self._pairs
            following = following.index_add(-1, position, following[..., velocity] * self._ratio)
        following = self.merge(following, topology)
        parts = [following]
        if self.config.history == 2:
            parts.append(o)
        if self.config.previous_action:
            parts.append(actions)
        return torch.cat(parts, dim=-1)

    @property
    def _pairs(self) -> tuple[Tensor, Tensor]:
        pairs = torch.tensor(self.config.kinematics, device=self.observation_std.device)
        return pairs[:, 0], pairs[:, 1]

    @property
    def ratios(self) -> list[float]:
        """dt std_v / std_p of each kinematic pair."""
        return self._ratio.tolist() if self.config.kinematics else []

    @property
    def _ratio(self) -> Tensor:
        """dt std_v / std_p: p' = p + ratio v' in normalised coordinates of mean-free velocities."""
        position, velocity = self._pairs
        return self.config.dt * self.observation_std[velocity] / self.observation_std[position]

    # ---- operators ----

    def channels(
        self, x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> Float[Tensor, "*batch nodes free k"] | None:
        """The vector channels of each free coordinate, where the model has them."""
        if self.implicit is None:
            return None
        return self.implicit(x, topology, self._held_points(topology))[..., self._speed_order, :]

    def channelled(
        self, operators: Sequence[Operator], x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> Float[Tensor, "*batch nodes free"] | None:
        """What the channels do to the free coordinates, each graph's with its operator's coefficients."""
        if self.implicit is None:
            return None
        coefficients = torch.stack([o.channels for o in operators if o.channels is not None])
        return self.implicit.combined(x, topology, self._held_points(topology), coefficients)[..., self._speed_order]

    @property
    def _speeds(self) -> list[int]:
        """Where each velocity coordinate of the points stands among the free coordinates."""
        return [self.free.index(c) for point in self.config.points for c in point[2:]]

    @property
    def _speed_order(self) -> Tensor:
        return torch.argsort(torch.tensor(self._speeds))

    def _held_points(self, topology: Topology) -> Tensor:
        return self.held[topology.node_type][:, self._speeds].reshape(topology.num_nodes, -1, 2).all(-1)

    def sums(
        self,
        X: Float[Tensor, "*batch nodes D"],
        Y: Float[Tensor, "*batch nodes m"],
        topology: Topology,
        Z: Float[Tensor, "*batch nodes free k"] | None = None,
    ) -> list[Sums]:
        """The sums of each graph; targets held at some nodes have sums of their own, without these nodes' rows."""
        found = []
        for pattern in self._patterns[0]:
            keep = (~pattern[topology.node_type]).to(X.dtype).unsqueeze(-1)
            found.append(self.form.moments(X * keep, Y * keep, topology))
        moments = [
            Moments(
                torch.stack([m.gram for m in of_graph]),
                torch.stack([m.cross for m in of_graph]),
                torch.stack([m.square for m in of_graph]),
                of_graph[0].rows,
            )
            for of_graph in zip(*found, strict=True)
        ]
        if Z is None:
            return [Sums(m) for m in moments]
        moving = (~self.held[topology.node_type][:, : len(self.free)]).to(X.dtype)
        fields = []
        for x, y, z in zip(
            X.split(topology.splits, dim=-2),
            (Y[..., : len(self.free)] * moving).split(topology.splits, dim=-2),
            (Z * moving.unsqueeze(-1)).split(topology.splits, dim=-3),
            strict=True,
        ):
            x, y, z = x.flatten(0, -3).double(), y.flatten(0, -3).double(), z.flatten(0, -4).double()
            if self.form.shared:
                x, y, z = x.flatten(0, 1)[:, None], y.flatten(0, 1)[:, None], z.flatten(0, 1)[:, None]
            mixed = (x.permute(1, 2, 0) @ z.flatten(2).transpose(0, 1)).unflatten(2, z.shape[2:])
            by_coordinate = z.flatten(0, 1).transpose(0, 1)
            cross = (by_coordinate.mT @ y.flatten(0, 1).T.unsqueeze(-1)).squeeze(-1)
            gram = by_coordinate.mT @ by_coordinate
            fields.append(FieldSums(gram, cross, mixed[0] if self.form.shared else mixed))
        return [Sums(m, f) for m, f in zip(moments, fields, strict=True)]

    @property
    def _patterns(self) -> tuple[Tensor, Tensor]:
        """The different columns of `held`, and which of them each target has."""
        return torch.unique(self.held.T, dim=0, return_inverse=True)

    def fit(self, sums: Sums, topology: Topology, ridge: float | None = None, joint: bool = True) -> Operator:
        """The operator of one system, in closed form.

        Channels are fitted first, one coefficient each; the form's regressors explain what they leave.
        joint: history and action in one regression; otherwise separately, as in the paper's appendix.
        """
        chosen = self.config.ridge if ridge is None else ridge
        moments, channels = sums.moments, None
        if sums.fields is not None:
            channels = _fit_channels(sums.fields, moments.rows)
            explained = torch.nn.functional.pad(sums.fields.mixed @ channels, (0, self.num_targets - len(self.free)))
            square = sums.fields.left(moments.square, channels)
            moments = replace(moments, cross=moments.cross - explained, square=square)
        D = moments.gram.shape[-1]
        penalty = torch.full((D,), chosen, dtype=torch.float64)
        penalty[D - self.form.num_constants(topology) :] = 0
        solution = solve(moments, penalty, None if joint else self.form.num_state_regressors(topology))
        patterns, which = self._patterns
        targets = torch.arange(self.num_targets)
        moving = (~patterns[:, topology.node_type]).double().mean(-1)
        shares = moving if self.form.shared else torch.ones_like(moving)
        alone = 0 if channels is None else len(self.free)  # how what channels leave varies together is not followed
        residual = residual_by_target(solution.residual, which, shares, alone)
        coefficients = solution.coefficients[which, ..., targets].movedim(0, -1)
        return Operator(self.form, coefficients, residual, solution.condition.amax(0), chosen, moments.rows, channels)

    def stepper(self, operators: Sequence[Operator], topology: Topology, reproject: bool | None = None) -> Step:
        """One step under an operator for each graph of the union, for `rollout`.

        reproject: take the features of the predicted state anew; otherwise go on with the predicted features. By
            default as the model was trained.
        """
        free, c = len(self.free), self.config
        anew = c.reproject if reproject is None else reproject
        held = self.held[topology.node_type]

        def step(psi: Tensor, inputs: Tensor, fresh: Tensor | None) -> tuple[Tensor, Tensor]:
            X = self.regressors(psi, inputs, topology, fresh)
            y = apply_each(operators, X, topology)
            pushed = self.channelled(operators, psi[..., : c.num_state], topology)
            if pushed is not None:
                y = torch.cat([y[..., :free] + pushed, y[..., free:]], dim=-1)
            y = y.masked_fill(held, 0.0)
            x = self.advance(psi[..., : c.num_state], y[..., :free], inputs[..., : c.num_actions], topology)
            return x, self.features(x, topology) if anew else torch.cat([x, y[..., free:]], dim=-1)

        return step


def _fit_channels(fields: FieldSums, rows: int) -> Float[Tensor, " k"]:
    """One regression over all rows and coordinates, each channel in units of its own size."""
    gram, cross = fields.gram.sum(0), fields.cross.sum(0)
    size = torch.diagonal(gram).div(rows).clamp_min(1e-12).sqrt()
    gram, cross = gram / size[:, None] / size, (cross / size)[:, None]
    solution = solve(Moments(gram, cross, cross.new_zeros(1, 1), rows), torch.full_like(size, CHANNEL_RIDGE))
    return solution.coefficients[:, 0] / size


def apply_each(operators: Sequence[Operator], X: Float[Tensor, "*batch nodes D"], topology: Topology) -> Tensor:
    """Each graph of a union under its own operator."""
    if len(operators) == 1:
        return operators[0].apply(X)
    parts = zip(operators, X.split(topology.splits, dim=-2), strict=True)
    return torch.cat([operator.apply(x) for operator, x in parts], dim=-2)
