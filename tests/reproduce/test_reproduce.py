"""Experiments by command: cells that are kept, failures that are counted, tables made of JSON."""

import json
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from gce.cli import main
from gce.errors import InputError
from gce.reproduce.claims import claims
from gce.reproduce.experiment import PRESETS, Cell, CellPart, Context, Experiment, Preset, Store, compute
from gce.reproduce.prediction_tables import PredictedSteps
from gce.reproduce.runner import EXPERIMENTS, report, reproduce, write_runs
from gce.reproduce.statistics import summarise

TINY = Preset(
    "quick", runs=2, costly=1, latent=1, slow=1, slow_boxes=1, grid=1, slow_grid=1, trajectories=1,
    tuning=1, slow_tuning=1,
)  # fmt: skip


def no_bar(description, total, unit):
    return nullcontext(lambda done: None)


class Squares(Experiment):
    """A cell is a number's square; 3 fails."""

    name, about = "squares", "squares of numbers"

    def __init__(self, stop_at=None):
        self.stop_at, self.computed = stop_at, []

    def cells(self, preset, context):
        return [Cell(self.name, {"number": k}, k, self.version) for k in range(5)]

    def run(self, cell, context):
        number = cell.settings["number"]
        if number == self.stop_at:
            raise KeyboardInterrupt
        self.computed.append(number)
        if number == 3:
            raise ValueError("three is refused")
        return {"square": number**2}

    def report(self, records, folder):
        return str(summarise(records, "square"))


@pytest.fixture
def context(tmp_path):
    return Context(tmp_path / "models", tmp_path / "results")


def test_experiments_are_listed(capsys):
    main(["reproduce"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in EXPERIMENTS)
    assert set(EXPERIMENTS) >= {
        *("main", "grid_noise", "fitting_number", "bandwidth", "dimension", "prediction"),
        *("sample_efficiency", "eval_time", "weights", "control_pictures", "recorded"),
    }


def test_an_unknown_experiment_lists_the_known(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "nosuch"])
    told = capsys.readouterr().err
    assert stop.value.code == 2
    assert "nosuch" in told and "grid_noise" in told


def test_work_goes_on_after_a_stop_and_failures_are_counted(context, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "squares", Squares())
    with pytest.raises(KeyboardInterrupt):
        reproduce([Squares(stop_at=2)], TINY, context, None, no_bar)
    again = Squares()
    failures = reproduce([again], TINY, context, None, no_bar)
    assert again.computed == [2, 3, 4]
    assert failures == {"squares": 1}
    text = json.loads((context.results / "squares.json").read_text())
    assert [r["figures"]["square"] for r in text["runs"] if "figures" in r] == [0, 1, 4, 16]
    assert "ValueError: three is refused" in (context.results / "squares.md").read_text()
    assert "n 4, 1 failed" in (context.results / "squares.md").read_text()
    third = Squares()
    reproduce([third], TINY, context, None, no_bar)
    assert third.computed == []


def test_a_run_of_another_version_is_not_used(context, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "squares", Squares())
    reproduce([Squares()], TINY, context, None, no_bar)
    raised = Squares()
    monkeypatch.setattr(Squares, "version", 2)
    reproduce([raised], TINY, context, None, no_bar)
    assert raised.computed == list(range(5))


def test_shards_divide_the_cells_and_are_put_together(context, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "squares", Squares())
    parts = [Squares(), Squares()]
    for number, part in enumerate(parts, start=1):
        reproduce([part], TINY, context, CellPart.of(f"{number}/2"), no_bar)
    assert sorted(parts[0].computed + parts[1].computed) == list(range(5))
    assert not (context.results / "squares.json").exists()
    whole = Squares()
    reproduce([whole], TINY, context, None, no_bar)
    assert whole.computed == []
    with pytest.raises(InputError, match="i/n"):
        CellPart.of("3/2")


class Counted(Squares):
    """As many numbers as the preset has runs."""

    def cells(self, preset, context):
        return [Cell(self.name, {"row": 1, "number": k}, k) for k in range(preset.runs)]


def test_results_are_known_without_their_cells_and_stay_where_fewer_are_asked_for(context, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "squares", Counted())
    reproduce([Counted()], PRESETS["evening"], context, None, no_bar)
    shutil.rmtree(context.results / ".cells")  # as in a fresh clone
    page = (context.results / "squares.md").read_text()
    again = Counted()
    reproduce([again], PRESETS["quick"], context, None, no_bar)
    assert again.computed == []
    assert len(context.records("squares")) == PRESETS["evening"].runs
    assert (context.results / "squares.md").read_text() == page and "--preset evening" in page
    # What another version made has another key: neither known nor kept.
    file = context.results / "squares.json"
    text = json.loads(file.read_text())
    file.write_text(json.dumps({**text, "runs": [{**r, "key": "of another version"} for r in text["runs"]]}))
    shutil.rmtree(context.results / ".cells")
    anew = Counted()
    reproduce([anew], PRESETS["quick"], context, None, no_bar)
    assert len(anew.computed) == len(context.records("squares")) == PRESETS["quick"].runs
    assert "--preset quick" in (context.results / "squares.md").read_text()


def test_processes_side_by_side_compute_the_same_cells(context, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "squares", Squares())
    failures = reproduce([Squares()], TINY, context, None, no_bar, jobs=2)
    assert failures == {"squares": 1}
    assert [r.get("figures", {}).get("square") for r in context.records("squares")] == [0, 1, 4, None, 16]
    late = Squares()
    reproduce([late], TINY, context, None, no_bar, jobs=2)
    assert late.computed == []


def test_the_number_of_runs_is_of_the_method_and_the_world():
    preset = Preset(
        "x", runs=9, costly=5, latent=4, slow=2, slow_boxes=7, grid=3, slow_grid=1, trajectories=1,
        tuning=8, slow_tuning=6,
    )  # fmt: skip
    asked = ["rope/cko", "soft/cko", "soft/vae", "rope/graph_ode", "swim/graph_ode", "grid/cko", "grid/graph_ode"]
    assert [preset.count(*which.split("/")) for which in asked] == [9, 5, 4, 2, 7, 3, 1]
    assert [preset.tuned_on(name) for name in ("cko", "pcc", "graph_ode")] == [8, 4, 6]


def test_time_that_is_up_leaves_the_runs_that_are_there(context, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "squares", Squares())
    reproduce([Squares()], TINY, context, CellPart.of("1/2"), no_bar)
    late = Squares()
    reproduce([late], TINY, context, None, no_bar, minutes=-1.0)
    assert late.computed == []
    assert [r["seed"] for r in context.records("squares")] == [0, 2, 4]


def test_half_a_file_is_no_cell(tmp_path):
    store, cell = Store(tmp_path), Cell("x", {}, 0)
    store.keep(cell, compute(cell, lambda c: {"value": 1.0}))
    assert store.find(cell)["figures"] == {"value": 1.0}
    store.path(cell).write_text('{"figures": ')
    assert store.find(cell) is None


class RopePrediction(PredictedSteps):
    def rows(self, context):
        return [s for s in super().rows(context) if s["world"] == "rope" and s["noise"] == 0]


def test_a_small_experiment_from_model_to_page(context):
    """Only the package's own models are there; the others are left out with a sentence."""
    failures = reproduce([RopePrediction()], TINY, context, None, no_bar)
    assert failures == {"prediction": 0}
    runs = {run["settings"]["method"]: run["figures"] for run in context.records("prediction")}
    assert list(runs) == ["ours_shipped", "published"]
    assert 0 < runs["ours_shipped"]["step_1"] < runs["ours_shipped"]["mean"] < 0.5
    assert any("rope/cko has no trained model" in sentence for sentence in context.skipped)
    for name in ("prediction.md", "prediction.csv", "prediction_rope_clean.svg", "README.md"):
        assert (context.results / name).stat().st_size > 0


def test_a_report_is_made_of_json_alone(context):
    rng = np.random.default_rng(0)
    runs = [
        {
            "settings": {"world": "rope", "split": "in-distribution", "method": name, "action_cost": 0.01},
            "seed": seed,
            "key": "",
            "figures": {
                "control_error": error + 0.01 * rng.random(), "control_error_positions": 0.1, "feature_cost": 1.0,
                "control_error_over_nothing": 0.2, "nothing": 1.0, "cost": 100 * error, "status": "solved",
            },
        }
        for name, error in (("published", 0.1), ("cko", 0.3))
        for seed in range(8)
    ]  # fmt: skip
    runs[-1] = {"settings": runs[-1]["settings"], "seed": 7, "key": "", "failure": "LinAlgError: singular"}
    write_runs(EXPERIMENTS["main"], runs, "quick", context)
    assert report(context) == ["main"]
    page = (context.results / "main.md").read_text()
    assert "n 7, 1 failed" in page and "singular" in page
    first = claims(context)[0]
    assert first.verdict == "reproduced" and "n 7" in first.test
    assert len((context.results / "main.csv").read_text().splitlines()) == 17
