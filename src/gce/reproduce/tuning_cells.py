"""One validation system, controlled with each of some weights of the plans."""

from __future__ import annotations

from typing import Any

from gce.reproduce.cells import Cell
from gce.reproduce.control_cells import loaded
from gce.reproduce.experiment import Context
from gce.reproduce.tasks import SEEN, VALIDATION, draw, protocol_for, run_control, sizes_of


def run_with_each(cell: Cell, context: Context, weight: str) -> dict[str, Any]:
    """Error and cost by value of a field of `Protocol`; the settings name its values, in the plural."""
    world = cell.settings["world"]
    setting = draw(world, sizes_of(world, SEEN), VALIDATION + cell.seed)
    subject = loaded(context, world, cell.settings["method"]).adapt(setting.episodes)
    found: dict[str, Any] = {}
    for value in cell.settings[f"{weight}s"]:
        protocol = protocol_for(world, {**cell.settings, weight: value})
        figures = run_control(setting, subject, protocol)[1]
        found |= {f"error_{value:g}": figures["control_error"], f"cost_{value:g}": figures["cost"]}
    return found
