"""What CKO is trained with, over windows of episodes that the operators were not fitted on.

Loss (|.| root mean square over nodes and coordinates):

    autoencoding    mean_t |D(E(o_t)) - o_t|
    prediction      mean_t |D(psi_t) - o_t|,   psi rolled out from E(o_0)
    metric          0.3 mean over nodes and pairs of times of | ||E(o_t) - E(o_s)|| - ||o_t - o_s|| |

The metric term asks that distances between features are those between observations.

Operators are fitted in every iteration, which takes most of it unless regressors of different receivers are told apart:
where a relation type belongs to receivers of one type, X'X falls into a block for each (27 relations of Swim: three
blocks of a third of the regressors, a ninth of the operations). A rollout is one product a step for all systems,
filled up with zeros to the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gce.baselines.koopman import Blocks
from gce.baselines.windows import Batch, miss
from gce.graphs.topology import Topology

if TYPE_CHECKING:
    from gce.baselines.cko import Cko


def cko_loss(model: Cko, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
    c, topology, w = model.config, batch.topology, batch.windows
    if batch.fit is None:
        raise ValueError("operators are fitted in training; draw episodes to fit on")
    d = c.num_observations
    truth = w.states[..., :d]
    fit_psi = model.encoder(batch.fit.states[..., :d], topology)
    X = model.regressors(fit_psi[:, :-1], batch.fit.states[:, :-1], batch.fit.inputs, topology)
    C = fitted(model.blocks, X, fit_psi[:, 1:], topology, c.ridge)
    psi = model.encoder(truth, topology)
    z = torch.cat([psi[:, 0], w.states[:, 0, :, d:]], dim=-1)
    path = rolled_out(model.blocks, C, z, w.inputs, topology)[..., : c.features]
    decoded = model.decoder(torch.cat([psi, path.clamp(-1e3, 1e3)], dim=1), topology)
    steps = truth.shape[1]
    other = torch.randperm(steps, generator=generator)
    near = _distance(psi, psi[:, other]) - _distance(truth, truth[:, other])
    return (
        miss(decoded[:, :steps], truth, topology)
        + miss(decoded[:, steps:], truth[:, 1:], topology)
        + c.metric_weight * near.abs().mean()
    )


def fitted(
    blocks: Blocks,
    X: Float[Tensor, "*batch nodes D"],
    psi: Float[Tensor, "*batch nodes m"],
    topology: Topology,
    ridge: float,
) -> list[Float[Tensor, "D m"]]:
    """The operators of each graph, as `Blocks.regressions` finds them all at once."""
    found, start = [], 0
    for size in topology.splits:
        whole = X.new_zeros(X.shape[-1], psi.shape[-1], dtype=torch.float64)
        for nodes in _apart(topology, start, size):
            some = replace(topology, splits=(len(nodes),))  # regressions look at the splits alone
            (part,) = blocks.regressions(X[..., nodes, :], psi[..., nodes, :], some)
            # The ridge is on the mean over all rows of the graph, of which these are some.
            whole = whole + part.solve(ridge * size / len(nodes))
        found.append(whole)
        start += size
    return found


def _apart(topology: Topology, start: int, size: int) -> list[Int[Tensor, " nodes"]]:
    """The nodes of a graph by type; all together where two types receive in the same relation."""
    graph = _part(topology, start, size)
    pairs = torch.stack([graph.node_type[graph.receivers], graph.edge_type]).unique(dim=1)
    if pairs.shape[1] > len(graph.edge_type.unique()):
        return [torch.arange(start, start + size)]
    return [start + (graph.node_type == kind).nonzero().squeeze(1) for kind in graph.node_type.unique()]


def rolled_out(
    blocks: Blocks,
    coefficients: Sequence[Float[Tensor, "D m"]],
    z: Float[Tensor, "windows nodes f"],
    inputs: Float[Tensor, "windows steps nodes i"],
    topology: Topology,
) -> Float[Tensor, "windows steps nodes f"]:
    """z after each step."""
    systems, start = [], 0
    for C, size in zip(coefficients, topology.splits, strict=True):
        systems.append(blocks.assemble(C.to(z.dtype), _part(topology, start, size)))
        start += size
    largest = max(topology.splits)

    def filled(rows: Float[Tensor, "*batch nodes k"]) -> Float[Tensor, "graphs *batch s"]:
        """Nodes of each graph side by side, zeros after them."""
        parts = [part.flatten(-2) for part in rows.split(topology.splits, dim=-2)]
        width = largest * rows.shape[-1]
        return torch.stack([torch.nn.functional.pad(p, (0, width - p.shape[-1])) for p in parts])

    s, i = largest * z.shape[-1], largest * inputs.shape[-1]
    A = torch.stack([_padded(A.T, s, s) for A, _, _ in systems])
    B = torch.stack([_padded(B.T, i, s) for _, B, _ in systems])
    c = torch.stack([_padded(c[None], 1, s) for _, _, c in systems])
    pushed = torch.einsum("gwti,gis->tgws", filled(inputs), B) + c
    x, path = filled(z), []
    for push in pushed:
        x = torch.baddbmm(push, x, A)
        path.append(x)
    whole = torch.stack(path, dim=2).unflatten(-1, (largest, -1))
    return torch.cat([one[..., :size, :] for one, size in zip(whole, topology.splits, strict=True)], dim=-2)


def _part(topology: Topology, start: int, size: int) -> Topology:
    """One graph of a union."""
    inside = (topology.receivers >= start) & (topology.receivers < start + size)
    nodes = slice(start, start + size)
    return Topology(
        senders=topology.senders[inside] - start,
        receivers=topology.receivers[inside] - start,
        edge_type=topology.edge_type[inside],
        node_type=topology.node_type[nodes],
        node_attributes=topology.node_attributes[nodes],
        edge_attributes=topology.edge_attributes[inside],
        splits=(size,),
    )


def _padded(matrix: Float[Tensor, "r c"], rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    return torch.nn.functional.pad(matrix, (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]))


def _distance(left: Float[Tensor, "*batch c"], right: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
    return ((left - right).square().sum(-1) + 1e-8).sqrt()
