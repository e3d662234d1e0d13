"""Runs kept under other keys: carried where a sample computed again has the same figures, and left where it has not."""

import json
from dataclasses import replace

import pytest

from gce.cli import main
from gce.reproduce.carry import RunGroup, carry, compare
from gce.reproduce.experiment import QUICK, Cell, Context, Experiment, Store, compute
from gce.reproduce.runner import write_runs

FOUR = replace(QUICK, trajectories=4)


class Powers(Experiment):
    """Powers of a number by two methods; 2 fails."""

    name, about = "powers", "powers of numbers"

    def __init__(self, version=1, factor=1.0, methods=("square", "cube")):
        self.version, self.factor, self.methods, self.computed = version, factor, methods, []

    def cells(self, preset, context):
        if not self.methods:
            context.leave_out("there is no method")
        return [
            Cell(self.name, {"method": method, "world": "rope"}, seed, self.version)
            for seed in range(preset.trajectories)
            for method in self.methods
        ]

    def run(self, cell, context):
        method, seed = cell.settings["method"], cell.seed
        self.computed.append((method, seed))
        if seed == 2:
            raise ValueError(f"two is refused, {method}")
        power = {"square": 2, "cube": 3}[method]
        figures = {"power": float(seed + 3) ** power, "wall_seconds": len(self.computed), "status": "solved"}
        return {**figures, "power": figures["power"] * (self.factor if method == "cube" else 1.0)}

    def report(self, records, folder):
        return ""


@pytest.fixture
def context(tmp_path):
    """With four runs of each method, of the first version; the second of each was the quickest."""
    context = Context(tmp_path / "models", tmp_path / "results", skipped=["as it was"])
    first = Powers()
    records = [compute(cell, lambda cell: first.run(cell, context)) for cell in first.cells(FOUR, context)]
    write_runs(first, [{**r, "cpu_seconds": abs(r["seed"] - 1)} for r in records], "evening", context)
    return context


def keys(context):
    return [record["key"] for record in context.records("powers")]


def test_runs_whose_sample_agrees_are_carried_and_nothing_else_changes(context):
    said, file = [], context.results / "powers.json"
    before, old, again = file.read_text(), keys(context), Powers(version=2)
    assert carry([again], context, say=said.append) == []
    assert again.computed == [("square", 1), ("cube", 1)]
    present = {(c.settings["method"], c.seed): c.key for c in again.cells(FOUR, context)}
    assert keys(context) == [present[r["settings"]["method"], r["seed"]] for r in context.records("powers")]
    after = before
    for one, other in zip(old, keys(context), strict=True):
        after = after.replace(one, other)
    assert file.read_text() == after and "as it was" in after
    assert "powers rope square: 4 runs carried" in said[0]
    (square, cube) = json.loads((context.results / "carried.json").read_text())
    assert (square["method"], cube["runs"], cube["agreed"]) == ("square", 4, True)
    assert square["sampled"][0]["seed"] == 1 and square["sampled"][0]["difference"] == 0.0
    assert "| powers | rope | cube | 4 | 1 | 0 |" in (context.results / "carried.md").read_text()
    # Given again, there is nothing to do.
    files = {file: file.stat().st_mtime_ns for file in context.results.iterdir()}
    assert carry([Powers(version=2)], context, say=said.append) == []
    assert said[-1].startswith("nothing to carry")
    assert files == {file: file.stat().st_mtime_ns for file in context.results.iterdir()}


def test_a_group_that_differs_is_left(context):
    said, old = [], keys(context)
    assert carry([Powers(version=2, factor=1 + 1e-4)], context, say=said.append) == ["powers rope cube"]
    assert [new == before for new, before in zip(keys(context), old, strict=True)] == [False, True] * 4
    assert "4 runs left" in said[1] and "(power, seed 1)" in said[1]
    assert [one["agreed"] for one in json.loads((context.results / "carried.json").read_text())] == [True, False]
    # Mended, it is carried, and what was said of it is replaced.
    assert carry([Powers(version=2, factor=1 + 1e-6)], context, say=said.append) == []
    compared = json.loads((context.results / "carried.json").read_text())
    assert [one["agreed"] for one in compared] == [True, True]
    assert compared[1]["sampled"][0]["difference"] == pytest.approx(1e-6, rel=0.01)


def test_a_computed_cell_of_another_version_is_not_what_is_compared(context):
    store, old = Store(context.results / ".cells"), Powers().cells(FOUR, context)[2]
    store.keep(old, {**compute(old, lambda cell: {"power": 64.0}), "cpu_seconds": 0.0})
    again = Powers(version=2)
    assert store.find(next(c for c in again.cells(FOUR, context) if c.seed == 1)) is None
    assert carry([again], context, say=lambda told: None) == []
    assert ("square", 1) in again.computed


def test_a_sample_is_the_quickest_and_others_of_the_whole_list(context):
    again = Powers(version=2)
    assert carry([again], context, sample=3, say=lambda told: None) == []
    assert [seed for method, seed in again.computed if method == "cube"] == [1, 0, 3]
    records = [{"failure": "", "cpu_seconds": 0.0}, {"cpu_seconds": 2.0}, {"cpu_seconds": 1.0}]
    runs = [(record, Cell("powers", {}, seed)) for seed, record in enumerate(records)]
    group = RunGroup(Powers(), None, None, runs)
    assert group.sample(1) == [runs[2]] and group.sample(9) == [runs[2], runs[0], runs[1]]


def test_time_that_is_up_and_runs_of_no_cell_are_told(context):
    said, old = [], keys(context)
    carry([Powers(version=2)], context, minutes=-1.0, say=said.append)
    assert "time is up: 2 of 2 groups are left" in said[-1] and keys(context) == old
    carry([Powers(version=2, methods=())], context, say=said.append)
    assert "powers: 8 runs are of no present cell and are left; there is no method" in said[-2]
    assert keys(context) == old and not (context.results / "carried.json").exists()


@pytest.mark.parametrize(
    "before, after, figure, difference",
    [
        ({"a": 1.0, "b": 200.0}, {"a": 1.0, "b": 200.001}, "b", 5e-6),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]}, "a", 5e-4),
        ({"a": float("nan"), "b": None}, {"a": float("nan"), "b": None}, "a", 0.0),
        ({"a": 0.0, "plan_seconds": 1.0}, {"a": 0.0, "plan_seconds": 2.0}, "a", 0.0),
    ],
)
def test_figures_that_agree(before, after, figure, difference):
    told = compare({"figures": before}, {"figures": after}, 1e-5)
    assert told == (figure, pytest.approx(difference, rel=1e-3), True)


@pytest.mark.parametrize(
    "before, after, figure",
    [
        ({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0001}, "b"),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, "b"),
        ({"a": 1.0}, {"a": 1.0, "b": 1.0}, "b"),
        ({"a": 1.0, "status": "solved"}, {"a": 1.0, "status": "infeasible"}, "status"),
        ({"a": [1.0, 2.0]}, {"a": [1.0]}, "a"),
        ({"a": float("inf")}, {"a": 1.0}, "a"),
        ({"a": 1.0, "trained_minutes": 15.0}, {"a": 1.0, "trained_minutes": 15.000001}, "trained_minutes"),
        ({"seconds": 1.0}, {"seconds": 1.0}, "none to compare"),
    ],
)
def test_figures_that_differ(before, after, figure):
    assert compare({"figures": before}, {"figures": after}, 1e-5)[::2] == (figure, False)


def test_a_failure_agrees_with_the_same_failure():
    failed = {"failure": "ValueError: singular"}
    assert compare(failed, failed, 1e-5) == ("failure", 0.0, True)
    assert not compare(failed, {"failure": "ValueError: other"}, 1e-5)[2]
    assert not compare(failed, {"figures": {"a": 1.0}}, 1e-5)[2]


def test_the_command_ends_with_status_2_where_figures_differ(context, monkeypatch, capsys):
    monkeypatch.setattr("gce.reproduce.runner.EXPERIMENTS", {"powers": Powers(version=2, factor=2.0)})
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "carry", "--results", str(context.results)])
    told = capsys.readouterr().err
    assert stop.value.code == 2 and "powers rope cube: figures differ" in told and "4 runs carried" in told
    with pytest.raises(SystemExit):
        main(["reproduce", "carry", "--results", str(context.results), "--sample", "0"])
    assert "--sample is 0" in capsys.readouterr().err
