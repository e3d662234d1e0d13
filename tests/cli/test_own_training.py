"""Own data by the general method, from the command line."""

import json
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

import gce
from gce.cli import main
from general import pendulums


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("general")
    pendulums().save(folder / "own.h5")
    main(["train", "own", "--data", f"{folder}/own.h5", "--out", f"{folder}/model", "--iterations", "8"])
    return folder


def test_own_data_are_trained_by_the_general_method(place):
    about = json.loads((place / "model" / "model.json").read_text())
    assert about["method"] == about["about"]["method"] == "general"


def test_predict_adapt_and_control(place, capsys):
    model = ["--model", f"{place}/model"]
    main(["predict", f"{place}/own.h5", "--adapt", "3", *model, "--json"])
    assert json.loads(capsys.readouterr().out)["nrmse"]["mean"] > 0
    main(["adapt", f"{place}/own.h5", "--episodes", "3", *model, "--out", f"{place}/adapted"])
    for source in ([f"{place}/own.h5", "--adapt", "3", *model], [f"{place}/adapted", "--start", f"{place}/own.h5"]):
        out = place / f"plan{len(source)}"
        main(["control", *source, "--episode", "4", "--goal-step", "10", "--out", str(out), "--json"])
        answer = json.loads(capsys.readouterr().out)
        assert answer["predicted_cost"] >= 0 and (out / "plan.csv").is_file()
        main(["report", str(out)])


def test_minutes_end_a_training(place, tmp_path):
    start = time.process_time()
    main(["train", "own", "--data", f"{place}/own.h5", "--out", f"{tmp_path}/timed", "--minutes", "0.05"])
    assert time.process_time() - start < 60
    assert gce.load_model(tmp_path / "timed").method == "general"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_is_stopped_leaves_its_best_model(place, tmp_path, number):
    command = ["train", "own", "--data", f"{place}/own.h5", "--out", f"{tmp_path}/stopped", "--minutes", "5"]
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests in the background inherit deafness
    with subprocess.Popen(
        [sys.executable, "-m", "gce", *command], stderr=subprocess.PIPE, text=True, preexec_fn=listening
    ) as process:
        for line in process.stderr:
            if "validation" in line:
                break
        process.send_signal(number)
        process.communicate(timeout=60)
    data = pendulums()
    system = gce.adapt(gce.load_model(tmp_path / "stopped"), [data[0], data[1]])
    assert np.isfinite(system.predict(data[2].observations[0], data[2].actions)).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--decoder", "message_passing"], "--method structured"),
        (["--form", "hom"], "--method structured"),
        (["--minutes", "1", "--iterations", "5"], "give one of them"),
        (["--minutes", "-1"], "above zero"),
        (["--maps", "one"], "--method published"),
    ],
)
def test_what_does_not_go_together_is_refused(place, tmp_path, capsys, options, said):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "own", "--data", f"{place}/own.h5", "--out", f"{tmp_path}/x", *options])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
