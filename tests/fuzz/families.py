"""What is spoiled, and what is asked of it then. A family prepares one spoiled file or call in a folder of its own."""

import copy
import dataclasses
import json
import shutil
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load, save

from fuzz import mutations as m
from gce.errors import Doubt

FAMILIES = {}


def family(share):
    def known(prepare):
        FAMILIES[prepare.__name__] = (prepare, share)
        return prepare

    return known


def gce(*arguments):
    from gce.cli import main

    main([str(argument) for argument in arguments])


class Materials:
    """Good files of all kinds, made once; trials work on copies."""

    def __init__(self, folder: Path) -> None:
        from gce.envs.recording import Recording, record
        from gce.model.files import save_model, shipped
        from gce.system.files import save_system
        from gce.system.system import adapt
        from gce.training.batches import SystemData, TrainingConfig
        from gce.training.learning import equal_systems, split_for_training, training_of
        from gce.training.preparation import config_for, prepare
        from gce.trajectory import Dataset

        self.folder = folder
        record(Recording("rope", 9, (4, 5), 3, seed=5, steps=12), folder / "rope.h5")
        rng = np.random.default_rng(0)
        steps = [rng.standard_normal((9, 3, 2)).cumsum(0) for _ in range(4)]
        acts = [rng.standard_normal((8, 3, 1)) for _ in range(4)]
        Dataset.from_arrays(steps, acts, [[0, 1], [1, 2]], groups=[0, 0, 0, 0]).save(folder / "own.h5")
        with Dataset.open(folder / "own.h5") as data:
            own = prepare(config_for(data, features=3, node_width=6, edge_width=6, rounds=1), data).eval()
            save_model(own, folder / "model", {"note": "x"})
            system = adapt(own, list(data)[:3])
            from gce.cli.own_plan import own_about

            save_system(system, folder / "system", own_about(data, 0, [0, 1, 2]))
        shutil.copytree(shipped("rope"), folder / "rope")
        for k, name in ((0, "start"), (1, "goal")):
            values = steps[0][k]
            (folder / f"{name}.json").write_text(json.dumps(values.tolist()))
            np.save(folder / f"{name}.npy", values)
            rows = "".join(f"{node},{o[0]},{o[1]}\n" for node, o in enumerate(values))
            (folder / f"{name}.csv").write_text("node,observation_0,observation_1\n" + rows)
        (folder / "limits.toml").write_text("actuated = [0, 2]\naction_bounds = [-1, 1]\n")
        tables = folder / "tables"
        (tables / "episodes").mkdir(parents=True)
        (tables / "system.toml").write_text('dt = 0.1\nobservations = ["x", "v"]\nactions = ["push"]\n')
        (tables / "nodes.csv").write_text("node,type,mass,actuated,low,high\na,p,1,1,-1,1\nb,p,2,0,,\n")
        (tables / "edges.csv").write_text("sender,receiver,relation,stiffness\na,b,s,1\nb,a,s,2\n")
        for k in range(2):
            rows = [f"{t},{n},{0.1 * t + k},{0.2 * t},{0.5 if n == 'a' else ''}" for t in range(4) for n in "ab"]
            (tables / "episodes" / f"{k}.csv").write_text("step,node,x,v,push\n" + "\n".join(rows) + "\n")
        arrays = folder / "arrays"
        (arrays / "episodes").mkdir(parents=True)
        (arrays / "edges.csv").write_text("sender,receiver\n0,1\n1,2\n")
        np.savez(arrays / "episodes" / "0.npz", observations=steps[0], actions=acts[0])
        np.savez_compressed(arrays / "episodes" / "1.npz", observations=steps[1], actions=acts[1])
        with Dataset.open(folder / "rope.h5") as data:
            kept, rest = split_for_training(data, 0.3, 0)
            model = prepare(config_for(data, features=3, linear_features=1, node_width=6, edge_width=6), rest)
            systems = equal_systems(rest, 8, True, lambda episodes: SystemData(model, episodes))
        config = TrainingConfig(iterations=4, systems=2, fit_steps=4, horizons=(3,), validate_every=2)
        (folder / "training").mkdir()
        self.training = training_of(model, systems, kept, config, folder / "training")
        self.training.run(until=2)
        gce("control", folder / "system", "--start", folder / "start.npy", "--goal", folder / "goal.npy",
            "--horizon", 4, "--out", folder / "run")  # fmt: skip
        self.graph_data = (steps, acts)
        from gce import train
        from general import TINY_GENERAL, pendulums

        data = pendulums(3, 3, 12)
        data.save(folder / "general.h5")
        model = train(data, iterations=2, model=TINY_GENERAL, tell=lambda now: None).model
        save_model(model, folder / "general_model", {})
        episodes = [data[k] for k in range(3)]
        self.pendulums, self.general = episodes, adapt(model, episodes[:2])
        save_system(self.general, folder / "general_system", own_about(data, 0, [0, 1]))
        for name, k in (("start", 0), ("goal", 5)):
            np.save(folder / f"general_{name}.npy", episodes[2].observations[k])
        shutil.copytree(shipped("rope", "published"), folder / "published")
        for world, objects in (("soft", (2, 3)), ("swim", (2, 3)), ("grid", (5, 6)), ("flock", (4, 5))):
            record(Recording(world, 3, objects, 3, seed=6, steps=8), folder / f"{world}.h5")
            shutil.copytree(shipped(world, "published" if world == "flock" else None), folder / f"model_{world}")
        self.system = system

    def copy(self, name: str, to: Path) -> Path:
        source, place = self.folder / name, to / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place)
        return place


def asked_of_data(file, rng, others):
    """A command about a data set file."""
    kind, out = int(rng.integers(6)), file.with_name("out.h5")
    if kind <= 1:
        return lambda: gce("predict", file, "--adapt", 2, "--json", "--model", others / "rope")
    if kind == 2:
        return lambda: gce("data", "merge", file, "--out", out)
    if kind == 3:
        return lambda: gce("adapt", file, "--model", others / "rope", "--out", file.with_name("out"))
    if kind == 4:
        return lambda: gce("data", "check", file)

    def read():
        from gce.trajectory import Dataset

        with Dataset.open(file) as data:
            print(sum(float(episode.observations.sum()) for episode in data), data.metadata["dt"])

    return read


@family(4)
def data_bytes(good, place, rng):
    file = good.copy("rope.h5", place)
    m.spoil_bytes(file, rng)
    return asked_of_data(file, rng, good.folder), True


@family(6)
def data_structure(good, place, rng):
    file = good.copy("rope.h5", place)
    m.spoil_h5(file, rng)
    return asked_of_data(file, rng, good.folder), False


@family(1)
def data_bombs(good, place, rng):
    file = good.copy("rope.h5", place)
    m.bomb_h5(file, rng)
    return asked_of_data(file, rng, good.folder), False


def signed(folder, name):
    """Digests of what a folder now holds."""
    from gce.files import sha256
    from gce.model.files import DIGEST

    text = json.loads((folder / f"{name}.json").read_text())
    if isinstance(text, dict):
        digest = sha256((folder / f"{name}.safetensors").read_bytes())
        text[DIGEST] = {"tensors": digest}
        text[DIGEST]["text"] = sha256({**text, DIGEST: digest})
        (folder / f"{name}.json").write_text(json.dumps(text))


def spoil_pair(folder, name, rng):
    """Whether only bytes were changed."""
    text, tensors = folder / f"{name}.json", folder / f"{name}.safetensors"
    kind = int(rng.integers(6))
    if kind <= 1:
        m.spoil_bytes(m.pick(rng, [text, tensors]), rng)
        return True
    if kind <= 4:
        text.write_text(m.json_text(m.spoil_json(json.loads(text.read_text()), rng)))
    else:
        known = load(tensors.read_bytes())
        key = m.pick(rng, sorted(known))
        if rng.random() < 0.3:
            del known[key]
        else:
            values = m.spoil_array(known[key].numpy(), rng)
            known[key] = torch.zeros(3) if values.dtype.kind in "SU" else torch.as_tensor(values)
        tensors.write_bytes(save({k: v.contiguous() for k, v in known.items()}))
    if rng.random() < 0.8:
        with suppress(RecursionError, ValueError):
            signed(folder, name)
    return False


@family(4)
def model_folder(good, place, rng):
    folder = good.copy("rope", place)
    only_bytes = spoil_pair(folder, "model", rng)
    file = good.folder / "rope.h5"
    return lambda: gce("predict", file, "--adapt", 2, "--json", "--model", folder), only_bytes


@family(3)
def adapted_system(good, place, rng):
    folder = good.copy("system", place)
    only_bytes = spoil_pair(folder, m.pick(rng, ["system", "system", "model"]), rng)
    start, goal = good.folder / "start.npy", good.folder / "goal.npy"

    def plan():
        gce("control", folder, "--start", start, "--goal", goal, "--horizon", 3, "--out", place / "plan")
        print((place / "plan" / "plan.csv").read_text())

    return plan, only_bytes


@family(4)
def tables(good, place, rng):
    folder = good.copy("tables", place)
    file = m.pick(rng, sorted(f for f in folder.rglob("*") if f.is_file()))
    if rng.random() < 0.15:
        m.spoil_bytes(file, rng)
    elif file.suffix == ".toml":
        file.write_text(m.spoil_toml(file.read_text(), rng))
    else:
        file.write_text(m.spoil_table(file.read_text(), rng))
    if rng.random() < 0.5:
        return (lambda: gce("data", "check", folder)), False
    return (lambda: gce("data", "import", folder, "--out", place / "out.h5")), False


@family(3)
def archives(good, place, rng):
    folder = good.copy("arrays", place)
    file = m.pick(rng, sorted((folder / "episodes").iterdir()))
    kind = int(rng.integers(4))
    if kind == 0:
        m.spoil_bytes(file, rng)
    elif kind == 1:
        with np.load(file) as known:
            arrays = dict(known)
        name = m.pick(rng, sorted(arrays))
        arrays[name] = m.spoil_array(arrays[name], rng)
        np.savez_compressed(file, **arrays)
    else:
        shape = m.pick(rng, ["(9, 3, 2)", "(10000000000, 3, 2)", "(-1, 3, 2)", "(9, 3, 2", "(9,)", "()", "'x'"])
        descr = m.pick(rng, ["<f8", ">f8", "<f4", "|O", "<U5", "<c16", "x", "<M8[s]"])
        header = m.pick(rng, [f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}", "{", "1", "é"])
        raw = (header + " " * 200).encode("latin1")[:118] + b"\n"
        content = b"\x93NUMPY" + m.pick(rng, [b"\x01\x00", b"\x02\x00", b"\x09\x00"])
        content += len(raw).to_bytes(2, "little") + raw + bytes(int(m.pick(rng, [0, 8, 432, 10**7])))
        with zipfile.ZipFile(file, "w", m.pick(rng, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            archive.writestr("observations.npy", content)
            archive.writestr(m.pick(rng, ["actions.npy", "x", "../actions.npy"]), content)
    return (lambda: gce("data", "check", folder)), False


@family(3)
def asked_in_files(good, place, rng):
    """Goals, starts, limits and costs."""
    given = {}
    for name in ("start", "goal"):
        given[name] = good.copy(name + m.pick(rng, [".json", ".npy", ".csv"]), place)
    given["limits"] = good.copy("limits.toml", place)
    file = given[m.pick(rng, ["start", "goal", "goal", "limits"])]
    if rng.random() < 0.2:
        m.spoil_bytes(file, rng)
    elif file.suffix == ".json":
        file.write_text(m.json_text(m.spoil_json(json.loads(file.read_text()), rng)))
    elif file.suffix == ".npy":
        np.save(file, m.spoil_array(np.load(file), rng))
    elif file.suffix == ".csv":
        file.write_text(m.spoil_table(file.read_text(), rng))
    else:
        file.write_text(m.spoil_toml(file.read_text(), rng))
    more = ["--horizon", 3]
    if rng.random() < 0.2:
        more = [m.pick(rng, ["--horizon", "--goal-step", "--seed", "--action-cost", "--q1", "--q-terminal", "--q2"]),
                m.pick(rng, ["0", "-1", "3", "nan", "inf", "1e400", "x", "1,2", "", "0.5", "9" * 20])]  # fmt: skip
        more += ["--bounds", m.pick(rng, ["-1", "nan", "-inf"]), m.pick(rng, ["1", "inf", "nan", "-2"])]
    asked = [part for name, path in given.items() for part in (f"--{name}", path)]
    return (lambda: gce("control", good.folder / "system", *asked, *more, "--json")), False


@family(2)
def checkpoint(good, place, rng):
    folder = good.copy("training", place)
    file, kind = folder / "checkpoint.safetensors", int(rng.integers(3))
    if kind == 0:
        m.spoil_bytes(file, rng)
    else:
        from gce.files import sha256

        with safe_open(file, "pt") as opened:
            note = json.loads(opened.metadata()["note"])
        tensors = load(file.read_bytes())
        if kind == 1:
            note = m.spoil_json(note, rng)
        else:
            key = m.pick(rng, sorted(tensors))
            values = m.spoil_array(tensors[key].numpy(), rng)
            tensors[key] = torch.zeros(3) if values.dtype.kind in "SU" else torch.as_tensor(values.copy())
        tensors = {k: v.contiguous() for k, v in tensors.items()}
        if isinstance(note, dict) and rng.random() < 0.8:
            note.pop("sha256", None)
            note["sha256"] = sha256({**note, "tensors": sha256(save(tensors))})
        file.write_bytes(save(tensors, {"note": m.json_text(note)}))

    def resume():
        training = copy.deepcopy(good.training)
        training.folder = folder
        training.resume()
        print(training.iteration, float(sum(v.double().sum() for v in training.model.state_dict().values())))

    return resume, kind == 0


@family(2)
def kept_runs(good, place, rng):
    """Cells of an experiment, and its results."""
    from gce.reproduce.experiment import Cell, Store, records_in

    cell = Cell("x", {"world": "rope", "method": "ours"}, 3)
    record = {
        "settings": cell.settings,
        "seed": 3,
        "key": cell.key,
        "figures": {"a": 1.5, "b": [1.0]},
        "cpu_seconds": 1,
    }
    store, results = Store(place / ".cells"), place / "x.json"
    store.keep(cell, record)
    results.write_text(json.dumps({"preset": "quick", "left_out": [], "runs": [record]}))
    for file in (store.path(cell), results):
        if rng.random() < 0.4:
            m.spoil_bytes(file, rng)
        else:
            file.write_text(m.json_text(m.spoil_json(json.loads(file.read_text()), rng)))

    def use():
        found = store.find(cell)
        assert found is None or (found["key"], found["seed"]) == (cell.key, 3)
        assert found is None or "figures" in found or "failure" in found
        store.take([dataclasses.replace(cell, seed=4)], records_in(place, "x"))

    return use, False


@family(2)
def run_folder(good, place, rng):
    folder = good.copy("run", place)
    file = folder / m.pick(rng, ["control.json", "details.npz", "details.npz"])
    if rng.random() < 0.4:
        m.spoil_bytes(file, rng)
    elif file.suffix == ".json":
        file.write_text(m.json_text(m.spoil_json(json.loads(file.read_text()), rng)))
    else:
        with np.load(file) as known:
            arrays = dict(known)
        name = m.pick(rng, sorted(arrays))
        if name == "about":
            arrays[name] = np.array(m.json_text(m.spoil_json(json.loads(str(arrays[name])), rng)))
        else:
            arrays[name] = m.spoil_array(arrays[name], rng)
        np.savez_compressed(file, **arrays)
    return (lambda: gce("report", folder, "--out", place / "page.html")), False


def finite_or_doubted(call):
    """What comes back is finite, or a warning says that it is not to be trusted."""

    def use():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = call()
        doubted = any(issubclass(one.category, Doubt) for one in told)
        if isinstance(found, np.ndarray) and not np.isfinite(found).all() and not doubted:
            raise AssertionError("what came back is not finite")

    return use


NUMBERS = [
    None, 0, -1, 3, 1e-3, 1e308, np.nan, np.inf, -np.inf, 1j, "x", "3", [], [1.0], True, 2**70, np.float32(1),
    np.array([1.0, np.nan]), np.array(["a"]), np.zeros((2, 2)), np.array([1j]), {}, object(), 10**400,
]  # fmt: skip


@family(0.6)
def data_of_others(good, place, rng):
    """Written by another program, and then damaged."""
    file = good.copy("rope.h5", place)
    m.as_others_write(file)
    m.spoil_bytes(file, rng)
    return asked_of_data(file, rng, good.folder), True


@family(2)
def data_twice(good, place, rng):
    """Several changes, with checksums that fit."""
    file = good.copy(m.pick(rng, ["rope.h5", "own.h5", "soft.h5", "grid.h5"]), place)
    for _ in range(int(rng.integers(2, 5))):
        with suppress(Exception):
            m.spoil_h5(file, rng)
    if file.name == "rope.h5":
        return asked_of_data(file, rng, good.folder), False
    word = m.pick(rng, ["check", "replay"])
    return (lambda: gce("data", word, file)), False


@family(2)
def worlds(good, place, rng):
    """Data sets and models of other worlds, and of the published method."""
    world = m.pick(rng, ["soft", "swim", "grid", "flock", "rope"])
    data, model = ("rope.h5", "published") if world == "rope" else (f"{world}.h5", f"model_{world}")
    file, folder, only_bytes = good.folder / data, good.folder / model, False
    if rng.random() < 0.5:
        file = good.copy(data, place)
        if rng.random() < 0.3:
            m.spoil_bytes(file, rng)
        else:
            m.spoil_h5(file, rng)
    else:
        folder = good.copy(model, place)
        spoil_pair(folder, "model", rng)
    kind = int(rng.integers(3))
    if kind == 0:
        return (lambda: gce("predict", file, "--adapt", 1, "--json", "--model", folder)), only_bytes
    if kind == 1:
        return (lambda: gce("data", "replay", file)), only_bytes
    return (lambda: gce("adapt", file, "--model", folder, "--out", place / "out")), only_bytes


@family(3)
def general(good, place, rng):
    """Models, systems and data of the general method."""
    kind = int(rng.integers(3))
    if kind == 0:
        folder = good.copy("general_model", place)
        only_bytes = spoil_pair(folder, "model", rng)
        file = good.folder / "general.h5"
        return (lambda: gce("predict", file, "--adapt", 2, "--json", "--model", folder)), only_bytes
    if kind == 1:
        folder = good.copy("general_system", place)
        only_bytes = spoil_pair(folder, m.pick(rng, ["system", "system", "model"]), rng)
        asked = ["--start", good.folder / "general_start.npy", "--goal", good.folder / "general_goal.npy"]
        return (lambda: gce("control", folder, *asked, "--horizon", 2, "--json")), False
    file = good.copy("general.h5", place)
    m.spoil_h5(file, rng)
    asked = ["--model", good.folder / "general_model"]
    if rng.random() < 0.5:
        return (lambda: gce("predict", file, "--adapt", 2, "--json", *asked)), False
    return (lambda: gce("adapt", file, *asked, "--out", place / "out")), False


@family(2)
def general_numbers(good, place, rng):
    """Episodes that are odd, and arguments that should not be, given to the general method and its systems."""
    from gce.system.system import adapt

    first = good.pendulums[2]
    values = [first.observations, first.actions]
    k = int(rng.integers(2))
    odd = m.spoil_array(values[k], rng) if rng.random() < 0.6 else m.pick(rng, NUMBERS)
    kind = int(rng.integers(8))

    def use():
        from gce import Episode

        o, a = (odd if k == side else values[side] for side in (0, 1))
        if kind == 0:
            found = good.general.predict(o if k else o[0] if isinstance(o, np.ndarray) and o.ndim and o.size else o, a)
        elif kind == 1:
            found = adapt(good.general.model, [good.pendulums[0], Episode(first.graph, o, a)]).predict(*plain)
        elif kind == 2:
            found = good.general.update(Episode(first.graph, o, a)).predict(*plain)
        elif kind == 3:
            found = good.general.covariance(values[0][0], a if k else values[1][:2])
        elif kind == 4:
            found = np.stack(good.general.intervals(values[0], odd))
        elif kind == 5:
            found = adapt(good.general.model, [Episode(first.graph, o, a)]).predict(*plain)
        elif kind == 6:  # two steps, or one, or nodes that never move
            few = int(rng.integers(1, 3))
            still = np.repeat(values[0][:1], few + 1, 0) if rng.random() < 0.5 else values[0][: few + 1]
            found = adapt(good.general.model, [Episode(first.graph, still, values[1][:few])]).predict(*plain)
        else:
            found = good.general.predict(values[0][0], values[1], before=(odd, odd), opening=False)
        return found

    plain = (values[0][0], values[1])
    return finite_or_doubted(use), False


@family(1)
def places(good, place, rng):
    """A folder, a pipe, a link, an empty or a long file where a file should be."""
    name, ask = m.pick(rng, [
        ("rope.h5", lambda file: ("data", "check", file)),
        ("rope.h5", lambda file: ("predict", file, "--model", good.folder / "rope")),
        ("rope.h5", lambda file: ("data", "merge", file, "--out", place / "out.h5")),
        ("rope", lambda folder: ("predict", good.folder / "rope.h5", "--model", folder)),
        ("system", lambda folder: ("control", folder, "--start", good.folder / "start.npy",
                                   "--goal", good.folder / "goal.npy", "--horizon", 3)),
        ("tables", lambda folder: ("data", "check", folder)),
        ("arrays", lambda folder: ("data", "import", folder, "--out", place / "out.h5")),
        ("run", lambda folder: ("report", folder, "--out", place / "page.html")),
        ("goal.npy", lambda file: ("control", good.folder / "system", "--start", good.folder / "start.npy",
                                   "--goal", file, "--horizon", 3)),
        ("start.json", lambda file: ("control", good.folder / "system", "--start", file,
                                     "--goal", good.folder / "goal.npy", "--horizon", 3)),
        ("goal.csv", lambda file: ("control", good.folder / "system", "--start", good.folder / "start.npy",
                                   "--goal", file, "--horizon", 3)),
    ])  # fmt: skip
    copied = good.copy(name, place)
    files = [copied] if copied.is_file() else sorted(f for f in copied.rglob("*") if f.is_file())
    m.spoil_place(m.pick(rng, files), rng)
    return (lambda: gce(*ask(copied))), False


@family(1)
def archive_bombs(good, place, rng):
    folder = good.copy("arrays", place)
    file = m.pick(rng, sorted((folder / "episodes").iterdir()))
    m.bomb_npz(file, rng)
    if rng.random() < 0.5:
        return (lambda: gce("data", "import", file, "--world", "rope", "--out", place / "out.h5")), False
    return (lambda: gce("data", "check", folder)), False


@family(1)
def arguments(good, place, rng):
    """Numbers and names on the command line."""
    odd = [
        "0",
        "-1",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "x",
        "",
        "0/0",
        "5-",
        "9-5",
        "9" * 30,
        "1.5",
        "0x10",
        "é",
        "--",
        "1,2",
    ]
    value, file, model = m.pick(rng, odd), good.folder / "rope.h5", good.folder / "rope"
    out = place / "out"
    asked = m.pick(rng, [
        ("predict", file, "--model", model,
         m.pick(rng, ["--adapt", "--episode", "--seed", "--noise", "--seeds"]), value),
        ("adapt", file, "--model", model, "--out", out, m.pick(rng, ["--episode", "--adapt", "--episodes"]), value),
        ("data", "record", "rope", "--out", out, "--episodes", "2", "--group-size", "2", "--steps", "5",
         m.pick(rng, ["--objects", "--shard", "--observation-noise", "--process-noise", "--seed", "--workers"]),
         m.pick(rng, [v for v in odd if len(v) < 9])),
        ("data", "replay", file, m.pick(rng, ["--episode", "--episodes"]), value),
        ("data", "show", file, "--out", place / "x.gif", "--episode", value),
        ("train", file, "--out", out, "--iterations", "0",
         m.pick(rng, ["--minutes", "--seed", "--validation", "--iterations", "--method", "--features"]), value),
        ("control", good.folder / "system", "--start", good.folder / "start.npy", "--goal", good.folder / "goal.npy",
         "--horizon", "2", m.pick(rng, ["--horizon", "--time-limit", "--iterations", "--seed", "--noise"]), value),
    ])  # fmt: skip
    return (lambda: gce(*asked)), False


@family(6)
def numbers(good, place, rng):
    """Calls from Python with an argument that it should not have."""
    from gce import Dataset, Episode
    from gce.control.problem import Problem
    from gce.envs.recording import Recording
    from gce.planning.controller import Controller
    from gce.system.system import adapt
    from gce.trajectory import Limits

    steps, acts = good.graph_data
    system, odd = good.system, m.pick(rng, NUMBERS)
    first, taken = steps[0][0], acts[0]
    array = m.spoil_array(m.pick(rng, [first, taken]), rng)
    value = array if rng.random() < 0.3 else odd
    episodes = list(Dataset.open(good.folder / "own.h5"))
    usual = {"horizon": 3, "goal": first, "low": -np.ones((3, 1)), "high": np.ones((3, 1))}
    names = ["horizon", "goal", "low", "high", "state_cost", "terminal_cost", "action_cost", "change_cost", "unit",
             "action_unit", "tracked", "rate", "soft_low", "soft_high", "soft_cost", "exogenous"]  # fmt: skip

    def plan():
        problem = Problem(**{**usual, m.pick(rng, names): value})
        return Controller(system, problem).plan(first, opening=True).actions

    calls = [
        lambda: adapt(system.model, episodes[:2], ridge=value).operator.coefficients.numpy(),
        lambda: system.predict(value, taken),
        lambda: system.predict(first, value),
        lambda: system.intervals(np.stack([first] * 3), value),
        plan,
        plan,
        plan,
        lambda: Controller(system, Problem(**usual), time_limit=value).plan(first, opening=True).actions,
        lambda: Episode(episodes[0].graph, value, taken),
        lambda: Episode(episodes[0].graph, steps[0], value),
        lambda: Dataset.from_arrays([value], [taken], [[0, 1], [1, 2]]),
        lambda: Dataset.from_arrays(steps, acts, value),
        lambda: Dataset.from_arrays(steps, acts, [[0, 1], [1, 2]], dt=value),
        lambda: Dataset.from_arrays(steps, acts, [[0, 1], [1, 2]], action_bounds=(value, 1.0)),
        lambda: Dataset.from_arrays(steps, acts, [[0, 1], [1, 2]], actuated=value),
        lambda: Limits.of(3, 1, None, (value, 1.0)),
        lambda: Recording("rope", value, (4, 5), 2),
        lambda: Recording("rope", 2, (4, 5), 2, seed=value),
        lambda: Recording("rope", 2, (4, 5), 2, observation_noise=value),
    ]
    call = m.pick(rng, calls)

    return finite_or_doubted(call), False
