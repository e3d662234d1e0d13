"""Graphs: nodes, typed edges, random topologies; the same as tensors, with sums over neighbourhoods."""

from typing import TYPE_CHECKING

from gce.names import lazy

if TYPE_CHECKING:
    from gce.graphs.graph import Graph
    from gce.graphs.topology import Topology

__all__ = ["Graph", "Topology"]

__getattr__, __dir__ = lazy(__name__, {"Graph": "gce.graphs.graph", "Topology": "gce.graphs.topology"})
