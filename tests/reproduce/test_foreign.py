"""Predictions of systems of others: cells that are kept, tables with n and wins, refusals in sentences."""

import json
import shutil

import numpy as np
import pytest

from gce.baselines.gns import Gns
from gce.baselines.trainable import FineTuning
from gce.cli import main
from gce.errors import InputError
from gce.reproduce import foreign
from gce.reproduce.experiment import PRESETS, Context
from gce.reproduce.foreign import Foreign, kinds_in, recordings
from gce.reproduce.versions import tensor_digest


def archive(file, systems=3, episodes=6, seed=0, **changes):
    """Levels on a ring that even out at a rate of their system."""
    rng, arrays = np.random.default_rng(seed), {}
    for g in range(systems):
        rate, observed, acted = rng.uniform(0.05, 0.3), [], []
        for _ in range(episodes):
            x, u = rng.normal(size=4), 0.3 * rng.normal(size=(12, 4))
            path = [x, *(x := x + rate * (np.roll(x, 1) + np.roll(x, -1) - 2 * x) + a for a in u)]
            observed.append(np.stack(path)[..., None])
            acted.append(u[..., None])
        arrays[f"{g}/observations"], arrays[f"{g}/actions"] = np.stack(observed), np.stack(acted)
        arrays[f"{g}/edges"] = np.array([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])
    arrays = {k: v for k, v in {**arrays, **changes}.items() if v is not None}
    np.savez(file, **arrays)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    archive(place / "ring_train.npz", systems=4)
    archive(place / "ring_validation.npz", systems=2, seed=1)
    return place


def run(folder, tmp_path, *more):
    main(["reproduce", "foreign", "--data", str(folder), "--results", str(tmp_path / "results"), *more])
    return (tmp_path / "results" / "foreign.md").read_text()


def test_methods_without_training_have_a_row_and_runs_are_kept(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Foreign, "methods", lambda self, data, context: ["persistence", "dmdc"])
    page = run(folder, tmp_path)
    row = next(line for line in page.splitlines() if line.startswith("| DMDc"))
    assert "| 2 |" in row and row.count("–") == 4  # six episodes: two are left to adapt to
    records = json.loads((tmp_path / "results" / "foreign.json").read_text())["runs"]
    assert len(records) == 2 * (1 + 2)
    errors = {(r["settings"]["method"], r["settings"]["episodes"]): r["figures"]["mean"] for r in records}
    assert errors["dmdc", 2] < 0.2 * errors["persistence", 0]
    monkeypatch.setattr(Foreign, "run", lambda *arguments: pytest.fail("a kept run was computed again"))
    assert run(folder, tmp_path) == page


def test_methods_are_chosen_by_name(folder, tmp_path, capsys):
    page = run(folder, tmp_path, "--methods", "persistence")
    assert "| persistence |" in page and "DMDc" not in page
    with pytest.raises(SystemExit):
        run(folder, tmp_path, "--methods", "persistance")
    assert "it has persistence, dmdc, gns" in capsys.readouterr().err


def test_other_actions_have_tables_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(Foreign, "methods", lambda self, data, context: ["dmdc"])
    place = tmp_path / "data"
    place.mkdir()
    for part in ("train", "validation"):
        idle = {f"{g}/setpoints": np.ones((6, 12, 4, 2)) for g in range(3)}
        archive(place / f"ring_{part}.npz", **idle)
    page = run(place, tmp_path)
    assert page.index("## ring,") < page.index("## ring, actions: setpoints,")
    assert recordings(place / "ring_train.npz", "setpoints")[0].actions.shape == (12, 4, 2)
    records = json.loads((tmp_path / "results" / "foreign.json").read_text())["runs"]
    errors = {"actions" in r["settings"]: r["figures"]["mean"] for r in records if r["settings"]["episodes"] == 2}
    assert errors[True] > 3 * errors[False]  # setpoints that say nothing


def test_a_figure_is_what_its_definition_says(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Foreign, "methods", lambda self, data, context: ["persistence"])
    experiment, context = Foreign(), Context(tmp_path / "models", tmp_path / "results", data=folder)
    cell = experiment.cells(PRESETS["quick"], context)[0]
    train, test = (recordings(folder / f"ring_{part}.npz") for part in ("train", "validation"))
    std = np.concatenate([e.observations.reshape(-1, 1) for e in train]).std(0)
    asked = [test[int(k)].observations for k in test.group(0).episodes[-4:]]
    expected = np.mean([np.sqrt(np.square((o[:1] - o[1:]) / std).mean((1, 2))).mean() for o in asked])
    assert experiment.run(cell, context)["mean"] == pytest.approx(expected, rel=1e-6)


def test_a_network_is_trained_once_for_its_minutes_and_kept(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Foreign, "methods", lambda self, data, context: ["gns", "gns_tuned"])
    monkeypatch.setattr(Gns, "tuning", FineTuning(steps=2, windows=2, horizon=3, check_every=1))
    page = run(folder, tmp_path, "--train-minutes", "0.01")
    assert "| GNS, not tuned | 2 |" in page and "trained for 0.01 CPU minutes" in page
    about = json.loads((tmp_path / "results/models/foreign/ring/gns/baseline.json").read_text())["about"]
    assert about["cpu_minutes_asked"] == 0.01
    foreign._baseline.cache_clear()
    again = foreign.train_baseline
    monkeypatch.setattr(foreign, "train_baseline", lambda *a, **k: pytest.fail("trained again"))
    foreign._baseline("gns", (folder / "ring_train.npz", "actions"), tmp_path / "results/models/foreign/ring/gns", 0.01)
    keys = {r["key"] for r in json.loads((tmp_path / "results" / "foreign.json").read_text())["runs"]}
    (place := tmp_path / "results/models/foreign/ring/gns").rename(tmp_path / "kept")
    monkeypatch.setattr(
        foreign, "train_baseline", lambda *a, **k: again(*a, **{**k, "schedule": k["schedule"] | {"seed": 1}})
    )
    for cached in (foreign._baseline, tensor_digest):
        cached.cache_clear()
    context = Context(tmp_path / "results/models", tmp_path / "results", data=folder, train_minutes=0.01)
    assert not keys & {cell.key for cell in Foreign().cells(PRESETS["quick"], context)}, "of another model"
    shutil.rmtree(place)
    (tmp_path / "kept").rename(place)
    for cached in (foreign._baseline, tensor_digest):
        cached.cache_clear()
    assert keys == {cell.key for cell in Foreign().cells(PRESETS["quick"], context)}


def test_wins_are_counted_by_system(tmp_path):
    def record(method, seed, mean, k=8):
        return {"settings": {"kind": "ring", "method": method, "episodes": k}, "seed": seed, "figures": {"mean": mean}}

    records = [record("dmdc", g, 0.4) for g in range(3)] + [record("structured", g, 0.1 + 0.2 * g) for g in range(3)]
    page = Foreign().report(records, tmp_path)
    assert "| structured over DMDc | – | – | – | 2/3, 0.75 | – | – |" in page
    assert "| structured | 3 | – | – | – | 0.3 (0.3) | – | – |" in page


def test_a_system_of_one_node_has_no_edges_and_no_types(tmp_path):
    alone = {
        "2/observations": np.zeros((6, 13, 1, 1)),
        "2/actions": np.zeros((6, 12, 1, 1)),
        "2/actuated": np.array([0]),
    }
    edges = {"2/edges": np.zeros((2, 0), int), "2/edge_type": np.zeros(0, int)}
    rest = {f"{g}/edge_type": np.zeros(8, int) for g in (0, 1)}
    archive(tmp_path / "odd_train.npz", **alone, **edges, **rest)
    data = recordings(tmp_path / "odd_train.npz")
    assert len(data) == 18 and data.group(2).graph.num_nodes == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"0/edges": None}, "system 0 has no array 0/edges"),
        ({"0/actions": np.zeros((3, 4, 1))}, "0/actions has 3 axes, expected 4"),
        ({"odd": np.zeros(2)}, "has an array 'odd'; name arrays K/NAME"),
        ({"0/actions": np.array([None])}, "is not an archive of plain arrays"),
    ],
)
def test_archives_that_do_not_fit_are_refused(tmp_path, change, sentence):
    archive(tmp_path / "odd_train.npz", **change)
    with pytest.raises(InputError, match=sentence):
        recordings(tmp_path / "odd_train.npz")


def test_folders_that_do_not_fit_are_refused(folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "foreign", "--results", str(tmp_path / "results")])
    assert stop.value.code == 2 and "give their folder with --data" in capsys.readouterr().err
    with pytest.raises(InputError, match="not a folder"):
        kinds_in(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no recordings"):
        kinds_in(tmp_path)
    (folder / "ring_validation.npz").unlink()
    with pytest.raises(InputError, match="has no ring_validation"):
        kinds_in(folder)
    (folder / "ring_validation.npz").write_text("text")
    with pytest.raises(InputError, match="not an archive"):
        recordings(folder / "ring_validation.npz")
