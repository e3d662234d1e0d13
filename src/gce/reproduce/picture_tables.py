"""Figures that are pictures: Gibbs weights beside uniform ones, controlled systems at some times, and timings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gce.envs import WORLDS, world_named
from gce.operators import PAPER_FORMS
from gce.reproduce.cells import Cell
from gce.reproduce.control_cells import control_cell, loaded
from gce.reproduce.experiment import Context, Experiment, Preset, Record
from gce.reproduce.methods import Ours
from gce.reproduce.recipes import OURS
from gce.reproduce.statistics import markdown, values_of
from gce.reproduce.studies.eval_time import RELATION_NUMBERS, RELATIONS, SIDES, Timing, chart, measure
from gce.reproduce.tasks import TEST, draw, run_control
from gce.reproduce.versions import method_version
from gce.views.plots import write_strip

SNAPSHOTS = 5


class Weights(Experiment):
    name: ClassVar[str] = "weights"
    about: ClassVar[str] = "picture: the Gibbs weights on a rope of 9 masses beside uniform ones"

    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        model = context.method("rope", "ours_gaussian")
        settings = {"world": "rope", "method": "ours_gaussian", "times": [30, 60]}
        return [] if model is None else [control_cell(self, 0, settings, model, planned=False)]

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        import torch

        setting = draw("rope", (9, 9), TEST + cell.seed)
        subject = loaded(context, "rope", cell.settings["method"]).adapt(setting.episodes)
        assert isinstance(subject, Ours)
        system, times = subject.system, cell.settings["times"]
        seen = setting.target.observations.astype(float)[times]
        topology, model = system.topology, system.model
        psi = torch.as_tensor(system.outputs_at(seen, "features").reshape(len(times), len(seen[0]), -1))
        phi = psi[..., model.config.num_state :].transpose(0, 1).to(model.dtype)
        with torch.no_grad():
            alpha = topology.softmax(model.potential.on(topology)(phi)).double().numpy()
        N = topology.num_nodes
        weights, uniform = np.zeros((len(times), N, N)), np.zeros((N, N))
        receivers, senders = topology.receivers.numpy(), topology.senders.numpy()
        weights[:, receivers, senders] = alpha.T
        uniform[receivers, senders] = 1 / np.bincount(receivers, minlength=N)[receivers]
        spread = float(np.abs(weights - uniform).max())
        return {
            "largest_difference_from_uniform": spread,
            "weights": np.round(weights, 5).tolist(),
            "uniform": np.round(uniform, 5).tolist(),
            "places": np.round(seen[..., :2], 5).tolist(),
        }

    def report(self, records: Sequence[Record], folder: Path) -> str:
        from matplotlib.figure import Figure

        record = next((r for r in records if "figures" in r), None)
        if record is None:
            return "No model gave weights.\n"
        found, times = record["figures"], record["settings"]["times"]
        figure = Figure(figsize=(10.5, 3.3 * len(times)), layout="constrained")
        for row, t in enumerate(times):
            place, ours, uniform = figure.subfigures(len(times), 1, squeeze=False)[row, 0].subplots(1, 3)
            xy, top = np.array(found["places"][row]), np.max([found["weights"], [found["uniform"]] * len(times)])
            place.plot(*xy.T, "o-", color="C0")
            place.set(title=f"the rope at step {t}", aspect="equal", xlabel="x", ylabel="y")
            for k, (x, y) in enumerate(xy):
                place.annotate(str(k), (x, y), textcoords="offset points", xytext=(6, 0), fontsize=8)
            for axis, table, name in ((ours, found["weights"][row], "Gibbs"), (uniform, found["uniform"], "uniform")):
                image = axis.imshow(np.array(table), vmin=0, vmax=top, cmap="viridis")
                axis.set(title=f"{name} weights", xlabel="sender", ylabel="receiver")
                figure.colorbar(image, ax=axis, shrink=0.8)
        figure.savefig(folder / "weights.png", dpi=110, metadata={"Software": None})
        own = np.mean([np.diag(table) for table in found["weights"]])
        told = f"A weight differs from the uniform one by up to {found['largest_difference_from_uniform']:.3f}; "
        return f"{told}a node weighs {own:.2f} on itself, on average.\n\n![weights](weights.png)\n"


class ControlPictures(Experiment):
    name: ClassVar[str] = "control_pictures"
    about: ClassVar[str] = "pictures: controlled systems at some times, a grid of 102 nodes and its voltages"

    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        found = []
        pictured = {name: world.recipe.pictures.objects for name, world in WORLDS.items()}
        for world, objects in pictured.items():
            if objects is None:
                continue
            settings = {"world": world, "method": "ours_shipped", "objects": objects}
            model = context.method(world, "ours_shipped")
            if model is not None:
                found.append(control_cell(self, 0, settings, model))
        return found

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        s = cell.settings
        setting = draw(s["world"], (s["objects"], s["objects"]), TEST + cell.seed)
        subject = loaded(context, s["world"], s["method"]).adapt(setting.episodes)
        run, found = run_control(setting, subject, setting.env.recipe.protocol)
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
                _course(path[..., 0], goal[:, 0], env.dt, label, folder / f"control_{world}_{word}.png")
                lines.append(f"![](control_{world}_{word}.png)\n")
        return "\n".join(lines)


def _course(values: np.ndarray, goal: np.ndarray, dt: float, label: str, path: Path) -> None:
    """A line a node over time, and where they should be."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot(dt * np.arange(len(values)), values, color="C0", alpha=0.25, linewidth=0.7)
    for level in np.unique(goal):
        axis.axhline(level, color="black", linewidth=0.8)
    axis.set(xlabel="seconds", ylabel=label)
    figure.savefig(path, dpi=120, metadata={"Software": None})


class EvalTime(Experiment):
    name: ClassVar[str] = "eval_time"
    about: ClassVar[str] = "CPU time of predicting 100 steps by the form of the operator, nodes and relation types"

    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        sizes = [(side, RELATIONS) for side in SIDES] + [(SIDES[-1], k) for k in RELATION_NUMBERS if k != RELATIONS]
        settings = [{"form": form, "side": side, "relations": k} for side, k in sizes for form in PAPER_FORMS]
        ours = {"method": [OURS, method_version(OURS)]}
        return [Cell(self.name, s, 0, self.version, ours) for s in settings]

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        timing = measure(cell.settings["form"], cell.settings["side"], cell.settings["relations"])
        return {"nodes": timing.nodes, "edges": timing.edges, "seconds": timing.seconds}

    def report(self, records: Sequence[Record], folder: Path) -> str:
        done = [r for r in records if "figures" in r]
        timings = [
            Timing(form=r["settings"]["form"], relations=r["settings"]["relations"], **r["figures"]) for r in done
        ]
        largest = max(t.nodes for t in timings)
        of_nodes = [t for t in timings if t.relations == RELATIONS]
        of_relations = sorted((t for t in timings if t.nodes == largest), key=lambda t: t.relations)
        chart(of_nodes, of_relations, folder / "eval_time.png")
        cases = list(dict.fromkeys((t.nodes, t.relations) for t in timings))
        rows = []
        for form in values_of(done, "form"):
            found = {(t.nodes, t.relations): t.seconds for t in timings if t.form == form}
            rows.append([form, *(f"{found[case]:.3f}" if case in found else "–" for case in cases)])
        table = markdown(["form", *(f"{n} nodes, {k} relation types" for n, k in cases)], rows)
        return f"CPU seconds of 100 steps on 2D grids.\n\n{table}\n![eval_time](eval_time.png)\n"
