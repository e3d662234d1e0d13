"""The state of an adapted system from noisy observations: a Kalman filter on the model's own predictions.

Process noise is what one step of the fitted operator leaves unexplained (`Operator.residual`), as it enters the state:
errors of velocities move the positions that follow them. Observation noise is independent in all coordinates, those
that are differences of others too, and its size is what the adaptation episodes tell (`smoothing`) unless it is given.

The residual holds more than the system's noise: what noise in the adaptation episodes left of their velocities enters
it too; errors that tied points share it counts as if each had its own. So it is multiplied by a `scale`, the one under
which the adaptation episodes are likeliest (`noise_scale`): the filter is run on them for a few scales, linearised once
along their smoothed paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float

from gce.control.kalman import Belief, correct, predict
from gce.control.tracking import dense
from gce.dynamics.anchored import AnchoredDynamics
from gce.dynamics.state import StateDynamics, state_dynamics
from gce.errors import InputError
from gce.system.evidence import normalised, see
from gce.system.system import System
from gce.system.uncertainty import target_errors
from gce.trajectory import Episode

Array = np.ndarray
SMALLEST = 1e-10
"""The least variance of observation noise, in normalised units: observations without noise are taken as they are."""
SCALES = 10.0 ** np.arange(1, -3.5, -0.5)
TRIED = 2
"""How many episodes scales are tried on."""


def filter_dynamics(system: System, controls: Bool[Array, "nodes a"]) -> StateDynamics | AnchoredDynamics:
    """The model's own steps; on graphs on which their derivative would take too long, those around one state."""
    if not system.model.features.selects:
        raise InputError("a filter needs a model whose features hold the observation; plan again from what is seen")
    if not system.model.features.filtered:
        raise InputError(
            f"there is no filter for models of the method {system.model.method}; plan again from what is seen"
        )
    if system.model.features.anchored(system.topology):
        return AnchoredDynamics(system, controls)
    return state_dynamics(system, controls, opening=True)


@dataclass(frozen=True, eq=False)
class Filter:
    """Observations in, estimates out; a filter is a value, each step gives the next one.

    Start with `opened` (a first observation), go on with `stepped` (an action, then the observation it led to).
    estimate: the observation [nodes, d] that the noise is thought to have hidden.
    """

    dynamics: StateDynamics | AnchoredDynamics
    process: Float[Array, "s s"]
    variance: Float[Array, " p"]
    belief: Belief
    surprises: tuple[float, ...] = field(default=())

    @staticmethod
    def opened(
        system: System,
        observation: Float[Array, "nodes d"],
        controls: Bool[Array, "nodes a"] | None = None,
        noise: Float[Array, " d"] | float | None = None,
        scale: float = 1.0,
    ) -> Filter:
        """At the first observation of an episode.

        controls: which (node, action) entries may be other than 0, by default all. noise: standard deviations of the
        observation noise in physical units, one a coordinate or one for all. scale: of the residual covariance.
        """
        model, starts = system.model, system.evidence.starts
        if controls is None:
            controls = np.ones((system.graph.num_nodes, model.config.num_actions), dtype=bool)
        dynamics = filter_dynamics(system, controls)
        variance = _variance(system, noise)
        state = system.state(observation, opening=True)
        # An opening observation of variance r, drawn to starts seen with variance n, of which it keeps a share s
        # (`Starts.posterior`), is off by s^2 r + s (1 - s) n in the mean square; and nothing moves yet.
        own = np.zeros((system.graph.num_nodes, model.config.num_state))
        d = model.config.num_observations
        own[:, :d] = starts.share**2 * variance + starts.share * (1 - starts.share) * starts.noise / starts.count
        if model.config.rest_start:
            own[:, [v for _, v in model.config.kinematics]] = 0
        if model.config.history == 2:
            own[:, d : 2 * d] = own[:, :d]
        J = _reduction(dynamics)
        belief = Belief(dynamics.reduced(state), (J * own.reshape(-1)) @ J.T)
        return Filter(dynamics, scale * _process(dynamics), np.tile(variance, system.graph.num_nodes), belief)

    def stepped(
        self,
        action: Float[Array, "nodes a"],
        observation: Float[Array, "nodes d"] | None,
        exogenous: Float[Array, "nodes e"] | None = None,
    ) -> Filter:
        """After one more step; None where nothing was measured."""
        model = self.dynamics.system.model
        if observation is not None and (observation.shape != self.estimate.shape or not np.isfinite(observation).all()):
            raise InputError(
                f"the observation has shape {observation.shape} or numbers that are not finite; expected finite ones "
                f"of shape {self.estimate.shape}"
            )
        known = None
        if exogenous is not None:
            known = torch.as_tensor(exogenous, dtype=model.dtype)[None] / model.exogenous_std
        now = replace(self.dynamics, exogenous=known)
        u = (action / model.action_std.cpu().double().numpy())[self.dynamics.controls]
        ahead = predict(self.belief, now, u, self.process)
        if observation is None:
            return replace(self, dynamics=self.dynamics.after_opening(), belief=ahead)
        found = correct(ahead, now, normalised(model, observation).reshape(-1), self.variance)
        return replace(
            self,
            dynamics=self.dynamics.after_opening(),
            belief=found.belief,
            surprises=(*self.surprises, found.surprise),
        )

    @property
    def estimate(self) -> Float[Array, "nodes d"]:
        model, nodes = self.dynamics.system.model, self.dynamics.system.graph.num_nodes
        o = torch.as_tensor(self.dynamics.outputs(self.belief.mean)).reshape(nodes, -1)
        return model.denormalise(o).cpu().double().numpy()

    @property
    def deviation(self) -> Float[Array, "nodes d"]:
        """The standard deviation of the estimate, as the filter sees it."""
        H = dense(self.dynamics.output_slopes(self.belief.mean[None]), 1)[0]
        variances = np.einsum("ps,st,pt->p", H, self.belief.covariance, H)
        std = self.dynamics.system.model.observation_std.cpu().double().numpy()
        return np.sqrt(np.clip(variances, 0, None)).reshape(-1, len(std)) * std


def noise_scale(
    system: System,
    episodes: Sequence[Episode],
    controls: Bool[Array, "nodes a"] | None = None,
    noise: Float[Array, " d"] | float | None = None,
) -> float:
    """The scale of the residual covariance under which a few of the adaptation episodes are likeliest; 1 on graphs on
    which trying them would take too long."""
    model, found = system.model, np.zeros(len(SCALES))
    episodes = list(episodes)[:TRIED]
    for episode, seen in zip(episodes, see(model, episodes, system.graph), strict=True):
        filters = [Filter.opened(system, episode.observations[0].astype(float), controls, noise, s) for s in SCALES]
        dynamics, variance = filters[0].dynamics, filters[0].variance
        if not dynamics.along_paths:
            return 1.0
        assert isinstance(dynamics, StateDynamics)
        actions = seen.inputs[..., : model.config.num_actions]
        smoothed = torch.as_tensor(seen.observations, dtype=model.dtype)
        x = dynamics.reduced(model.states(model.merge(smoothed, system.topology), actions))
        u = actions.double().cpu().numpy()[:, dynamics.controls]
        known = seen.inputs[..., model.config.num_actions :] if model.config.num_exogenous else None
        along = replace(dynamics, exogenous=known)
        A = along.path(x[0], x[1:], u).A
        after = np.stack([along.step(t, x[t], u[t]) for t in range(len(u))])
        observed = normalised(model, episode.observations).reshape(len(x), -1)
        for k, start in enumerate(filters):
            belief = start.belief
            for t in range(len(u)):
                P = A[t] @ belief.covariance @ A[t].T + start.process
                ahead = Belief(after[t] + A[t] @ (belief.mean - x[t]), P)
                corrected = correct(ahead, dynamics, observed[t + 1], variance)
                belief, found[k] = corrected.belief, found[k] + corrected.likelihood
    return float(SCALES[int(np.argmax(found))])


def _process(dynamics: StateDynamics | AnchoredDynamics) -> Float[Array, "s s"]:
    """The residual covariance as it enters the planner's state."""
    system = dynamics.system
    G, residual = target_errors(system.model, system.operator, system.topology, reproject=True)
    entering = _reduction(dynamics) @ G.cpu().numpy()
    return entering @ residual.cpu().numpy() @ entering.T


def _variance(system: System, noise: Array | float | None) -> Float[Array, " d"]:
    """Of the observation noise, in normalised units."""
    model, starts = system.model, system.evidence.starts
    std = model.observation_std.cpu().double().numpy()
    if noise is None:
        return np.full(len(std), max(starts.noise / starts.count, SMALLEST))
    found = np.broadcast_to(np.asarray(noise, dtype=np.float64), std.shape)
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise InputError(f"the noise is {noise}; give standard deviations in physical units, 0 or more")
    return np.maximum(np.square(found / std), SMALLEST)


def _reduction(dynamics: StateDynamics | AnchoredDynamics) -> Float[Array, "s c"]:
    """The planner's state as a linear map of the model's states, nodes flattened."""
    nodes = dynamics.system.graph.num_nodes
    eye = torch.eye(nodes * dynamics.system.model.config.num_state, dtype=torch.float64).unflatten(1, (nodes, -1))
    return (dynamics.reduced(eye) - dynamics.reduced(0 * eye)).T
