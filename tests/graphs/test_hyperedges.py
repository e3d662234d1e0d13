"""Relations among three nodes or more: graphs, files, features, a form, plans, and what is refused."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from bench.hyperedges import FORCES, coincidences

import gce
from gce.cli import main
from gce.dynamics.message import MessageDynamics
from gce.dynamics.state import StateDynamics, state_class
from gce.errors import InputError
from gce.graphs.graph import ring
from gce.graphs.hypertopology import gibbs_weights
from gce.graphs.topology import Topology
from gce.model.files import load_model, save_model
from gce.potentials import POTENTIALS, make_potential
from gce.system.files import load_system, save_system
from gce.training.hyperedges import without_idle_hyperedges
from gce.training.preparation import config_for, prepare
from gce.trajectory import Dataset, check_file
from gce.trajectory.importing.folder import check_folder
from small import TINY

GROUPS = [(0, 1, 2), (2, 3, 4, 5), (0, 3, 5)]


def graph(groups=GROUPS, nodes: int = 7, types=None) -> gce.Graph:
    return gce.Graph.from_edges(nodes, ring(nodes), undirected=True, hyperedges=groups, hyperedge_type=types)


def data(groups=GROUPS, types=None, systems: int = 3, episodes: int = 4, steps: int = 12) -> Dataset:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(systems * episodes):
        x = [rng.standard_normal(7)]
        u = rng.uniform(-1, 1, (steps, 7))
        for t in range(steps):
            met = np.array(
                [sum(np.prod(np.delete(x[-1][list(g)], g.index(i))) for g in GROUPS if i in g) for i in range(7)]
            )
            x.append(0.8 * x[-1] + 0.1 * np.tanh(met) + 0.2 * u[t])
        found.append((np.stack(x)[..., None], u[..., None]))
    observations, actions = zip(*found, strict=True)
    numbers = np.repeat(np.arange(systems), episodes).tolist()
    return Dataset.from_arrays(
        list(observations),
        list(actions),
        ring(7).T,
        groups=numbers,
        undirected=True,
        hyperedges=groups,
        hyperedge_type=types,
    )


def model(form: str = "hom_mean_hyper", recorded: Dataset | None = None, **settings):
    recorded = recorded or data()
    return prepare(config_for(recorded, **{**TINY, "form": form, **settings}), recorded).eval()


# ---- graphs ----


@pytest.mark.parametrize(
    ("groups", "types", "words"),
    [
        ([(0, 1)], None, "hyperedge 0 joins 2 nodes, expected at least 3; two nodes are an edge"),
        ([(0, 1, 2), (3, 4, 3)], None, "hyperedge 1 has node 3 twice; name each of its nodes once"),
        ([(0, 1, 9)], None, "hyperedge 0 has node 9 but there are 7 nodes"),
        ([(0, 1, -1)], None, "hyperedge 0 has node -1"),
        ([(0, 1, 2)], [0, 1], r"hyperedge_type has shape \(2,\) for 1 hyperedges; give one each"),
        ([(0, 1, 2)], [-1], "numbered from 0"),
    ],
)
def test_bad_hyperedges_get_a_sentence(groups, types, words):
    with pytest.raises(InputError, match=words):
        graph(groups, types=types)


def test_finished_arrays_are_checked():
    from dataclasses import replace

    for rows, words in (
        ([[1, 1, 1], [0, 1, 2], [0, 0, 0]], "hyperedge 0 joins 0 nodes"),
        ([[0, 0, 0], [0, 1, 2], [0, 1, 0]], "hyperedge 0 has two types"),
        ([[9, 9, 9], [0, 1, 2], [0, 0, 0]], "number of a hyperedge"),
    ):
        with pytest.raises(InputError, match=words):
            replace(graph(), hyperedges=np.array(rows))


def test_graphs_are_equal_only_with_equal_hyperedges():
    assert graph().equals(graph()) and not graph().equals(graph(None)) and not graph().equals(graph(GROUPS[:2]))
    assert "hyperedges=3" in repr(graph()) and graph([]).hyperedges is None


def test_sums_over_the_others_and_over_pairs_of_them():
    known, values = Topology.of(graph()).hyperedges, torch.randn(7, 2, 3)
    sums, pairs, into = known.of_others(values), known.pairs_of_others(values), known.into(known.at(values))
    for m, (number, node) in enumerate(zip(known.number.tolist(), known.node.tolist(), strict=True)):
        others = [j for j in GROUPS[number] if j != node]
        products = [values[j] * values[k] for a, j in enumerate(others) for k in others[a + 1 :]]
        assert torch.allclose(sums[m], values[others].sum(0), atol=1e-6)
        assert torch.allclose(pairs[m], torch.stack(products).mean(0), atol=1e-5)
    assert torch.allclose(into[0], 2 * values[0], atol=1e-6) and not into[6].any()


@pytest.mark.parametrize("name", POTENTIALS)
def test_weights_of_the_hyperedges_of_a_node_add_up_to_one(name):
    known = Topology.of(graph()).hyperedges
    weights = gibbs_weights(make_potential(name, 5, 2.0), torch.randn(7, 2, 5), known)
    total = known.into(weights)
    expected = 0.0 if name == "identity" else 1.0
    assert torch.allclose(total[:6], torch.full_like(total[:6], expected), atol=1e-6) and not total[6].any()


def test_a_union_keeps_the_hyperedges_of_each_graph_apart():
    alone, values = Topology.of(graph()), torch.randn(21, 1, 3)
    joined = Topology.of([graph(), graph(None), graph()])
    found = joined.hyperedges.into(joined.hyperedges.pairs_of_others(values)).split(7)
    for k in (0, 2):
        own = alone.hyperedges
        assert torch.allclose(found[k], own.into(own.pairs_of_others(values[7 * k : 7 * k + 7])), atol=1e-6)
    assert not found[1].any() and Topology.of([graph(None)]).hyperedges is None


@pytest.mark.parametrize("potential", ["gaussian", "attention"])
def test_relabelling_nodes_relabels_predictions(potential):
    recorded = data()
    made, order = model(recorded=recorded, potential=potential), np.random.default_rng(3).permutation(7)
    episodes = [recorded[k] for k in range(4)]
    renamed = [gce.Episode(e.graph.permute(order), e.observations[:, order], e.actions[:, order]) for e in episodes]
    here, there = (gce.adapt(made, es[1:]).predict(es[0].observations[0], es[0].actions) for es in (episodes, renamed))
    assert np.allclose(here[:, order], there, atol=1e-4)


# ---- models ----


def test_the_mean_field_holds_what_two_others_do_together():
    """Operators of the form fit products of two others of a triple, which no pairwise form does."""
    errors = {}
    rng = np.random.default_rng(1)
    for form in ("hom_mean_hyper", "hom_mean", "hom"):
        recorded = data(GROUPS[:1] if form.endswith("hyper") else None, systems=1)
        made = model(form, recorded, potential="constant")
        x = rng.standard_normal((400, 7, 1))
        following = 0.5 * x
        for i, j, k in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
            following[:, i] += x[:, j] * x[:, k]
        episodes = [
            gce.Episode(recorded[0].graph, np.stack(pair), np.zeros((1, 7, 1)))
            for pair in zip(x, following, strict=True)
        ]
        system = gce.adapt(made, episodes[:300], measure=False)
        predicted = [system.predict(e.observations[0], e.actions)[1] - e.observations[1] for e in episodes[300:]]
        errors[form] = float(np.std(predicted))
    assert errors["hom_mean_hyper"] < 0.3 * min(errors["hom_mean"], errors["hom"])


@pytest.mark.parametrize("study", FORCES)
def test_hyperedges_are_left_out_of_a_model_where_they_tell_nothing(study, tmp_path):
    recorded, used = coincidences(6, 4, 3, *FORCES[study], True), study == "three-body"
    asked = config_for(recorded, form="hom_mean_hyper")
    with nullcontext() if used else pytest.warns(UserWarning, match="little beyond pairs.* with the form hom_mean"):
        config = without_idle_hyperedges(asked, recorded, 0)
    assert config == (asked if used else replace(asked, form="hom_mean", hyperedges=False))
    save_model(prepare(config, recorded), tmp_path)
    system = gce.adapt(load_model(tmp_path), [recorded[k] for k in range(1, 4)], measure=False)
    assert system.model.config == config and hasattr(system.model.features.encoder, "hyperedges") == used
    assert state_class(system) is (StateDynamics if used else MessageDynamics)
    assert without_idle_hyperedges(config_for(recorded), recorded, 0) == config_for(recorded)


def test_features_hear_hyperedges_only_of_a_model_that_knows_them():
    x, with_them, without = torch.randn(2, 7, 1), graph(), graph(None)
    knows, does_not = model(), model("hom_mean", data(None))
    for made, same in ((knows, False), (does_not, True)):
        with torch.no_grad():
            phi = [made.features.phi(x, Topology.of(g)) for g in (with_them, without)]
        assert torch.allclose(*phi, atol=1e-6) == same


def test_planners_differentiate_the_model_where_no_kernel_knows_hyperedges():
    recorded = data()
    for form, kind in (("hom_mean_hyper", StateDynamics), ("hom_mean", StateDynamics)):
        system = gce.adapt(model(form, recorded), [recorded[k] for k in range(1, 4)])
        assert state_class(system) is kind
    system = gce.adapt(model("hom_mean", data(None)), [data(None)[1]])
    assert state_class(system) is MessageDynamics
    system = gce.adapt(model("hom_mean_hyper", recorded), [recorded[k] for k in range(1, 4)])
    still = recorded[0].observations[0]
    problem = gce.Problem(horizon=6, goal=recorded[0].observations[6], low=-np.ones((7, 1)), high=np.ones((7, 1)))
    plan = gce.Controller(system, problem).plan(still, opening=True)
    nothing = system.predict(still, np.zeros((6, 7, 1)))

    def away(o):
        return np.square(o[-1] - problem.goals[-1]).sum()

    assert away(plan.observations) < 0.5 * away(nothing)


def test_plans_on_large_graphs_know_how_far_hyperedges_reach():
    """The linear model around one state, whose derivatives are taken of many nodes at once, against one node's."""
    from gce.dynamics.anchored import linear

    rng, nodes = np.random.default_rng(0), 42
    far = gce.Graph.from_edges(nodes, ring(nodes), undirected=True, hyperedges=[(0, 20, 33), (7, 21, 40)])
    arrays = rng.standard_normal((3, 9, nodes, 1)), rng.uniform(-1, 1, (3, 8, nodes, 1))
    episodes = [gce.Episode(far, *pair) for pair in zip(*arrays, strict=True)]
    system = gce.adapt(model(recorded=Dataset.from_episodes(episodes, [0, 0, 0])), episodes, measure=False)
    assert system.model.features.anchored(system.topology)
    seed = np.zeros((1, nodes, 1), np.float32)
    seed[0, 20] = 1
    by_x = state_class(system).pullback(system)[0](seed)[0]
    found = linear(system).A
    found = found.toarray() if hasattr(found, "toarray") else found
    assert np.abs(by_x[0, 33]).max() > 0
    assert np.allclose(found[20], by_x.reshape(-1), atol=1e-6)


def test_models_and_systems_are_kept(tmp_path):
    recorded = data()
    system = gce.adapt(model(recorded=recorded), [recorded[k] for k in range(3)])
    save_system(system, tmp_path / "system")
    again = load_system(tmp_path / "system")
    assert again.graph.equals(system.graph)
    first = recorded[3].observations[0]
    assert np.array_equal(*(s.predict(first, recorded[3].actions) for s in (system, again)))
    save_model(system.model, tmp_path / "model")
    assert load_model(tmp_path / "model").config == system.model.config


def test_data_of_other_hyperedges_are_refused_and_methods_without_them_say_so():
    with pytest.raises(InputError, match="hyperedge type 0, the model knows none; train it on such data"):
        gce.adapt(model("hom_mean", data(None)), [data()[0]])
    with pytest.raises(InputError, match="hyperedge type 1, the model knows 0 to 0"):
        gce.adapt(model(), [data(types=[0, 1, 0])[0]])
    with pytest.warns(UserWarning, match="leaves the hyperedges of the data out; method='structured'"):
        prepare(config_for(data(), kind="general"), data())


# ---- files ----


def test_a_file_holds_hyperedges_and_one_without_is_as_before(tmp_path):
    mixed = [data(types=[0, 1, 1])[0], data(None)[0], data(GROUPS[1:])[0]]
    Dataset.from_episodes(mixed).save(tmp_path / "mixed.h5")
    assert check_file(tmp_path / "mixed.h5") == []
    with Dataset.open(tmp_path / "mixed.h5") as again:
        assert all(a.graph.equals(b.graph) for a, b in zip(again, mixed, strict=True))
    import h5py

    data(None).save(tmp_path / "without.h5")
    with h5py.File(tmp_path / "without.h5") as file:
        assert "hyperedges" not in file["groups"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[:, :3], "has 3 columns, expected 4"),
        (lambda rows: rows[::-1], "must be ordered by group"),
        (lambda rows: rows + [9, 0, 0, 0], "must be ordered by group, and there are 3 groups"),
        (lambda rows: rows[1:], "group 0: hyperedge 0 joins 2 nodes"),
        (lambda rows: rows + [0, 0, 5, 0], "has node"),
        (lambda rows: rows * [1, 1, 0, 1], "has node 0 twice"),
    ],
)
def test_a_file_with_bad_hyperedges_gets_a_sentence(tmp_path, change, words):
    import h5py

    file = tmp_path / "data.h5"
    data().save(file)
    with h5py.File(file, "r+") as opened:
        rows = opened["groups/hyperedges"][:]
        del opened["groups/hyperedges"]
        opened["groups/hyperedges"] = change(rows)
    assert any(words in problem for problem in check_file(file))
    with pytest.raises(InputError, match="hyperedge"), Dataset.open(file) as read:
        list(read)


def folder(place, table):
    (place / "episodes").mkdir(parents=True)
    recorded = data(None, systems=1)
    for k, episode in enumerate(recorded):
        rows = ["step,node,x,action_u"]
        for t, o in enumerate(episode.observations):
            acted = episode.actions[t] if t < episode.length else np.full((7, 1), np.nan)
            rows += [f"{t},n{i},{o[i, 0]},{'' if np.isnan(acted[i, 0]) else acted[i, 0]}" for i in range(7)]
        (place / "episodes" / f"{k}.csv").write_text("\n".join(rows) + "\n")
    edges = "".join(f"n{a},n{b}\n" for a, b in ring(7))
    (place / "edges.csv").write_text("sender,receiver\n" + edges)
    (place / "system.toml").write_text("undirected = true\n")
    (place / "hyperedges.csv").write_text(table)


TABLE = "hyperedge,node,type\n" + "".join(f"{'abc'[k]},n{i},{'xyx'[k]}\n" for k, g in enumerate(GROUPS) for i in g)


def test_a_folder_gives_hyperedges_and_a_model_is_trained_on_them_by_command(tmp_path, capsys):
    folder(tmp_path / "own", TABLE)
    main(["data", "import", str(tmp_path / "own"), "--out", str(tmp_path / "own.h5")])
    with Dataset.open(tmp_path / "own.h5") as read:
        assert read[0].graph.equals(graph(types=[0, 1, 0]))
    train = ["train", "own", "--data", str(tmp_path / "own.h5"), "--out", str(tmp_path / "model"), "--features", "6"]
    main([*train, "--method", "structured", "--form", "hom_mean_hyper", "--iterations", "2", "--horizon", "4"])
    main(["control", str(tmp_path / "own.h5"), "--model", str(tmp_path / "model"), "--horizon", "4", "--json"])
    assert '"status": "solved"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("hyperedge,node\na,n1\na,n2\n", "hyperedge a joins 2 nodes, expected at least 3"),
        ("hyperedge,node\na,n1\na,n2\na,n1\n", "row 4, column node: hyperedge a has node n1 twice"),
        ("hyperedge,node\na,n1\na,n2\na,z\n", "row 4, column node: there is no node 'z'"),
        ("hyperedge,node,type\na,n1,x\na,n2,x\na,n3,y\n", "row 4, column type: hyperedge a is of type 'x' and 'y'"),
        ("name,node\na,n1\n", "the column hyperedge is missing"),
    ],
)
def test_a_bad_table_gets_a_sentence(tmp_path, table, words):
    folder(tmp_path / "own", table)
    with pytest.raises(InputError, match="hyperedges.csv, .*" + words if "row" in words else words):
        check_folder(tmp_path / "own")
