"""A round of messages, forward and backward: our direct formulation beside PyTorch Geometric's `MessagePassing`.

    y_i = sum over j in E(i) of silu(W_r h_i + W_s h_j + b_relation(ij))

Both have the same weights and give the same numbers; CPU seconds of one core, the best of a few runs. Ours keeps nodes
in the first axis and all states of a batch in the second, multiplies before it gathers, and sums small graphs by a
product with their incidence matrix.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gce.graphs.graph import Graph, lattice
from gce.graphs.topology import Topology

WIDTH, RELATIONS = 64, 8


class Round(MessagePassing):
    """The round as PyTorch Geometric has it: nodes in the second axis from the end."""

    def __init__(self, receiver: Tensor, sender: Tensor, relation: Tensor) -> None:
        super().__init__(aggr="add", node_dim=-2)
        self.of_receiver, self.of_sender, self.relation = receiver, sender, relation

    def forward(self, h: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        to, of = h @ self.of_receiver, h @ self.of_sender
        return self.propagate(edge_index, to=to, of=of, relation=self.relation[edge_type])

    def message(self, to_i: Tensor, of_j: Tensor, relation: Tensor) -> Tensor:
        return nn.functional.silu(to_i + of_j + relation)


def chain(nodes: int) -> Graph:
    pairs = [(i, j) for i in range(nodes) for j in range(nodes) if 0 < abs(i - j) <= 2]
    return Graph.from_edges(nodes, np.asarray(pairs))


def grid(side: int) -> Graph:
    return Graph.from_edges(side * side, lattice(side, side), undirected=True)


CASES = {"512 states of a rope of 7 masses": (chain(7), 512), "1 state of a grid of 10,000 nodes": (grid(100), 1)}


def bench_message_passing(repeats: int = 7) -> dict[str, dict[str, float]]:
    return {name: compare(graph, states, repeats) for name, (graph, states) in CASES.items()}


def compare(graph: Graph, states: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    topology = Topology.of(graph)
    edges = torch.stack([topology.senders, topology.receivers])
    edge_type = torch.randint(0, RELATIONS, (topology.num_edges,))
    receiver, sender = torch.randn(2, WIDTH, WIDTH) / WIDTH**0.5
    relation = torch.randn(RELATIONS, WIDTH)
    layer = Round(receiver, sender, relation)
    by_edge = relation[edge_type].unsqueeze(1)
    both = torch.stack([receiver, sender])
    h = torch.randn(topology.num_nodes, states, WIDTH)

    def ours(h: Tensor) -> Tensor:
        flat = h.reshape(1, -1, WIDTH).expand(2, -1, -1)
        ends = torch.bmm(flat, both).unflatten(1, h.shape[:2])
        return topology.sum(nn.functional.silu(topology.both_ends(ends) + by_edge))

    def theirs(h: Tensor) -> Tensor:
        return layer(h, edges, edge_type)

    by_state = h.movedim(0, 1).contiguous()
    assert torch.allclose(ours(h), theirs(by_state).movedim(0, 1), atol=1e-3)
    a, b = seconds(ours, h, repeats), seconds(theirs, by_state, repeats)
    return {"ours_seconds": a, "pyg_seconds": b, "ratio": b / a}


def seconds(run: Callable[[Tensor], Tensor], h: Tensor, repeats: int) -> float:
    best = np.inf
    for _ in range(repeats):
        h = h.detach().requires_grad_()
        clock = time.process_time()
        run(h).sum().backward()
        best = min(best, time.process_time() - clock)
    return float(best)
