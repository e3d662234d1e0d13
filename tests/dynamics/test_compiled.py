"""Compiled kernels: the same numbers as numpy's, compiled once, and never from old code."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from gce.cli import main
from gce.dynamics import (
    compiled,
    general_compiled,
    general_slopes_compiled,
    general_weights,
    message,
    message_compiled,
    message_slopes_compiled,
)
from gce.dynamics.state import state_dynamics
from gce.errors import Doubt
from gce.system.system import adapt
from gce.training.preparation import config_for, prepare
from general import TINY_GENERAL, pendulums, trained
from small import system_episodes, untrained

pytest.importorskip("numba")


def both(system, controls, run, monkeypatch):
    """What `run` makes of dynamics, compiled and not."""
    found = []
    for weights in (message.parts_of(system).compiled, None):
        monkeypatch.setitem(message._known, system, dataclasses.replace(message.parts_of(system), compiled=weights))
        found.append(run(state_dynamics(system, controls, opening=True)))
    return found


MODELS = {
    "rope": ("rope", {"conservative": True}),
    "sums": ("rope", {"conservative": False}),
    "history": ("rope", {"history": 2, "previous_action": True}),
    "uniform": ("rope", {"potential": "constant"}),
    "grid": ("grid", {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_kernels_give_the_numbers_of_numpy(name, monkeypatch):
    world, overrides = MODELS[name]
    system = adapt(untrained(world, **overrides), system_episodes(world), measure=False)
    assert message.MessageDynamics.fits(system)
    controls = np.ones((system.graph.num_nodes, 1), bool)
    u = 0.3 * np.random.default_rng(0).normal(size=(2, 3, len(controls)))

    def run(dynamics):
        assert isinstance(dynamics, message.MessageDynamics)
        x0 = dynamics.reduced(system.state(system_episodes(world)[0].observations[0].astype(float), True))
        x = dynamics.rollout(x0, u)
        path = dynamics.path(x0, x[0], u[0])
        return x, path.A, path.B

    for fast, slow in zip(*both(system, controls, run, monkeypatch), strict=True):
        assert np.abs(fast - slow).max() <= 1e-5 * np.abs(slow).max()
        assert np.abs(slow).max() > 0


GENERAL = {
    "trained": {},
    "history": {"history": 2},
    "late": {"previous_action": True, "late_action": True},
    "rounds alone": {"channels": 0, "rounds": 3},
}


@pytest.mark.parametrize("name", GENERAL)
def test_kernels_of_the_general_method_give_the_numbers_of_torch(name, monkeypatch):
    data = pendulums()
    model = trained().model if name == "trained" else None
    if model is None:
        model = prepare(config_for(data, kind="general", **{**TINY_GENERAL, **GENERAL[name]}), data).eval()
    system = adapt(model, [data[6], data[7]], measure=False)
    system = dataclasses.replace(system, dense=None if name == "late" else 0.1 * dense_of(system))
    controls, found = np.ones((system.graph.num_nodes, 1), bool), []
    u = np.random.default_rng(0).normal(size=(2, 10, len(controls)))
    for parts in (general_weights.parts_of(system), None):
        monkeypatch.setitem(general_weights._known, system, parts)
        dynamics = state_dynamics(system, controls, opening=True)
        x0 = dynamics.reduced(system.state(data[6].observations[0].astype(float), True))
        x = dynamics.rollout(x0, u)
        path = dynamics.path(x0, x[0], u[0])
        found.append((x, path.A, path.B))
    for fast, slow in zip(*found, strict=True):
        assert np.abs(fast - slow).max() <= 1e-5 * np.abs(slow).max()
        assert np.abs(slow).max() > 0
    assert [len(k.signatures) for k in (general_compiled.rollout, general_slopes_compiled.slopes)] == [1, 1]


def dense_of(system):
    """Any numbers in the place of the dense part."""
    sums = system.evidence.sums
    return torch.as_tensor(np.random.default_rng(1).normal(size=sums.ZY.shape), dtype=torch.float32)


def test_new_sizes_and_horizons_do_not_compile_again(monkeypatch):
    before = []
    for world in ("rope", "grid"):
        system = adapt(untrained(world), system_episodes(world), measure=False)
        dynamics = state_dynamics(system, np.ones((system.graph.num_nodes, 1), bool))
        x0 = np.zeros(system.graph.num_nodes * system.model.config.num_state)
        for M in (3, 5):
            u = np.zeros((M, system.graph.num_nodes))
            dynamics.path(x0, dynamics.rollout(x0, u), u)
        before.append([len(k.signatures) for k in (message_compiled.rollout, message_slopes_compiled.slopes)])
    assert before[0] == before[1] == [1, 1]


def test_what_was_compiled_is_kept_under_the_text_of_all_kernels(tmp_path):
    for name in ("compiled.py", "some_compiled.py"):
        (tmp_path / name).write_text((compiled.Path(compiled.__file__)).read_text() if name == "compiled.py" else "")
    (tmp_path / "helper_compiled.py").write_text("from compiled import kernel\n\n@kernel\ndef one():\n    return 1\n")
    user = "from compiled import kernel\nfrom helper_compiled import one\n\n@kernel\ndef two():\n    return one() + 1\n"
    (tmp_path / "some_compiled.py").write_text(user)

    def said():
        code = "from some_compiled import two; from compiled import compiled_before as b; print(b(two), two(), b(two))"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.split()

    assert said() == ["False", "2", "True"] and said() == ["True", "2", "True"]
    helper = tmp_path / "helper_compiled.py"
    helper.write_text(helper.read_text().replace("return 1", "return 5"))
    assert said() == ["False", "6", "True"]


def test_without_numba_numpy_does_and_it_is_said_once(monkeypatch):
    code = (
        "import sys; sys.modules['numba'] = None; import importlib.util as u; f = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'numba' else f(name, *a)\n"
        "from gce.dynamics import compiled, message_compiled\nimport numpy as np, warnings\n"
        "warnings.simplefilter('always'); print(message_compiled.tanh_(np.float32(0.5)))\n"
        "compiled.say_missing(); compiled.say_missing()"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(told.stdout) == pytest.approx(np.tanh(0.5), abs=1e-6)
    assert told.stderr.count("numba is not installed") == 1 and "pip install -e '.[fast]'" in told.stderr
    assert issubclass(Doubt, UserWarning)


def test_the_quick_tanh():
    x = np.linspace(-12, 12, 4001).astype(np.float32)
    assert max(abs(float(message_compiled.tanh_(v)) - np.tanh(float(v))) for v in x) < 1e-6


def test_gce_warm_compiles_ahead(capsys, monkeypatch):
    main(["warm"])
    assert "kernels of message_slopes: ready after" in capsys.readouterr().out
    assert all(compiled.compiled_before(k) for k in (message_compiled.rollout, message_slopes_compiled.slopes))
    kernels = (message_compiled.rollout, message_slopes_compiled.slopes)
    assert all(len(k.signatures) == 1 for k in (*kernels, general_compiled.rollout, general_slopes_compiled.slopes))
    monkeypatch.setattr(compiled, "available", lambda: False)
    with pytest.raises(SystemExit):
        main(["warm"])
    assert "pip install -e '.[fast]'" in capsys.readouterr().err
