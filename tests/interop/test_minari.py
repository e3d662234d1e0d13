"""Minari data sets: what is written there is read back."""

import numpy as np
import pytest

from gce.errors import InputError
from gce.graphs.graph import Graph
from gce.interop.minari import export
from gce.trajectory import Dataset, Episode, Limits

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")  # it would like to know an author
minari = pytest.importorskip("minari", reason="minari is not installed: no export to it was checked")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def data() -> Dataset:
    """Two systems of 3 and 5 nodes, three episodes of 4 to 6 steps."""
    rng = np.random.default_rng(0)
    episodes = []
    for nodes, steps, seed in ((3, 4, 7), (5, 5, None), (3, 6, 9)):
        graph = Graph.from_edges(nodes, [(0, 1), (1, 2)], edge_type=[0, 1])
        limits = Limits.of(nodes, 2, [0], (-1, 2))
        actions = rng.uniform(-1, 1, (steps, nodes, 2)) * np.eye(nodes)[0][:, None]
        episodes.append(Episode(graph, rng.normal(size=(steps + 1, nodes, 3)), actions, seed=seed, limits=limits))
    return Dataset.from_episodes(episodes, [0, 1, 0])


def test_what_is_written_is_read_back():
    made = data()
    export(made, "own/test-v0", author="a stranger")
    again = minari.load_dataset("own/test-v0")
    assert again.total_episodes == 3
    assert again.total_steps == 15
    for k, episode in enumerate(again.iterate_episodes()):
        real = episode.observations["mask"][0].astype(bool)
        assert real.sum() == made[k].num_nodes
        assert np.array_equal(episode.observations["nodes"][:, real], made[k].observations)
        assert not episode.observations["nodes"][:, ~real].any()
        assert np.array_equal(episode.actions[:, real], made[k].actions)
        assert not episode.actions[:, ~real].any()
        relations = episode.observations["relations"]
        assert relations.shape == (made[k].length + 1, 5, 5)
        assert np.array_equal(relations[-1][np.ix_(real, real)], made[k].graph.relations())
        assert (relations[0][~real] == -1).all()
        assert episode.rewards.tolist() == [0] * made[k].length
        assert episode.truncations.tolist() == [False] * (made[k].length - 1) + [True]
        assert not episode.terminations.any()
        assert (episode.infos["group"] == made.groups[k]).all()


def test_spaces_hold_the_data():
    again = export(data(), "own/test-v0", max_nodes=6)
    for episode in again.iterate_episodes():
        first = {name: values[0] for name, values in episode.observations.items()}
        assert again.observation_space.contains(first)
        assert all(again.action_space.contains(action) for action in episode.actions)
    assert again.action_space.low.min() == -1
    assert again.action_space.high.max() == 2


def test_rewards_may_be_given():
    made = data()
    again = export(made, "test-v0", reward=lambda episode: -np.square(episode.actions).sum(axis=(1, 2)))
    for k, episode in enumerate(again.iterate_episodes()):
        assert np.allclose(episode.rewards, -np.square(made[k].actions).sum(axis=(1, 2)))


def test_what_cannot_be_written_is_explained():
    with pytest.raises(InputError, match="a system has 5 nodes, more than max_nodes = 4"):
        export(data(), "test-v0", max_nodes=4)
    with pytest.raises(InputError, match="Malformed dataset ID"):
        export(data(), "a b c")
    with pytest.raises(InputError, match=r"episode 0 has rewards of shape \(1,\), expected \(4,\)"):
        export(data(), "test-v0", reward=lambda episode: np.zeros(1))
    export(data(), "test-v0")  # nothing was left behind
    with pytest.raises(InputError, match="already exists"):
        export(data(), "test-v0")
