"""The costs in the tables' plans, chosen on systems of their own: the weight of actions for every method, the same way
for all, and a larger running weight for ours, because a plan that comes nearer the goal swings more on its way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from gce.reproduce.cells import Cell
from gce.reproduce.choices import ACTION_COSTS, METHODS, RUNNING_COSTS, chosen_cost, methods_with_long
from gce.reproduce.control_cells import control_cell
from gce.reproduce.experiment import Context, Experiment, Preset, Record, records_in
from gce.reproduce.names import title
from gce.reproduce.pictures import trade_offs
from gce.reproduce.statistics import markdown, select, summarise, values_of
from gce.reproduce.tuning_cells import run_with_each

WORLDS = ("rope", "soft", "swim")


class Tuning(Experiment):
    """Each cell is one validation system, controlled with all the weights to choose from."""

    weight: ClassVar[str]
    """The field of `Protocol` that is chosen."""
    values: ClassVar[tuple[float, ...]]

    @abstractmethod
    def methods(self, world: str) -> tuple[str, ...]: ...

    def cells(self, preset: Preset, context: Context) -> list[Cell]:
        found = []
        for world in WORLDS:
            for name in self.methods(world):
                model = context.method(world, name)
                if model is None:
                    continue
                chosen_from = {f"{self.weight}s": list(self.values), **self.fixed(context, world)}
                settings = {"world": world, "method": name, **chosen_from}
                for seed in range(preset.tuned_on(name)):
                    found.append(control_cell(self, seed, settings, model))
        return sorted(found, key=lambda cell: cell.seed)

    def fixed(self, context: Context, world: str) -> dict[str, Any]:
        """What else is not as in the world's protocol."""
        return {}

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        return run_with_each(cell, context, self.weight)


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
        trade_offs(panels, folder / "running_weight.png", ("control error", "control cost"))
        table = markdown(["world", "figure", *(f"weight {q:g}" for q in RUNNING_COSTS)], rows)
        return f"{table}\n{FRONTIER}\n\n![error against cost](running_weight.png)"


FRONTIER = """The picture: ours along these weights, and the other methods with their own chosen weight of actions, on
the same systems. A method whose point lies above the curve is worse in one figure where it is as good in the other."""


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
