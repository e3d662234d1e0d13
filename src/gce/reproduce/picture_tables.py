"""Figures that are pictures: Gibbs weights beside uniform ones, controlled systems at some times, and timings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from gce.envs import WORLDS, world_named
from gce.graphs.graph import Graph, lattice
from gce.graphs.topology import Topology
from gce.model.config import ModelConfig
from gce.model.model import Model
from gce.model.step import Stepper, rollout
from gce.operators import PAPER_FORMS, Operator
from gce.reproduce.experiment import Cell, Context, Experiment, Preset
from gce.reproduce.recipes import OURS
from gce.reproduce.statistics import Record, markdown
from gce.reproduce.tasks import TEST, WorldTable, draw, loaded, run_control
from gce.reproduce.versions import method_version
from gce.system.system import adapt
from gce.system.weights import weights_along
from gce.views import style
from gce.views.plots import write_strip

SNAPSHOTS = 5
SIDES = (3, 10, 32, 100)
RELATIONS, RELATION_NUMBERS = 8, (2, 8, 36)
STEPS = 100


class Weights(WorldTable):
    name: ClassVar[str] = "weights"
    about: ClassVar[str] = "picture: the Gibbs weights on a rope of 9 masses beside uniform ones"

    planned = False

    def rows(self, context: Context) -> list[dict[str, Any]]:
        return [{"world": "rope", "method": "ours_gaussian", "times": [30, 60]}]

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        setting = draw("rope", (9, 9), TEST + cell.seed)
        system = adapt(loaded(context, "rope", cell.settings["method"]).model, setting.episodes, measure=False)
        times = cell.settings["times"]
        topology, target = system.topology, setting.target
        seen = target.observations.astype(float)
        N = topology.num_nodes
        weights, uniform = np.zeros((len(times), N, N)), np.zeros((N, N))
        receivers, senders = topology.receivers.numpy(), topology.senders.numpy()
        weights[:, receivers, senders] = weights_along(system, seen, target.actions)[times]
        uniform[receivers, senders] = 1 / np.bincount(receivers, minlength=N)[receivers]
        spread = float(np.abs(weights - uniform).max())
        return {
            "largest_difference_from_uniform": spread,
            "weights": np.round(weights, 5).tolist(),
            "uniform": np.round(uniform, 5).tolist(),
            "places": np.round(seen[times][..., :2], 5).tolist(),
        }

    def report(self, records: Sequence[Record], folder: Path) -> str:
        record = next((r for r in records if "figures" in r), None)
        if record is None:
            return "No model gave weights.\n"
        found, times = record["figures"], record["settings"]["times"]
        figure, axes = style.panels(10.5, 3.3 * len(times), len(times), 3, squeeze=False)
        for row, (t, (place, ours, uniform)) in enumerate(zip(times, axes, strict=True)):
            xy, top = np.array(found["places"][row]), np.max([found["weights"], [found["uniform"]] * len(times)])
            place.plot(*xy.T, "o-", color=style.colour_of("rope"))
            place.set(title=f"the rope at step {t}", aspect="equal", adjustable="datalim", xlabel="x", ylabel="y")
            for k, (x, y) in enumerate(xy):
                place.annotate(str(k), (x, y), textcoords="offset points", xytext=(6, 0), fontsize=8)
            for axis, table, name in ((ours, found["weights"][row], "Gibbs"), (uniform, found["uniform"], "uniform")):
                image = axis.imshow(np.array(table), vmin=0, vmax=top, cmap="viridis")
                own = np.trace(np.array(table)) / len(table)
                axis.set(title=f"{name} weights, {own:.2f} on itself", xlabel="sender", ylabel="receiver")
                axis.set(xticks=range(0, len(table), 2), yticks=range(0, len(table), 2))
                figure.colorbar(image, ax=axis, shrink=0.8)
        style.save(figure, folder / "weights.svg")
        own = np.mean([np.diag(table) for table in found["weights"]])
        told = f"A weight differs from the uniform one by up to {found['largest_difference_from_uniform']:.3f}; "
        return f"{told}a node weighs {own:.2f} on itself, on average.\n\n![weights](weights.svg)\n"


class ControlPictures(WorldTable):
    name: ClassVar[str] = "control_pictures"
    about: ClassVar[str] = "pictures: controlled systems at some times, a grid of 102 nodes and its voltages"

    def rows(self, context: Context) -> list[dict[str, Any]]:
        pictured = {name: world.recipe.pictures.objects for name, world in WORLDS.items()}
        return [
            {"world": world, "method": "ours_shipped", "objects": objects}
            for world, objects in pictured.items()
            if objects is not None
        ]

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        s = cell.settings
        setting = draw(s["world"], (s["objects"], s["objects"]), TEST + cell.seed)
        method = loaded(context, s["world"], s["method"])
        run, found = run_control(setting, method, method.adapt(setting.episodes), setting.env.recipe.protocol)
        times = np.linspace(0, len(run.actions), SNAPSHOTS).round().astype(int)
        path = run.observations if setting.env.recipe.pictures.chart else run.observations[times]
        return {
            **found,
            "times": times.tolist(),
            "observations": np.round(path, 5).tolist(),
            "goal": np.round(run.goal, 5).tolist(),
        }

    def report(self, records: Sequence[Record], folder: Path) -> str:
        lines = []
        for record in records:
            world, found = record["settings"]["world"], record.get("figures")
            if found is None:
                lines.append(f"{world}: {record['failure']}\n")
                continue
            env = world_named(world)(objects=record["settings"]["objects"])
            env.reset(seed=TEST + record["seed"])
            path, goal, times = np.array(found["observations"]), np.array(found["goal"]), found["times"]
            pictures = env.recipe.pictures
            frames = [env.draw(o, None, goal) for o in (path[times] if pictures.chart else path)]
            write_strip(frames, folder / f"control_{world}.png", columns=pictures.columns or len(frames))
            steps = ", ".join(str(t) for t in times)
            error = found.get("voltage_error", found["control_error"])
            lines.append(
                f"{world.capitalize()}, steps {steps}; control error {error:.3f}.\n\n![](control_{world}.png)\n"
            )
            if pictures.chart:
                word, label = pictures.chart
                _course(path[..., 0], goal[:, 0], env.dt, label, folder / f"control_{world}_{word}.svg")
                lines.append(f"![](control_{world}_{word}.svg)\n")
        return "\n".join(lines)


def _course(values: np.ndarray, goal: np.ndarray, dt: float, label: str, path: Path) -> None:
    """A line a node over time, and where they should be."""
    figure, axis = style.panels(6, 3.6)
    axis.plot(dt * np.arange(len(values)), values, color=style.colour_of("structured"), alpha=0.25, linewidth=0.7)
    for level in np.unique(goal):
        axis.axhline(level, color="black", linewidth=0.8)
    axis.set(xlabel="seconds", ylabel=label, title="a line a node; black: the goal")
    style.save(figure, path)


class EvalTime(Experiment):
    """Prediction time of the four forms against the number of nodes, and of relation types.

    Rollouts of 100 steps in feature space, by the code that predicts, on 2D grids of 9 to 10,000 nodes. A model of the
    default sizes (40 features, one action) with random operators: what a step costs does not depend on what was
    learned. Edges have random relation types, 8 of them as in Rope if nothing else is said; `hom` has an operator for
    each, so its cost grows with their number: the largest grid is measured with 2 to 36 (Soft). CPU time of one core,
    the best of a few runs.
    """

    name: ClassVar[str] = "eval_time"
    about: ClassVar[str] = "CPU time of predicting 100 steps by the form of the operator, nodes and relation types"

    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        sizes = [(side, RELATIONS) for side in SIDES] + [(SIDES[-1], k) for k in RELATION_NUMBERS if k != RELATIONS]
        settings = [{"form": form, "side": side, "relations": k} for side, k in sizes for form in PAPER_FORMS]
        ours = {"method": [OURS, method_version(OURS)]}
        return [Cell(self.name, s, 0, self.version, ours) for s in settings]

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        return measure(cell.settings["form"], cell.settings["side"], cell.settings["relations"])

    def report(self, records: Sequence[Record], folder: Path) -> str:
        timings = [r["settings"] | r["figures"] for r in records if "figures" in r]
        chart(timings, folder / "eval_time.svg")
        cases = list(dict.fromkeys((t["nodes"], t["relations"]) for t in timings))
        rows = []
        for form in dict.fromkeys(t["form"] for t in timings):
            found = {(t["nodes"], t["relations"]): t["seconds"] for t in timings if t["form"] == form}
            rows.append([form, *(f"{found[case]:.3f}" if case in found else "–" for case in cases)])
        table = markdown(["form", *(f"{n} nodes, {k} relation types" for n, k in cases)], rows)
        return f"CPU seconds of 100 steps on 2D grids.\n\n{table}\n![eval_time](eval_time.svg)\n"


def typed_lattice(side: int, relations: int) -> Graph:
    pairs = np.asarray(lattice(side, side))
    both = np.concatenate([pairs, pairs[:, ::-1]])
    kinds = np.random.default_rng(0).integers(0, relations - 1, len(both))
    return Graph.from_edges(side * side, both, edge_type=kinds, self_type=relations - 1)


def measure(form: str, side: int, relations: int = RELATIONS, steps: int = STEPS, repeats: int = 5) -> dict[str, Any]:
    """CPU seconds of a prediction."""
    topology = Topology.of(typed_lattice(side, relations))
    generator = torch.Generator().manual_seed(0)
    model = Model(ModelConfig(4, 1, relations, 1, form=form)).eval()
    D, m = model.form.num_regressors(topology), model.features.num_targets
    own = () if model.form.shared else (topology.num_nodes,)
    C = torch.randn(*own, D, m, generator=generator) * 0.1 / D
    residual, system = torch.zeros(()).expand(*own, m, m), torch.zeros(()).expand(1, *own, D, D)
    operator = Operator(model.form, C, residual, system, ridge=0.0, rows=1)
    state = torch.randn(topology.num_nodes, model.config.num_state, generator=generator)
    inputs = torch.randn(steps, topology.num_nodes, 1, generator=generator)
    best = np.inf
    with torch.no_grad():
        psi = model.features(state, topology)
        for _ in range(repeats):
            clock = time.process_time()
            rollout(Stepper(model, [operator], topology, reproject=False), psi, inputs)
            best = min(best, time.process_time() - clock)
    return {"nodes": topology.num_nodes, "edges": topology.num_edges, "seconds": float(best)}


def chart(timings: Sequence[dict[str, Any]], path: Path) -> None:
    """timings: forms, nodes, edges, relations and seconds."""
    largest = max(t["nodes"] for t in timings)
    by_nodes = [t for t in timings if t["relations"] == RELATIONS]
    by_relations = sorted((t for t in timings if t["nodes"] == largest), key=lambda t: t["relations"])
    figure, (left, right) = style.panels(9, 3.8, 1, 2, sharey=True)
    for form in PAPER_FORMS:
        for axis, some, x in ((left, by_nodes, "nodes"), (right, by_relations, "relations")):
            of_form = [t for t in some if t["form"] == form]
            seconds = [t["seconds"] for t in of_form]
            axis.loglog([t[x] for t in of_form], seconds, "o-", label=form, color=style.colour_of(form))
    mean = [t for t in by_nodes if t["form"] == "hom_mean"]
    per_row = mean[-1]["seconds"] / (mean[-1]["nodes"] + mean[-1]["edges"])
    reference = [per_row * (t["nodes"] + t["edges"]) for t in mean]
    left.loglog([t["nodes"] for t in mean], reference, ":", color="grey", label="nodes + edges")
    left.set(xlabel="nodes", ylabel="CPU seconds for 100 steps", title=f"{RELATIONS} relation types")
    right.set(xlabel="relation types", title=f"{mean[-1]['nodes']:,} nodes")
    style.read_on_log(left, [t["nodes"] for t in mean], base=10)
    style.read_on_log(right, RELATION_NUMBERS)
    left.legend(fontsize=8)
    style.save(figure, path)
