"""PyTorch Geometric data, both ways."""

import numpy as np
import pytest

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.interop import pyg
from gce.trajectory import Dataset, Episode

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torch_geometric", reason="torch-geometric is not installed: no exchange with it was checked")


def episode(seed=0, nodes=4, steps=5, exogenous=True, dtype=np.float64) -> Episode:
    rng = np.random.default_rng(seed)
    graph = Graph.from_edges(
        nodes,
        [(i, i + 1) for i in range(nodes - 1)],
        undirected=True,
        edge_type=rng.integers(0, 2, nodes - 1),
        node_type=rng.integers(0, 2, nodes),
        node_attributes=rng.random((nodes, 2)),
        edge_attributes=rng.random((nodes - 1, 1)),
    )
    return Episode(
        graph,
        rng.normal(size=(steps + 1, nodes, 3)).astype(dtype),
        rng.normal(size=(steps, nodes, 2)).astype(dtype),
        rng.normal(size=(steps, nodes, 1)).astype(dtype) if exogenous else None,
    )


def same(left: Episode, right: Episode) -> bool:
    none = left.exogenous is None and right.exogenous is None
    return (
        left.graph.equals(right.graph)
        and left.observations.dtype == right.observations.dtype
        and np.array_equal(left.observations, right.observations)
        and np.array_equal(left.actions, right.actions)
        and (none or np.array_equal(left.exogenous, right.exogenous))
    )


@pytest.mark.parametrize("exogenous", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_and_back(exogenous, dtype):
    made = episode(exogenous=exogenous, dtype=dtype)
    assert same(pyg.from_steps(pyg.to_steps(made)), made)
    assert same(pyg.from_temporal(pyg.to_temporal(made)), made)


def test_steps_say_what_leads_where():
    made = episode()
    steps = pyg.to_steps(made)
    assert len(steps) == made.length
    assert np.array_equal(steps[2].x, made.observations[2])
    assert np.array_equal(steps[2].action, made.actions[2])
    assert np.array_equal(steps[2].y, made.observations[3])
    assert steps[0].edge_index.data_ptr() == steps[1].edge_index.data_ptr()  # kept once
    assert all(step.validate() for step in steps)


def test_a_loader_joins_steps_of_different_systems():
    from torch_geometric.loader import DataLoader

    data = Dataset.from_episodes([episode(0, 4, 5), episode(1, 6, 3)])
    pairs = pyg.dataset_to_pyg(data)
    assert len(pairs) == 8
    (batch,) = DataLoader(pairs, batch_size=8)
    assert batch.x.shape == (5 * 4 + 3 * 6, 3)
    assert batch.episode.tolist() == [0] * 5 + [1] * 3
    assert batch.edge_index.max() == len(batch.x) - 1


def test_a_batch_joins_episodes_of_one_length():
    from torch_geometric.data import Batch

    batch = Batch.from_data_list([pyg.to_temporal(episode(0, 4, 5)), pyg.to_temporal(episode(1, 6, 5))])
    assert batch.x.shape == (10, 6, 3)
    assert batch.action.shape == (10, 5, 2)


def test_data_made_elsewhere_needs_little():
    from torch_geometric.data import Data

    edges = torch.tensor([[0, 1], [1, 2]])
    values = torch.arange(12).reshape(4, 3, 1)  # whole numbers, no action, no self-edges
    steps = [Data(x=values[t], y=values[t + 1], edge_index=edges.clone()) for t in range(3)]
    made = pyg.from_steps(steps)
    assert made.observations.dtype == np.float64
    assert made.actions.shape == (3, 3, 0)
    assert np.diag(made.graph.relations()).tolist() == [1, 1, 1]


def broken(change):
    steps = pyg.to_steps(episode())
    change(steps)
    return steps


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.clear(), "there are no steps"),
        (lambda s: s.reverse(), "y of step 0 is not x of step 1"),
        (lambda s: s.extend(pyg.to_steps(episode(1, nodes=5))), "y of step 4 is not x of step 5"),
        (lambda s: delattr(s[1], "y"), "Data 1 has no y"),
        (lambda s: delattr(s[1], "action"), "step 1 has no action"),
        (lambda s: setattr(s[2], "edge_index", s[2].edge_index[:, :-1]), "step 2 has another graph than step 0"),
    ],
)
def test_what_is_no_episode_is_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        pyg.from_steps(broken(change))


def test_time_is_an_axis_of_temporal_data():
    data = pyg.to_temporal(episode())
    data.x = data.x[:, 0]
    with pytest.raises(InputError, match=r"x has shape \(4, 3\), expected \[nodes, T\+1, coordinates\]"):
        pyg.from_temporal(data)
