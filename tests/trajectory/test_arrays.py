"""Data sets from plain arrays."""

import numpy as np
import pytest

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory import Dataset, Episode, Limits, Writer, check_file, control_limits

RING = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


def arrays(nodes: int = 4, steps: tuple[int, ...] = (5, 9), seed: int = 0):
    """Observations with 3 coordinates and actions with 2, of node 1 alone."""
    rng = np.random.default_rng(seed)
    observations = [rng.normal(size=(t + 1, nodes, 3)) for t in steps]
    actions = [np.zeros((t, nodes, 2)) for t in steps]
    for a in actions:
        a[:, 1] = rng.uniform(-1, 1, a[:, 1].shape)
    return observations, actions


def test_arrays_come_back_as_episodes_of_one_system():
    observations, actions = arrays()
    data = Dataset.from_arrays(observations, actions, RING, dt=0.1, observation_names=["x", "y", "z"])
    assert data.groups.tolist() == [0, 0]
    assert data.lengths.tolist() == [5, 9]
    assert data.metadata == {"world": None, "dt": 0.1, "observation_names": ["x", "y", "z"]}
    for k, episode in enumerate(data):
        assert np.array_equal(episode.observations, observations[k])
        assert np.array_equal(episode.actions, actions[k])
    graph = data[0].graph
    assert graph.relations().tolist() == [[1, -1, -1, 0], [0, 1, -1, -1], [-1, 0, 1, -1], [-1, -1, 0, 1]]


def test_the_same_as_building_the_episodes_by_hand(tmp_path):
    observations, actions = arrays()
    rng = np.random.default_rng(1)
    given = {"edge_type": [0, 1, 0, 1], "node_type": [0, 0, 1, 1], "node_attributes": rng.random((4, 2))}
    known = [rng.random((len(a), 4, 1)) for a in actions]
    data = Dataset.from_arrays(observations, actions, RING, exogenous=known, undirected=True, **given)
    graph = Graph.from_edges(4, RING.T, self_type=[2, 2, 3, 3], undirected=True, **given)
    by_hand = [Episode(graph, *parts) for parts in zip(observations, actions, known, strict=True)]
    data.save(tmp_path / "x.h5")
    with Dataset.open(tmp_path / "x.h5") as again:
        for k in range(2):
            assert again[k].graph.equals(by_hand[k].graph)
            assert np.array_equal(again[k].exogenous, by_hand[k].exogenous)


def test_relations_nobody_named_are_told_apart_by_the_types_they_join():
    observations, actions = arrays(nodes=3, steps=(4, 4))
    line = np.array([[0, 1], [1, 2]])
    data = Dataset.from_arrays(
        observations,
        actions,
        [line, line],
        node_type=[[0, 1, 1], [1, 1, 1]],
        groups=["a", "b"],
        undirected=True,
    )
    first, second = data[0].graph.relations(), data[1].graph.relations()
    assert first[0, 1] != first[1, 0]  # type 1 on type 0, and the other way round
    assert first[1, 2] == first[2, 1] == second[0, 1]  # alike in all systems
    selves = [first[0, 0], first[1, 1]]
    assert selves[0] != selves[1]
    assert selves[1] == second[0, 0]
    off = first[~np.eye(3, dtype=bool)]
    assert not set(selves) & set(off.tolist())


def test_a_self_edge_that_is_given_is_kept():
    observations, actions = arrays()
    edges = np.array([[0, 0, 1], [0, 1, 2]])
    data = Dataset.from_arrays(observations, actions, edges, edge_type=[5, 0, 0])
    assert np.diag(data[0].graph.relations()).tolist() == [5, 6, 6, 6]
    unnamed = Dataset.from_arrays(observations, actions, edges)[0].graph
    assert np.diag(unnamed.relations()).tolist() == [1, 1, 1, 1]


def test_systems_of_different_sizes():
    small, large = arrays(4, (5, 6)), arrays(7, (8,))
    data = Dataset.from_arrays(
        small[0] + large[0],
        small[1] + large[1],
        [RING, RING, np.array([[0], [6]])],
        groups=["small", "small", "large"],
        node_attributes=[np.ones((4, 1)), np.ones((4, 1)), np.zeros((7, 1))],
    )
    assert data.groups.tolist() == [0, 0, 1]
    assert data[2].num_nodes == 7
    assert data[2].graph.num_edges == 8
    assert data[2].graph.relations()[6, 0] == 0
    assert data[2].graph.relations()[0, 0] == data[0].graph.relations()[0, 0] == 1


def test_without_actions_there_are_none():
    observations, _ = arrays()
    data = Dataset.from_arrays(observations, None, RING)
    assert data[0].actions.shape == (5, 4, 0)
    assert control_limits(data)[0].tolist() == [False] * 4


# ---- limits ----


def test_limits_are_kept_in_the_file(tmp_path):
    observations, actions = arrays()
    data = Dataset.from_arrays(observations, actions, RING, actuated=[1, 2], action_bounds=(-2, [3, np.inf]))
    data.save(tmp_path / "x.h5")
    assert check_file(tmp_path / "x.h5") == []
    with Dataset.open(tmp_path / "x.h5") as again:
        actuated, low, high = control_limits(again, 0)
        assert again[1].window(2, 3).limits is not None
    assert actuated.tolist() == [False, True, True, False]
    assert low.tolist() == [[0, 0], [-2, -2], [-2, -2], [0, 0]]
    assert high.tolist() == [[0, 0], [3, np.inf], [3, np.inf], [0, 0]]


def test_limits_nobody_gave_are_those_of_the_recording(tmp_path):
    observations, actions = arrays()
    stacked = np.concatenate(actions)[:, 1]
    graph = Graph.from_edges(4, RING.T)
    foreign = Dataset.from_episodes([Episode(graph, o, a) for o, a in zip(observations, actions, strict=True)], [0, 0])
    foreign.save(tmp_path / "x.h5")
    with Dataset.open(tmp_path / "x.h5") as opened:
        assert opened[0].limits is None
        for data in (opened, Dataset.from_arrays(observations, actions, RING)):
            actuated, low, high = control_limits(data)
            assert actuated.tolist() == [False, True, False, False]
            assert np.array_equal(high[1], stacked.max(axis=0))
            assert np.array_equal(low[1], np.minimum(stacked.min(axis=0), 0))


def test_every_system_has_its_own_limits():
    observations, actions = arrays(steps=(4, 4))
    data = Dataset.from_arrays(
        observations, actions, RING, groups=[0, 1], actuated=[[1], [1, 3]], action_bounds=([-np.ones((4, 2))] * 2, 1)
    )
    assert control_limits(data, 0)[0].sum() == 1
    assert control_limits(data, 1)[0].sum() == 2
    assert control_limits(data, 1)[1][3].tolist() == [-1, -1]


def test_check_finds_bounds_the_wrong_way_round(tmp_path):
    import h5py

    observations, actions = arrays()
    Dataset.from_arrays(observations, actions, RING, action_bounds=(-1, 1)).save(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["groups/action_low"][1, 0] = 7.0
        del file["groups/action_low"].attrs["crc32"]
    (problem,) = check_file(tmp_path / "x.h5")
    assert "groups/action_low row 1 is [7.0, -1.0], above groups/action_high" in problem


def test_files_with_and_without_limits_are_merged_without(tmp_path):
    from gce.envs.recording import concatenate

    observations, actions = arrays()
    graph = Graph.from_edges(4, RING.T)
    Dataset.from_episodes([Episode(graph, observations[0], actions[0])]).save(tmp_path / "a.h5")
    Dataset.from_arrays(observations, actions, RING).save(tmp_path / "b.h5")
    concatenate([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "c.h5", {})
    concatenate([tmp_path / "b.h5", tmp_path / "b.h5"], tmp_path / "d.h5", {})
    with Dataset.open(tmp_path / "c.h5") as mixed, Dataset.open(tmp_path / "d.h5") as both:
        assert mixed[2].limits is None
        assert both[3].limits is not None


def test_recordings_of_worlds_keep_their_bounds(tmp_path):
    from gce.envs import Rope
    from gce.envs.recording import Recording, record

    record(Recording("rope", 2, (5, 5), 2, steps=4), tmp_path / "rope.h5")
    with Dataset.open(tmp_path / "rope.h5") as data:
        actuated, low, high = control_limits(data, 0)
    assert actuated.tolist() == [True, False, False, False, False]
    assert high[0, 0] == -low[0, 0] == Rope.action_limit


def test_a_group_without_limits_beside_others_is_refused(tmp_path):
    graph = Graph.from_edges(2, [(0, 1)])
    with pytest.raises(InputError, match="action_low has no rows"), Writer(tmp_path / "x.h5", {}) as writer:
        writer.add_group(graph, {}, Limits.of(2, 1))
        writer.add_group(graph, {})


# ---- what does not fit is explained ----


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"observations": np.zeros((20, 6, 4, 3))}, r"one array of shape \(20, 6, 4, 3\).*pass list\(observations\)"),
        ({"observations": np.zeros((6, 4, 3))}, r"one array of shape \(6, 4, 3\).*pass \[observations\]"),
        ({"observations": np.zeros((6, 3))}, "axes of their own"),
        ({"observations": [np.zeros((6, 3))] * 2}, r"episode 0: observations have shape \(6, 3\), expected \[T\+1"),
        ({"observations": []}, "observations is empty"),
        ({"observations": "abc"}, "observations is a str"),
        ({"observations": [["a"], ["b"]]}, "expected real numbers"),
        ({"actions": [np.zeros((5, 4, 2))]}, "actions are of 1 episodes, observations of 2"),
        ({"actions": [np.zeros((6, 4, 2)), np.zeros((9, 4, 2))]}, "episode 0: there are 6 observations and 6 actions"),
        ({"actions": [np.zeros((5, 3, 2)), np.zeros((9, 4, 2))]}, "episode 0: actions are of 3 nodes.* has 4"),
        ({"edge_index": RING.T}, r"shape \(4, 2\), expected \(2, edges\).*transpose"),
        ({"edge_index": RING + 1}, "episode 0: edge_index has node 4 but there are 4 nodes"),
        ({"edge_index": RING / 2}, "expected whole numbers of nodes"),
        ({"edge_index": None}, "edge_index is missing"),
        ({"edge_index": np.tile(RING, 2)}, "episode 0: the edge from node . to node . is given twice"),
        ({"edge_index": [RING, RING[:, :3]]}, "groups does not say"),
        ({"edge_index": [RING] * 3, "groups": [0, 0]}, "a list of 3 arrays for 2 episodes"),
        ({"groups": [0]}, "groups has 1 entries for 2 episodes"),
        ({"groups": [0, 0], "edge_index": [RING, RING[:, :3]]}, "episodes 0 and 1 are of one system, but edge_index"),
        ({"edge_type": [0, 1]}, r"edge_type has shape \(2,\), expected \(4,\)"),
        ({"edge_type": [0, 1, -1, 0]}, "whole numbers from 0"),
        ({"node_type": [0.5] * 4}, "whole numbers from 0"),
        ({"node_attributes": np.zeros((3, 1))}, r"node_attributes has shape \(3, 1\), expected \(4"),
        ({"edge_attributes": np.zeros((3, 1))}, "edge_attributes has 3 rows for 4 edges"),
        ({"edge_attributes": 2.0}, "edge_attributes has no rows for 4 edges"),
        ({"node_type": [0, [1], 2, 3]}, "node_type is .*, expected an array of numbers"),
        ({"exogenous": [np.zeros((4, 4, 1)), np.zeros((9, 4, 1))]}, "4 rows of exogenous inputs for 5 steps"),
        ({"actuated": [7]}, "actuated has node 7 but there are 4 nodes"),
        ({"actuated": [True]}, "one truth value a node"),
        ({"actuated": [0]}, "node 1 is not among the actuated nodes, but its action is"),
        ({"action_bounds": (1, -1)}, "bounded by 1.0 and -1.0"),
        ({"action_bounds": (-np.ones(3), 1)}, r"lowest action has shape \(3,\), expected a number, \(2,\)"),
        ({"dt": 0}, "dt is 0, expected the seconds"),
        ({"action_names": ["u"]}, "action_names has 1 entries for 2 columns"),
        ({"node_names": 0}, "node_names is 0"),
        ({"observations": 1.0, "hyperedges": [[0, 1, 2]]}, "observations is a float"),
        ({"hyperedges": 1.0}, "hyperedges is 1.0"),
        ({"hyperedges": [0, 1, 2]}, "a hyperedge is 0"),
        ({"hyperedges": [[0, 1, "x"]]}, "expected real numbers"),
        ({"hyperedges": [[0, 1, 2]], "hyperedge_type": ["x"]}, "hyperedge_type is"),
        ({"node_attributes": [["x"]] * 4}, "node_attributes is"),
    ],
)
def test_what_does_not_fit_is_explained(change, sentence):
    observations, actions = arrays()
    given = {"observations": observations, "actions": actions, "edge_index": RING, **change}
    with pytest.raises(InputError, match=sentence):
        Dataset.from_arrays(**given)


def test_a_number_that_is_not_finite_is_found():
    observations, actions = arrays()
    observations[1][3, 2, 1] = np.nan
    with pytest.raises(InputError, match="episode 1: observations hold nan at step 3, node 2, coordinate 1"):
        Dataset.from_arrays(observations, actions, RING)
