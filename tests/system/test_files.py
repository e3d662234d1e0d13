import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gce.errors import Doubt, InputError
from gce.files import unchecked
from gce.graphs.topology import Topology
from gce.model.files import about_model, load_model, save_model, shipped
from gce.system.files import load_system, save_system
from gce.system.system import adapt
from small import system_episodes, untrained


@pytest.fixture(scope="module")
def system():
    return adapt(untrained("rope"), system_episodes("rope")[:2])


@pytest.fixture
def folder(system, tmp_path):
    save_system(system, tmp_path)
    return tmp_path


@pytest.mark.parametrize("world", ["rope", "soft", "grid"])
def test_a_model_comes_back_bit_for_bit(world, tmp_path):
    model = untrained(world)
    save_model(model, tmp_path / "deep" / "folder", {"seed": 3})
    again = load_model(tmp_path / "deep" / "folder")
    assert again.config == model.config
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())
    graph = system_episodes(world)[0].graph
    x = torch.randn(graph.num_nodes, model.config.num_state)
    assert torch.equal(again.features(x, Topology.of(graph)), model.features(x, Topology.of(graph)))
    assert about_model(tmp_path / "deep" / "folder") == {"seed": 3}


@pytest.mark.parametrize("world", ["rope", "soft", "grid"])
def test_a_system_predicts_the_same_bits_after_loading(world, tmp_path):
    *episodes, last = system_episodes(world)
    system = adapt(untrained(world), episodes[:2], ridge=1e-3)
    save_system(system, tmp_path)
    again = load_system(tmp_path)
    assert again.graph.equals(system.graph)
    start = last.observations[0].astype(float)
    predicted = system.predict(start, last.actions[:6])
    assert np.array_equal(again.predict(start, last.actions[:6]), predicted)
    assert np.array_equal(again.intervals(predicted), system.intervals(predicted))
    assert torch.equal(again.update(last).operator.coefficients, system.update(last).operator.coefficients)


def test_saving_leaves_nothing_but_the_files(folder):
    names = {"model.json", "model.safetensors", "system.json", "system.safetensors"}
    assert {path.name for path in folder.iterdir()} == names


def test_saving_again_replaces(system, folder):
    save_system(replace(system, ridge=0.5), folder)
    assert load_system(folder).ridge == 0.5


def edit(path, **changes):
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, **changes}))


def edit_config(path, **changes):
    edit(path, config={**json.loads(path.read_text())["config"], **changes})


def edit_features(path, **changes):
    edit_config(path, features={**json.loads(path.read_text())["config"]["features"], **changes})


NOT_ONE = "is not the description of a model"
BAD_MODEL = {
    "missing json": (lambda f: (f / "model.json").unlink(), "has no model.json"),
    "missing tensors": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "not json": (lambda f: (f / "model.json").write_text("{"), "is not JSON"),
    "not text": (lambda f: (f / "model.json").write_bytes(b"\xff\xfe\x00"), "is not JSON"),
    "foreign json": (lambda f: (f / "model.json").write_text('{"name": "x"}'), "is not a gce-model of version 2"),
    "a list": (lambda f: (f / "model.json").write_text("[1, 2]"), "is not a gce-model of version 2"),
    "later version": (lambda f: edit(f / "model.json", format_version=3), "is not a gce-model of version 2"),
    "no config": (lambda f: edit(f / "model.json", config=[]), NOT_ONE),
    "unknown name": (lambda f: edit_config(f / "model.json", colour=1), "no setting 'colour'"),
    "word for a number": (
        lambda f: edit_features(f / "model.json", num_features="many"),
        NOT_ONE,
    ),
    "negative size": (lambda f: edit_features(f / "model.json", num_features=-1), "num_features of a model is"),
    "unknown kind": (
        lambda f: edit_features(f / "model.json", kind="odd"),
        "no kind of features 'odd'.*gce.register",
    ),
    "unknown form": (lambda f: edit_config(f / "model.json", form="sparse"), "no form 'sparse'"),
    "other size": (lambda f: edit_features(f / "model.json", num_features=5), "does not fit model.json"),
    "other potential": (lambda f: edit_config(f / "model.json", potential="mlp"), "does not fit model.json"),
    "truncated": (lambda f: truncate(f / "model.safetensors"), "is truncated or damaged"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "is truncated or damaged"),
    "nan": (
        lambda f: spoil(f / "model.safetensors", "features.encoder.relation"),
        "in features.encoder.relation that are not finite",
    ),
}

BAD_SYSTEM = {
    "missing json": (lambda f: (f / "system.json").unlink(), "has no system.json"),
    "missing tensors": (lambda f: (f / "system.safetensors").unlink(), "has no system.safetensors"),
    "truncated": (lambda f: truncate(f / "system.safetensors"), "is truncated or damaged"),
    "foreign json": (lambda f: (f / "system.json").write_text("{}"), "is not a gce-system of version 1"),
    "no rows": (lambda f: edit(f / "system.json", rows=None), "does not hold a system"),
    "zero rows": (lambda f: edit(f / "system.json", rows=0), "does not hold a system"),
    "odd rows": (lambda f: edit(f / "system.json", rows="many"), "does not hold a system"),
    "nan": (lambda f: spoil(f / "system.safetensors", "gram"), "in gram that are not finite"),
    "tensor missing": (lambda f: drop(f / "system.safetensors", "cross"), "does not hold a system"),
    "graph missing": (lambda f: drop(f / "system.safetensors", "graph_node_type"), "does not hold a system"),
    "another model": (lambda f: save_model(untrained("rope", features=5), f), "does not hold a system"),
}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def spoil(path, name):
    tensors = load_file(path)
    tensors[name].view(-1)[0] = torch.nan
    save_file(tensors, path)


def drop(path, name):
    save_file({k: v for k, v in load_file(path).items() if k != name}, path)


@pytest.mark.parametrize("case", BAD_MODEL)
def test_a_damaged_model_is_told(case, folder):
    damage, message = BAD_MODEL[case]
    damage(folder)
    for load in (load_model, load_system):
        with pytest.raises(InputError):
            load(folder)
        with unchecked(), pytest.raises(InputError, match=message):
            load(folder)


@pytest.mark.parametrize("case", BAD_SYSTEM)
def test_a_damaged_system_is_told(case, folder):
    damage, message = BAD_SYSTEM[case]
    damage(folder)
    with pytest.raises(InputError):
        load_system(folder)
    with unchecked(), pytest.raises(InputError, match=message):
        load_system(folder)


def flip(path, place):
    """Another number, of a digit or of a byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["model.safetensors", "system.safetensors"])
def test_every_flipped_bit_of_tensors_is_told(folder, name):
    size = (folder / name).stat().st_size
    for place in range(8, size, max(1, size // 40)):
        flip(folder / name, place)
        with pytest.raises(InputError, match=name):
            load_system(folder)
        flip(folder / name, place)
    load_system(folder)


def test_a_changed_setting_is_told(folder):
    edit(folder / "system.json", ridge=0.25)
    with pytest.raises(InputError, match="system.json is not what was written with system.safetensors.*--unchecked"):
        load_system(folder)
    with unchecked():
        assert load_system(folder).ridge == 0.25


def test_halves_that_do_not_belong_together_are_refused(system, folder, tmp_path):
    save_system(adapt(untrained("rope", features=5), system_episodes("rope")[:2]), tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(InputError, match="model.safetensors is not what was written with model.json"):
        load_system(folder)
    (tmp_path / "other" / "model.json").rename(folder / "model.json")
    load_model(folder)
    with pytest.raises(InputError, match="written with another model than model.json"):
        load_system(folder)


def test_a_model_written_before_there_were_digests_loads_with_a_warning(folder):
    text = json.loads((folder / "model.json").read_text())
    del text["sha256"]
    (folder / "model.json").write_text(json.dumps(text))
    with pytest.warns(Doubt, match="model.json has no digest"):
        load_model(folder)


@pytest.mark.parametrize("name", ["num_node_attributes", "num_relations", "num_exogenous", "num_observations"])
def test_a_size_beyond_the_tensors_is_refused_before_anything_is_made(folder, name):
    edit_config(folder / "model.json", **{name: 2**31})
    with unchecked(), pytest.raises(InputError, match=f"{name}: 2.14748e.09, more than .*GCE_CAPS"):
        load_model(folder)


def test_a_folder_that_is_not_there_or_cannot_be_written_is_told(system, tmp_path):
    with pytest.raises(InputError, match="has no model.json"):
        load_model(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        save_system(system, tmp_path / "file")


def test_a_world_without_a_model_is_told():
    with pytest.raises(InputError, match="no model of 'sea' comes with the package"):
        shipped("sea")


@pytest.mark.parametrize("folder", sorted(shipped("rope").parent.iterdir()), ids=lambda folder: folder.name)
def test_a_model_of_the_package_is_small_and_says_what_made_it(folder):
    about = about_model(folder)
    assert about["command"].startswith("gce train") and {"data", "seed", "validation_nrmse"} <= about.keys()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    assert load_model(folder).config.world == about["data"]["world"]
