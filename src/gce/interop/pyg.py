"""Episodes as PyTorch Geometric data, and back: a graph for every step, or one graph with time in its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory import Dataset, Episode

if TYPE_CHECKING:
    from torch_geometric.data import Data

SAME = ("edge_type", "node_type", "node_attributes", "tied")
GRAPH = {"edge_attr": "edge_attributes", **{name: name for name in SAME}}
"""What `Data` calls the arrays of a graph beside edge_index, and what `Graph` does."""


def to_steps(episode: Episode) -> list[Data]:
    """One `Data` a step: x (observation), action, y (next observation) and exogenous, [nodes, ...] each.

    All steps share the tensors of the graph: edge_index, edge_type, edge_attr, node_type, node_attributes.
    """
    torch, make = _torch(), _maker(episode.graph)
    parts = {"x": episode.observations, "action": episode.actions, "y": episode.observations[1:]}
    parts |= {} if episode.exogenous is None else {"exogenous": episode.exogenous}
    tensors = {name: torch.as_tensor(part) for name, part in parts.items()}
    return [make(**{name: tensor[t] for name, tensor in tensors.items()}) for t in range(episode.length)]


def from_steps(steps: Sequence[Data]) -> Episode:
    """An episode from a `Data` a step, as `to_steps` makes them; without `action` there are none.

    Each y must be the x of the step that follows: steps of several episodes, or shuffled ones, are refused.
    """
    if len(steps) == 0:
        raise InputError("there are no steps; give one Data a step of the episode")
    _require(steps, ("x", "y", "edge_index"))
    for t in range(len(steps) - 1):
        if steps[t].x.shape != steps[t + 1].x.shape or not bool((steps[t].y == steps[t + 1].x).all()):
            raise InputError(f"y of step {t} is not x of step {t + 1}; give the steps of one episode, in order")
        if not _torch().equal(steps[t + 1].edge_index, steps[0].edge_index):
            raise InputError(f"step {t + 1} has another graph than step 0; the graph of a system does not change")
    return Episode(
        graph=_graph(steps[0]),
        observations=_floats([*(s.x for s in steps), steps[-1].y]),
        actions=_stacked("action", steps, np.zeros((len(steps), len(steps[0].x), 0))),
        exogenous=_stacked("exogenous", steps, None),
    )


def to_temporal(episode: Episode) -> Data:
    """One `Data` an episode: x [nodes, T+1, d], action [nodes, T, a] and exogenous [nodes, T, e].

    Nodes come first, so that `torch_geometric.data.Batch` joins episodes of the same length.
    """
    torch = _torch()
    parts = {"x": episode.observations, "action": episode.actions, "exogenous": episode.exogenous}
    tensors = {k: torch.as_tensor(v).transpose(0, 1).contiguous() for k, v in parts.items() if v is not None}
    return _maker(episode.graph)(**tensors)


def from_temporal(data: Data) -> Episode:
    """An episode from a `Data` with time in its tensors, as `to_temporal` makes it; without `action` there are none."""
    _require([data], ("x", "edge_index"))
    if data.x.ndim != 3:
        raise InputError(f"x has shape {tuple(data.x.shape)}, expected [nodes, T+1, coordinates]")
    nodes, steps = data.x.shape[0], data.x.shape[1] - 1

    def over_time(name: str, otherwise: Any) -> Any:
        value = getattr(data, name, None)
        return otherwise if value is None else np.ascontiguousarray(_floats(value).swapaxes(0, 1))

    return Episode(
        graph=_graph(data),
        observations=over_time("x", None),
        actions=over_time("action", np.zeros((steps, nodes, 0))),
        exogenous=over_time("exogenous", None),
    )


def dataset_to_pyg(dataset: Dataset) -> list[Data]:
    """All one-step pairs of a data set, for a loader to shuffle; `episode` and `step` say where each is from."""
    graphs = []
    for k, episode in enumerate(dataset):
        for t, step in enumerate(to_steps(episode)):
            step.episode, step.step = k, t
            graphs.append(step)
    return graphs


def _torch() -> Any:
    try:
        import torch
        import torch_geometric  # noqa: F401
    except ImportError:
        raise InputError("this needs PyTorch Geometric (the extra `pyg`): pip install torch-geometric") from None
    return torch


def _maker(graph: Graph) -> Any:
    """Makes `Data` of a graph; its tensors are shared by all of them."""
    from torch_geometric.data import Data

    torch = _torch()
    arrays = {"edge_index": graph.edge_index, **{key: getattr(graph, name) for key, name in GRAPH.items()}}
    shared = {key: torch.as_tensor(array) for key, array in arrays.items() if array is not None}
    return lambda **tensors: Data(**tensors, num_nodes=graph.num_nodes, **shared)


def _graph(data: Data) -> Graph:
    tensors = {name: getattr(data, key, None) for key, name in GRAPH.items()}
    options = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items() if tensor is not None}
    edges = data.edge_index
    assert edges is not None
    return Graph.from_edges(len(data.x), edges.detach().cpu().numpy().T, **options)


def _require(steps: Sequence[Data], names: tuple[str, ...]) -> None:
    for t, data in enumerate(steps):
        missing = [name for name in names if getattr(data, name, None) is None]
        if missing:
            raise InputError(f"Data {t} has no {missing[0]}; it has {', '.join(data.keys())}")


def _stacked(name: str, steps: Sequence[Data], otherwise: Any) -> Any:
    values = [getattr(step, name, None) for step in steps]
    if all(value is None for value in values):
        return otherwise
    missing = [t for t, value in enumerate(values) if value is None]
    if missing:
        raise InputError(f"step {missing[0]} has no {name}, others have; give it for all steps or for none")
    return _floats(values)


def _floats(values: Any) -> np.ndarray:
    """Tensors as one array of floating-point numbers."""
    arrays = [v.detach().cpu().numpy() for v in values] if isinstance(values, list) else values.detach().cpu().numpy()
    array = np.stack(arrays) if isinstance(arrays, list) else arrays
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)
