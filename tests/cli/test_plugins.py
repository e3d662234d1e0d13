"""Classes of one's own, outside the package: the examples of the page on extending, by name on the command line."""

import json
import sys
from pathlib import Path

import pytest

import gce
from gce.cli import main
from gce.control.solver import SOLVERS
from gce.envs import WORLDS
from gce.errors import InputError
from gce.features import KINDS
from gce.names import PLUGINS
from gce.operators import FORMS
from gce.potentials import POTENTIALS

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
QUICK = ["--iterations", "2", "--features", "6", "--horizon", "3", "--method", "structured"]


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """The tables and modules as they were, and the examples where they can be imported."""
    monkeypatch.chdir(EXAMPLES)
    tables = POTENTIALS, FORMS, KINDS, SOLVERS, WORLDS
    known, modules = [dict(table) for table in tables], set(sys.modules)
    yield
    for table, before in zip(tables, known, strict=True):
        table.clear()
        table.update(before)
    PLUGINS.clear()
    for name in set(sys.modules) - modules:
        if name.startswith("my_"):
            del sys.modules[name]
    import gymnasium

    for name in ("gce/Tanks-v0", "gce/PaddedTanks-v0"):
        gymnasium.registry.pop(name, None)


@pytest.fixture
def tanks(tmp_path):
    file = tmp_path / "tanks.h5"
    size = ["--episodes", "12", "--group-size", "4", "--steps", "12", "--workers", "2"]
    main(["--plugin", "my_world", "data", "tanks", "--out", str(file), *size])
    return file


def trained(tanks, folder, *asked):
    main(["train", "tanks", "--data", str(tanks), "--out", str(folder), *QUICK, *asked])
    return json.loads((folder / "model.json").read_text())["config"]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_short(file):
    assert len(file.read_text().splitlines()) <= 40


def test_a_world_is_recorded_trained_on_and_controlled_by_name(tanks, tmp_path, capsys):
    assert trained(tanks, tmp_path / "model")["world"] == "tanks"
    capsys.readouterr()
    model = ["--model", str(tmp_path / "model")]
    main(["control", "tanks", *model, "--adapt", "3", "--json"])
    assert json.loads(capsys.readouterr().out)["world"] == "tanks"
    main(["data", "replay", str(tanks)])
    main(["data", "show", str(tanks), "--out", str(tmp_path / "tanks.png")])


def test_workers_on_a_cluster_load_plugins_too(tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'gce[cluster]'")
    size = ["--episodes", "2", "--group-size", "1", "--steps", "5", "--workers", "1", "--on", "dask"]
    main(["--plugin", "my_world", "data", "tanks", "--out", str(tmp_path / "tanks.h5"), *size])
    assert (tmp_path / "tanks.h5").is_file()


@pytest.mark.parametrize(
    ("plugin", "asked", "setting"),
    [
        ("my_potential", ("--potential", "cauchy", "--bandwidth", "3"), {"potential": "cauchy", "potential_value": 3}),
        ("my_form", ("--form", "hom_mean_square"), {"form": "hom_mean_square"}),
        ("my_features", ("--kind", "cosines"), {"features": {"kind": "cosines", "num_features": 6}}),
    ],
)
def test_what_a_model_is_made_of_is_trained_loaded_and_planned_with(tanks, tmp_path, plugin, asked, setting, capsys):
    config = trained(tanks, tmp_path / "model", *asked, "--plugin", plugin)
    assert setting.items() <= config.items()
    capsys.readouterr()
    main([f"--plugin={plugin}", "control", str(tanks), "--model", str(tmp_path / "model"), "--horizon", "4", "--json"])
    assert json.loads(capsys.readouterr().out)["cost"] < 1e3


def test_a_solver_finds_what_ours_find(tanks, tmp_path, capsys):
    trained(tanks, tmp_path / "model")
    costs = []
    for solver in (["--plugin", "my_solver", "--solver", "descent"], []):
        capsys.readouterr()
        main(["control", str(tanks), "--model", str(tmp_path / "model"), "--horizon", "8", "--json", *solver])
        costs.append(json.loads(capsys.readouterr().out)["cost"])
    assert costs[0] == pytest.approx(costs[1], rel=1e-3)


def test_an_entry_point_names_a_plugin(monkeypatch):
    from importlib import metadata

    point = metadata.EntryPoint("mine", "my_potential", "gce.plugins")
    monkeypatch.setattr(
        metadata, "entry_points", lambda group, name: [point] if (group, name) == ("gce.plugins", "mine") else []
    )
    with pytest.raises(SystemExit):
        main(["--plugin", "mine", "train", "--help"])
    assert "cauchy" in POTENTIALS


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_bad_plugins_get_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_broken.py").write_text("import no_such_module")
    (tmp_path / "my_twice.py").write_text(
        "import gce\nfrom gce.potentials import Gaussian\n@gce.register\nclass Mine(Gaussian):\n    name = 'laplace'"
    )
    (tmp_path / "my_thing.py").write_text("import gce\n@gce.register\nclass Thing:\n    name = 'thing'")
    for plugin, words in (
        ("my_broken", "the plugin 'my_broken' does not import (ModuleNotFoundError: No module named 'no_such_module')"),
        ("my_absent", "the plugin 'my_absent' does not import"),
        ("my.h5 ", "does not import"),
        ("my_twice", "is refused: there is a potential 'laplace' already, Laplace; give Mine another name"),
        ("my_thing", "Thing cannot be registered: derive it from one of gce.envs.base.GraphEnv"),
    ):
        assert words in refused(["--plugin", plugin, "demo"], capsys)
    assert "--plugin names no module" in refused(["data", "--plugin"], capsys)


def test_names_that_are_not_registered_are_refused_with_those_that_are(tanks, tmp_path, capsys):
    train = ["train", "tanks", "--data", str(tanks), "--out", str(tmp_path / "model")]
    capsys.readouterr()
    for flag, known in (("--potential", "gaussian, laplace"), ("--form", "tensor, dense"), ("--kind", "message_pass")):
        said = refused([*train, "--method", "structured", flag, "nothing"], capsys)
        assert f"'nothing'; there are {known}" in said and "--plugin" in said


def test_a_file_never_names_a_plugin(tanks, tmp_path, capsys):
    """A model made with a plugin is refused without it, though the plugin could be imported."""
    trained(tanks, tmp_path / "model", "--potential", "cauchy", "--plugin", "my_potential")
    capsys.readouterr()
    del POTENTIALS["cauchy"]
    said = refused(["control", str(tanks), "--model", str(tmp_path / "model")], capsys)
    assert "there is no potential 'cauchy'" in said and "cauchy" not in POTENTIALS


def test_register_is_for_classes():
    with pytest.raises(InputError, match="cannot be registered: derive it from one of"):
        gce.register(3)
