"""Public names are found as the pages write them, and importing the package costs nothing."""

import importlib
import subprocess
import sys

import pytest

import gce

FACADES = {
    "gce.graphs": ("Graph",),
    "gce.model": ("Model", "ModelConfig"),
    "gce.system": ("System", "adapt"),
    "gce.planning": ("Controller", "Plan"),
    "gce.training": ("train",),
    "gce.operators": ("register_form",),
    "gce.trajectory": ("Dataset", "Episode"),
}


def test_tab_shows_public_names_and_rooms():
    assert set(gce.__all__) <= set(dir(gce))
    assert {"trajectory", "interop", "planning", "control"} <= set(dir(gce))
    assert not [name for name in dir(gce) if name.startswith("_") and name != "__version__"]
    assert {"pyg", "minari", "estimator"} <= set(dir(gce.interop))
    assert all(getattr(gce, name) is not None for name in dir(gce))


@pytest.mark.parametrize("package", FACADES)
def test_a_room_shows_its_names(package):
    room = importlib.import_module(package)
    for name in FACADES[package]:
        assert getattr(room, name).__name__ == name and name in dir(room)
        assert getattr(gce, name, getattr(room, name)) is getattr(room, name)
    assert all(hasattr(room, name) for name in room.__all__)


@pytest.mark.parametrize(
    "used",
    [
        "gce.interop.pyg.to_steps",
        "gce.trajectory.Dataset",
        "gce.model.files.load_model",
        "gce.model.config.ModelConfig",
    ],
)
def test_a_name_is_found_without_importing_its_module_first(used):
    subprocess.run([sys.executable, "-c", f"import gce; {used}"], check=True)


def test_what_is_no_name_is_told_as_python_does():
    with pytest.raises(AttributeError, match="module 'gce' has no attribute 'nothing'"):
        _ = gce.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'gce.model'"):
        from gce.model import nothing  # noqa: F401


def test_rooms_import_nothing_heavy_until_a_name_is_used():
    rooms = "gce.graphs, gce.model, gce.system, gce.planning, gce.training, gce.interop"
    code = f"import sys; import {rooms}; dir(gce); print([m for m in ('numpy', 'torch', 'h5py') if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
