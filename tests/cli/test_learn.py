"""Training, adapting and predicting on the command line, as a person uses it."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from gce import __version__
from gce.cli import main
from gce.model.files import about_model, load_model
from gce.system.files import load_system
from gce.training import learning
from gce.trajectory import Dataset
from small import TINY, recorded


@pytest.fixture(autouse=True)
def few_samples_are_fine():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the ridge decides")
        yield


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "rope.h5"
    recorded("rope").save(file)
    return file


def train(rope, out, *more):
    small = ["--features", "4", "--iterations", "2", "--horizon", "2", "--validation", "0.34"]
    main(["train", "rope", "--data", str(rope), "--out", str(out), *small, *more])


@pytest.fixture(scope="module")
def model(rope, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(rope, folder)
    return folder


def predict(rope, model, capsys, *more) -> dict:
    main(["predict", str(rope), "--model", str(model), "--adapt", "3", "--json", *more])
    return json.loads(capsys.readouterr().out)


def test_training_writes_a_model_with_its_origin(model):
    about = about_model(model)
    assert {"command", "data", "seed", "version", "validation_nrmse"} <= about.keys()
    assert about["references"].keys() == {"persistence", "dmdc"}
    assert all(0 < error < 100 for error in about["references"].values())
    assert about["version"] == __version__
    assert load_model(model).config.features.num_features == 4
    assert (model / "log.jsonl").is_file()


def test_training_again_gives_the_same_model(rope, model, tmp_path):
    train(rope, tmp_path / "again")
    first, second = load_model(model).state_dict(), load_model(tmp_path / "again").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_training_a_finished_model_leaves_it(rope, model):
    before = load_model(model).state_dict()
    train(rope, model)
    after = load_model(model).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_predict_prints_json_alone(rope, model):
    arguments = ["predict", str(rope), "--episode", "1", "--adapt", "2", "--model", str(model), "--json"]
    done = subprocess.run([sys.executable, "-m", "gce", *arguments], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    old = {"nrmse", "coverage_90", "weights", "episode", "adapt", "noise", "seed", "version"}
    assert answer.keys() == {*old, "references", "warnings"}
    assert answer["references"].keys() == {"persistence", "dmdc"}
    assert all(beside.keys() == answer["nrmse"].keys() for beside in answer["references"].values())
    assert answer["nrmse"].keys() == {"1", "10", "50", "100", "mean"}
    # The episodes have 20 steps.
    assert all(value >= 0 for step, value in answer["nrmse"].items() if step in ("1", "10", "mean"))
    assert answer["nrmse"]["50"] is answer["nrmse"]["100"] is None
    assert 0 <= answer["coverage_90"] <= 1
    assert (answer["episode"], answer["adapt"], answer["noise"]) == (1, [2, 3], 0)


def test_predict_without_json_prints_a_table(rope, model, capsys):
    main(["predict", str(rope), "--model", str(model), "--adapt", "3"])
    printed = capsys.readouterr().out
    assert "NRMSE at step 10: " in printed
    assert "NRMSE at step 50: the episode is shorter" in printed


@pytest.mark.parametrize("form", ["hom", "dense"])
def test_other_forms_predict_too(rope, model, capsys, form):
    answer = predict(rope, model, capsys, "--form", form)
    assert np.isfinite(answer["nrmse"]["1"])


def test_linear_predictions_agree_for_one_step_and_then_differ(rope, model, capsys):
    linear, anew = predict(rope, model, capsys, "--linear"), predict(rope, model, capsys)
    assert linear["nrmse"]["1"] == pytest.approx(anew["nrmse"]["1"])
    assert linear["nrmse"]["10"] != anew["nrmse"]["10"]


def test_noise_repeats_with_its_seed_and_matters(rope, model, capsys):
    noisy = ["--noise", "0.05", "--seeds", "1"]
    first, again = predict(rope, model, capsys, *noisy), predict(rope, model, capsys, *noisy)
    assert first == again
    assert first["nrmse"] != predict(rope, model, capsys)["nrmse"]
    assert first["nrmse"] != predict(rope, model, capsys, *noisy, "--seed", "5")["nrmse"]


def test_plot_writes_a_picture(rope, model, capsys, tmp_path):
    predict(rope, model, capsys, "--plot", str(tmp_path / "x.png"))
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.size[0] > 1000


def test_adapt_writes_a_system_that_predicts(rope, model, tmp_path):
    main(["adapt", str(rope), "--out", str(tmp_path), "--group", "1", "--episodes", "2", "--model", str(model)])
    system = load_system(tmp_path)
    with Dataset.open(rope) as data:
        last = data[int(data.group(1).episodes[-1])]
    assert system.evidence.starts.count == 2
    assert np.isfinite(system.predict(last.observations[0].astype(float), last.actions[:3])).all()


def test_small_groups_are_used_whole_and_it_is_said(rope, model, tmp_path, capsys):
    main(["adapt", str(rope), "--out", str(tmp_path), "--model", str(model)])
    assert "adapted to 4 episodes of group 0, all it has (asked for 8)" in capsys.readouterr().err
    assert load_system(tmp_path).evidence.starts.count == 4
    main(["predict", str(rope), "--model", str(model), "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["adapt"] == [1, 2, 3]
    assert "adapted to 3 episodes, all there are (asked for 8)" in printed.err


BAD = {
    "no such episode": (["predict", "{rope}", "--episode", "99", "--model", "{model}"], "has the episodes 0 to 11"),
    "negative episode": (["predict", "{rope}", "--episode", "-1", "--model", "{model}"], "has the episodes 0 to 11"),
    "alone": (["predict", "{tmp}/alone.h5", "--model", "{model}"], "is the only one of its system; there is no other"),
    "no others": (["predict", "{rope}", "--adapt", "0", "--model", "{model}"], "--adapt is 0"),
    "no model": (["predict", "{rope}", "--model", "{tmp}/none"], "has no model.json"),
    "negative noise": (["predict", "{rope}", "--adapt", "3", "--noise", "-1", "--model", "{model}"], "--noise is -1"),
    "no seeds": (
        ["predict", "{rope}", "--adapt", "3", "--noise", "0.1", "--seeds", "0", "--model", "{model}"],
        "--seeds is 0",
    ),
    "odd picture": (
        ["predict", "{rope}", "--adapt", "3", "--model", "{model}", "--plot", "{tmp}/x.txt"],
        "must end in .png",
    ),
    "no folder for the picture": (
        ["predict", "{rope}", "--adapt", "3", "--model", "{model}", "--plot", "{tmp}/none/x.png"],
        "cannot write",
    ),
    "another world's data": (
        ["predict", "{grid}", "--model", "{model}"],
        "the model is of the world rope, the data of",
    ),
    "no data": (["predict", "{tmp}/none.h5", "--model", "{model}"], "is not a file"),
    "unknown form": (["predict", "{rope}", "--form", "sparse", "--model", "{model}"], "sparse"),
    "no such group": (["adapt", "{rope}", "--group", "7", "--out", "{tmp}/o", "--model", "{model}"], "has no group 7"),
    "adapt to none": (
        ["adapt", "{rope}", "--episodes", "0", "--out", "{tmp}/o", "--model", "{model}"],
        "--episodes is 0",
    ),
    "out is a file": (
        ["adapt", "{rope}", "--episodes", "2", "--out", "{tmp}/text", "--model", "{model}"],
        "cannot write",
    ),
    "no gpu": (["train", "rope", "--data", "{rope}", "--out", "{tmp}/o", "--device", "cuda"], "finds no GPU here"),
    "another world": (["train", "soft", "--data", "{rope}", "--out", "{tmp}/o"], "is of the world rope, not of soft"),
    "odd share": (["train", "rope", "--data", "{rope}", "--out", "{tmp}/o", "--validation", "1"], "--validation is 1"),
    "no horizon": (["train", "rope", "--data", "{rope}", "--out", "{tmp}/o", "--horizon", "0"], "--horizon is 0"),
    "no iterations": (
        ["train", "rope", "--data", "{rope}", "--out", "{tmp}/o", "--validation", "0.34", "--iterations", "0"],
        "--iterations is 0",
    ),
    "no features": (
        ["train", "rope", "--data", "{rope}", "--out", "{tmp}/o", "--validation", "0.34", "--features", "0"],
        "--features is 0",
    ),
    "no threads": (["train", "rope", "--data", "{rope}", "--out", "{tmp}/o", "--threads", "0"], "--threads is 0"),
    "odd bandwidth": (
        ["train", "rope", "--data", "{rope}", "--out", "{tmp}/o", "--validation", "0.34", "--bandwidth", "0"],
        "a positive number",
    ),
    "train into a file": (
        ["train", "rope", "--data", "{rope}", "--out", "{tmp}/text", "--validation", "0.34"],
        "cannot write",
    ),
    "another training": (
        ["train", "rope", "--data", "{rope}", "--out", "{model}", "--validation", "0.34", "--seed", "9"],
        "holds another training",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_a_sentence_and_status_2(case, rope, model, tmp_path, capsys):
    if case == "no gpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    if case == "another world's data":
        recorded("grid").save(tmp_path / "grid.h5")
    if case == "alone":
        recorded("rope").select([0]).save(tmp_path / "alone.h5")
    (tmp_path / "text").write_text("a")
    before = sorted(p.name for p in tmp_path.iterdir())
    arguments, message = BAD[case]
    if arguments[0] == "train" and "--iterations" not in arguments:
        arguments = [*arguments, "--iterations", "2"]
    names = {
        "tmp": tmp_path,
        "rope": rope,
        "model": model,
        "grid": tmp_path / "grid.h5",
        "alone": tmp_path / "alone.h5",
    }
    with pytest.raises(SystemExit) as stop:
        main([a.format(**names) for a in arguments])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert message in " ".join((printed.err + printed.out).split())
    assert "Traceback" not in printed.err
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_answers_are_json_where_numbers_are_not_finite(capsys):
    from gce.cli.common import told

    answer = {"nrmse": {"1": 0.5, "100": float("nan")}, "costs": [1.0, float("inf")], "status": "solved", "n": 3}
    assert json.loads(told(answer), parse_constant=pytest.fail) == {
        "nrmse": {"1": 0.5, "100": None}, "costs": [1.0, None], "status": "solved", "n": 3
    }  # fmt: skip


def test_training_from_python_shows_its_progress(rope, capsys):
    with Dataset.open(rope) as data:
        learning.train(data, iterations=2, horizon=4, model=TINY)
    assert "training: 2/2 iterations" in capsys.readouterr().err
