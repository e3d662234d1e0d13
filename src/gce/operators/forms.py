"""The four forms of the paper ('Comparison of different embeddings'), from the most general to the most economical."""

from __future__ import annotations

import torch
from torch import Tensor

from gce.errors import InputError
from gce.graphs.topology import Topology
from gce.operators.base import (
    Form,
    Shape,
    relation_sums,
    slot_table,
)
from gce.potentials import mean_field


class TensorForm(Form):
    """sum over j in E(i) of C_{O^i|A^jH^j} [psi_j (x) psi^a_j], an operator for every edge.

    The action feature is [1, a], so that a node without action still has an effect. History and action are entangled:
    it predicts, but a plan is not a quadratic problem.
    """

    name, controllable, shared = "tensor", False, False

    def _columns(self) -> int:
        return self.shape.num_features * (1 + self.shape.num_actions)

    def num_regressors(self, topology: Topology) -> int:
        return topology.max_degree * self._columns() + 1

    def num_state_regressors(self, topology: Topology) -> int:
        return self.num_regressors(topology) - 1

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        action_features = torch.cat([torch.ones_like(features[..., :1]), actions], dim=-1)
        product = (features.unsqueeze(-1) * action_features.unsqueeze(-2)).flatten(-2)
        return slot_table(topology.sent(product), topology)

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return actions[..., :0]


class DenseForm(Form):
    """sum over j in E(i) of C_{O^i|H^j} psi_j + C_{O^i|A^j} a_j, operators for every edge."""

    name, shared = "dense", False

    def num_regressors(self, topology: Topology) -> int:
        return topology.max_degree * (self.shape.num_features + self.shape.num_actions) + 1

    def num_state_regressors(self, topology: Topology) -> int:
        return topology.max_degree * self.shape.num_features

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        return slot_table(topology.sent(features), topology)

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return slot_table(topology.sent(actions), topology)


class HomForm(Form):
    """sum over relations r of C_r (sum of psi_j in relation r), one operator a relation, uniform weights.

    This is the compositional Koopman operator of Li et al. (2020).
    """

    name, shared = "hom", True

    def num_regressors(self, topology: Topology) -> int:
        s = self.shape
        return s.num_relations * (s.num_features + s.num_actions) + s.num_node_types

    def num_state_regressors(self, topology: Topology) -> int:
        return self.shape.num_relations * self.shape.num_features

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        return relation_sums(features, topology, self.shape.num_relations)

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return relation_sums(actions, topology, self.shape.num_relations)


class HomMeanForm(Form):
    """C_self psi_i + C_mean (sum over j in E(i) of alpha_ij psi_j) + actions per relation, shared by all nodes.

    own_block: with C_self, the default; without it the form is the paper's, literally.
    """

    name, shared, weighted = "hom_mean", True, True

    def __init__(self, shape: Shape, own_block: bool = True) -> None:
        super().__init__(shape)
        self.own_block = own_block

    def num_regressors(self, topology: Topology) -> int:
        s = self.shape
        return self.num_state_regressors(topology) + s.num_relations * s.num_actions + s.num_node_types

    def num_state_regressors(self, topology: Topology) -> int:
        return self.shape.num_features * (2 if self.own_block else 1)

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        if weights is None:
            raise ValueError("hom_mean needs the Gibbs weights")
        field = mean_field(weights, features, topology)
        return torch.cat([features, field], dim=-1) if self.own_block else field

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return relation_sums(actions, topology, self.shape.num_relations)


class LocalForm(Form):
    """C psi_i + B a_i, each node alone and shared by all: for features and actions that hold what others do."""

    name, shared = "local", True

    def num_regressors(self, topology: Topology) -> int:
        return self.shape.num_features + self.shape.num_actions + self.shape.num_node_types

    def num_state_regressors(self, topology: Topology) -> int:
        return self.shape.num_features

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        return features

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return actions


FORMS: dict[str, type[Form]] = {form.name: form for form in (TensorForm, DenseForm, HomForm, HomMeanForm)}
"""Those of the paper."""


def make_form(name: str, shape: Shape, own_block: bool = True) -> Form:
    known: dict[str, type[Form]] = {**FORMS, LocalForm.name: LocalForm}
    if name not in known:
        raise InputError(f"there is no form {name!r}; the forms are {', '.join(known)}")
    return HomMeanForm(shape, own_block) if name == "hom_mean" else known[name](shape)
