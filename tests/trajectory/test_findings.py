"""What looks wrong with recordings is named, with advice, and good recordings are not warned of."""

import json

import numpy as np
import pytest
from test_structure import DT, changed, foreign, springs

from gce import Dataset
from gce.cli import main
from gce.trajectory.findings import look_over, told


def warnings(data):
    return [str(w) for w in look_over(data)[1]]


def rebuilt(data, edges=None, act=lambda a: a):
    edges = data[0].graph.edge_index if edges is None else edges
    return Dataset.from_arrays(
        [e.observations for e in data], [act(e.actions) for e in data], edges, groups=data.groups.tolist(), dt=DT
    )


def test_good_recordings_are_told_in_words_and_not_warned_of():
    data = springs(pull=9.0)
    found, warned = look_over(data)
    assert warned == []
    said = told(data, found)
    assert said[0].startswith("column 3 is the velocity of column 0: 0.05") and said[0].endswith("instantaneous")
    assert "column 0, column 1, column 2 form a vector in space" in said
    assert "turns about the axis of column 2 leave the dynamics alone" in said


@pytest.mark.parametrize("kind", ["swimmer", "chain", "neurons", "drones"])
def test_recordings_of_others_are_not_warned_of(kind):
    assert warnings(foreign(kind)) == []


@pytest.mark.parametrize(("act", "what"), [(np.zeros_like, "zero"), (np.ones_like, "constant")])
def test_systems_that_nothing_excites(act, what):
    (said,) = warnings(rebuilt(springs(), act=act))
    assert said.startswith(f"the actions of every system are {what} throughout; ") and "varied actions" in said


def tanks(kept):
    """Levels of tanks in a ring that even out through pipes; the first is filled. kept: which pipes are told of."""
    rng, ring = np.random.default_rng(0), np.array([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    observed, acted = [], []
    for _ in range(6):
        x, seen, pumped = rng.uniform(0, 1, 6), [], np.zeros((40, 6, 1))
        pumped[:, 0, 0] = rng.uniform(-1, 1, 40)
        for t in range(41):
            seen.append(x)
            x = x + 0.1 * (np.roll(x, 1) + np.roll(x, -1) - 2 * x) + 0.1 * pumped[min(t, 39), :, 0]
        observed.append(np.stack(seen)[..., None])
        acted.append(pumped)
    return Dataset.from_arrays(observed, acted, ring[:, kept], undirected=True)


def test_graphs_without_edges_and_edges_that_miss():
    bare = warnings(tanks([]))
    assert bare[0].startswith("the graph of the system has no edges between nodes; every node is then predicted alone")
    assert bare[1].startswith("nodes move with others that no edge joins")
    half = warnings(tanks([0, 2, 4]))
    assert len(half) == 1 and half[0].startswith("nodes move with others that no edge joins")
    assert warnings(tanks(list(range(6)))) == []


def test_one_episode_of_ten_steps():
    said = warnings(springs(systems=1, episodes=1, steps=10))
    assert said[0].startswith("there is little to learn from: 1 episode of 10 steps in all, 40 steps of single nodes; ")
    assert said[1].startswith("there is a single episode of the system; ")


def test_columns_that_stay_or_are_noise():
    rng = np.random.default_rng(0)

    def change(o):
        return np.concatenate([o, np.full_like(o[..., :1], 7.0), rng.normal(size=(*o.shape[:2], 1))], axis=-1)

    said = warnings(changed(springs(), change))
    assert [s.split(";")[0] for s in said] == [
        "column 6 is constant",
        "column 7 is like noise: nothing of a step tells the next",
    ]


def test_velocities_of_other_sign_or_unit():
    def backwards(o):
        o[..., 3] *= -1
        return o

    def millimetres(o):
        o[..., :3] *= 1000
        return o

    (said,) = warnings(changed(springs(), backwards))
    assert said.startswith("column 3 looks like the velocity of column 0") and "check its sign" in said
    said = warnings(changed(springs(), millimetres))
    assert len(said) == 3 and "column 3 times 50" in said[0] and "a step takes 0.05 s" in said[0]


def test_nothing_moves():
    said = warnings(changed(springs(), np.zeros_like))
    assert any(s.startswith("nothing moves in every system") for s in said)


def test_the_command_tells_all_in_words_and_json(tmp_path, capsys):
    rebuilt(springs(systems=2, episodes=2), act=np.zeros_like).save(tmp_path / "data.h5")
    main(["data", "check", str(tmp_path / "data.h5")])
    printed = capsys.readouterr().out
    assert "good; 4 episodes of 2 systems" in printed
    assert "  found: column 3 is the velocity of column 0" in printed
    assert "  warning: the actions of every system are zero throughout; " in printed
    main(["data", "check", str(tmp_path / "data.h5"), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert [pair[:2] for pair in answer["structure"]["moves"]] == [[0, 3], [1, 4], [2, 5]]
    assert answer["warnings"][0].keys() == {"what", "advice"}
    assert answer["episodes"] == 4 and answer["systems"] == 2
