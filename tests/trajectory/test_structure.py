"""Structure is found in recordings of systems whose structure is known, and metadata go before it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from gce import Dataset
from gce.envs import world_named
from gce.envs.recording import record_system
from gce.errors import InputError
from gce.trajectory.structure import FORMS, Structure, find_structure
from small import recorded

FOREIGN = Path(__file__).resolve().parents[3] / "shared" / "foreign"
DT = 0.05


def springs(space=3, pull=0.0, tether=0.0, backward=False, systems=3, episodes=4, steps=60, order=None, seed=0):
    """Masses on stiff springs in a chain, pulled along the last axis, tied to the origin; each is pushed by a force."""
    rng = np.random.default_rng(seed)
    observed, acted, groups = [], [], []
    for g in range(systems):
        stiffness, drag = rng.uniform(30, 60), rng.uniform(0.3, 0.6)
        for _ in range(episodes):
            way = rng.normal(size=(4, space))
            x = np.cumsum(way / np.linalg.norm(way, axis=1, keepdims=True), axis=0) + rng.uniform(-1, 1, space)
            v, seen, forces = rng.normal(size=(4, space)) * 0.3, [], rng.normal(size=(steps, 4, space))
            for t in range(steps + 1):
                before = x
                for _ in range(10):
                    r = np.diff(x, axis=0)
                    length = np.linalg.norm(r, axis=1, keepdims=True)
                    f = stiffness * (length - 1) * r / length
                    force = np.concatenate([f, np.zeros((1, space))]) - np.concatenate([np.zeros((1, space)), f])
                    force[:, -1] -= pull
                    v = v + DT / 10 * (force - drag * v - tether * x + (forces[t] if t < steps else 0))
                    x = x + DT / 10 * v
                seen.append(np.concatenate([x, (x - before) / DT if backward else v], axis=1))
            observed.append(np.stack(seen))
            acted.append(forces)
            groups.append(g)
    edges = np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    if order is not None:
        observed = [o[..., order] for o in observed]
    return Dataset.from_arrays(observed, acted, edges, groups=groups, dt=DT)


def test_masses_in_space_move_by_their_velocities_and_look_the_same_from_everywhere():
    found = find_structure(springs())
    assert [m[:2] for m in found.moves] == [(0, 3), (1, 4), (2, 5)]
    assert [m[2] for m in found.moves] == pytest.approx([DT] * 3, rel=0.02)
    assert found.backward == (False, False, False)
    assert found.vectors == ((0, 1, 2), (3, 4, 5))
    assert found.action_vectors == ((0, 1, 2),)
    assert found.shift_invariant == (0, 1, 2)
    assert found.turn_invariant and found.turn_axis is None
    assert not found.late_action and found.history == 1
    assert not found.constant and not found.tiny and not found.disagreeing


def test_a_pull_leaves_turns_about_its_axis_and_a_tether_takes_shifts():
    pulled = find_structure(springs(pull=9.0))
    assert pulled.turn_invariant and pulled.turn_axis == 2
    assert find_structure(springs(tether=3.0)).shift_invariant == ()


def test_columns_in_any_order_of_the_plane_with_backward_differences():
    found = find_structure(springs(space=2, pull=9.0, backward=True, order=[3, 0, 2, 1]))
    assert [m[:2] for m in found.moves] == [(1, 2), (3, 0)]
    assert found.backward == (True, True)
    assert found.vectors == ((1, 3), (2, 0))
    assert not found.turn_invariant


def pendulums(flip=False):
    """Angles as cosine and sine, with their rates, which springs turn to the neighbour's; a torque."""
    rng = np.random.default_rng(0)
    observed, acted = [], []
    for _ in range(6):
        angle, rate, seen = rng.uniform(-3, 3, 3), rng.normal(size=3), []
        torque = rng.normal(size=(60, 3, 1))
        for t in range(61):
            seen.append(np.stack([np.cos(angle), np.sin(angle), rate], axis=1))
            for _ in range(10):
                between = np.array([angle[1] - angle[0], angle[0] + angle[2] - 2 * angle[1], angle[1] - angle[2]])
                rate = rate + DT / 10 * (np.sin(between) - 0.2 * rate + torque[min(t, 59), :, 0])
                angle = angle + DT / 10 * rate
        observed.append(np.stack(seen)[..., [1, 0, 2] if flip else [0, 1, 2]])
        acted.append(torque)
    return Dataset.from_arrays(observed, acted, np.array([[0, 1, 1, 2], [1, 0, 2, 1]]), dt=DT)


@pytest.mark.parametrize("flip", [False, True])
def test_angles_are_found_on_the_circle_whichever_comes_first(flip):
    found = find_structure(pendulums(flip))
    assert found.circles == (((1, 0),) if flip else ((0, 1),))
    assert [t[:3] for t in found.turns] == [(*found.circles[0], 2)]
    assert found.turns[0][3] == pytest.approx(DT, rel=0.02)
    assert found.moves == ()


def changed(data, change):
    return Dataset.from_arrays(
        [change(e.observations.copy()) for e in data],
        [e.actions for e in data],
        data[0].graph.edge_index,
        groups=data.groups.tolist(),
        dt=data.metadata["dt"],
    )


def test_columns_that_stay_or_hardly_vary_are_named():
    def change(o):
        return np.concatenate([o, np.full_like(o[..., :1], 7.0), 1e-9 * o[..., :1], 1e6 + o[..., :1]], axis=-1)

    found = find_structure(changed(springs(space=2), change))
    assert found.constant == (4,)
    assert found.tiny == (5, 6)


def test_velocities_that_disagree_are_named_and_noise_is_borne():
    data, rng = springs(space=2), np.random.default_rng(1)

    def late(o):
        o[2:, :, 2:] = o[:-2, :, 2:]
        return o

    def backwards(o):
        o[..., 3] *= -1
        return o

    def noisy(o):
        return o + 0.001 * rng.normal(size=o.shape)

    assert [m[:2] for m in find_structure(changed(data, late)).disagreeing] == [(0, 2), (1, 3)]
    assert [m[:2] for m in find_structure(changed(data, backwards)).disagreeing] == [(1, 3)]
    found = find_structure(changed(data, noisy))
    assert found.disagreeing == () and len(found.moves) == 2


def test_positions_alone_need_a_history():
    found = find_structure(changed(springs(space=2), lambda o: o[..., :2]))
    assert found.moves == () and found.history == 2


@pytest.mark.parametrize("world", ["rope", "soft", "swim", "grid", "flock"])
def test_what_recordings_show_is_what_the_worlds_say(world):
    data = recorded(world, 40, 4, 60)
    said = data.metadata["structure"]
    found = find_structure(Dataset.from_episodes(list(data), data.groups.tolist(), {"dt": data.metadata["dt"]}))
    pairs = sorted(pair for x, y, vx, vy in said["points"] for pair in ((x, vx), (y, vy)))
    if pairs:
        assert [m[:2] for m in found.moves] == pairs and all(found.backward)
    assert found.late_action == said["late_action"]
    assert not found.turn_invariant
    assert find_structure(data).vectors == tuple(v for p in said["points"] for v in (tuple(p[:2]), tuple(p[2:])))


def test_metadata_go_before_what_is_found_and_nonsense_is_refused():
    data = springs()
    said = {"vectors": [[0, 1], [3, 4]], "turn_invariant": False, "late_action": True}
    data.metadata["structure"] = said
    found = find_structure(data)
    assert found.vectors == ((0, 1), (3, 4))
    assert not found.turn_invariant and found.late_action
    assert Structure.read(found.described()) == found
    for name, value in (("moves", [[0, 9, 0.1]]), ("circles", [0, 1]), ("history", 3), ("turn_invariant", 1)):
        data.metadata["structure"] = {name: value}
        with pytest.raises(InputError, match=f"the structure says {name} = .*; expected "):
            find_structure(data)
    data.metadata["structure"] = {"colour": 1}
    with pytest.raises(InputError, match="structure says 'colour'; it may say points"):
        find_structure(data)
    assert set(FORMS) == set(found.described())


def test_hardly_any_data_show_no_invariance():
    data = springs(systems=1, episodes=1, steps=10)
    found = find_structure(data)
    assert len(found.moves) == 3
    assert found.shift_invariant == () and not found.turn_invariant


def foreign(kind, actions="actions"):
    if not FOREIGN.is_dir():
        pytest.skip("the recordings of other systems are not here (shared/foreign beside the project)")
    spec = importlib.util.spec_from_file_location("systems", FOREIGN / "systems.py")
    systems = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(systems)
    return systems.dataset(FOREIGN / f"{kind}_train.npz", kind, actions)


def test_structure_of_swimmers():
    found = find_structure(foreign("swimmer"))
    assert [m[:2] for m in found.moves] == [(0, 4), (1, 5)] and found.backward == (False, False)
    assert found.circles == ((2, 3),) and [t[:3] for t in found.turns] == [(2, 3, 6)]
    assert found.vectors == ((0, 1), (4, 5))
    assert found.shift_invariant == (0, 1) and found.turn_invariant


def test_structure_of_chains_in_space():
    found = find_structure(foreign("chain"))
    assert [m[:2] for m in found.moves] == [(0, 3), (1, 4), (2, 5)]
    assert found.vectors == ((0, 1, 2), (3, 4, 5)) and found.action_vectors == ((0, 1),)
    assert found.shift_invariant == () and found.turn_invariant and found.turn_axis == 2


def test_neurons_have_no_structure():
    assert find_structure(foreign("neurons")) == Structure()


@pytest.mark.parametrize("actions", ["actions", "targets"])
def test_structure_of_drones(actions):
    found = find_structure(foreign("drones", actions))
    assert [m[:2] for m in found.moves] == [(0, 3), (1, 4), (2, 5), (6, 9), (7, 10)]
    assert found.vectors == ((0, 1, 2), (3, 4, 5))
    assert not found.turn_invariant and not found.disagreeing


def test_recordings_without_actions_have_a_structure():
    rng = np.random.default_rng(0)
    paths = [np.cumsum(rng.normal(size=(40, 3, 1)), axis=0) for _ in range(6)]
    found = find_structure(Dataset.from_arrays(paths, None, np.array([[0, 1], [1, 2]])))
    assert found.shift_invariant == (0,) and not found.late_action


def test_what_slowly_comes_back_is_not_left_alone_by_shifts():
    """One step hardly shows it (1% of its variance), twenty do."""
    rng, paths = np.random.default_rng(0), []
    for _ in range(20):
        x, path = 5 * rng.normal(size=(3, 1)), []
        for _ in range(100):
            path.append(x)
            x = 0.98 * x + rng.normal(size=(3, 1))
        paths.append(np.stack(path))
    assert find_structure(Dataset.from_arrays(paths, None, np.array([[0, 1], [1, 2]]))).shift_invariant == ()


@pytest.mark.parametrize("turned", [False, True])
def test_a_rope_is_the_same_in_millimetres_and_turned(turned):
    """Heights may stand for how springs bend; then shifts along one axis seem to matter."""
    episodes = []
    for k in range(12):
        env = world_named("rope")(objects=5 + k % 3)
        env.reset(seed=k)
        episodes += record_system(env, k, 5, 100)
    c, s = np.cos(0.5), np.sin(0.5)
    R = 1000 * np.array([[c, -s], [s, c]]) if turned else np.eye(2)
    observed = [np.concatenate([e.observations[..., :2] @ R.T, e.observations[..., 2:] @ R.T], -1) for e in episodes]
    edges = [e.graph.edge_index for e in episodes]
    types = {"edge_type": [e.graph.edge_type for e in episodes], "node_type": [e.graph.node_type for e in episodes]}
    data = Dataset.from_arrays(
        observed, [e.actions for e in episodes], edges, groups=[k // 5 for k in range(60)], dt=0.02, **types
    )
    found = find_structure(data)
    assert found.shift_invariant == (0, 1) and found.vectors == ((0, 1), (2, 3)) and not found.turn_invariant
