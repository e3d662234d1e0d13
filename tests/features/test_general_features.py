"""Features of the general method: actions on edges reach both ends, whatever the numbers of nodes."""

import numpy as np
import pytest
import torch

import gce
from gce.errors import InputError
from gce.features.general import General
from gce.graphs.graph import edge_places
from gce.graphs.topology import Topology
from gce.training.preparation import config_for, prepare
from gce.trajectory.importing.folder import read_folder
from gce.trajectory.structure import find_structure

EDGES = np.array([[0, 1, 2, 3, 1], [1, 2, 3, 0, 3]])


def recorded(order=None, nodes=4, steps=12, episodes=4, seed=0):
    """Levels pushed apart by an action on each edge, given once for both directions. order: new numbers of nodes."""
    rng, order = np.random.default_rng(seed), np.arange(nodes) if order is None else order
    observed, pushed, turned = [], [], []
    for _ in range(episodes):
        u, a, x = rng.normal(size=(steps, EDGES.shape[1])), rng.normal(size=(steps, nodes)), [rng.normal(size=nodes)]
        for t in range(steps):
            force = a[t].copy()
            np.add.at(force, EDGES[1], u[t])
            np.add.at(force, EDGES[0], -u[t])
            x.append(x[-1] + 0.1 * force)
        back = np.argsort(order)
        observed.append(np.stack(x)[:, back, None])
        pushed.append(a[:, back, None])
        turned.append(u[:, :, None])
    return gce.Dataset.from_arrays(observed, pushed, order[EDGES], undirected=True, edge_actions=turned)


def test_places_of_edges():
    senders, receivers = np.array([0, 2, 1, 1, 2]), np.array([1, 1, 1, 2, 0])
    assert edge_places(senders, receivers).tolist() == [[0, 1, -1, 0, 0], [-1, 0, -1, 1, -1]]


def test_actions_on_edges_are_columns_of_receivers():
    data = recorded()
    assert data.metadata["structure"] == {"edge_actions": 3} and data[0].actions.shape == (12, 4, 4)
    graph = data[0].graph
    place = edge_places(graph.senders, graph.receivers)[0]
    of_edge = {(int(s), int(r)): p for s, r, p in zip(graph.senders, graph.receivers, place, strict=True)}
    assert data[0].actions[:, 1, 1 + of_edge[0, 1]].any() and not data[0].actions[:, 0, 1 + of_edge[1, 0]].any()
    low, high = gce.trajectory.control_limits(data)[1:]
    assert ((low < high) == (data[0].actions != 0).any(0)).all()  # what is no edge's is not planned


def test_files_keep_them(tmp_path):
    recorded().save(tmp_path / "edges.h5")
    again = gce.Dataset.open(tmp_path / "edges.h5")
    assert again.metadata["structure"]["edge_actions"] == 3
    assert np.allclose(again[0].actions, recorded()[0].actions)


def test_features_do_not_depend_on_the_numbers_of_nodes():
    order = np.array([2, 0, 3, 1])
    one, other = recorded(), recorded(order)
    model = prepare(config_for(one, kind="general"), one)
    features = model.features
    assert isinstance(features, General) and features.on_edges == 3
    found = []
    for data in (one, other):
        x = model.normalise(model.tensor(data[0].observations))[:-1].transpose(0, 1)
        a = model.tensor(data[0].actions).transpose(0, 1) / model.action_std
        wires = features.wires(Topology.of(data[0].graph))
        found.append(features.hidden(features.inward(x), a, features.latents[0], wires))
    assert torch.allclose(found[0], found[1][torch.as_tensor(order)], atol=1e-5)
    # An action on the edge 0 to 1 alone is felt at both ends, and differently.
    wires, still = features.wires(Topology.of(one[0].graph)), torch.zeros_like(a)
    acted = still.clone()
    acted[1, :, 1] = 1.0
    apart = features.hidden(features.inward(x), acted, features.latents[0], wires)
    apart = (apart - features.hidden(features.inward(x), still, features.latents[0], wires)).abs().amax((1, 2))
    assert (apart[:2] > 1e-4).all()


def test_pushes_between_nodes_are_learned_and_planned():
    train = gce.train(recorded(episodes=12), method="general", iterations=300, folder=None, tell=lambda now: None)
    test = recorded(seed=5)
    system = gce.adapt(train.model, [test[k] for k in range(3)])
    o = test[3].observations
    error = np.abs(system.predict(o[0], test[3].actions)[-1] - o[-1]).mean()
    assert error < 0.2 * np.abs(o[0] - o[-1]).mean()
    _, low, high = gce.trajectory.control_limits(test)
    plan = gce.Controller(system, gce.Problem(horizon=8, goal=o[8].astype(float), low=low, high=high)).plan(o[0])
    assert np.abs(plan.observations[-1] - o[8]).mean() < 0.2 * np.abs(o[0] - o[8]).mean()
    assert (plan.actions[:, low == high] == 0).all()


def test_folders_say_which_columns_are_on_edges(tmp_path):
    folder, data = tmp_path / "own", recorded()
    (folder / "episodes").mkdir(parents=True)
    edges = ["sender,receiver", *(f"{s},{r}" for s, r in EDGES.T)]
    (folder / "edges.csv").write_text("\n".join(edges))
    for k, episode in enumerate(data):
        np.savez(folder / f"episodes/{k}.npz", observations=episode.observations, actions=episode.actions)
    for said, sentence in ((3, None), (5, "edge_actions = 5, but there are 4 action columns")):
        (folder / "system.toml").write_text(f"undirected = true\n[structure]\nedge_actions = {said}\n")
        found = read_folder(folder)[1]
        assert np.allclose(found[0].actions, data[0].actions)
        if sentence is None:
            assert config_for(found, kind="general").features.structure["edge_actions"] == 3
        else:
            with pytest.raises(InputError, match=sentence):
                find_structure(found)


def test_one_that_does_not_fit_is_refused():
    o, u = np.zeros((3, 2, 1)), np.ones((2, 1, 1))
    make = gce.Dataset.from_arrays
    with pytest.raises(InputError, match=r"edge_actions has shape \(2, 1, 1\), expected \(2, 2, 1\)"):
        make([o], None, np.array([[0, 1], [1, 0]]), edge_actions=[u])
    with pytest.raises(InputError, match="0 on edges of a node to itself"):
        make([o], None, np.array([[0], [0]]), edge_actions=[u])
    with pytest.raises(InputError, match="edge_actions are of 1 episodes"):
        make([o, o], None, np.array([[0], [1]]), edge_actions=[u])


def followers(steps=40, episodes=6, seed=0):
    """Points that go where they are told, each by its own column, and hold on to each other."""
    rng, observed, told = np.random.default_rng(seed), [], []
    for _ in range(episodes):
        p, v = rng.uniform(-5, 5, (3, 1)), np.zeros((3, 1))
        goal, seen, asked = p.copy(), [], []
        for _ in range(steps):
            goal = goal + 0.1 * rng.normal(size=goal.shape)
            seen.append(np.concatenate([p, v], 1))
            asked.append(goal)
            force = 20 * (goal - p) - 8 * v + 0.1 * (p.mean(0) - p)
            before, v = v, v + 0.05 * force
            p = p + 0.05 * (before + v) / 2
        observed.append(np.stack([*seen, np.concatenate([p, v], 1)]))
        told.append(np.stack(asked))
    return gce.Dataset.from_arrays(observed, told, np.array([[0, 1, 1, 2], [1, 0, 2, 1]]), dt=0.05)


def test_setpoints_are_found_and_where_all_of_it_is_does_not_matter():
    data = followers()
    found = find_structure(data)
    assert [s[:2] for s in found.setpoints] == [(0, 0)] and 0 in found.shift_invariant
    model = prepare(config_for(data, kind="general"), data)
    episode = data[0]

    def hidden(by):
        states, inputs = model.recorded(
            gce.Episode(episode.graph, episode.observations + np.array([by, 0.0]), episode.actions + by)
        )
        features = model.features
        q, a = features.inward(states[:-1]).transpose(0, 1), inputs.transpose(0, 1)
        return features.hidden(q, a, features.latents[0], features.wires(Topology.of(episode.graph)))

    with torch.no_grad():
        assert torch.allclose(hidden(0.0), hidden(2.0), atol=1e-3)
        assert hidden(0.0).std() > 0.01
