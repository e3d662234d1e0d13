"""Environments of others as steps: by a mapping of their flat arrays to nodes."""

import json
import re
from collections import namedtuple

import gymnasium as gym
import numpy as np
import pytest

import gce
from gce.cli import main
from gce.errors import Doubt, InputError
from gce.interop.environments import Environment, Mapping, made_by
from gce.model.files import save_model
from gce.training.preparation import config_for, prepare
from small import TINY

MAP = Mapping([[0], [1], [2]], [[0], [-1], [-1]])


class Tanks(gym.Env):
    """Three tanks in a row, the first fed by a pump."""

    def __init__(self, steps=1000):
        self.observation_space = gym.spaces.Box(-10, 10, (3,))
        self.action_space = gym.spaces.Box(0, 1, (1,))
        self.steps = steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.levels, self.t = self.np_random.uniform(0.2, 0.4, 3), 0
        return self.levels.astype(np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        flow = 0.3 * (self.levels[:-1] - self.levels[1:])
        change = np.array([action[0] - flow[0], flow[0] - flow[1], flow[1] - 0.4 * self.levels[2]])
        self.levels, self.t = self.levels + 0.2 * change, self.t + 1
        return self.levels.astype(np.float32), 0.0, False, self.t >= self.steps, {}


TimeStep = namedtuple("TimeStep", "observation last")
Spec = namedtuple("Spec", "minimum maximum shape")


class Suite:
    """The same as dm_control has it."""

    def __init__(self):
        self.env = Tanks()

    def action_spec(self):
        return Spec(np.zeros(1), np.ones(1), (1,))

    def reset(self):
        return TimeStep({"first": self.env.reset(seed=0)[0][:1], "rest": self.env.levels[1:]}, lambda: False)

    def step(self, action):
        self.env.step(action.astype(np.float32))
        levels = self.env.levels
        return TimeStep({"first": levels[:1], "rest": levels[1:]}, lambda: False)


def test_nodes_are_picked_and_actions_placed():
    link = Environment(Tanks(), MAP)
    first = link.reset(seed=0)
    assert first.shape == (3, 1)
    seen, acted = link(np.array([[2.0], [0], [0]]))
    assert np.array_equal(acted, [[1.0], [0], [0]])  # as far as the pump goes
    np.testing.assert_allclose(seen[:, 0], link.env.levels, rtol=1e-6)
    low, high = link.bounds
    assert np.array_equal(low, np.zeros((3, 1))) and np.array_equal(high, [[1.0], [0], [0]])
    suite = Environment(Suite(), MAP)
    np.testing.assert_allclose(suite.reset(), first, rtol=1e-6)
    np.testing.assert_allclose(suite(np.array([[2.0], [0], [0]]))[0], seen, rtol=1e-6)
    turned = Mapping([[2], [0], [1]], MAP.actions, keys=("rest", "first"))
    np.testing.assert_allclose(Environment(Suite(), turned).reset(), first, rtol=1e-6)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"observations": [[0], [1.5], [2]], "actions": [[0], [-1], [-1]]}, "a row a node of places"),
        ({"observations": [0, 1], "actions": [[0], [-1], [-1]]}, "a row a node of places"),
        ({"observations": [[0], [1]], "actions": [[0], [-1], [-1]]}, "2 nodes with observations and 3 with actions"),
        ({"observations": [[0], [1]], "actions": [[0], [0]]}, "one action of the environment twice"),
        ({"observations": [[0], [1]], "actions": [[0], [-1]], "goal": [[1.0]]}, "the goal of the mapping has shape"),
        ({"observations": [[0], [3]], "actions": [[0], [-1]]}, "names observation 3, the environment has 3"),
        ({"observations": [[0], [1]], "actions": [[7], [-1]]}, "names action 7, the environment has 1"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(mapping, words):
    with pytest.raises(InputError, match=words):
        Environment(Tanks(), Mapping(**mapping)).reset(seed=0)


def test_files_hold_data_only_and_modules_are_named(tmp_path, monkeypatch):
    file = tmp_path / "map.toml"
    file.write_text("observations = [[0], [1]]\nactions = [[0], [-1]]\ngoal = [[1.0], [2.0]]\n")
    assert np.array_equal(Mapping.read(file).goal, [[1.0], [2.0]])
    for wrong, words in (
        ("observations = [[0]]", "a mapping says observations and actions"),
        ("observations = [[0]]\nactions = [[0]]\nenv = 'os:getcwd'", "a mapping says observations and actions"),
        ("observations = [[0]]\nactions = [[0]]\nkeys = 3", "keys is 3, expected names"),
    ):
        file.write_text(wrong)
        with pytest.raises(InputError, match=words):
            Mapping.read(file)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot_here.py").write_text("def make():\n    raise AttributeError('no camera')\n")
    for name, words in (
        ("robot_here", "expected module:factory"),
        ("nowhere_at_all:make", "No module named 'nowhere_at_all'"),
        ("robot_here:other", "no attribute 'other'"),
    ):
        with pytest.raises(InputError, match=words):
            made_by(name, MAP)
    with pytest.raises(InputError, match="does not say which of its numbers"):
        made_by(f"{__name__}:Tanks", None)
    assert made_by(f"{__name__}:Tanks", MAP).reset(seed=1).shape == (3, 1)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A model that has only seen its units, adapted to recorded tanks."""
    folder, link, rows = tmp_path_factory.mktemp("tanks"), Environment(Tanks(), MAP), []
    rng = np.random.default_rng(0)
    for k in range(6):
        seen, acted = [link.reset(seed=k)], []
        for push in np.repeat(rng.uniform(0, 1, 4), 5):
            o, a = link(np.array([[push], [0], [0]]))
            seen.append(o)
            acted.append(a)
        rows.append((np.stack(seen), np.stack(acted)))
    data = gce.Dataset.from_arrays(
        *zip(*rows, strict=True), [[0, 1], [1, 2]], undirected=True, action_bounds=(0, 1), actuated=[0],
        groups=[0] * 6, node_names=["upper", "middle", "lower"], observation_names=["level"],
    )  # fmt: skip
    data.save(folder / "tanks.h5")
    save_model(prepare(config_for(data, **TINY), data).eval(), folder / "model")
    main(
        [
            "adapt",
            str(folder / "tanks.h5"),
            "--episodes",
            "5",
            "--model",
            str(folder / "model"),
            "--out",
            str(folder / "adapted"),
        ]
    )
    (folder / "map.toml").write_text(
        "observations = [[0], [1], [2]]\nactions = [[0], [-1], [-1]]\ngoal = [[0.6], [0.5], [0.4]]\n"
    )
    return folder


def test_gce_control_acts_on_an_environment(adapted, capsys, tmp_path):
    asked = [str(adapted / "adapted"), "--env", f"{__name__}:Tanks", "--mapping", str(adapted / "map.toml"),
             "--horizon", "10", "--steps", "14", "--realtime"]  # fmt: skip
    main(["control", *asked, "--json", "--out", str(tmp_path / "run")])
    answer = json.loads(capsys.readouterr().out)
    assert answer["steps"] == 14 == len(answer["plan_seconds"]) == len(answer["feedback_seconds"])
    assert answer["distance"] < answer["start_distance"] and answer["ended"] is None and answer["shifted"] == 0
    with gce.Dataset.open(tmp_path / "run" / "episodes.h5") as data:
        assert data[0].length == 14 and gce.control_limits(data, 0)[2][0, 0] == 1
    main(["control", *asked])
    assert "standard deviations from the goal; it began" in capsys.readouterr().out


def test_an_environment_that_ends_its_episode_ends_the_run(adapted):
    system = gce.load_system(adapted / "adapted")
    link = Environment(Tanks(steps=4), MAP)
    low, high = link.bounds
    problem = gce.Problem(10, np.full((3, 1), 0.5), low, high)
    with pytest.warns(Doubt, match="step 4: the environment ended its episode"):
        ran = gce.run(link, gce.Controller(system, problem), link.reset(seed=0), feedback=5)
    assert len(ran.actions) == 4 and ran.episodes[0].length == 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--mapping", "MAP"], "--mapping and --steps are of an environment"),
        (["--env", f"{__name__}:Tanks", "--mapping", "MAP", "--start", "s.csv"], "an environment says by itself"),
        (["--env", f"{__name__}:Tanks", "--mapping", "SHORT"], r"has shape \(2, 1\), expected \(3, 1\)"),
        (["--realtime"], "no simulator"),
        (["--realtime", "--feedback", "2"], "--realtime plans anew at every step"),
    ],
)
def test_bad_input_ends_with_a_sentence(adapted, capsys, more, words):
    (adapted / "short.toml").write_text("observations = [[0], [1]]\nactions = [[0], [-1]]\n")
    files = {"MAP": str(adapted / "map.toml"), "SHORT": str(adapted / "short.toml")}
    with pytest.raises(SystemExit) as ended:
        main(["control", str(adapted / "adapted"), *[files.get(word, word) for word in more]])
    assert ended.value.code == 2

    assert re.search(words, capsys.readouterr().err)
