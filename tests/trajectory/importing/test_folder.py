"""Folders of CSV and npz files: what comes out, and what is said of what is wrong."""

import shutil

import numpy as np
import pytest

from gce.cli import main
from gce.errors import InputError
from gce.trajectory import Dataset, check_file, control_limits
from gce.trajectory.importing import check_folder, import_folder

NODES = ("a", "b", "c")


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def values(steps, seed):
    """Observations [T+1, 3, 2] and actions [T, 3, 1] of node a, with few digits."""
    rng = np.random.default_rng(seed)
    actions = np.zeros((steps, 3, 1))
    actions[:, 0] = rng.integers(-9, 10, (steps, 1)) / 10
    return rng.integers(-99, 100, (steps + 1, 3, 2)) / 100, actions


def episode(observations, actions, nodes=NODES, first=0) -> str:
    """A CSV with the columns step, node, x, v, action; the last action and those of idle nodes are left empty."""
    rows = ["step,node,x,v,action"]
    for t, o in enumerate(observations):
        for i, label in enumerate(nodes):
            action = actions[t, i, 0] if t < len(actions) and i == 0 else ""
            rows.append(f"{t + first},{label},{o[i, 0]},{o[i, 1]},{action}")
    return "\n".join(rows) + "\n"


@pytest.fixture
def folder(tmp_path):
    """Two episodes of three named nodes in a line."""
    folder = tmp_path / "own"
    write(folder / "edges.csv", "sender,receiver\na,b\nb,c\n")
    for k, steps in enumerate((4, 6)):
        write(folder / f"episodes/{k}.csv", episode(*values(steps, k)))
    return folder


def imported(folder, tmp_path) -> Dataset:
    import_folder(folder, tmp_path / "own.h5")
    assert check_file(tmp_path / "own.h5") == []
    with Dataset.open(tmp_path / "own.h5") as data:
        return Dataset.from_episodes(list(data), data.groups.tolist(), data.metadata)


def test_the_least_a_folder_needs(folder, tmp_path):
    data = imported(folder, tmp_path)
    assert data.groups.tolist() == [0, 0]
    for k, steps in enumerate((4, 6)):
        observations, actions = values(steps, k)
        assert np.array_equal(data[k].observations, observations)
        assert np.array_equal(data[k].actions, actions)
        assert data[k].exogenous is None
    assert data[0].graph.relations().tolist() == [[1, -1, -1], [0, 1, -1], [-1, 0, 1]]
    assert data[0].parameters == {"system": "own", "nodes": ["a", "b", "c"]}
    assert data.metadata["observation_names"] == ["x", "v"]
    assert data.metadata["action_names"] == ["action"]
    actuated, low, high = control_limits(data)
    actions = np.concatenate([values(4, 0)[1], values(6, 1)[1]])
    assert actuated.tolist() == [True, False, False]
    assert (low[0, 0], high[0, 0]) == (actions.min(), actions.max())


def test_everything_a_folder_may_say(tmp_path):
    folder = tmp_path / "own"
    write(
        folder / "system.toml",
        'dt = 0.5\nundirected = true\nactions = ["push", "pull"]\nexogenous = ["load"]\nactuated = [10]\n'
        "action_bounds = { push = [-1, 2], pull = [0, 0.5] }\n[parameters]\nstiffness = 3\n"
        '[structure]\npoints = [["x", "y", "vx", "vy"]]\n',
    )
    write(folder / "nodes.csv", "node,type,mass,low_push\n10,pump,1.5,-0.5\n2,tank,2.5,\n")
    write(folder / "edges.csv", "sender,receiver,relation,length\n10,2,pipe,7\n2,2,wall,1\n")
    write(
        folder / "episodes/x.csv",
        "node;step;x;y;vx;vy;push;pull;load\n"
        "2;3;1;2;3;4;;;9\n10;3;5;6;7;8;0.1;0.2;8\n10;4;-1;0;0;0;;;\n2;4;1e-3;0;0;0;;;\n",
    )
    data = imported(folder, tmp_path)
    made = data[0]
    assert made.observations[0].tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]  # in the order of nodes.csv
    assert made.observations[1, 1, 0] == 1e-3
    assert made.actions.tolist() == [[[0.1, 0.2], [0, 0]]]
    assert made.exogenous.tolist() == [[[8], [9]]]
    assert made.graph.node_attributes.tolist() == [[1.5], [2.5]]
    assert made.graph.node_type.tolist() == [0, 1]
    assert data.metadata["node_type_names"] == ["pump", "tank"]
    assert data.metadata["relation_names"] == ["pipe", "wall"]
    assert made.graph.relations().tolist() == [[2, 0], [0, 1]]  # the pump's self-edge comes after all relations
    lengths = {
        (int(s), int(r)): a[0] for s, r, a in zip(*made.graph.edge_index, made.graph.edge_attributes, strict=True)
    }
    assert lengths == {(0, 0): 0, (0, 1): 7, (1, 0): 7, (1, 1): 1}
    assert data.metadata["dt"] == 0.5
    assert data.metadata["structure"] == {"points": [[0, 1, 2, 3]]}
    assert made.parameters == {"system": "own", "nodes": ["10", "2"], "stiffness": 3}
    actuated, low, high = control_limits(data)
    assert actuated.tolist() == [True, False]
    assert low.tolist() == [[-0.5, 0], [0, 0]]
    assert high.tolist() == [[2, 0.5], [0, 0]]


def test_npz_is_as_good_as_csv(folder, tmp_path):
    by_csv = imported(folder, tmp_path)
    for k, steps in enumerate((4, 6)):
        observations, actions = values(steps, k)
        np.savez(folder / f"episodes/{k}.npz", observations=observations, actions=actions)
        (folder / f"episodes/{k}.csv").unlink()
    write(folder / "edges.csv", "sender,receiver\n0,1\n1,2\n")
    by_npz = imported(folder, tmp_path)
    for left, right in zip(by_csv, by_npz, strict=True):
        assert np.array_equal(left.observations, right.observations)
        assert np.array_equal(left.actions, right.actions)
        assert left.graph.equals(right.graph)


def test_systems_are_folders_and_types_mean_the_same_in_all(tmp_path):
    folder = tmp_path / "many"
    write(folder / "system.toml", "dt = 0.1")
    for name, relations in (("s10", "spring\nb,c,rope"), ("s2", "rope\nb,c,beam")):
        write(folder / name / "edges.csv", f"sender,receiver,relation\na,b,{relations}\n")
        for k in range(2):
            write(folder / name / f"episodes/{k}.csv", episode(*values(4, k)))
    data = imported(folder, tmp_path)
    assert data.groups.tolist() == [0, 0, 1, 1]
    assert [data.group(g).parameters["system"] for g in (0, 1)] == ["s2", "s10"]  # 2 comes before 10
    assert data.metadata["relation_names"] == ["beam", "rope", "spring"]
    assert data[0].graph.relations()[1, 0] == data[2].graph.relations()[2, 1] == 1
    assert np.diag(data[0].graph.relations()).tolist() == [3, 3, 3]


def test_systems_share_the_tables_of_the_folder_above(tmp_path):
    folder = tmp_path / "many"
    write(folder / "edges.csv", "sender,receiver\na,b\nb,c\n")
    write(folder / "one/system.toml", 'actuated = ["a", "c"]')
    for name in ("one", "two"):
        write(folder / name / "episodes/0.csv", episode(*values(4, 0)))
    data = imported(folder, tmp_path)
    assert data[0].graph.equals(data[1].graph)
    assert control_limits(data, 0)[0].tolist() == [True, False, True]
    assert control_limits(data, 1)[0].tolist() == [True, False, False]


def test_steps_may_start_anywhere_and_rows_come_in_any_order(folder, tmp_path):
    before = imported(folder, tmp_path)
    header, *rows = episode(*values(4, 0), first=17).splitlines()
    write(folder / "episodes/0.csv", "\n".join([header, *reversed(rows)]))
    write(folder / "nodes.csv", "node\na\nb\nc\n")
    assert np.array_equal(imported(folder, tmp_path)[0].observations, before[0].observations)


# ---- what is wrong ----


def line(text, number, new):
    lines = text.splitlines()
    lines[number - 1] = new
    return "\n".join(row for row in lines if row is not None) + "\n"


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("episodes/0.csv", lambda t: line(t, 6, "1,b,,0.1,"), "episodes/0.csv, row 6, column x: the cell is empty"),
        ("episodes/0.csv", lambda t: line(t, 6, "1,b,nan,0.1,"), "episodes/0.csv, row 6, column x: .*nan"),
        ("episodes/0.csv", lambda t: line(t, 6, "1,b,inf,0.1,"), "row 6, column x: the value is inf"),
        ("episodes/0.csv", lambda t: line(t, 6, "1,b,0.1,fast,"), "row 6, column v: 'fast' is not a number"),
        ("episodes/0.csv", lambda t: line(t, 6, "1,b,0.1"), "row 6: there are 3 cells, the header has 5"),
        ("episodes/0.csv", lambda t: line(t, 5, "1,a,0.1,0.1,"), "row 5, column action: the cell is empty"),
        ("episodes/0.csv", lambda t: line(t, 6, None), "node b has no row for step 1; give every node a row"),
        ("episodes/0.csv", lambda t: line(t, 15, None), "node b ends at step 3, the episode at step 4"),
        ("episodes/0.csv", lambda t: line(t, 7, "0,b,0,0,"), "row 7: step 0 of node b was given in row 3 already"),
        ("episodes/0.csv", lambda t: line(t, 6, "1,z,0,0,"), "row 6, column node: there is no node 'z'|z has no row"),
        ("episodes/0.csv", lambda t: line(t, 6, "1.5,b,0,0,"), "row 6, column step: '1.5' is not a whole number"),
        ("episodes/0.csv", lambda t: "\n".join(t.splitlines()[:4]), "there is only step 0"),
        ("episodes/0.csv", lambda t: "\n".join(r for r in t.splitlines() if r[0] != "2"), "no row for step 2"),
        ("episodes/1.csv", lambda t: line(t, 1, "step,node,x,w,action"), "1.csv, row 1: the column v is missing"),
        ("episodes/1.csv", lambda t: "\n".join(r for r in t.splitlines() if ",c," not in r), "no row of node c"),
        ("episodes/0.csv", lambda t: line(t, 1, "step,x,x,v,action"), "column 3 is called 'x'"),
        ("episodes/0.csv", lambda t: "", "there is no header"),
        ("episodes/0.csv", lambda t: "step,node,x,v,action\n", "no row of data|no column node"),
        ("edges.csv", lambda t: t + "b,z\n", "edges.csv, row 4, column receiver: there is no node 'z'; .* a, b, c"),
        ("edges.csv", lambda t: t + "a,b\n", "edges.csv, row 4: the edge from a to b was given in row 2 already"),
        ("edges.csv", lambda t: "from,to\na,b\n", "the column sender is missing"),
        ("edges.csv", lambda t: "sender,receiver,length\na,b,\n", "edges.csv, row 2, column length: the cell is empty"),
        ("nodes.csv", lambda t: "node\na\nb\n", "there is no node 'c'"),
        ("nodes.csv", lambda t: "node\na\nb\nb\nc\n", "nodes.csv, row 4, column node: node 'b' must have a name"),
        ("nodes.csv", lambda t: "node,actuated\na,maybe\nb,\nc,\n", "row 2, column actuated: 'maybe' is neither"),
        ("nodes.csv", lambda t: "node,actuated\na,0\nb,1\nc,0\n", "node a is not actuated, but its action is"),
        ("nodes.csv", lambda t: "node,low,high\na,1,-1\nb,,\nc,,\n", "nodes.csv: the action of node 0 is bounded by 1"),
        ("nodes.csv", lambda t: "node,mass\na,1\nb,\nc,1\n", "nodes.csv, row 3, column mass: the cell is empty"),
        ("system.toml", lambda t: "dt = ", "system.toml is not a TOML file"),
        ("system.toml", lambda t: "dt = 0", "dt is 0, expected the seconds"),
        ("system.toml", lambda t: "step = 1", "'step' means nothing here; the entries are dt,"),
        ("system.toml", lambda t: "undirected = 1", "undirected is 1, expected true or false"),
        ("system.toml", lambda t: 'actuated = ["q"]', "actuated names 'q', but there is no such node"),
        ("system.toml", lambda t: "action_bounds = [1, -1]", "expected .lowest, highest."),
        ("system.toml", lambda t: 'actions = ["torque"]', "the column torque is missing"),
        ("system.toml", lambda t: 'actions = "v"', "expected a list of columns"),
        ("system.toml", lambda t: "[structure]\npoints = 3", "structure is .* expected points"),
        ("system.toml", lambda t: "[structure]\npoint = []", "structure is .* expected points"),
        ("system.toml", lambda t: '[structure]\npoints = [["x", "y", "x", "v"]]', "structure.points names 'y'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(folder, tmp_path, file, change, sentence):
    path = folder / file
    write(path, change(path.read_text() if path.is_file() else ""))
    for act in (check_folder, lambda f: import_folder(f, tmp_path / "own.h5")):
        with pytest.raises(InputError, match=sentence):
            act(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["own"]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"actions": np.zeros((4, 3, 1))}, "there is no array 'observations'; the arrays are actions"),
        ({"observations": np.zeros((2, 5, 3, 2))}, r"shape \(2, 5, 3, 2\), expected .T\+1.*one file an episode"),
        ({"observations": np.zeros((5, 2, 2))}, r"observations has shape \(5, 2, 2\), expected \(5, 3, 2\)"),
        ({"observations": np.zeros((5, 3, 2)), "actions": np.zeros((2, 3, 1))}, r"actions has shape \(2, 3, 1\), exp"),
        ({"observations": np.full((5, 3, 2), np.nan), "actions": np.zeros((4, 3, 1))}, "hold nan at step 0, node 0"),
        ({"observations": np.array(["x"]).reshape(1, 1, 1)}, "expected numbers"),
        ({"observations": np.array([None, {}])}, "not an npz file of plain arrays"),
    ],
)
def test_what_is_wrong_with_an_npz_file(folder, arrays, sentence):
    np.savez(folder / "episodes/2.npz", **arrays)
    with pytest.raises(InputError, match="episodes/2.npz: .*" + sentence):
        check_folder(folder)


def test_all_that_is_wrong_is_told_at_once_but_not_endlessly(folder):
    write(folder / "edges.csv", "sender,receiver\na,q\n")
    text = episode(*values(30, 0)).replace(".", "#")
    write(folder / "episodes/0.csv", text)
    with pytest.raises(InputError) as caught:
        check_folder(folder)
    sentences = str(caught.value).split("\n")
    assert len(sentences) == 21
    assert "no node 'q'" in sentences[0]
    assert "is not a number" in sentences[1]
    assert sentences[-1].startswith("gce: and ")


def test_a_systems_own_file_cannot_change_what_all_share(tmp_path):
    folder = tmp_path / "many"
    write(folder / "edges.csv", "sender,receiver\na,b\n")
    write(folder / "one/system.toml", "dt = 2")
    write(folder / "one/episodes/0.csv", episode(*values(4, 0)))
    with pytest.raises(InputError, match="one/system.toml: dt is the same for all systems"):
        check_folder(folder)


def test_systems_have_the_same_attributes(tmp_path):
    folder = tmp_path / "many"
    write(folder / "edges.csv", "sender,receiver\na,b\n")
    for name, column in (("one", "mass"), ("two", "size")):
        write(folder / name / "nodes.csv", f"node,{column}\na,1\nb,1\nc,1\n")
        write(folder / name / "episodes/0.csv", episode(*values(4, 0)))
    with pytest.raises(InputError, match="two/nodes.csv: the attributes are size, those of one are mass"):
        check_folder(folder)


@pytest.mark.parametrize("missing", ["edges.csv", "episodes"])
def test_what_is_missing_is_named(folder, missing):
    shutil.rmtree(folder / missing) if missing == "episodes" else (folder / missing).unlink()
    with pytest.raises(InputError, match=missing):
        check_folder(folder)
    with pytest.raises(InputError, match="not a folder"):
        check_folder(folder / "nowhere")


def test_an_empty_folder_of_episodes(folder):
    shutil.rmtree(folder / "episodes")
    (folder / "episodes").mkdir()
    with pytest.raises(InputError, match="there is no .csv or .npz file in it"):
        check_folder(folder)


# ---- the command line ----


def test_commands(folder, tmp_path, capsys):
    main(["data", "check", str(folder)])
    told = capsys.readouterr().out
    assert "good; 2 episodes of 1 system, 3 nodes, 4-6 steps each; observations x, v; actions action" in told
    main(["data", "import", str(folder), "--out", str(tmp_path / "own.h5")])
    assert "own.h5: 2 episodes" in capsys.readouterr().err
    main(["data", "check", str(tmp_path / "own.h5")])
    assert "good; 2 episodes" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "import"])
def test_commands_end_with_status_2(folder, tmp_path, capsys, command):
    write(folder / "edges.csv", "sender,receiver\na,q\n")
    out = ["--out", str(tmp_path / "own.h5")] if command == "import" else []
    with pytest.raises(SystemExit) as caught:
        main(["data", command, str(folder), *out])
    assert caught.value.code == 2
    assert "gce: edges.csv, row 2, column receiver: there is no node 'q'" in capsys.readouterr().err
    assert not (tmp_path / "own.h5").exists()


@pytest.mark.parametrize("files", [[], ["a.npz"], ["a.npz", "b.npz"]])
def test_import_says_what_it_takes(tmp_path, capsys, files):
    paths = [tmp_path / name for name in files]
    for path in paths:
        path.touch()
    with pytest.raises(SystemExit):
        main(["data", "import", *map(str, paths), "--out", str(tmp_path / "own.h5")])
    assert "name" in capsys.readouterr().err
