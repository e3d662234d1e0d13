import numpy as np
import pytest

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.trajectory import Dataset, Episode, Normalisation


def episode(nodes: int, steps: int, seed: int, exogenous: bool = False) -> Episode:
    rng = np.random.default_rng(seed)
    edges = [(i, i + 1) for i in range(nodes - 1)]
    return Episode(
        graph=Graph.from_edges(nodes, edges, undirected=True, node_attributes=rng.random((nodes, 2))),
        observations=rng.normal(size=(steps + 1, nodes, 3)),
        actions=rng.normal(size=(steps, nodes, 1)),
        exogenous=rng.normal(size=(steps, nodes, 2)) if exogenous else None,
        parameters={"stiffness": seed},
        seed=seed,
    )


def mixed(exogenous: bool = False) -> tuple[list[Episode], list[int]]:
    """Systems of 2, 5 and 3 nodes, 7 episodes of lengths 4 to 10, not in order of system."""
    nodes, groups = {0: 2, 4: 5, 9: 3}, [0, 4, 0, 9, 4, 4, 9]
    first: dict[int, Episode] = {}
    episodes = []
    for k, group in enumerate(groups):
        made = episode(nodes[group], 4 + k, seed=k, exogenous=exogenous)
        first.setdefault(group, made)
        episodes.append(
            Episode(
                first[group].graph, made.observations, made.actions, made.exogenous, first[group].parameters, made.seed
            )
        )
    return episodes, groups


def same(left: Episode, right: Episode) -> bool:
    exogenous = (left.exogenous is None and right.exogenous is None) or np.array_equal(left.exogenous, right.exogenous)
    return (
        left.graph.equals(right.graph)
        and np.array_equal(left.observations, right.observations)
        and np.array_equal(left.actions, right.actions)
        and exogenous
        and left.parameters == right.parameters
        and left.seed == right.seed
    )


@pytest.mark.parametrize("exogenous", [False, True])
def test_memory_and_file_give_the_episodes_back(tmp_path, exogenous):
    episodes, groups = mixed(exogenous)
    data = Dataset.from_episodes(episodes, groups, {"world": None, "dt": 0.1})
    data.save(tmp_path / "x.h5")
    with Dataset.open(tmp_path / "x.h5") as again:
        assert again.metadata == {"world": None, "dt": 0.1}
        assert again.groups.tolist() == data.groups.tolist() == [0, 1, 0, 2, 1, 1, 2]
        for k in range(len(episodes)):
            assert same(episodes[k], data[k])
            assert same(episodes[k], again[k])


def test_saving_a_part_writes_that_part(tmp_path):
    episodes, groups = mixed()
    Dataset.from_episodes(episodes, groups).select([5, 3, 1]).save(tmp_path / "part.h5")
    with Dataset.open(tmp_path / "part.h5") as part:
        assert len(part) == 3
        assert part.groups.tolist() == [0, 1, 0]
        assert all(same(part[k], episodes[e]) for k, e in enumerate([5, 3, 1]))


def test_a_large_file_is_read_lazily(tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.setattr("gce.trajectory.reading.SMALL", 1_000_000)
    size, graph = 200_000, Graph.from_edges(2, [(0, 1)])
    big = Episode(graph, np.zeros((size + 1, 2, 4), np.float32), np.zeros((size, 2, 1), np.float32))
    small = Episode(graph, np.ones((3, 2, 4), np.float32), np.ones((2, 2, 1), np.float32))
    Dataset.from_episodes([big, small]).save(tmp_path / "big.h5")
    tracemalloc.start()
    with Dataset.open(tmp_path / "big.h5") as data:
        assert data[1].observations.sum() == 24
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000 < (tmp_path / "big.h5").stat().st_size


def test_who_changes_an_episode_changes_no_other_reading_of_it(tmp_path):
    """Though a small array is read once."""
    episodes, groups = mixed()
    Dataset.from_episodes(episodes, groups).save(tmp_path / "x.h5")
    with Dataset.open(tmp_path / "x.h5") as data:
        data[0].observations[:] = 7.0
        assert all(same(data[k], episodes[k]) for k in range(len(data)))


def test_splits_keep_systems_together_and_repeat():
    episodes, groups = mixed()
    data = Dataset.from_episodes(episodes, groups)
    parts = data.split([1 / 3, 2 / 3], seed=1)
    assert sum(len(p) for p in parts) == len(data)
    assert not set(parts[0].groups) & set(parts[1].groups)
    assert [p.groups.tolist() for p in parts] == [p.groups.tolist() for p in data.split([1 / 3, 2 / 3], seed=1)]


def test_windows_stay_within_their_episode():
    episodes, groups = mixed()
    data = Dataset.from_episodes(episodes, groups)
    windows = data.windows(3, stride=2)
    for e, start in windows:
        assert data[int(e)].window(int(start), 3).length == 3
    assert len(windows) == sum(len(range(0, e.length - 3 + 1, 2)) for e in episodes)
    assert len(data.pairs()) == sum(e.length for e in episodes)
    assert len(data.windows(1000)) == 0


def test_windows_beyond_the_end_are_refused():
    with pytest.raises(InputError, match="leaves the episode"):
        episode(2, 4, 0).window(2, 3)


def test_normalisation_in_pieces_equals_all_at_once():
    episodes, _ = mixed()
    found = Normalisation.of(episodes)
    rows = np.concatenate([e.observations.reshape(-1, 3) for e in episodes])
    assert np.allclose(found.observation_mean, rows.mean(0), atol=1e-12)
    assert np.allclose(found.observation_std, rows.std(0), atol=1e-12)
    assert np.allclose(found.denormalise(found.normalise(rows)), rows)


def test_a_constant_coordinate_keeps_its_unit():
    graph = Graph.from_edges(1, [])
    flat = Episode(graph, np.full((5, 1, 1), 3.0), np.zeros((4, 1, 1)))
    found = Normalisation.of([flat])
    assert found.observation_std.tolist() == [1.0]
    assert found.action_std.tolist() == [1.0]


def test_groups_know_their_episodes():
    episodes, groups = mixed()
    group = Dataset.from_episodes(episodes, groups).group(1)
    assert group.episodes.tolist() == [1, 4, 5]
    assert group.graph.num_nodes == 5
    assert group.parameters == {"stiffness": 1}


def test_slicing_and_negative_indices_work_as_in_lists():
    episodes, groups = mixed()
    data = Dataset.from_episodes(episodes, groups)
    assert same(data[-1], episodes[-1])
    assert len(data[2:5]) == 3
    with pytest.raises(IndexError):
        data[7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": np.zeros((5, 2, 1))}, "5 observations and 5 actions; T actions lead through T\\+1"),
        ({"actions": np.zeros((4, 3, 1))}, "actions are of 3 nodes, but the graph has 2"),
        ({"observations": np.zeros((5, 2))}, "expected \\(steps, nodes, coordinates\\)"),
        ({"exogenous": np.zeros((5, 2, 1))}, "5 rows of exogenous inputs for 4 steps"),
    ],
)
def test_arrays_that_do_not_fit_are_told(change, message):
    good = {"observations": np.zeros((5, 2, 3)), "actions": np.zeros((4, 2, 1))}
    with pytest.raises((InputError, TypeError), match=message if "Input" in message else None) as caught:
        Episode(Graph.from_edges(2, [(0, 1)]), **{**good, **change})
    if isinstance(caught.value, InputError):
        assert caught.match(message)


def test_nan_is_told_with_its_place():
    observations = np.zeros((5, 2, 3))
    observations[3, 1, 2] = np.nan
    with pytest.raises(InputError, match="nan at step 3, node 1, coordinate 2"):
        Episode(Graph.from_edges(2, [(0, 1)]), observations, np.zeros((4, 2, 1)))


def test_mixed_coordinates_are_told():
    graph = Graph.from_edges(2, [(0, 1)])
    narrow = Episode(graph, np.zeros((3, 2, 2)), np.zeros((2, 2, 1)))
    wide = Episode(graph, np.zeros((3, 2, 3)), np.zeros((2, 2, 1)))
    with pytest.raises(InputError, match="observations has 3 columns, the ones before have 2"):
        Dataset.from_episodes([narrow, wide])
