"""The costs in the tables' plans, chosen on systems of their own: the weight of actions for every method, the same way
for all, and a larger running weight for ours, because a plan that comes nearer the goal swings more on its way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from gce.reproduce.cells import Cell
from gce.reproduce.choices import ACTION_COSTS, METHODS, RUNNING_COSTS, chosen_cost, long_of, methods_of
from gce.reproduce.control_cells import control_cell, loaded
from gce.reproduce.experiment import Context, Experiment, Preset, Record
from gce.reproduce.names import title
from gce.reproduce.statistics import markdown, select, summarise, values_of
from gce.reproduce.tasks import SEEN, SIZES, VALIDATION, draw, protocol_for, run_control

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
                    found.append(control_cell(self.name, seed, settings, model, ("gce.reproduce.tuning",)))
        return sorted(found, key=lambda cell: cell.seed)

    def fixed(self, context: Context, world: str) -> dict[str, Any]:
        """What else is not as in the world's protocol."""
        return {}

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        world = cell.settings["world"]
        setting = draw(world, SIZES[world][SEEN], VALIDATION + cell.seed)
        subject = loaded(context, world, cell.settings["method"]).adapt(setting.episodes)
        found: dict[str, Any] = {}
        for value in cell.settings[f"{self.weight}s"]:
            protocol = protocol_for(world, {**cell.settings, self.weight: value})
            figures = run_control(setting, subject, protocol)[1]
            found |= {f"error_{value:g}": figures["control_error"], f"cost_{value:g}": figures["cost"]}
        return found


class ActionWeight(Tuning):
    name: ClassVar[str] = "action_weight"
    about: ClassVar[str] = "the weight of actions in each method's plans, chosen on validation systems"
    weight, values = "action_cost", ACTION_COSTS

    def methods(self, world: str) -> tuple[str, ...]:
        return (*methods_of(world), *long_of(world))

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
        rows = []
        for world in values_of(records, "world"):
            for figure in ("error", "cost"):
                mine = select(records, world=world)
                rows.append([world, figure, *(str(summarise(mine, f"{figure}_{q:g}")) for q in RUNNING_COSTS)])
        return markdown(["world", "figure", *(f"weight {q:g}" for q in RUNNING_COSTS)], rows)
