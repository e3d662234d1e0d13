"""Pictures of networks: nodes laid out by networkx, coloured by a value."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, UInt8

from gce.envs.drawing import Canvas, Colour, blend
from gce.graphs.graph import Graph

LOW, NEUTRAL, HIGH = (44, 96, 178), (244, 243, 236), (196, 52, 48)
FAINT = (224, 226, 228)
WIDTH = 640


def layout(num_nodes: int, edges: Int[np.ndarray, "edges 2"]) -> Float[np.ndarray, "nodes 2"]:
    """Places in [-1, 1] x [-0.9, 0.9]: by shortest-path distances for small networks, by springs for large ones."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(edges.tolist())
    placed = networkx.kamada_kawai_layout(graph) if num_nodes <= 150 else networkx.spring_layout(graph, seed=0)
    places = np.array([placed[i] for i in range(num_nodes)])
    span = np.maximum(np.ptp(places, axis=0), 1e-9)
    return (places - places.min(axis=0) - span / 2) / (span / 2) * (0.96, 0.86) - (0, 0.05)


def value_colour(value: float) -> Colour:
    """Blue below 0, white at it, red above; +-1 saturates."""
    return blend(NEUTRAL, HIGH if value > 0 else LOW, abs(value))


def link_colour(num_links: int) -> Colour:
    """Many links fade into a texture; few are drawn stronger."""
    return blend(Canvas.LINK, FAINT, num_links / 200)


def network_canvas() -> Canvas:
    return Canvas(left=-1.08, right=1.08, bottom=-1.0, top=1.0, width=WIDTH)


def node_size(num_nodes: int) -> float:
    return float(np.clip(0.25 / np.sqrt(num_nodes), 0.006, 0.05))


class NetworkPicture:
    """A graph of no known world: circles coloured by one value a node."""

    def __init__(self, graph: Graph) -> None:
        self._edges = graph.edge_index.T[graph.senders < graph.receivers]
        self._places = layout(graph.num_nodes, self._edges)

    def draw(self, values: Float[np.ndarray, " nodes"], caption: str) -> UInt8[np.ndarray, "height width 3"]:
        """values: in units in which +-1 saturates the colour."""
        canvas, size = network_canvas(), node_size(len(self._places))
        for i, j in self._edges:
            canvas.line(self._places[[i, j]], link_colour(len(self._edges)), 0.004)
        for (x, y), value in zip(self._places, values, strict=True):
            canvas.circle((x, y), size, fill=value_colour(float(value)), outline=canvas.LINK)
        canvas.text((-1.05, 0.98), caption)
        return canvas.image()
