"""The pymunk worlds against recordings made elsewhere, and their random systems against their description."""

import numpy as np
import pymunk
import pytest

from gce.envs import Rope, Soft, Swim
from gce.envs.boxes import ACTUATED, FIXED, RIGID, SOFT, BoxParameters
from gce.envs.recording import import_recordings, position_errors
from gce.envs.rope import RopeParameters
from gce.envs.swim import GLIDERS, outer_sides
from gce.errors import InputError
from gce.trajectory import Dataset


@pytest.mark.parametrize(("world", "late"), [("rope", 1e-6), ("soft", 0.1), ("swim", 0.1)])
def test_the_peers_recordings_replay(recordings, tmp_path, world, late):
    files = sorted(recordings.glob(f"{world}_*.npz"))
    assert import_recordings(files, world, tmp_path / "x.h5") == 9 * len(files)
    with Dataset.open(tmp_path / "x.h5") as data:
        errors = position_errors(data)
        first = np.load(files[0])
        assert np.array_equal(data[0].observations, first["observations"][0])
        assert np.array_equal(data[8].actions, first["actions"][8, :-1])
    assert errors[10] < 1e-6
    assert errors[100] < late


def test_rope_relations_are_the_documented_ones():
    env = Rope(objects=5)
    env.reset(seed=0)
    assert env.graph.relations().tolist() == [
        [0, 1, 3, -1, -1],
        [2, 7, 5, 6, -1],
        [4, 5, 7, 5, 6],
        [-1, 6, 5, 7, 5],
        [-1, -1, 6, 5, 7],
    ]
    env.reset(seed=0, options={"objects": 2})
    assert env.graph.relations().tolist() == [[0, 1], [2, 7]]


def test_an_impulse_shows_at_once_and_a_force_one_step_late():
    def first_difference(env, size):
        env.reset(seed=0)
        still = np.zeros((env.graph.num_nodes, 1))
        push = np.where(env.actuated[:, None], size, 0.0)
        parameters = env.parameters
        calm, _ = env.run(lambda t: still, 8)
        env.reset(seed=0, options={"parameters": parameters})
        moved, _ = env.run(lambda t: push if t == 4 else still, 8)
        return int(np.flatnonzero((calm != moved).any(axis=(1, 2)))[0])

    assert first_difference(Rope(), 1.0) == 5
    assert first_difference(Soft(), 100.0) == 6
    assert first_difference(Swim(), 100.0) == 6


def test_velocities_are_differences_of_positions():
    env = Soft()
    env.reset(seed=0)
    observations, _ = env.run(env.excitation(np.random.default_rng(0), 30), 30)
    p, v = observations[..., :8], observations[..., 8:]
    assert not v[0].any()
    assert np.allclose(v[1:], np.diff(p, axis=0) * 50)


@pytest.mark.parametrize("count", range(5, 15))
def test_soft_robots_are_as_described(count):
    env = Soft(objects=count)
    for seed in range(20):
        env.reset(seed=seed)
        p = env.parameters
        assert len(p.boxes) == count
        assert p.boxes[0] == (0, -4, FIXED)
        assert FIXED not in p.materials[1:]
        assert np.count_nonzero(p.materials == ACTUATED) >= 2
        assert p.cells.min() >= -4
        assert p.cells.max() <= 3
        assert 600 <= p.stiffness <= 1000
        # Grown box by box: each touches an earlier one along a side.
        for k in range(1, count):
            assert (np.abs(p.cells[:k] - p.cells[k]).sum(axis=1) == 1).any()


def test_material_shares_of_soft_robots():
    env = Soft(objects=9)
    counts = np.zeros(4)
    for seed in range(300):
        env.reset(seed=seed)
        counts += np.bincount(env.parameters.materials[1:], minlength=4)
    shares = counts / counts.sum()
    assert np.allclose(shares[[ACTUATED, SOFT, RIGID]], [0.5, 0.25, 0.25], atol=0.04)


@pytest.mark.parametrize("count", GLIDERS)
def test_gliders_are_mirrored_columns(count):
    env = Swim(objects=count)
    heights_seen = set()
    for seed in range(60):
        env.reset(seed=seed)
        cells = env.parameters.cells
        assert len(np.unique(cells, axis=0)) == count
        assert np.count_nonzero(env.parameters.materials == ACTUATED) >= 2
        mirrored = []
        for axis in (0, 1):
            columns = [np.sort(cells[cells[:, axis] == c, 1 - axis]) for c in np.unique(cells[:, axis])]
            whole = all((np.diff(c) == 1).all() for c in columns)
            if whole and all(np.array_equal(a, b) for a, b in zip(columns, columns[::-1], strict=True)):
                mirrored.append(tuple(len(c) for c in columns))
        assert set(mirrored) & set(GLIDERS[count])
        heights_seen |= set(mirrored) & set(GLIDERS[count])
    assert heights_seen == set(GLIDERS[count])


def test_outer_sides_are_those_without_a_neighbour():
    robot = BoxParameters(boxes=[(0, 0, ACTUATED), (1, 0, SOFT), (0, 1, ACTUATED)], stiffness=700.0, damping=35.0)
    sides = outer_sides(robot)
    # Box 0 keeps left and bottom, box 2 left, top and right; the soft box feels nothing.
    assert sides.tolist() == [[0, 0, 1], [0, 0, 2], [2, 8, 9], [2, 9, 11], [2, 10, 11]]


def test_water_pushes_back_only_while_pushing():
    """A lone actuated box: pulling it together costs no momentum, pushing apart is resisted outside."""
    robot = BoxParameters(boxes=[(0, 0, ACTUATED), (1, 0, ACTUATED)], stiffness=700.0, damping=35.0)
    env = Swim()
    for sign, wet in ((1.0, False), (-1.0, True)):
        env.reset(seed=0, options={"parameters": robot})
        action = np.array([[sign * 400.0], [0.0]])
        env._set_forces(action)
        dry = env._forces.table.copy()
        for _ in range(3):
            env.step(action)
        env._set_forces(action)
        plain = env._forces.table.copy()
        super(Swim, env)._set_forces(action)
        assert (not np.allclose(plain, env._forces.table)) == wet
        assert np.allclose(dry.sum(axis=0), 0)


def test_bodies_keep_their_order_in_the_engines_buffers():
    env = Soft()
    env.reset(seed=3)
    env.run(env.excitation(np.random.default_rng(0), 5), 5)
    assert np.array_equal(env._places.table, [tuple(b.position) for b in env.space.bodies])
    assert isinstance(env.space, pymunk.Space)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RopeParameters(1, 0.0, 1000.0, 50.0, -5.0), "num_masses is 1"),
        (lambda: RopeParameters(5, 3.0, 1000.0, 50.0, -5.0), "init_x is 3.0, expected between -2"),
        (lambda: RopeParameters(5, 0.0, float("nan"), 50.0, -5.0), "stiffness is nan"),
        (lambda: BoxParameters([(0, 0, 9)], 700.0, 35.0), "material 9"),
        (lambda: BoxParameters([(0, 0, 0), (0, 0, 1)], 700.0, 35.0), "share a cell"),
        (lambda: BoxParameters([(0, 0, 0), (1, 0, 3)], 700.0, 35.0), "only the first box"),
        (lambda: BoxParameters([], 700.0, 35.0), "boxes is empty"),
        (lambda: BoxParameters([(0.5, 0, 0)], 700.0, 35.0), "whole numbers"),
        (lambda: Soft(objects=70).reset(seed=0), "does not fit"),
        (lambda: Soft(objects=2).reset(seed=0), "too few"),
    ],
)
def test_impossible_systems_are_told(build, message):
    with pytest.raises(InputError, match=message):
        build()
