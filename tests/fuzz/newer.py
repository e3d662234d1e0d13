"""Families of what came later: hyperedges, actions on edges, environments and steps, recordings left half-way,
estimators, graphs of others, and models with every potential."""

import json
import warnings

import numpy as np

from fuzz import mutations as m
from fuzz.families import FAMILIES, NUMBERS, family, finite_or_doubted, gce, spoil_pair

__all__ = ["FAMILIES"]


class Odd:
    """An environment whose spaces, observations and answers are taken from lists of odd ones."""

    def __init__(self, rng) -> None:
        self.rng, self.usual = rng, rng.random() < 0.5
        self.action_space = self if rng.random() < 0.9 else m.pick(rng, NUMBERS)
        self.low, self.high = self._either(-np.ones(2)), self._either(np.ones(2))
        self.shape, self.dtype = (2,), np.dtype("f4")

    def _either(self, usual):
        return usual if self.usual or self.rng.random() < 0.7 else m.pick(self.rng, NUMBERS)

    def _seen(self):
        seen = self.rng.standard_normal(6)
        if self.usual or self.rng.random() < 0.5:
            return seen
        return m.pick(self.rng, [m.spoil_array(seen, self.rng), {"a": seen}, {"b": None, 1: seen}, None, "x", [seen]])

    def reset(self, seed=None):
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 0.0, self.rng.random() < 0.1, False, {}


def spoiled_mapping(rng):
    text = "observations = [[0, 1], [2, 3], [4, 5]]\nactions = [[0], [-1], [1]]\n"
    told = {"observations": [[0, 1], [2, 3], [4, 5]], "actions": [[0], [-1], [1]], "goal": [[0.0, 0], [1, 1], [2, 0]]}
    kind = int(rng.integers(4))
    if kind == 0:
        return text
    if kind == 1:
        return m.spoil_toml(text, rng)
    told = m.spoil_json(told, rng)
    if not isinstance(told, dict):
        return str(told)
    rows = [f"{json.dumps(str(name))} = {json.dumps(value)}" for name, value in told.items() if value is not None]
    return "\n".join(rows)


@family(2)
def environments(good, place, rng):
    """`gce control --env` with a spoiled mapping, or an environment that does odd things."""
    import sys
    import types

    file = place / "mapping.toml"
    file.write_text(spoiled_mapping(rng))
    if rng.random() < 0.1:
        m.spoil_bytes(file, rng)
    module = types.ModuleType("fuzzed_env")
    module.make = lambda: Odd(rng)
    asked = ["--env", "fuzzed_env:make", "--mapping", file, "--goal", good.folder / "goal.npy", "--horizon", 3]
    if rng.random() < 0.3:
        asked += [m.pick(rng, ["--steps", "--feedback", "--time-limit"]), m.pick(rng, ["0", "2", "-1", "nan", "x"])]

    def act():
        sys.modules["fuzzed_env"] = module
        gce("control", good.folder / "system", *asked, "--out", place / "ran")

    return act, False


@family(2)
def steps(good, place, rng):
    """`gce.run` with a step that answers oddly."""
    from gce import run
    from gce.control.problem import Problem
    from gce.planning.controller import Controller

    first, goal = good.graph_data[0][0][:2]
    odd = m.spoil_array(first, rng) if rng.random() < 0.6 else m.pick(rng, NUMBERS)
    more = m.spoil_array(np.zeros((3, 1)), rng) if rng.random() < 0.6 else m.pick(rng, NUMBERS)
    problem = Problem(3, goal, -np.ones((3, 1)), np.ones((3, 1)))
    kind, mode = int(rng.integers(6)), m.pick(rng, ["settled", "settled", "realtime"])

    def step(action):
        return [odd, (first, more), (odd, more), (first, more, 1), first, first][kind]

    given = {"steps": m.pick(rng, NUMBERS)} if kind == 4 else {"feedback": m.pick(rng, NUMBERS)} if kind == 5 else {}

    def use():
        controller = Controller(good.system, problem, mode=mode, iterations=2)
        return run(step, controller, odd if rng.random() < 0.2 else first, **given).actions

    return finite_or_doubted(use), False


@family(2)
def hyperedges(good, place, rng):
    """In tables, in files and in Python; and names, structures and actions of edges beside them."""
    from gce import Dataset

    kind = int(rng.integers(4))
    if kind == 0:
        folder = good.copy("tables", place)
        for file in (folder / "nodes.csv", folder / "edges.csv", *folder.glob("episodes/*.csv")):
            text = file.read_text()
            file.write_text(text + text.splitlines()[-1].replace("b", "c").replace("a,c", "a,c") + "\n")
        (folder / "nodes.csv").write_text("node,type,mass,actuated,low,high\na,p,1,1,-1,1\nb,p,2,0,,\nc,p,2,0,,\n")
        (folder / "edges.csv").write_text("sender,receiver,relation,stiffness\na,b,s,1\nb,a,s,2\nb,c,s,2\n")
        for k in range(2):
            rows = [f"{t},{n},{0.1 * t + k},{0.2 * t},{0.5 if n == 'a' else ''}" for t in range(4) for n in "abc"]
            (folder / "episodes" / f"{k}.csv").write_text("step,node,x,v,push\n" + "\n".join(rows) + "\n")
        text = "hyperedge,node,relation\nh,a,s\nh,b,s\nh,c,s\n"
        (folder / "hyperedges.csv").write_text(m.spoil_table(text, rng))
        word = ["check", folder] if rng.random() < 0.5 else ["import", folder, "--out", place / "out.h5"]
        return (lambda: gce("data", *word)), False
    observations, actions = good.graph_data
    given = {"hyperedges": [[0, 1, 2]], "hyperedge_type": [0], "edge_actions": [np.ones((8, 2, 1))] * 4}
    if kind == 1:
        given.pop("edge_actions")
        file = place / "hyper.h5"
        Dataset.from_arrays(observations, actions, [[0, 1], [1, 2]], **given).save(file)
        m.spoil_h5(file, rng)
        out = place / "out.h5"
        word = m.pick(rng, [["check", file], ["merge", file, "--out", out]])
        return (lambda: gce("data", *word)), False
    names = [*given, "edge_type", "node_type", "edge_attributes", "node_attributes", "exogenous", "node_names",
             "observation_names", "action_names", "structure", "groups", "undirected"]  # fmt: skip
    for _ in range(int(rng.integers(1, 3))):
        name = m.pick(rng, names)
        given[name] = m.pick(rng, [*NUMBERS, *m.ODD, m.spoil_array(np.ones((3, 2)), rng)])
    if kind == 3:
        given.pop("hyperedges", None)
        given.pop("hyperedge_type", None)

    def use():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = Dataset.from_arrays(observations, actions, [[0, 1], [1, 2]], **given)
            return np.stack([float(one.observations.sum()) for one in data])

    return finite_or_doubted(use), False


@family(2)
def half_way(good, place, rng):
    """What a recording that was stopped left, spoiled; the same command is given again."""
    from gce.trajectory import Dataset

    command = ["data", "rope", "--episodes", 4, "--group-size", 2, "--steps", 5, "--out", place / "x.h5"]
    gce(*command)
    parts = place / "x.h5.parts"
    parts.mkdir()
    note = parts / "recording.json"
    with Dataset.open(place / "x.h5") as data:
        note.write_text(json.dumps(data.metadata, sort_keys=True))
        right = float(data[0].observations.sum())
    stray = parts / m.pick(rng, ["groups-00000000-x.h5", ".x.1.tmp", "odd", "groups-00000000-" + 24 * "0" + ".h5"])
    stray.write_bytes((place / "x.h5").read_bytes())
    (place / "x.h5").unlink()
    m.spoil_bytes(m.pick(rng, [note, stray, stray]), rng)
    if rng.random() < 0.3:
        m.spoil_place(m.pick(rng, [note, stray]), rng)

    def again():
        gce(*command)
        with Dataset.open(place / "x.h5") as data:
            assert float(data[0].observations.sum()) == right, "another recording"

    return again, False


@family(2)
def estimators(good, place, rng):
    """Regressors in the manner of scikit-learn, and graphs of PyTorch Geometric where it is installed."""
    from gce.interop.estimator import Regressor

    observations, actions = good.graph_data
    odd = m.pick(rng, NUMBERS) if rng.random() < 0.5 else m.spoil_array(observations[0], rng)
    kind = int(rng.integers(6))

    def use():
        usual = Regressor(iterations=0, model=good.folder / "model")
        if kind == 0:
            usual.set_params(**{m.pick(rng, ["dt", "model", "ridge", "form", "potential", "seed"]): odd})
        X, u = list(observations), list(actions)
        if kind == 1:
            X[int(rng.integers(4))] = odd
        elif kind == 2:
            u[int(rng.integers(4))] = odd
        elif kind == 3:
            X = odd
        edges = odd if kind == 4 else [[0, 1], [1, 2]]
        fitted = usual.fit(X, u, edge_index=edges)
        return np.stack(fitted.predict([odd] if kind == 5 else observations[:1], actions[:1]))

    return finite_or_doubted(use), False


@family(2)
def potentials(good, place, rng):
    """Untrained models of every potential and form: the published method's, attention and the rest."""
    from gce.features import KINDS
    from gce.model.files import save_model
    from gce.potentials import POTENTIALS
    from gce.training.preparation import config_for, prepare
    from gce.trajectory import Dataset

    asked = {"potential": m.pick(rng, sorted(POTENTIALS)), "features": 3, "node_width": 6, "edge_width": 6, "rounds": 1}
    if "published" in KINDS and rng.random() < 0.5:
        asked["kind"] = "published"
    folder = place / "model"
    with Dataset.open(good.folder / "own.h5") as data:
        try:
            model = prepare(config_for(data, **asked), data).eval()
        except ValueError:  # some do not go together
            model = prepare(config_for(data, features=3, node_width=6, edge_width=6, rounds=1), data).eval()
        save_model(model, folder, {})
    only_bytes = spoil_pair(folder, "model", rng)
    file = good.folder / "own.h5"
    if rng.random() < 0.5:
        return (lambda: gce("predict", file, "--adapt", 2, "--json", "--model", folder)), only_bytes and False
    return (lambda: gce("adapt", file, "--model", folder, "--out", place / "out")), False


@family(1)
def plugins(good, place, rng):
    """Modules that register what breaks a contract, or do not import."""
    import os

    body = m.pick(rng, [
        "raise ValueError('x')", "import nothing_like_it", "def f(:", "raise SystemExit(3)", "\x00", "1/0",
        "from gce.potentials import *\nregister_potential(3)",
        "from gce.potentials import *\n@register_potential\nclass P(Potential):\n    pass",
        "from gce.potentials import *\n@register_potential\nclass P(Potential):\n    name = 'gaussian'",
        "from gce.control.solver import *\n@register_solver\nclass S(Solver):\n    name = 'x'\n"
        "    def solve(self, problem, start):\n        return None, 'odd'",
        "from gce.envs import *\nclass W:\n    world = 'w'",
    ])  # fmt: skip
    name = f"fuzzed_plugin_{int(rng.integers(10**9))}"
    (place / f"{name}.py").write_text(body)

    def use():
        os.chdir(place)
        gce("--plugin", name, "predict", good.folder / "rope.h5", "--model", good.folder / "rope", "--adapt", 1)

    return use, False
