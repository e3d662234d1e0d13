"""Forms with an operator for the action of every pair of nodes, as the paper has them for Hom and Hom+Mean.

Its equation 'Meta-representation' sums actions over neighbours (`edges`), its forward loss and pseudo code over all
nodes (`pairs`). Its appendix ('Empirical Estimation') averages operators of Hom over receivers (`hom_average`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gce.graphs.topology import Topology
from gce.operators.forms import DenseForm, Form, HomForm, HomMeanForm, register_form


class _Pairs(Form):
    """The regressors of the action are the node's own; `gce.operators.pairs` gathers those of all."""

    pairs = True

    def num_regressors(self, topology: Topology) -> int:
        return self.num_state_regressors(topology) + self.shape.num_actions + self.shape.num_node_types

    def action_regressors(self, actions: Tensor, topology: Topology) -> Tensor:
        return actions


class _Edges(_Pairs):
    """Actions reach neighbours, a node is its own."""

    def reach(self, topology: Topology) -> list[Tensor | None]:
        near = torch.zeros(topology.num_nodes, topology.num_nodes, dtype=torch.bool, device=topology.senders.device)
        near[topology.receivers, topology.senders] = True
        return [part for rows in near.split(topology.splits) for part in rows.split(topology.splits, dim=1)][
            :: len(topology.splits) + 1
        ]


@register_form
class HomMeanPairsForm(_Pairs, HomMeanForm):
    """C (sum over j in E(i) of alpha_ij psi_j) + sum over all nodes j of B_ij a_j."""

    name, of_paper = "hom_mean_pairs", False


@register_form
class HomMeanEdgesForm(_Edges, HomMeanForm):
    """C (sum over j in E(i) of alpha_ij psi_j) + sum over j in E(i) of B_ij a_j."""

    name, of_paper = "hom_mean_edges", False


@register_form
class HomPairsForm(_Pairs, HomForm):
    """sum over relations r of C_r (sum of psi_j in relation r) + sum over all nodes j of B_ij a_j."""

    name, of_paper = "hom_pairs", False


@register_form
class HomEdgesForm(_Edges, HomForm):
    """sum over relations r of C_r (sum of psi_j in relation r) + sum over j in E(i) of B_ij a_j."""

    name, of_paper = "hom_edges", False


@register_form
class HomAverageForm(DenseForm):
    """sum over j in E(i) of C_j psi_j + B_ij a_j, where C_j is the mean over all nodes of their operators of j.

    As the paper's appendix estimates Hom: each neighbour apart, and actions as in Dense.
    """

    name, of_paper, averaged = "hom_average", False, True

    def constants(self, like: Tensor, topology: Topology) -> Tensor:
        """None: beside regressions apart from each other it would count the mean once more."""
        return torch.zeros_like(super().constants(like, topology))
