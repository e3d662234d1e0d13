"""Keys of kept runs: of what decides their numbers, not of how the code is laid out."""

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from gce.baselines import BASELINES
from gce.envs import WORLDS
from gce.errors import InputError
from gce.features.bodies import BodiesConfig
from gce.model.config import ModelConfig
from gce.model.files import shipped
from gce.reproduce import versions
from gce.reproduce.experiment import Cell
from gce.reproduce.methods import Method, method
from gce.reproduce.runner import EXPERIMENTS
from gce.reproduce.tasks import control_cell
from gce.reproduce.versions import canonical_config, tensor_digest, without_defaults

SETTINGS = {"world": "rope", "method": "ours_shipped", "split": "few-shot"}


@pytest.fixture
def ours(tmp_path):
    shutil.copytree(shipped("rope"), tmp_path / "ours")
    return Method("rope", "ours_copied", tmp_path / "ours")


def key(model, experiment="main", settings=SETTINGS, planned=True):
    for cached in (versions.tensor_digest, versions.config_in):
        cached.cache_clear()
    return control_cell(EXPERIMENTS[experiment], 0, settings, model, planned).key


def changed(model, **entries):
    """Write entries of the model's description anew."""
    text = json.loads(model.files[1].read_text())
    model.files[1].write_text(json.dumps({**text, **entries}))


def test_a_key_is_of_settings_seed_versions_and_recordings(tmp_path):
    files = [tmp_path / name for name in ("one", "other")]
    for file in files:
        file.write_text(file.name)
    cell = Cell("x", {"a": 1, "b": 2.0}, 0, 1, {"world": ["rope", 1]}, (files[0],))
    others = [
        {"experiment": "y"},
        {"settings": {"a": 2, "b": 2.0}},
        {"seed": 1},
        {"version": 2},
        {"conditions": {"world": ["rope", 2]}},
        {"files": (files[1],)},
    ]
    assert len({cell.key, *(dataclasses.replace(cell, **other).key for other in others)}) == 1 + len(others)
    assert dataclasses.replace(cell, settings={"b": 2.0, "a": 1}).key == cell.key


def test_each_version_decides_the_runs_it_is_of(ours, monkeypatch):
    before = key(ours)
    monkeypatch.setitem(versions.METHODS, "ours", 2)
    assert key(ours) != before
    monkeypatch.setitem(versions.METHODS, "ours", 1)
    monkeypatch.setattr(BASELINES["cko"], "version", 2)
    monkeypatch.setattr(WORLDS["soft"], "version", 2)
    assert key(ours) == before
    monkeypatch.setattr(WORLDS["rope"], "version", 2)
    assert key(ours) != before
    assert versions.declared()["worlds"] == {"rope": 2, "soft": 2, "swim": 1, "grid": 1, "flock": 1}
    assert versions.declared()["methods"]["cko"] == 2


def test_a_protocol_decides_runs_that_are_planned(ours, monkeypatch):
    before = [key(ours, planned=planned) for planned in (True, False)]
    recipe = WORLDS["rope"].recipe
    protocol = dataclasses.replace(recipe.protocol, tolerance=1e-3)
    monkeypatch.setattr(WORLDS["rope"], "recipe", dataclasses.replace(recipe, protocol=protocol))
    assert [key(ours, planned=planned) == old for planned, old in zip((True, False), before, strict=True)] == [0, 1]


def test_neither_names_of_tensors_nor_what_a_model_says_about_itself_count(ours):
    before, tensors = key(ours), load_file(ours.files[0])
    save_file({f"renamed.{name}": tensor for name, tensor in tensors.items()}, ours.files[0])
    changed(ours, about={}, version="9.9")
    assert key(ours) == before
    first = next(iter(tensors))
    save_file({**tensors, first: tensors[first] + 1}, ours.files[0])
    assert key(ours) != before


def test_a_value_of_the_configuration_counts_unless_it_is_the_default(ours):
    before, config = key(ours), json.loads(ours.files[1].read_text())["config"]
    changed(ours, config={name: value for name, value in config.items() if name != "memory"})
    assert key(ours) == before
    changed(ours, config={**config, "ridge": 0.5})
    assert key(ours) != before


def test_the_configuration_without_its_defaults():
    short = {"num_observations": 4, "num_actions": 1, "num_relations": 8, "num_node_types": 2}
    short |= {"points": ((0, 1, 2, 3),), "kinematics": ((0, 2), (1, 3))}
    config = ModelConfig(**short, own_block=False, features=BodiesConfig(drag=True))
    stated = canonical_config(config.described())
    own = {"features": {"kind": "bodies", "drag": True}}
    assert stated == {**short, "own_block": False, **own}
    flat = {**short, "own_block": False, "implicit": True, "drag": True, "features": 32}
    assert canonical_config({**flat, "network": False, "memory": 0.0, "decoder": "selection"}) == stated
    kpm = BASELINES["kpm"].config_class
    assert without_defaults({"order": kpm.order, "ridges": list(kpm.ridges), "num_actions": 1}, kpm) == {
        "num_actions": 1
    }


def test_types_and_shapes_of_tensors_count(tmp_path):
    zeros = {"a": torch.zeros(2, 3), "b": torch.zeros(3, 2), "c": torch.zeros(2, 3, dtype=torch.int32)}
    for name, tensor in zeros.items():
        save_file({"x": tensor}, tmp_path / name)
    assert len({tensor_digest(tmp_path / name) for name in zeros}) == 3


def test_a_model_that_cannot_be_read_is_named(tmp_path, ours):
    broken = method(tmp_path, "rope", "cko")
    broken.folder.mkdir(parents=True)
    for file in broken.files:
        file.write_text("{")
    with pytest.raises(InputError, match="baseline.json is not JSON.*restore"):
        key(broken)
    ours.files[1].write_text("[]")
    with pytest.raises(InputError, match="model.json is not the description of a model.*train it again"):
        key(ours)
    ours.files[0].write_text("{")
    with pytest.raises(InputError, match="model.safetensors is truncated"):
        key(ours)
