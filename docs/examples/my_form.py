"""A form of the operator: C_self psi_i + C_1 m_i + C_2 m_i * m_i, with m_i the Gibbs-weighted mean of neighbours."""

import torch

import gce
from gce.operators import Form
from gce.operators.forms import relation_sums
from gce.potentials import mean_field


@gce.register
class HomMeanSquare(Form):
    name = "hom_mean_square"
    shared = True  # all nodes have one operator
    weighted = True  # state_regressors is given the Gibbs weights

    def num_state_regressors(self, topology):
        return (1 + 2 * self.shape.heads) * self.shape.num_features

    def num_regressors(self, topology):
        actions = self.shape.num_relations * self.shape.num_actions
        return self.num_state_regressors(topology) + actions + self.shape.num_node_types

    def state_regressors(self, features, actions, weights, topology):
        """A row a node: what predicts the next features without the action."""
        field = mean_field(weights, features, topology)
        return torch.cat([features, field, field.square()], dim=-1)

    def action_regressors(self, actions, topology):
        """The sum of actions over the neighbours in each relation; the next features must be linear in them."""
        return relation_sums(actions, topology, self.shape.num_relations)
