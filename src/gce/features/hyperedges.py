"""Messages over hyperedges, beside those between neighbours.

    m_i = sum over hyperedges e of i of W silu(A h_i + B (sum over the other nodes j of e of h_j) + type of e)

in each round, from what nodes know of themselves (h; in the first round their own inputs, which are not places in the
plane) and added to those of neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gce.graphs.topology import Topology


class HyperedgeMessages(nn.Module):
    """widths: of h in each round; messages are of `width` and leave as `out` numbers."""

    def __init__(self, widths: Sequence[int], num_types: int, width: int, out: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(k, width, bias=False) for k in widths)
        self.others = nn.ModuleList(nn.Linear(k, width, bias=False) for k in widths)
        self.kind = nn.Parameter(0.3 * torch.randn(len(widths), num_types, width))
        self.message = nn.ModuleList(nn.Linear(width, out, bias=False) for _ in widths)

    def on(self, topology: Topology) -> Callable[[int, Tensor], Tensor] | None:
        """The messages of hyperedges to each node in a round; None where there are none."""
        known = topology.hyperedges
        if known is None:
            return None
        kind = self.kind[:, known.kind].unsqueeze(2)

        def messages(r: int, hidden: Tensor) -> Tensor:
            hidden_layer = known.at(self.own[r](hidden)) + known.of_others(self.others[r](hidden)) + kind[r]
            return self.message[r](known.into(nn.functional.silu(hidden_layer)))

        return messages
