"""The model: an embedding, and the operators of systems in it.

Features and the way back are the embedding's; an operator C is fitted in closed form to the episodes of a system
(`adapt`), all that a new system needs; and steps are taken under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from gce.graphs.topology import Topology
from gce.model.embedding import Channels, Embedding, nodes_first
from gce.model.step import Stepper
from gce.operators import Operator
from gce.operators.regression import FieldRows, Regression, Sums


class Model(Embedding):
    """An embedding whose operators are fitted to systems."""

    def with_form(self, form: str) -> Model:
        """The same encoder and potential under another form of the operator."""
        other = Model(replace(self.config, form=form))
        other.load_state_dict(self.state_dict())
        return other.eval()

    def regression(self, num_targets: int) -> Regression:
        """Of the first targets; pushes along pairs are not held."""
        held = self.held if self.implicit is None else self.held.new_zeros(len(self.held), self.num_targets)
        prior = None if self.implicit is None else self.implicit.prior
        return Regression(self.form, held[:, :num_targets], self.config.node_constants, prior)

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
        free, moving = len(self.free), self.moving(topology).to(Y.dtype).unsqueeze(-1)
        y, Z = Y[..., :free].unsqueeze(-1) * moving, channels.fields * moving
        pushes = channels.behind(torch.cat([y, Z], dim=-1))
        rows = (part.movedim(-3, 0).flatten(1, -3) for part in (y, Z, pushes[..., 1:]))
        fields = FieldRows(next(rows).squeeze(-1), *rows)
        return torch.cat([pushes[..., 0], Y[..., free:]], dim=-1), fields

    def fit(self, sums: Sums, topology: Topology, ridge: float | None = None, joint: bool = True) -> Operator:
        """The operator of one system, in closed form."""
        regression = self.regression(sums.moments.cross.shape[-1])
        ridge = self.config.ridge if ridge is None else ridge
        memory = self.remembered
        if memory is not None:
            of_training = regression.fit(Sums(memory.moments), topology, ridge, joint)
            sums = Sums(memory.beside(sums.moments, of_training.coefficients[:, : len(self.free)]))
        return regression.fit(sums, topology, ridge, joint)

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
