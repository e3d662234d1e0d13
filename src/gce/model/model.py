"""The model: features, the operators of systems in them, and the way back to the next state.

The state x of a node is its normalised observation, with the previous observation and the previous action where they
are needed. Features are psi = [x, phi(x)] (`gce.features`). A form's regressors are made of psi, the inputs and

    alpha = gibbs_weights(phi)

What an operator predicts from them are the targets: increments of the free coordinates and the next phi. The other
coordinates of the next state follow: positions whose velocities are their differences, the previous observation, the
previous action. An operator C is fitted in closed form to the episodes of a system, all that a new system needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gce.errors import InputError, table
from gce.features.base import StateShape
from gce.graphs.hypertopology import gibbs_weights
from gce.graphs.topology import Topology
from gce.model.config import ModelConfig
from gce.names import Shown
from gce.operators import Form, Operator, Shape, make_form
from gce.operators.prior import TrainingPrior
from gce.operators.regression import Regression, Sums
from gce.potentials import make_potential
from gce.trajectory import Episode, Normalisation


class Units(nn.Module):
    """Normalised observations are (o - mean) / std; actions and exogenous inputs are divided by their deviation."""

    observation_mean: Tensor
    observation_std: Tensor
    action_std: Tensor
    exogenous_std: Tensor

    def __init__(self, config: StateShape) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("observation_mean", torch.zeros(config.num_observations))
        self.register_buffer("observation_std", torch.ones(config.num_observations))
        self.register_buffer("action_std", torch.ones(config.num_actions))
        self.register_buffer("exogenous_std", torch.ones(config.num_exogenous))

    @property
    def device(self) -> torch.device:
        return self.observation_std.device

    @property
    def dtype(self) -> torch.dtype:
        return self.observation_std.dtype

    def tensor(self, values: np.ndarray) -> Tensor:
        """An array in the model's precision, where the model is."""
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)

    @property
    def arrays(self) -> Normalisation:
        """The same as arrays in double precision; worked out once, and again when the tensors have changed."""
        tensors = (self.observation_mean, self.observation_std, self.action_std)
        state = [(id(tensor), tensor._version) for tensor in tensors]
        known: tuple[object, Normalisation] | None = self.__dict__.get("_arrays")
        if known is None or known[0] != state:
            known = (state, Normalisation(*(tensor.detach().cpu().double().numpy() for tensor in tensors)))
            self.__dict__["_arrays"] = known
        return known[1]

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

    def inputs(
        self, actions: np.ndarray, exogenous: np.ndarray | None, num_nodes: int
    ) -> Float[Tensor, "steps nodes i"]:
        """Normalised actions, then normalised exogenous inputs."""
        c, actions = self.config, table("the actions", actions)
        if actions.ndim != 3 or actions.shape[1:] != (num_nodes, c.num_actions):
            raise InputError(f"the actions have shape {actions.shape}, expected (steps, {num_nodes}, {c.num_actions})")
        if len(actions) == 0:
            raise InputError("there are no actions; give those of at least one step")
        inputs = self.tensor(actions) / self.action_std
        if c.num_exogenous == 0:
            return inputs
        exogenous = None if exogenous is None else table("the exogenous inputs", exogenous)
        if exogenous is None or exogenous.shape != (len(actions), num_nodes, c.num_exogenous):
            raise InputError(f"the model needs {c.num_exogenous} exogenous inputs a node at every step; give them")
        return torch.cat([inputs, self.tensor(exogenous) / self.exogenous_std], dim=-1)

    def recorded(self, episode: Episode) -> tuple[Tensor, Tensor]:
        """The normalised states [T+1, nodes, c] and inputs [T, nodes, i] of an episode."""
        inputs = self.inputs(episode.actions, episode.exogenous, episode.num_nodes)
        seen = self.normalise(self.tensor(episode.observations))
        return self.states(seen, inputs[..., : self.config.num_actions]), inputs


class Model(Shown, Units):
    """Features, potential and form, in the units of the data they were prepared for.

    method: that it is of (`gce.names`).
    """

    config: ModelConfig
    method: str

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        c = config
        self.features = c.kind(c, c.features)
        hyper_parameter = c.potential_value, c.potential_learned
        self.potential = make_potential(
            c.potential, self.features.num_phi, *hyper_parameter, num_attributes=c.num_node_attributes
        )
        copies = self.features.copies
        sizes = copies * self.features.width, copies * c.num_inputs, c.num_relations, c.num_node_types
        shape = Shape(*sizes, heads=self.potential.heads)
        self.form: Form = make_form(self.features.form_named(c.form), shape, c.own_block)
        self.method = c.kind.method

    def facts(self) -> dict[str, Any]:
        c = self.config
        known = {"method": self.method, "world": c.world, "features": self.features.name, "form": c.form}
        weighted = {"potential": c.potential} if self.form.weighted else {}
        return known | weighted | {"parameters": f"{sum(p.numel() for p in self.parameters()):,}"}

    def with_form(self, form: str) -> Model:
        """The same features and potential under another form of the operator."""
        other = Model(replace(self.config, form=form))
        other.load_state_dict(self.state_dict())
        other.method = self.method
        return other.eval()

    @property
    def free(self) -> list[int]:
        """The coordinates of the observation that an operator predicts."""
        return self.features.free

    @property
    def held(self) -> Bool[Tensor, "types _"]:
        """Whether a free coordinate, or a feature, never moves at nodes of a type."""
        return self.features.held

    @property
    def training_prior(self) -> TrainingPrior | None:
        """What was trained on, if anything of it was kept."""
        prior = self.features.training_prior
        return None if prior is None or prior.empty else prior

    # ---- features ----

    def decoded(self, psi: Float[Tensor, "*batch nodes f"], topology: Topology) -> Float[Tensor, "*batch nodes d"]:
        """The normalised observations behind features, ties merged."""
        decode = self.features.decoder_on(topology)
        if decode is None:
            return psi[..., : self.config.num_observations]
        o = decode(nodes_first(psi[..., self.config.num_state :]))
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
        chosen, score = self.features.regressed_state, self.potential.on(topology)
        spread = self.features.spread(topology)

        def regressors(x: Tensor, phi: Tensor, acting: Tensor) -> Tensor:
            weights = topology.softmax(score(phi), self.potential.at_most_own) if self.form.weighted else None
            if self.form.hyper and weights is not None and topology.hyperedges is not None:
                weights = torch.cat([weights, gibbs_weights(self.potential, phi, topology.hyperedges)])
            features = torch.cat([x[..., chosen], phi], dim=-1) if chosen else phi
            features = features if spread is None else spread(features)
            return self.form.state_regressors(features, acting, weights, topology)

        return regressors

    def input_regressors(
        self, acting: Float[Tensor, "nodes rows a"], going: Float[Tensor, "#nodes rows 1"] | None, topology: Topology
    ) -> Float[Tensor, "nodes rows columns"]:
        """Those of the inputs, then constants."""
        constants = self.features.constants(self.form.constants(acting, topology))
        constants = constants if going is None else constants * going
        spread = self.features.spread(topology)
        acting = acting if spread is None else spread(acting)
        return torch.cat([self.form.action_regressors(acting, topology), constants], dim=-1)

    def targets(
        self,
        x: Float[Tensor, "*batch nodes c"],
        next_x: Float[Tensor, "*batch nodes c"],
        next_psi: Float[Tensor, "*batch nodes f"],
        topology: Topology,
    ) -> Float[Tensor, "*batch nodes m"]:
        """Increments of the free coordinates, then the next phi as the operator predicts it."""
        phi = self.features.future_phi(next_x, topology, next_psi[..., self.config.num_state :])
        return torch.cat([(next_x - x)[..., self.free], phi], dim=-1)

    def num_needed(self, reproject: bool) -> int:
        """How many of the first targets a rollout needs: those that move the state, if features are taken anew."""
        return self.features.num_effects if reproject and self.features.selects else self.features.num_targets

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
        """What the targets say of the next state: increments of the free coordinates, or features to decode."""
        decode = self.features.decoder_on(topology)
        if decode is not None:
            return lambda x, y, inputs: self.next_state(x, decode(y), inputs, topology)
        keep, spread = self.motion()

        def moved(x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
            o = x[..., : len(keep)] @ keep + y[..., : len(spread)] @ spread
            return self.next_state(x, o, inputs, topology)

        return moved

    def motion(self) -> tuple[Float[Tensor, "d d"], Float[Tensor, "free d"]]:
        """(keep, spread): o' = keep' o + spread' increments of the free coordinates."""
        keep = torch.eye(self.config.num_observations, dtype=self.observation_std.dtype)
        for (position, velocity), ratio in zip(self.config.kinematics, self.ratios, strict=True):
            keep[velocity, position] = ratio
        keep = keep.to(self.observation_std.device)
        return keep, keep[self.free]

    def feature_motion(self) -> tuple[Float[Tensor, "f f"], Float[Tensor, "m f"]]:
        """(keep, spread) of rollouts in feature space, double: psi' = keep' psi + spread' y, previous actions apart."""
        d, n, free, phi = self.config.num_observations, self.config.num_state, len(self.free), self.features.num_phi
        keep, spread = torch.zeros(2, n + phi, n + phi, dtype=torch.float64)
        keep[:d, :d], of_targets = (part.double() for part in self.motion())
        if self.config.history == 2:
            keep[:d, d : 2 * d] = torch.eye(d)
        spread = spread[: free + phi]
        spread[:free, :d], spread[free:, n:] = of_targets, torch.eye(phi)
        return keep, spread

    def at_rest_where_held(
        self, x: Float[Tensor, "*batch nodes c"], topology: Topology
    ) -> Float[Tensor, "*batch nodes c"]:
        """A state to go on from: what is held has no velocity. It trembles a little in recordings, and nothing that a
        step does would ever stop it."""
        velocities = [v for _, v in self.config.kinematics if v in self.free]
        moving = self.features.moving(topology)[:, [self.free.index(v) for v in velocities]]
        still = x.clone()
        still[..., velocities] *= moving.to(x.dtype)
        return still

    # ---- operators ----

    def regression(self, num_targets: int) -> Regression:
        """Of the first targets."""
        held = self.features.held_targets[:, :num_targets]
        return Regression(self.form, held, self.config.node_constants, self.features.prior, self.features.acting)

    def sums(
        self,
        X: Float[Tensor, "*batch nodes D"],
        Y: Float[Tensor, "*batch nodes m"],
        states: Float[Tensor, "*batch nodes c"],
        topology: Topology,
        systems: int = 1,
    ) -> list[Sums]:
        """What the rows of each graph, from given states on, contribute to its operator.

        Y: may hold the first targets only. systems: of how many the batch consists, one after another.
        """
        Y, fields = self.features.beside_channels(Y, states, topology)
        return self.regression(Y.shape[-1]).sums(nodes_first(X), nodes_first(Y), topology, fields, systems)

    def fit(self, sums: Sums, topology: Topology, ridge: float | None = None) -> Operator:
        """The operator of one system, in closed form."""
        return self.fit_sums([sums], topology, ridge)[0]

    def fit_sums(self, sums: Sequence[Sums], topology: Topology, ridge: float | None = None) -> list[Operator]:
        """The operators of systems on one graph, or of one system from different episodes."""
        regression = self.regression(sums[0].moments.cross.shape[-1])
        ridge = self.config.ridge if ridge is None else ridge
        prior = self.training_prior
        if prior is not None:
            of_training = regression.fit(Sums(prior.moments), topology, ridge)
            C = of_training.coefficients[:, : len(self.free)]
            sums = [Sums(prior.beside(s.moments, C)) for s in sums]
        return regression.fit_all(sums, topology, ridge, self.features.joint)

    def fit_all(
        self,
        X: Float[Tensor, "systems *batch nodes D"],
        Y: Float[Tensor, "systems *batch nodes m"],
        states: Float[Tensor, "systems *batch nodes c"],
        topology: Topology,
    ) -> list[Operator]:
        """The operators of systems that share a topology (and of each of its graphs), from their rows."""
        sums = self.sums(X, Y, states, topology, len(X))
        regression = self.regression(sums[0].moments.cross.shape[-1])
        return regression.fit_all(sums, topology, self.config.ridge, self.features.joint)


def nodes_first(values: Float[Tensor, "*batch nodes d"]) -> Float[Tensor, "nodes rows d"]:
    """The batch as one axis, after the nodes; of one if there is none."""
    return values.movedim(-2, 0).reshape(values.shape[-2], values.shape[:-2].numel(), values.shape[-1])


WayBack = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(state, targets, inputs), nodes first, to the next state."""
