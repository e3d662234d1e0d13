"""The tables' models: trained for a time, not twice, and from where another one ended."""

import json
from dataclasses import replace

import pytest
from safetensors import safe_open

from gce.baselines import load
from gce.baselines.folder import about
from gce.baselines.trainable import Draw
from gce.envs import Rope
from gce.errors import InputError
from gce.reproduce import recipes, train
from gce.reproduce.recipes import ModelRecipe
from gce.reproduce.train import TrainModels
from gce.training.loop import Training

TINY = {"features": 4, "node_width": 8, "edge_width": 4}
QUICK = {"horizons": (2, 3), "draw": Draw(systems=2, windows=2, fit_episodes=2, fit_steps=4)}


@pytest.fixture
def queue(monkeypatch, tmp_path):
    """A queue of small models on a small recording."""
    small = {"episodes": 90, "objects": (3, 4), "group_size": 3, "steps": 6}
    first = ModelRecipe("rope", "first", "cko", TINY, QUICK, minutes=0.02, validation_systems=1)
    more = ModelRecipe("rope", "more", "cko", TINY, QUICK, minutes=0.01, validation_systems=1, start="first")
    monkeypatch.setattr(Rope, "recipe", replace(Rope.recipe, recording=small))
    for module in (train, recipes):
        monkeypatch.setattr(module, "RECIPES", (ModelRecipe("rope", "kpm", "kpm"), first, more))
    return TrainModels(tmp_path / "data", tmp_path / "models", tmp_path / "work")


def test_the_queue_trains_what_is_missing_for_its_time(queue, capsys):
    queue.run()
    found = {name: about(queue.out / "rope" / name) for name in ("kpm", "first", "more")}
    assert found["kpm"]["iterations"] == 0
    assert found["first"]["cpu_minutes_asked"] == 0.02
    assert found["first"]["iterations"] >= 2
    # What goes on from a model has that one's time and iterations too.
    assert found["more"]["cpu_minutes_asked"] == pytest.approx(0.03)
    assert found["more"]["iterations"] >= 2 + found["first"]["iterations"]
    assert found["more"]["cpu_seconds"] >= found["first"]["cpu_seconds"]
    assert not any((queue.work / "rope").iterdir())
    before = {file: file.stat().st_mtime_ns for file in queue.out.rglob("*.safetensors")}
    capsys.readouterr()
    queue.run()
    assert {file: file.stat().st_mtime_ns for file in queue.out.rglob("*.safetensors")} == before
    assert capsys.readouterr().err == ""


def test_a_stopped_training_goes_on(queue, monkeypatch):
    queue.only = ("rope/first",)
    whole = Training.save

    def stopped(training):
        whole(training)
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        queue.run()
    (checkpoint,) = queue.work.rglob("checkpoint.safetensors")
    with safe_open(checkpoint, "pt") as opened:
        note = json.loads(opened.metadata()["note"])
    assert note["spent"] > 0
    monkeypatch.setattr(Training, "save", whole)
    queue.run()
    found = about(queue.out / "rope" / "first")
    assert found["iterations"] > note["iteration"] and 1 <= found["cpu_seconds"] < 10
    assert load(queue.out / "rope" / "first").name == "cko"


def test_a_model_without_a_recipe_is_refused(queue):
    queue.only = ("rope/nosuch",)
    with pytest.raises(InputError, match="rope/kpm, rope/first, rope/more"):
        queue.run()
    queue.only, queue.minutes = (), 0.0
    with pytest.raises(InputError, match="--minutes is 0.0"):
        queue.run()
