"""A world owns its recipe: no other room asks which world it is, and a new one is a file and a registration."""

import ast
import json
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import gce
from gce.cli import main
from gce.envs import WORLDS, GraphEnv, Protocol, Recipe, Rope, register_world, world_named
from gce.envs.recording import Recording, record
from gce.errors import InputError
from gce.graphs.graph import Graph, ring
from gce.model.files import save_model
from gce.reproduce.experiment import PAPER
from gce.reproduce.tasks import SEEN, UNSEEN, sizes_of
from gce.training.preparation import config_for, prepare, training_for
from gce.trajectory import Dataset
from gce.views.explorer.workshop import choices
from small import TINY

SOURCE = Path(gce.__file__).parent
FIGURES_OF_THE_PAPER = "reproduce/paper.py"
"""Its numbers are published by world."""


# ---- no other room asks which world it is ----


class Asked(ast.NodeVisitor):
    """The lines of a source text where behaviour hangs on the name, or on the class, of a world."""

    def __init__(self, source: str) -> None:
        self.lines: list[int] = []
        self.classes = {world.__name__ for world in WORLDS.values()}
        self.visit(ast.parse(source))

    def names(self, node: ast.AST | None) -> bool:
        """Whether an expression is a world's name, `World.world`, or a collection with one of these."""
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(self.names(part) for part in node.elts)
        if isinstance(node, ast.Attribute):
            return node.attr == "world" and isinstance(node.value, ast.Name) and node.value.id in self.classes
        return isinstance(node, ast.Constant) and node.value in WORLDS

    def note(self, node: ast.expr | ast.pattern, asked: bool) -> None:
        self.lines += [node.lineno] if asked else []
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.note(node, any(self.names(part) for part in (node.left, *node.comparators)))

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        self.note(node, self.names(node.value))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.note(node, self.names(node.slice))

    def visit_Dict(self, node: ast.Dict) -> None:
        self.note(node, bool(node.keys) and all(self.names(key) for key in node.keys))

    def visit_Call(self, node: ast.Call) -> None:
        called, first = node.func, node.args[0] if node.args else None
        looked_up = isinstance(called, ast.Attribute) and called.attr in ("get", "pop") and self.names(first)
        kinds = node.args[1:] if isinstance(called, ast.Name) and called.id in ("isinstance", "issubclass") else ()
        self.note(node, looked_up or any(n.id in self.classes for k in kinds for n in ast.walk(k) if is_name(n)))


def is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


@pytest.mark.parametrize(
    "file",
    [f for f in sorted(SOURCE.rglob("*.py")) if (SOURCE / "envs") not in f.parents],
    ids=lambda f: str(f.relative_to(SOURCE)),
)
def test_no_other_room_asks_which_world_it_is(file):
    if str(file.relative_to(SOURCE)) != FIGURES_OF_THE_PAPER:
        assert Asked(file.read_text()).lines == []


@pytest.mark.parametrize(
    "source",
    [
        "x = env.world == NAME",
        "x = NAME != world",
        "x = world in ('other', NAME)",
        "x = world not in {NAME}",
        "x = world == Rope.world",
        "match world:\n    case NAME:\n        x = 1",
        "x = PROTOCOLS[NAME]",
        "x = SCHEDULES[NAME, 'cko']",
        "x = sizes.get(NAME, 3)",
        "x = {NAME: 1}.get(world)",
        "x = {(NAME, 'cko'): 1}",
        "x = isinstance(env, Rope)",
        "x = issubclass(kind, (Rope, Other))",
    ],
)
@pytest.mark.parametrize("name", WORLDS)
def test_a_planted_question_is_seen(source, name):
    assert Asked("y = 0\n" + source.replace("NAME", repr(name))).lines


@pytest.mark.parametrize(
    "source",
    [
        "for world in ('rope', 'soft'): draw(world)",
        "x = {'grid': 1, 'noise': 2}",
        "x = world in WORLDS",
        "x = f('rope')",
    ],
)
def test_what_is_data_is_not_a_question(source):
    assert Asked(source).lines == []


# ---- a new world is a file and a registration ----


@dataclass(frozen=True)
class TrainParameters:
    num_carts: int
    stiffness: float


class Train(GraphEnv):
    """Carts on a circle, joined by springs; the first is pushed. Half-implicit Euler."""

    world = "train"
    recipe = Recipe(
        Protocol(8, 4, 0.1, 1.0, 1e-2),
        unseen=(6, 7),
        model={"ridge": 0.125},
        training={"iterations": 7},
        counts={"slow": "tuning"},
    )
    dt = 0.1
    Parameters = TrainParameters
    observation_names = ("x", "vx")
    position_names = ("x",)
    action_names = ("force",)
    observation_std = np.array([0.5, 0.5])
    action_std = np.array([0.5])
    action_limit = 1.0
    action_weight = 0.01
    num_relations = 2
    object_range = (4, 5)
    group_size = 4

    def draw_parameters(self, rng, num_objects):
        return TrainParameters(num_objects, rng.uniform(1, 2))

    def build_graph(self, parameters):
        joined = ring(parameters.num_carts)
        both = np.concatenate([joined, joined[:, ::-1]])
        return Graph.from_edges(parameters.num_carts, both, edge_type=np.zeros(len(both), np.int64), self_type=1)

    @property
    def actuated(self):
        return np.arange(self.parameters.num_carts) == 0

    def excitation(self, rng, steps):
        actions = np.zeros((steps, self.parameters.num_carts, 1))
        actions[:, 0] = rng.uniform(-1, 1, (steps, 1)).astype(np.float32)
        return lambda t: actions[t]

    def _begin(self):
        self._x = self._v = np.zeros(self.parameters.num_carts)

    def _advance(self, action):
        bend = np.roll(self._x, 1) + np.roll(self._x, -1) - 2 * self._x
        force = self.parameters.stiffness * bend - self._x + np.where(self.actuated, action[:, 0], 0.0)
        self._v = self._v + self.dt * force
        self._x = self._x + self.dt * self._v

    def _observation(self):
        return np.stack([self._x, self._v], axis=1)

    def draw(self, observation, action=None, goal=None):
        return np.asarray(Image.new("RGB", (4, 4)))

    def extra_figures(self, observations, goal):
        return {"first_cart": float(observations[-1, 0, 0])}


def forget(world: type[GraphEnv]) -> None:
    WORLDS.pop(world.world, None)
    for name in (world.__name__, f"Padded{world.__name__}"):
        gym.registry.pop(f"gce/{name}-v0", None)


@pytest.fixture
def train():
    yield register_world(Train)
    forget(Train)


@pytest.fixture
def recorded(train, tmp_path):
    file = tmp_path / "train.h5"
    record(Recording("train", 12, train.object_range, 4, steps=20), file)
    return file


def test_a_registered_world_is_made_by_name(train):
    assert world_named("train") is Train
    env = gym.make("gce/PaddedTrain-v0", objects=4)
    assert env.reset(seed=0)[0]["nodes"].shape == (4, 2)


def test_tables_training_and_the_explorer_look_into_its_recipe(train, recorded):
    assert sizes_of("train", SEEN) == (4, 5) and sizes_of("train", UNSEEN) == (6, 7)
    assert PAPER.count("train", "graph_ode") == PAPER.tuning and PAPER.count("train", "cko") == PAPER.costly
    assert training_for("train") == {"iterations": 7, "horizon": 48}
    with Dataset.open(recorded) as data:
        assert config_for(data).ridge == 0.125
    assert "train" not in [world["name"] for world in choices()["worlds"]]  # no model comes with the package


def test_it_is_controlled_drawn_or_recorded_and_says_its_own_figures(train, recorded, tmp_path, capsys):
    with Dataset.open(recorded) as data:
        save_model(prepare(config_for(data, **TINY), data).eval(), tmp_path / "model")
    for what in (["train", "--objects", "4"], [str(recorded)]):
        main(["control", *what, "--model", str(tmp_path / "model"), "--adapt", "3", "--json"])
        answer = json.loads(capsys.readouterr().out)
        assert (answer["world"], answer["horizon"], answer["feedback"]) == ("train", 8, 4)
        assert np.isfinite(answer["cost"]) and "first_cart" in answer


def test_a_world_that_is_not_registered_is_data_of_ones_own(recorded):
    forget(Train)
    assert training_for("train") == training_for(None)
    with Dataset.open(recorded) as data:
        assert config_for(data).ridge != 0.125
    with pytest.raises(InputError, match=r"no world 'train'; the worlds are rope, .*`gce.register` adds one"):
        world_named("train")


def lacking(*names: str) -> type[GraphEnv]:
    return type("Lacking", (GraphEnv,), {k: v for k, v in vars(Train).items() if k not in (*names, "__dict__")})


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (lacking("recipe"), "the world Lacking has no recipe; define each"),
        (lacking("world", "dt"), "the world Lacking has no world, dt; define each"),
        (lacking("actuated", "_advance"), "the world Lacking has no _advance, actuated; define each"),
        (type("Odd", (Train,), {"recipe": {}}), r"the recipe of Odd is {}, expected a gce\.envs\.Recipe"),
        (type("Odd", (Train,), {"world": "own"}), "Odd cannot have the name 'own'"),
        (type("Odd", (Train,), {"world": "a b"}), "Odd cannot have the name 'a b'"),
        (type("Odd", (Rope,), {}), "Odd with the name 'rope' would hide Rope with the name 'rope'; choose other"),
        (type("Rope", (Rope,), {"world": "cord"}), "Rope with the name 'cord' would hide Rope with the name 'rope'"),
    ],
)
def test_a_class_that_is_not_a_whole_world_is_refused(world, message):
    before = dict(WORLDS), set(gym.registry)
    with pytest.raises(InputError, match=message):
        register_world(world)
    assert (dict(WORLDS), set(gym.registry)) == before
