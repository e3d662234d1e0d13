"""Whether hyperedges tell anything beyond pairs: chosen before training, by errors of single steps left out.

The form is fitted to systems of the data on the features [x, tanh x], with even weights, once with the hyperedges and
once without. Each fit predicts the increments of an episode that it has not seen.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gce.errors import warn
from gce.graphs.topology import Topology
from gce.model.config import ModelConfig
from gce.model.model import Units, nodes_first
from gce.operators import FORMS, Form, Shape, make_form
from gce.operators.regression import moments_of, solve
from gce.training.preparation import take_units
from gce.trajectory import Dataset, Episode

SYSTEMS, EPISODES = 12, 6
GAIN = 0.9
"""The share of the error without hyperedges that the error with them must come below, in one coordinate at least."""
RIDGE = 1e-6


def without_idle_hyperedges(config: ModelConfig, data: Dataset, seed: int) -> ModelConfig:
    """The configuration; without hyperedges, and that is said, where a form that uses them predicts no better."""
    pairwise = FORMS[config.form].pairwise
    if not (pairwise and config.num_hyperedge_types and config.hyperedges):
        return config
    units = Units(config)
    take_units(units, data, seed)
    groups = (data.group(int(g)).episodes[:EPISODES] for g in np.unique(data.groups))
    systems = [[data[int(k)] for k in group] for group in islice((g for g in groups if len(g) > 1), SYSTEMS)]
    gains = [_gain(config, units, episodes) for episodes in systems if episodes[0].graph.hyperedges is not None]
    gain = float(torch.stack(gains).log().mean(0).exp().min()) if gains else 1.0
    if gain <= GAIN:
        return config
    warn(
        "hyperedges tell little beyond pairs in these data: with them errors of single steps are "
        f"{gain:.2f} of those without; the model leaves them out, with the form {pairwise}"
    )
    return replace(config, form=pairwise, hyperedges=False)


def _gain(config: ModelConfig, units: Units, episodes: list[Episode]) -> Float[Tensor, " d"]:
    """Of each coordinate the error with hyperedges, as a share of the error without."""
    topology = Topology.of(episodes[0].graph)
    shape = Shape(2 * config.num_state, config.num_inputs, config.num_relations, config.num_node_types)
    form = make_form(config.form, shape)
    recorded = [units.recorded(episode) for episode in episodes]
    errors = [_left_out(form, recorded, t) for t in (topology, replace(topology, hyperedges=None))]
    return errors[0] / errors[1].clamp_min(1e-9)


def _left_out(form: Form, recorded: list[tuple[Tensor, Tensor]], topology: Topology) -> Float[Tensor, " d"]:
    """The error of the first episode's increments, by a fit to the others."""
    rows = []
    for states, inputs in recorded:
        x, a = nodes_first(states).double(), nodes_first(inputs).double()
        psi = torch.cat([x, torch.tanh(x)], -1)[:, :-1]
        weights = topology.softmax(psi.new_zeros(topology.num_edges, psi.shape[1]))
        if (known := topology.hyperedges) is not None:
            weights = torch.cat([weights, known.softmax(psi.new_zeros(len(known.node), psi.shape[1]))])
        rows.append((form.regressors(psi, a, weights, topology), x[:, 1:] - x[:, :-1]))
    (X, Y), *others = rows
    seen, moved = (torch.cat(part, 1) for part in zip(*others, strict=True))
    (moments,) = moments_of(form, seen, moved, topology)
    C = solve(moments, torch.full((X.shape[-1],), RIDGE, dtype=X.dtype)).coefficients
    return (Y - X @ C).square().mean((0, 1)).sqrt().clamp_min(1e-9)
