"""Which methods a table has, and what is chosen for their plans on validation systems: the weight of actions for every
method in the same way, what CKO's plans aim at, the potential and the running weight for ours.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gce.envs import world_named
from gce.files import read_json
from gce.reproduce.experiment import Cell, Context, Preset, records_in
from gce.reproduce.methods import method, title
from gce.reproduce.recipes import LONG, LONGER, PUBLISHED
from gce.reproduce.statistics import Record, markdown, paired, select, summarise, values_of
from gce.reproduce.tasks import SEEN, VALIDATION, WorldTable, draw, loaded, protocol_for, run_control, sizes_of
from gce.views import style

METHODS = (
    "ours_gaussian",
    "cko",
    "cko_in_features",
    "kpm",
    "ours_laplace",
    "ours_vmf",
    "ours_mlp",
    "ours_shipped",
    "graph_ode",
    "vae",
    "pcc",
)
PUBLISHED_POTENTIALS = (PUBLISHED, *(f"{PUBLISHED}_{name}" for name in ("vmf", "laplace", "mlp")))
POTENTIALS = tuple(name for name in METHODS if name.startswith("ours") and name != "ours_shipped")
CHEAPER = "ours_cheaper"
"""The first of the methods with the running weight chosen here: a row of its own."""
ACTION_COSTS = (1e-3, 1e-2, 1e-1, 1.0)
ALIKE = 1e-6
"""What differs by less, of an error, differs by rounding: where a choice changes nothing, none is the best."""
RUNNING_COSTS = (1e-3, 3e-3, 5e-3, 1e-2, 2e-2, 3e-2, 1e-1)


def methods_of(world: str) -> tuple[str, ...]:
    """The rows of a world's table; Rope has models of longer training too."""
    return (*METHODS, *LONGER, *LONG) if world_named(world).recipe.longer_trained else METHODS


def methods_with_long(world: str) -> tuple[str, ...]:
    """With the models that are there for the comparison with published ones."""
    return tuple(dict.fromkeys((*methods_of(world), *LONG)))


def chosen_potential(records: Sequence[Record], world: str) -> str:
    """Ours with the potential of the lowest mean error on validation systems; Gaussian where there was no choice, or
    all are alike."""
    errors = {name: min(_errors(records, world, name).values(), default=np.inf) for name in POTENTIALS}
    least = min(errors.values())
    return next(name for name in POTENTIALS if errors[name] <= least + ALIKE)


def chosen_for_grid(models: Path) -> str:
    """Ours, the package's model or the table's, that predicts validation grids better, as noted when it was trained."""
    found = [one for one in (method(models, "grid", name) for name in ("ours_shipped", METHODS[0])) if one.exists]
    errors = {one.name: read_json(one.files[1])["about"]["validation_nrmse"] for one in found}
    return min(errors, key=lambda name: errors[name])


def chosen_cko(records: Sequence[Record], world: str) -> str:
    """CKO planned in observations or in features, whichever has the lower mean error on validation systems."""
    errors = {name: min(_errors(records, world, name).values(), default=np.inf) for name in ("cko", "cko_in_features")}
    return min(errors, key=lambda name: errors[name])


def chosen_cost(records: Sequence[Record], world: str, name: str) -> float | None:
    """The action weight with the lowest mean error on validation systems; None where there was no choice."""
    means = _errors(records, world, name)
    return min(means, key=lambda cost: means[cost]) if means else None


def cheaper_cost(tuned: Sequence[Record], running: Sequence[Record], world: str) -> float | None:
    """The running weight of ours whose largest ratio to another method, of error or of cost, is the smallest; means on
    the validation systems that both have. None where it is the world's own weight, or there is no other method."""
    ours = select(running, world=world, method=METHODS[0])
    others = [
        {
            figure: summarise(select(tuned, world=world, method=name), f"{figure}_{value:g}")
            for figure in ("error", "cost")
        }
        for name in METHODS
        if not name.startswith("ours") and (value := chosen_cost(tuned, world, name)) is not None
    ]
    own = world_named(world).recipe.protocol.state_cost
    largest = {}
    for q in (q for q in RUNNING_COSTS if q >= own):
        found = {figure: summarise(ours, f"{figure}_{q:g}") for figure in ("error", "cost")}
        ratios = [paired(found[f], other[f]).ratio for other in others for f in found]
        if ratios := [ratio for ratio in ratios if np.isfinite(ratio)]:
            largest[q] = max(ratios)
    chosen = min(largest, key=lambda q: largest[q], default=own)
    return chosen if chosen > own else None


def _errors(records: Sequence[Record], world: str, name: str) -> dict[float, float]:
    """By action weight."""
    mine = select(records, world=world, method=name)
    means = {value: summarise(mine, f"error_{value:g}").mean for value in ACTION_COSTS}
    return {value: mean for value, mean in means.items() if np.isfinite(mean)}


class Tuning(WorldTable):
    """Each cell is one validation system, controlled with all the weights to choose from."""

    weight: ClassVar[str]
    """The field of `Protocol` that is chosen."""
    values: ClassVar[tuple[float, ...]]

    @abstractmethod
    def methods(self, world: str) -> tuple[str, ...]: ...

    def rows(self, context: Context) -> list[dict[str, Any]]:
        chosen_from = {f"{self.weight}s": list(self.values)}
        return [
            {"world": world, "method": name, **chosen_from, **self.fixed(context, world)}
            for world in ("rope", "soft", "swim")
            for name in self.methods(world)
        ]

    def count(self, preset: Preset, settings: dict[str, Any], context: Context) -> int:
        return preset.tuned_on(settings["method"])

    def fixed(self, context: Context, world: str) -> dict[str, Any]:
        """What else is not as in the world's protocol."""
        return {}

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        """Error and cost with each of the weights."""
        world = cell.settings["world"]
        setting = draw(world, sizes_of(world, SEEN), VALIDATION + cell.seed)
        method = loaded(context, world, cell.settings["method"])
        adapted = method.adapt(setting.episodes)
        found: dict[str, Any] = {}
        for value in cell.settings[f"{self.weight}s"]:
            protocol = protocol_for(world, {**cell.settings, self.weight: value})
            figures = run_control(setting, method, adapted, protocol)[1]
            found |= {f"error_{value:g}": figures["control_error"], f"cost_{value:g}": figures["cost"]}
        return found


class ActionWeight(Tuning):
    name: ClassVar[str] = "action_weight"
    about: ClassVar[str] = "the weight of actions in each method's plans, chosen on validation systems"
    weight, values = "action_cost", ACTION_COSTS

    def methods(self, world: str) -> tuple[str, ...]:
        return methods_with_long(world)

    def report(self, records: Sequence[Record], folder: Path) -> str:
        rows = []
        for world in values_of(records, "world"):
            for name in values_of(select(records, world=world), "method"):
                mine = select(records, world=world, method=name)
                cells = [str(summarise(mine, f"error_{cost:g}")) for cost in ACTION_COSTS]
                rows.append([world, title(name), *cells, f"{chosen_cost(records, world, name):g}"])
        header = ["world", "method", *(f"weight {cost:g}" for cost in ACTION_COSTS), "chosen"]
        return "Control error on validation systems.\n\n" + markdown(header, rows)


class RunningWeight(Tuning):
    name: ClassVar[str] = "running_weight"
    about: ClassVar[str] = "error against cost of our plans by their running weight, on validation systems"
    weight, values = "state_cost", RUNNING_COSTS

    def methods(self, world: str) -> tuple[str, ...]:
        return METHODS[:1]

    def fixed(self, context: Context, world: str) -> dict[str, Any]:
        return {"action_cost": chosen_cost(context.records("action_weight"), world, METHODS[0])}

    def report(self, records: Sequence[Record], folder: Path) -> str:
        tuned = records_in(folder, ActionWeight.name)
        rows, panels = [], {}
        for world in values_of(records, "world"):
            mine = select(records, world=world)
            for figure in ("error", "cost"):
                rows.append([world, figure, *(str(summarise(mine, f"{figure}_{q:g}")) for q in RUNNING_COSTS)])
            curve = [_mean(mine, q) for q in RUNNING_COSTS]
            panels[world] = (curve, _others(tuned, world, {r["seed"] for r in mine}))
        trade_offs(panels, folder / "running_weight.svg", ("control error", "control cost"))
        table = markdown(["world", "figure", *(f"weight {q:g}" for q in RUNNING_COSTS)], rows)
        return f"{table}\n{FRONTIER}\n\n![error against cost](running_weight.svg)"


FRONTIER = """The picture: structured plans along these weights, and the other methods with their own chosen weight of
actions, on the same systems. A method whose point lies above the curve is worse in one figure where it is as good in
the other."""


def _others(tuned: Sequence[Record], world: str, seeds: set[int]) -> dict[str, tuple[float, float]]:
    """(error, cost) of the other methods that controlled all of these systems."""
    found = {}
    for name in (name for name in METHODS if not name.startswith("ours")):
        mine = [r for r in select(tuned, world=world, method=name) if r["seed"] in seeds]
        cost = chosen_cost(tuned, world, name)
        if cost is not None and len(mine) == len(seeds):
            found[title(name)] = _mean(mine, cost)
    return found


def _mean(records: Sequence[Record], weight: float) -> tuple[float, float]:
    return summarise(records, f"error_{weight:g}").mean, summarise(records, f"cost_{weight:g}").mean


Point = tuple[float, float]


def trade_offs(
    panels: Mapping[str, tuple[Sequence[Point], Mapping[str, Point]]], path: Path, labels: tuple[str, str]
) -> None:
    """A panel a world: a curve (x, y) and single points beside it, by name; nearer the lower left is better in both."""
    if not panels:
        return
    figure, axes = style.panels(4.2 * len(panels), 3.8, 1, len(panels), squeeze=False)
    for axis, (name, (curve, points)) in zip(axes[0], panels.items(), strict=True):
        axis.plot(*np.array(curve).T, "o-", color=style.colour_of("structured"), label="structured, by running weight")
        for other, (x, y) in points.items():
            axis.plot(x, y, "s", color=style.colour_of(other), label=other)
        axis.set(title=name, xlabel=labels[0], ylabel=labels[1], xlim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    style.save(figure, path)
