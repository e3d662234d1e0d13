"""GraphODE: a neural ordinary differential equation on a graph, with controls (Poli et al. 2019, Luo et al. 2023).

The state s of all nodes flows along a vector field that message passing gives, while the inputs are held over a step,

    ds_i/dt = W f_V(s_i, a_i, sum over j in E(i) of f_E(s_i, a_i, s_j, a_j, relation of j to i))

integrated with torchdiffeq (fourth-order Runge-Kutta, one step of the recording at a time). Loss: the prediction
error of windows from their first state,

    mean_t |s_t - o_t|,   |.| root mean square over nodes and coordinates.

It adapts by gradient descent on the episodes of a system; plans linearise the step by automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gce.baselines.cko import message_passing
from gce.baselines.trainable import Advancing, Schedule, WindowBatch
from gce.errors import InputError
from gce.features.base import StateShape
from gce.graphs.topology import Topology
from gce.training.batches import Recorded, miss


@dataclass(frozen=True)
class GraphOdeConfig(StateShape):
    """substeps: of the integrator within a step of the recording."""

    features: int = 64
    node_width: int = 64
    edge_width: int = 32
    rounds: int = 2
    substeps: int = 1


class GraphOde(Advancing):
    name, config_class = "graph_ode", GraphOdeConfig
    config: GraphOdeConfig
    schedule = Schedule(iterations=3000)

    def __init__(self, config: GraphOdeConfig) -> None:
        super().__init__(config)
        try:
            from torchdiffeq import odeint
        except ImportError:
            raise InputError("graph_ode needs torchdiffeq; install it with: pip install torchdiffeq") from None
        self._odeint = odeint
        c = config
        width = (c.node_width, c.edge_width)
        self.network = message_passing(c, c.num_state + c.num_inputs, c.features, width, c.rounds)
        self.readout = nn.Linear(c.features, c.num_observations)
        with torch.no_grad():
            self.readout.weight.mul_(0.1)

    def set_inputs(self, systems: Sequence[Recorded]) -> None:
        self.network.inputs.set_units(
            (torch.cat([s.states[0, :-1:4], s.inputs[0, ::4]], dim=-1).transpose(0, 1), s.topology) for s in systems
        )

    def advance(
        self, state: Float[Tensor, "*batch nodes c"], inputs: Float[Tensor, "*batch nodes i"], topology: Topology
    ) -> Float[Tensor, "*batch nodes c"]:
        """The next state; time is measured in steps."""
        c = self.config
        d = c.num_observations
        held = torch.cat([state[..., d:], inputs], dim=-1)

        def field(t: Tensor, observation: Tensor) -> Tensor:
            return self.readout(self.network(torch.cat([observation, held], dim=-1), topology))

        times = torch.linspace(0, 1, c.substeps + 1, dtype=state.dtype)
        moved = self.merge(self._odeint(field, state[..., :d], times, method="rk4")[-1], topology)
        return torch.cat([moved, inputs[..., : c.num_state - d]], dim=-1)

    def loss(self, batch: WindowBatch, generator: torch.Generator) -> Float[Tensor, ""]:
        w, d = batch.windows, self.config.num_observations
        state, path = w.states[:, 0], []
        for t in range(w.inputs.shape[1]):
            state = self.advance(state, w.inputs[:, t], batch.topology)
            path.append(state[..., :d])
        return miss(torch.stack(path, dim=1), w.states[:, 1:, :, :d], batch.topology)
