"""A system in the paper's feature space alone: one quadratic problem a plan (paper, 'LQR control').

    psi' = (alpha (x) C) psi + B a + c,     cost  sum over t of |psi_t - psi_*|^2_Q1 + |psi^a_t|^2_Q2

The state is psi^h of all nodes; the goal is phi_O of the observation to reach. alpha is that of the state planned from
(`frozen`), or follows the predicted features. Decoded observations are for the reader of a plan, no cost is on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.sparse import csr_array
from torch import Tensor

from gce.control.graph_path import GraphPath, GraphStep, LinearPath, NodeBlocks
from gce.control.tracking import Selection
from gce.errors import InputError
from gce.potentials import gibbs_weights
from gce.system.evidence import normalised
from gce.system.system import System

Array = np.ndarray
DENSE = 1000
"""Features of all nodes up to which a step is one dense product."""


@dataclass(frozen=True, eq=False)
class EmbeddedDynamics:
    """controls: which (node, action) entries are planned; exogenous: known inputs at every step, normalised."""

    system: System
    controls: Bool[Array, "nodes a"]
    exogenous: Float[Tensor, "M nodes e"] | None = None
    frozen: bool = True

    def __post_init__(self) -> None:
        form = self.system.operator.form
        if not form.controllable:
            raise InputError(
                f"the form {form.name!r} entangles history and action: it predicts, but no plan is one quadratic "
                "problem; adapt with hom_mean, hom or dense"
            )

    def frozen_at(self, x0: Float[Array, " s"]) -> EmbeddedDynamics:
        return self if self.frozen else replace(self, frozen=True)

    # ---- between the planner's states and the model's ----

    def reduced(self, states: Float[Tensor, "*batch nodes c"]) -> Float[Array, "*batch s"]:
        """psi^h behind states of the model."""
        with torch.no_grad():
            phi = self.system.model.features.phi(states.float(), self.system.topology)
        return phi.flatten(-2).double().numpy()

    def lifted(self, x: Float[Array, "*batch s"]) -> Float[Tensor, "*batch nodes c"]:
        """The decoded observations, as states."""
        model, topology = self.system.model, self.system.topology
        phi = torch.as_tensor(x, dtype=model.dtype).unflatten(-1, (topology.num_nodes, -1))
        with torch.no_grad():
            return model.decoded(torch.nn.functional.pad(phi, (model.config.num_state, 0)), topology)

    # ---- what a planner asks ----

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        many = u.reshape(-1, *u.shape[-2:])
        if self.frozen or not self.system.operator.form.weighted:
            path = self.path(x0, np.empty((0, len(x0))), many[0])
            found = [path.forward(one) for one in many]
        else:
            found = [self._follow(x0, one) for one in many]
        return np.stack(found).reshape(*u.shape[:-1], -1)

    def path(
        self, x0: Float[Array, " s"], x: Float[Array, "steps s"], u: Float[Array, "M n"]
    ) -> GraphPath | LinearPath:
        M = len(u)
        if not self.system.operator.form.shared:  # no weights to follow
            return LinearPath(self._of_edges, self._B, self._constants(M).reshape(M, -1), x0)
        if not self.frozen:
            before = [x0, *x[: M - 1]]
            steps = [self._step(self._fields(before[t]), self._constants(M)[t]) for t in range(M)]
            return GraphPath(steps, self._B, x0)
        fields = self._fields(x0)
        if len(x0) > DENSE:
            return GraphPath([self._step(fields, c) for c in self._constants(M)], self._B, x0)
        A = sum(np.kron(G.toarray(), C.T) for G, C in zip(fields, self._C, strict=True))
        return LinearPath(A, self._B, self._constants(M).reshape(M, -1), x0)

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch s"]:
        return x

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M s"]:
        """phi_O of the observations to reach."""
        model, topology = self.system.model, self.system.topology
        same = np.broadcast_to(observations[:1], observations.shape).tolist() == observations.tolist()
        o = model.tensor(normalised(model, observations[:1] if same else observations))
        with torch.no_grad():
            phi = model.features.future_phi(o, topology)
        return np.broadcast_to(phi.flatten(1).double().numpy(), (len(observations), phi[0].numel()))

    def output_slopes(self, x: Float[Array, "M s"]) -> Selection:
        return Selection(np.arange(x.shape[-1]), np.ones((1, x.shape[-1])), x.shape[-1])

    # ---- inside ----

    def _follow(self, x0: Float[Array, " s"], u: Float[Array, "M n"]) -> Float[Array, "M s"]:
        """The path along which alpha follows the features."""
        x, found = x0, np.empty((len(u), len(x0)))
        for t, c in enumerate(self._constants(len(u))):
            x = found[t] = GraphPath([self._step(self._fields(x), c)], self._B, x).forward(u[t : t + 1])[0]
        return found

    def _step(self, fields: list[csr_array], constant: Float[Array, "nodes f"]) -> GraphStep:
        own = np.zeros(self._C.shape[1:])
        return GraphStep([NodeBlocks(slice(None), own, self._C)], fields, constant)

    @cached_property
    def _C(self) -> Float[Array, "fields f f"]:
        """The operators of the history: one under Gibbs weights, or one a relation."""
        operator = self.system.operator
        rows = operator.form.num_state_regressors(self.system.topology)
        C = operator.coefficients[:rows].double().numpy()
        return C.reshape(-1, C.shape[1], C.shape[1])

    def _pushed(self, inputs: Float[Tensor, "nodes rows a"]) -> Float[Array, "nodes rows f"]:
        """What inputs and constants add to the next features."""
        model, operator = self.system.model, self.system.operator
        rows = operator.form.num_state_regressors(self.system.topology)
        with torch.no_grad():
            X = model.input_regressors(inputs, None, self.system.topology).double()
        pushed = X @ operator.coefficients[..., rows:, :].double()
        return (pushed if operator.pairs is None else pushed + operator.pairs.push(inputs.double())).numpy()

    @cached_property
    def _of_edges(self) -> csr_array | Array:
        """A of operators that every edge has of its own."""
        topology, operator = self.system.topology, self.system.operator
        rows = operator.form.num_state_regressors(topology)
        C = operator.coefficients[:, :rows].double().unflatten(1, (topology.max_degree, -1))
        blocks = C[topology.receivers, topology.slots].mT.numpy()  # [edges, next f, f]
        f, size = blocks.shape[1], topology.num_nodes * blocks.shape[1]
        to, of = (ends.numpy()[:, None, None] * f for ends in (topology.receivers, topology.senders))
        place = np.broadcast_arrays(to + np.arange(f)[:, None], of + np.arange(f))
        A = csr_array((blocks.ravel(), (place[0].ravel(), place[1].ravel())), shape=(size, size))
        return A.toarray() if size <= DENSE else A

    def _constants(self, M: int) -> Float[Array, "M nodes f"]:
        """What is added at each step when nothing is done."""
        c, nodes = self.system.model.config, len(self.controls)
        steps = 1 if self.exogenous is None else M
        inputs = torch.zeros(nodes, steps, c.num_inputs)
        if self.exogenous is not None:
            inputs[..., c.num_actions :] = self.exogenous[:M].transpose(0, 1)
        pushed = self._pushed(inputs).swapaxes(0, 1)
        return np.ascontiguousarray(np.broadcast_to(pushed, (M, *pushed.shape[1:])))

    @cached_property
    def _B(self) -> csr_array:
        """What the planned controls do to the next features, [nodes f, n]."""
        node, action = np.nonzero(self.controls)
        inputs = torch.zeros(len(self.controls), 1 + len(node), self.system.model.config.num_inputs)
        inputs[node, 1 + np.arange(len(node)), action] = 1
        pushed = self._pushed(inputs)
        return csr_array((pushed[:, 1:] - pushed[:, :1]).swapaxes(1, 2).reshape(-1, len(node)))

    @cached_property
    def _relations(self) -> list[csr_array]:
        topology, N = self.system.topology, self.system.topology.num_nodes
        of_type = [(topology.edge_type == r).numpy() for r in range(self.system.model.config.num_relations)]
        where = topology.receivers.numpy(), topology.senders.numpy()
        return [csr_array((on[on].astype(float), (where[0][on], where[1][on])), shape=(N, N)) for on in of_type]

    def _fields(self, x: Float[Array, " s"]) -> list[csr_array]:
        """G of each field: alpha of each head at these features, or the edges of each relation."""
        model, topology = self.system.model, self.system.topology
        if not self.system.operator.form.weighted:
            return self._relations
        phi = torch.as_tensor(x, dtype=model.dtype).unflatten(-1, (topology.num_nodes, -1))
        with torch.no_grad():
            alpha = gibbs_weights(model.potential, phi, topology)
        where = (topology.receivers.numpy(), topology.senders.numpy())
        heads = alpha.reshape(len(alpha), -1).T.double().numpy()
        return [csr_array((head, where), shape=(topology.num_nodes,) * 2) for head in heads]
