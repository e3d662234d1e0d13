"""A kind of features answers for itself: no other room asks which it is, and a new one is a file and a registration."""

import ast
import dataclasses
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import gce
import small
from gce.control.problem import Problem
from gce.errors import InputError
from gce.features import KINDS, Features, FeaturesConfig, StateShape, register_features
from gce.features.inputs import InputLayer
from gce.model.files import load_model, save_model
from gce.planning.controller import Controller
from gce.system.system import adapt
from gce.training.learning import train as train_model

SOURCE = Path(gce.__file__).parent
WITHOUT = ("baselines", "envs")
"""Rooms without models of ours; a baseline's decoder is its own."""


def is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


# ---- no other room asks which kind of features it has ----

OF_KINDS = {name for kind in KINDS.values() for name in kind.formerly} | {"swift"}
"""Switches that ask for a kind of features, and a name that once stood for one."""
CLASSES = {cls.__name__ for kind in KINDS.values() for cls in (kind, kind.Config)}
KERNELS = {kind.dynamics.split(":")[0].removeprefix("gce.").replace(".", "/") for kind in KINDS.values()}
KERNELS |= {"dynamics/message_kernel", "dynamics/body_slopes"}
"""Dynamics that a kind names as its own belong to it, wherever they lie."""


def asks_for_features(source: str) -> list[int]:
    """Lines where behaviour hangs on the kind of features: its class, its name, or what only one kind has."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and is_name(node.func) and node.func.id in ("isinstance", "issubclass"):
            lines += [node.lineno for n in ast.walk(node.args[1]) if is_name(n) and n.id in CLASSES]
        if isinstance(node, ast.Attribute) and node.attr in OF_KINDS:
            lines += [] if is_name(node.value) and node.value.id == "self" else [node.lineno]
        if isinstance(node, ast.keyword) and node.arg == "swift":
            lines.append(node.value.lineno)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = any(isinstance(s, ast.Constant) and s.value in KINDS for s in sides)
            asked = any(isinstance(s, ast.Attribute) and s.attr in ("kind", "name") for s in sides)
            lines += [node.lineno] if named and asked else []
    return lines


@pytest.mark.parametrize(
    "file",
    [f for f in sorted(SOURCE.rglob("*.py")) if f.relative_to(SOURCE).parts[0] not in ("features", *WITHOUT)],
    ids=lambda f: str(f.relative_to(SOURCE)),
)
def test_no_other_room_asks_which_kind_of_features_it_has(file):
    if str(file.relative_to(SOURCE).with_suffix("")) not in KERNELS:
        assert asks_for_features(file.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "if model.config.implicit: pass",
        "x = isinstance(model.features, Bodies)",
        "x = isinstance(config.features, (int, NetworkConfig))",
        "if features.name == 'bodies': pass",
        "if 'network' == config.features.kind: pass",
        "dynamics_of(system, controls, swift=True)",
        "x = model.network",
    ],
)
def test_a_planted_question_is_found(source):
    assert asks_for_features(source) == [1]


# ---- a kind of features is one file and a registration ----


@dataclasses.dataclass(frozen=True)
class SquaresConfig(FeaturesConfig):
    kind: ClassVar[str] = "squares"
    scale: float = 1.0


class Squares(Features):
    """phi = scale times the sum over neighbours of squared differences."""

    name, Config = "squares", SquaresConfig

    def __init__(self, shape: StateShape, config: SquaresConfig) -> None:
        super().__init__(shape, config)
        self.layer = shape.input_layer(InputLayer)
        self.gain = torch.nn.Parameter(torch.tensor(float(config.scale)))
        self.prepared()

    @property
    def inputs(self):
        return self.layer

    @property
    def num_phi(self):
        return self.shape.num_state

    def on(self, topology):
        return lambda x: self.gain * topology.sum(topology.difference(x).square())

    def reach(self, topology):
        return 2


@pytest.fixture
def squares():
    register_features(Squares)
    yield Squares
    del KINDS["squares"]


def test_a_new_kind_of_features_needs_no_other_file(squares, tmp_path):
    data = small.recorded("rope")
    model = train_model(data, iterations=2, horizon=4, model={"kind": "squares", "scale": 0.1}).model
    assert model.features.name == "squares" and float(model.features.gain) != 0.1  # it was trained
    first, *others = small.system_episodes("rope")
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    start = first.observations[0].astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few episodes leave much to the ridge
        systems = [adapt(m, others, 1e-2) for m in (model, again)]
    assert np.array_equal(*(system.predict(start, first.actions[:5]) for system in systems))
    low, high = (np.where(first.actions.any((0, 2))[:, None], sign * 100.0, 0.0) for sign in (-1, 1))
    plan = Controller(systems[1], Problem(4, first.observations[4].astype(float), low, high)).plan(start, opening=True)
    assert np.isfinite(plan.cost)
    del KINDS["squares"]
    with pytest.raises(InputError, match=r"no kind of features 'squares'.*gce\.register"):
        load_model(tmp_path)
    register_features(Squares)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": ""}, "it has no name of its own"),
        ({"reach": abstractmethod(Squares.reach)}, "no reach of its own"),
        ({"Config": FeaturesConfig}, r"Config must be a dataclass .* with kind = 'squares'"),
        ({"__init__": lambda self: None}, "made from a StateShape and its Config alone"),
    ],
)
def test_a_kind_that_breaks_the_contract_is_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        register_features(type("Odd", (Squares,), {"name": "squares", **changes}))
    assert "squares" not in KINDS
