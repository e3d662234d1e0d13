"""A form with a mean field of hyperedges beside that of neighbours.

    C_self psi_i + C_mean (sum over j of alpha_ij psi_j) + C_hyper (sum over hyperedges e of i of beta_ie P_ie)

P_ie is the mean, over pairs j, k of other nodes of e, of psi_j * psi_k: the diagonal of their tensor product, which no
sum over neighbours holds. In it features count as at most BOUND: squares of a state that is far out would otherwise
drive a rollout further out. beta_ie are the Gibbs weights of the hyperedges of i, by the potential of psi_i and the
mean of the other nodes of e. A node of no hyperedge has a field of zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gce.graphs.topology import Topology
from gce.operators.forms import Blocks, HomMeanForm, register_form

BOUND = 4.0
"""Of a feature in products, softly; observations are in units of their spread."""


@register_form
class HomMeanHyperForm(HomMeanForm):
    """Hom+Mean, with a mean field of the hyperedges of a node."""

    name, of_paper, hyper, pairwise = "hom_mean_hyper", False, True, "hom_mean"

    def num_state_regressors(self, topology: Topology) -> int:
        return super().num_state_regressors(topology) + self.shape.heads * self.shape.num_features

    def state_regressors(self, features: Tensor, actions: Tensor, weights: Tensor | None, topology: Topology) -> Tensor:
        if weights is None:
            raise ValueError("hom_mean_hyper needs the Gibbs weights")
        pairwise = super().state_regressors(features, actions, weights[: topology.num_edges], topology)
        known = topology.hyperedges
        if known is None:
            field = features.new_zeros((*features.shape[:-1], self.shape.heads * self.shape.num_features))
        else:
            bounded = BOUND * torch.tanh(features / BOUND)
            products, beta = known.pairs_of_others(bounded), weights[topology.num_edges :]
            heads = beta.unbind(-1) if beta.ndim == features.ndim else (beta,)
            field = torch.cat([known.into(head.unsqueeze(-1) * products) for head in heads], dim=-1)
        return torch.cat([pairwise, field], dim=-1)

    def blocks(self, coefficients: Tensor, width: int) -> Blocks | None:
        """None: the field of hyperedges is no sum over neighbours."""
        return None
