"""An adapted system as the paper's linear dynamics in feature space, for graphs of any size.

    psi' = (I (x) S + alpha (x) M) psi + B a + c

The state is psi of all nodes. Features are taken once, at the start; alpha is that of the start (frozen, so that a plan
is one quadratic problem), or follows the predicted features. Products go through `GraphPath`, which forms no matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import DTypeLike
from scipy.sparse import csr_array, kron
from torch import Tensor

from gce.control.graph_path import GraphPath, GraphStep, NodeBlocks
from gce.control.tracking import Selection
from gce.errors import InputError
from gce.potentials import gibbs_weights
from gce.system.system import System

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class FeatureDynamics:
    """The dynamics of psi, under an operator whose blocks all nodes share.

    controls: which (node, action) entries are planned; the others stay 0. opening: whether the first step opens an
    episode. exogenous: known inputs at every step, normalised. frozen: whether alpha stays that of the start.
    on: whether outputs are the observations or all features.
    """

    system: System
    controls: Bool[Array, "nodes a"]
    opening: bool = False
    exogenous: Float[Tensor, "M nodes e"] | None = None
    frozen: bool = True
    on: str = "observations"
    dtype: DTypeLike = np.float32

    def __post_init__(self) -> None:
        form, model = self.system.operator.form, self.system.model
        shape = form.shape
        parts = form.blocks(self.system.operator.coefficients, model.features.width)
        rest = shape.num_relations * shape.num_actions + shape.num_node_types
        wanted = (shape.heads if form.weighted else shape.num_relations, rest)
        if parts is None or (len(parts.fields), len(parts.rest)) != wanted:
            raise InputError(
                f"plans in feature space need shared blocks, this is {form.name!r}; adapt with hom_mean or hom"
            )
        if not model.features.linear or self.system.graph.tied is not None:
            raise InputError("plans in feature space are for nodes without ties and features without channels")

    def frozen_at(self, x0: Float[Array, " s"]) -> FeatureDynamics:
        """Itself: it keeps alpha where it was asked to (`frozen`)."""
        return self

    # ---- between the planner's states and the model's ----

    def reduced(self, states: Float[Tensor, "*batch nodes c"]) -> Float[Array, "*batch s"]:
        """The features behind a state of the model."""
        with torch.no_grad():
            psi = self.system.model.features(states.float(), self.system.topology)
        return psi.flatten(-2).numpy().astype(self.dtype, copy=False)

    def lifted(self, x: Float[Array, "*batch s"]) -> Float[Tensor, "*batch nodes c"]:
        """The model's state within the features."""
        psi = torch.as_tensor(x, dtype=torch.float32).unflatten(-1, (self.system.topology.num_nodes, -1))
        return psi[..., : self.system.model.config.num_state]

    # ---- what a planner asks ----

    def rollout(self, x0: Float[Array, " s"], u: Float[Array, "*batch M n"]) -> Float[Array, "*batch M s"]:
        many = u.reshape(-1, *u.shape[-2:])
        if self.frozen:
            path = self.path(x0, np.empty((0, len(x0))), many[0])
            found = [path.forward(one) for one in many]
        else:
            found = [self._follow(x0, one) for one in many]
        return np.stack(found).reshape(*u.shape[:-1], -1)

    def path(self, x0: Float[Array, " s"], x: Float[Array, "steps s"], u: Float[Array, "M n"]) -> GraphPath:
        if self.frozen:
            G = self._fields(x0)
            one = [self._step(k, G) for k in range(min(len(u), 2))]
            later = [one[-1] if self.exogenous is None else self._step(t, G) for t in range(1, len(u))]
            steps = [one[0], *later]
        else:
            before = [x0, *x[:-1]]
            steps = [self._step(t, self._fields(before[t])) for t in range(len(u))]
        return GraphPath(steps, self._B, x0.astype(self.dtype, copy=False))

    def outputs(self, x: Float[Array, "*batch s"]) -> Float[Array, "*batch p"]:
        """The normalised observations, or the features, of all nodes."""
        return x[..., self._observed]

    def goal(self, observations: Float[Array, "M nodes d"]) -> Float[Array, "M p"]:
        """The outputs at observations to be reached, at which nothing is pushed."""
        return self.system.outputs_at(observations, self.on)

    def output_slopes(self, x: Float[Array, "M s"]) -> Selection:
        return Selection(self._observed, np.ones((1, len(self._observed))), x.shape[-1])

    # ---- inside ----

    def _follow(self, x0: Float[Array, " s"], u: Float[Array, "M n"]) -> Float[Array, "M s"]:
        """The path along which alpha follows the features."""
        x = x0.astype(self.dtype, copy=False)
        found = np.empty((len(u), len(x)), self.dtype)
        for t in range(len(u)):
            path = GraphPath([self._step(t, self._fields(x))], self._B, x)
            x = found[t] = path.forward(u[t : t + 1])[0]
        return found

    @cached_property
    def _observed(self) -> Array:
        c = self.system.model.config
        size = c.num_state + self.system.model.features.num_phi
        first = np.arange(self.system.topology.num_nodes) * size
        width = c.num_observations if self.on == "observations" else size
        return (first[:, None] + np.arange(width)).reshape(-1)

    @cached_property
    def _parts(self) -> tuple[Array, Array, Array, Array, Array]:
        """(C by rows of own block, fields [k, f, m], inputs, constants; keep [f, f]; spread [m, f]), from the right.

        A step is psi keep + y spread, y = regressors C the targets.
        """
        model, operator = self.system.model, self.system.operator
        c = model.config
        f, n = c.num_state + model.features.num_phi, c.num_state
        acting = [*model.features.regressed_state, *range(n, f)]
        parts = operator.form.blocks(operator.coefficients.double(), len(acting))
        assert parts is not None  # as checked
        m, k = operator.coefficients.shape[1], len(parts.fields)
        own, fields = np.zeros((f, m)), np.zeros((k, f, m))
        own[acting], fields[:, acting] = parts.own, parts.fields
        keep, spread = (part.numpy() for part in model.feature_motion())
        return own, fields, parts.rest.numpy(), keep, spread

    @cached_property
    def _kinds(self) -> list[tuple[slice | Array, Array]]:
        """(nodes, which targets move there) of each kind of node."""
        moving = (~self.system.model.held).double().numpy()
        kinds, which = np.unique(moving, axis=0, return_inverse=True)
        of_node = which.reshape(-1)[self.system.topology.node_type.numpy()]
        if len(np.unique(of_node)) == 1:
            return [(slice(None), kinds[of_node[0]])]
        return [(np.flatnonzero(of_node == k), kind) for k, kind in enumerate(kinds)]

    def _blocks(self, fresh: bool) -> list[NodeBlocks]:
        own, fields, _, keep, spread = self._parts
        on = 0.0 if fresh else 1.0
        return [
            NodeBlocks(
                nodes,
                (keep + on * (own * moving) @ spread).astype(self.dtype),
                (on * (fields * moving) @ spread).astype(self.dtype),
            )
            for nodes, moving in self._kinds
        ]

    @cached_property
    def _every_blocks(self) -> list[NodeBlocks]:
        return self._blocks(False)

    @cached_property
    def _relations(self) -> list[csr_array]:
        """The edges of each relation, [receivers, senders]."""
        topology, N = self.system.topology, self.system.topology.num_nodes
        found = []
        for r in range(self.system.model.config.num_relations):
            on = (topology.edge_type == r).numpy()
            where = (topology.receivers.numpy()[on], topology.senders.numpy()[on])
            found.append(csr_array((np.ones(int(on.sum()), self.dtype), where), shape=(N, N)))
        return found

    def _fields(self, x: Float[Array, " s"]) -> list[csr_array]:
        """G of each field: alpha of each head at these features, or the edges of each relation."""
        model, topology = self.system.model, self.system.topology
        if not self.system.operator.form.weighted:
            return self._relations
        psi = torch.as_tensor(x, dtype=torch.float32).unflatten(-1, (topology.num_nodes, -1))
        with torch.no_grad():
            alpha = gibbs_weights(model.potential, psi[:, model.config.num_state :], topology)
        where = (topology.receivers.numpy(), topology.senders.numpy())
        heads = alpha.reshape(len(alpha), -1).T.numpy().astype(self.dtype)
        return [csr_array((head, where), shape=(topology.num_nodes,) * 2) for head in heads]

    def _step(self, t: int, fields: list[csr_array]) -> GraphStep:
        fresh = t == 0 and self.opening and self.system.model.config.fresh_start
        return GraphStep(self._blocks(True) if fresh else self._every_blocks, fields, self._constant(t, fresh))

    def _pushed(self, inputs: Float[Array, "nodes columns"]) -> Float[Array, "nodes f"]:
        """What columns of inputs and constants, one for each row of C after the history, add to psi'."""
        _, _, C, _, spread = self._parts
        found = np.zeros((len(inputs), spread.shape[1]))
        for nodes, moving in self._kinds:
            found[nodes] = inputs[nodes] @ ((C * moving) @ spread)
        return found

    @cached_property
    def _still(self) -> Float[Array, "nodes f"]:
        """The constants of each type of node."""
        _, _, C, _, _ = self._parts
        inputs = np.zeros((self.system.topology.num_nodes, len(C)))
        types = self.system.model.config.num_node_types
        inputs[:, len(C) - types :] = np.eye(types)[self.system.topology.node_type.numpy()]
        found = self._pushed(inputs)
        if self.system.operator.constants is not None:
            found += self.system.operator.constants.double().numpy() @ self._parts[-1]
        return found.astype(self.dtype)

    def _constant(self, t: int, fresh: bool) -> Float[Array, "nodes f"]:
        still = np.zeros_like(self._still) if fresh else self._still
        if self.exogenous is None:
            return still
        c, (_, _, C, _, _) = self.system.model.config, self._parts
        known = self.exogenous[t].double().numpy()
        inputs = np.zeros((len(known), len(C)))
        for r, edges in enumerate(self._relations):
            first = r * c.num_inputs + c.num_actions
            inputs[:, first : first + c.num_exogenous] = edges @ known
        return still + self._pushed(inputs).astype(self.dtype)

    @cached_property
    def _B(self) -> csr_array:
        """What the planned controls do to psi, [nodes f, n]."""
        c, (_, _, C, _, spread) = self.system.model.config, self._parts
        node, action = np.nonzero(self.controls)
        N, f = len(self.controls), spread.shape[1]
        B = csr_array((N * f, len(node)), dtype=np.float64)
        if c.previous_action:
            at = node * f + c.history * c.num_observations + action
            B = B + csr_array((np.ones(len(node)), (at, np.arange(len(node)))), shape=B.shape)
        if not c.late_action:
            for a in range(c.num_actions):
                place = np.flatnonzero(action == a)
                which = csr_array((np.ones(len(place)), (node[place], place)), shape=(N, len(node)))
                for r, edges in enumerate(self._relations):
                    for nodes, moving in self._kinds:
                        mask = np.zeros(N)
                        mask[nodes] = 1
                        row = (C[r * c.num_inputs + a] * moving) @ spread
                        reached = (edges @ which).multiply(mask[:, None])
                        B = B + csr_array(kron(csr_array(reached), row[:, None], format="csr"))
        return csr_array(B.astype(self.dtype))
