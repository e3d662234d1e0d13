"""Tables of control: all methods, noise on the grid, episodes to adapt to, bandwidth and number of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gce.reproduce import paper
from gce.reproduce.experiment import Cell, Context, Preset
from gce.reproduce.methods import title
from gce.reproduce.recipes import BANDWIDTHS, FORMS, GENERAL, PUBLISHED, bandwidth_model
from gce.reproduce.statistics import (
    Record,
    curves,
    grid_table,
    markdown,
    paired,
    select,
    series,
    short,
    summarise,
    values_of,
)
from gce.reproduce.tasks import SEEN, UNSEEN, WorldTable, run_cell
from gce.reproduce.tuning import CHEAPER, PUBLISHED_POTENTIALS, cheaper_cost, chosen_cost, methods_of


class ControlTable(WorldTable):
    """Made of controlled runs."""

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        return run_cell(cell, context)

    def count(self, preset: Preset, settings: dict[str, Any], context: Context) -> int:
        world, name = settings["world"], settings["method"]
        runs = preset.count(world, name)
        if not runs:
            context.leave_out(f"{world}/{name} takes minutes a run and is not in the preset {preset.name}")
        return runs


class Main(ControlTable):
    """Published models plan with the costs of their presets; of the others the weight of actions is chosen."""

    name: ClassVar[str] = "main"
    about: ClassVar[str] = "control cost and error of all methods in Rope, Soft and Swim, sizes seen and unseen"

    def rows(self, context: Context) -> list[dict[str, Any]]:
        tuned, cheaper = context.records("action_weight"), context.records("running_weight")
        found = []
        for world in ("rope", "soft", "swim"):
            plans = [{"method": name, "action_cost": chosen_cost(tuned, world, name)} for name in methods_of(world)]
            running = cheaper_cost(tuned, cheaper, world)
            if running is not None:
                plans.append({**plans[0], "method": CHEAPER, "model": plans[0]["method"], "state_cost": running})
            plans += [{"method": name} for name in ("nothing", *PUBLISHED_POTENTIALS, GENERAL)]
            found += [{"world": world, "split": split, **plan} for split in (SEEN, UNSEEN) for plan in plans]
        return found

    def report(self, records: Sequence[Record], folder: Path) -> str:
        parts = []
        for world in values_of(records, "world"):
            for split in (SEEN, UNSEEN):
                mine = select(records, world=world, split=split)
                if mine:
                    parts.append(f"## {world.capitalize()}, {split}\n\n" + _methods(mine, world, split))
        return "\n".join(parts)


def _methods(records: Sequence[Record], world: str, split: str) -> str:
    base = {figure: summarise(select(records, method="cko"), figure) for figure in ("control_error", "cost")}
    rows = []
    for name in values_of(records, "method"):
        mine = select(records, method=name)
        error, cost = summarise(mine, "control_error"), summarise(mine, "cost")
        known = paper.MAIN.get((world, split, name))
        rows.append(
            [
                title(name),
                trained(mine),
                error,
                short(summarise(mine, "control_error_positions").mean),
                short(summarise(mine, "control_error_over_nothing").mean),
                cost,
                short(summarise(mine, "feature_cost").mean),
                "–" if known is None else f"{known[1][0]} ± {known[1][1]}",
                "–" if known is None else f"{known[0][0]} ± {known[0][1]}",
                "–" if name == "cko" else paired(error, base["control_error"]),
                "–" if name == "cko" else paired(cost, base["cost"]),
            ]
        )
    header = [
        "method", "trained", "error", "positions", "over nothing", "cost", "feature cost", "paper: error",
        "paper: cost", "error - CKO's", "cost - CKO's",
    ]  # fmt: skip
    return markdown(header, rows)


def trained(records: Sequence[Record]) -> str:
    """How long the model of some runs was trained, CPU time of one core."""
    found = next((r["figures"].get("trained_minutes") for r in records if "figures" in r), None)
    return "–" if found is None else f"{found:g} min"


class GridNoise(ControlTable):
    name: ClassVar[str] = "grid_noise"
    about: ClassVar[str] = "control of grids of 100-150 nodes under noise of the state and of the observations"

    METHODS: ClassVar[tuple[str, ...]] = (
        "nothing",
        "oracle",
        "ours_gaussian",
        "cko",
        "kpm",
        "ours_shipped",
        "graph_ode",
        PUBLISHED,
        GENERAL,
    )

    def rows(self, context: Context) -> list[dict[str, Any]]:
        return [
            {"world": "grid", "split": UNSEEN, "method": name, "kind": kind, "noise": noise, f"{kind}_noise": noise}
            for noise in paper.NOISES
            for kind in ("process", "observation")
            for name in self.METHODS
            if noise or kind == "process"
        ]

    def report(self, records: Sequence[Record], folder: Path) -> str:
        parts = []
        for kind, words in (("process", "on the state, each step"), ("observation", "on what is observed")):
            mine = [r for r in records if r["settings"]["kind"] == kind or not r["settings"]["noise"]]

            def row(name: str, mine: Sequence[Record] = mine) -> str:
                time = trained(select(mine, method=name))
                return title(name) if time == "–" else f"{title(name)}, {time}"

            of = f", noise {words}"
            parts.append(_error_and_cost(mine, "voltage_error", "method", "noise", row, _percent, paper.GRID, of))
        lines = {
            title(name): series(select(records, method=name, kind="process"), "noise", "voltage_error")
            for name in values_of(records, "method")
        }
        curves(lines, folder / "grid_noise.svg", "noise of the state, share of the units", "|V - 1| over its start")
        return "\n".join(parts)


class FittingNumber(ControlTable):
    """Structured: one encoder for all forms. Published: a model trained with each."""

    name: ClassVar[str] = "fitting_number"
    about: ClassVar[str] = "Rope: the forms dense, hom and hom_mean adapted to 1 to 32 episodes"

    def rows(self, context: Context) -> list[dict[str, Any]]:
        shared = [{"method": "ours_gaussian", "form": form} for form in ("hom_mean", *FORMS)]
        own = [{"method": PUBLISHED, "published": "hom_mean"}]
        own += [{"method": f"{PUBLISHED}_{form}", "published": form} for form in FORMS]
        return [
            {"world": "rope", "split": SEEN, **row, "episodes": episodes}
            for episodes in paper.FITTING_NUMBERS
            for row in (*shared, *own)
        ]

    def report(self, records: Sequence[Record], folder: Path) -> str:
        for figure, label in (("control_error", "control error"), ("cost", "control cost")):
            lines = {
                f"{method}, {form}": series(select(records, **{key: form}), "episodes", figure)
                for method, key in (("published", "published"), ("structured", "form"))
                for form in values_of(records, key)
                if form is not None
            }
            curves(lines, folder / f"fitting_number_{figure}.svg", "episodes adapted to", label, log=True)
        parts = []
        for of, key, known in ((", published", "published", paper.FITTING), (", structured", "form", {})):
            mine = [r for r in records if r["settings"].get(key) is not None]
            if mine:
                names = "control_error", key, "episodes"
                parts.append(_error_and_cost(mine, *names, str, lambda k: f"{k} episodes", known, of))
        return "\n".join(parts)


class Bandwidth(ControlTable):
    name: ClassVar[str] = "bandwidth"
    about: ClassVar[str] = "Rope and Soft: the bandwidth of the Gaussian potential, a model trained with each"

    def run(self, cell: Cell, context: Context) -> dict[str, Any]:
        """On Soft plans leave the learned operator out: what it predicts tells more."""
        return run_cell(cell, context, predicted=True)

    def rows(self, context: Context) -> list[dict[str, Any]]:
        return [
            {"world": world, "split": UNSEEN, "method": bandwidth_model(bandwidth), "bandwidth": bandwidth}
            for world in ("rope", "soft")
            for bandwidth in BANDWIDTHS
        ]

    def report(self, records: Sequence[Record], folder: Path) -> str:
        parts = []
        for figure, what in (
            ("control_error", "Control error"),
            ("cost", "Control cost"),
            ("nrmse", "Mean NRMSE of 100 predicted steps"),
        ):
            table = grid_table(records, "world", "bandwidth", figure, str, lambda s: f"σ = {s:g}")
            parts.append(f"## {what}\n\n{table}")
            lines = {w: series(select(records, world=w), "bandwidth", figure) for w in values_of(records, "world")}
            curves(lines, folder / f"bandwidth_{figure}.svg", "bandwidth σ", what.lower(), log=True)
        return "\n".join(parts)


class Dimension(ControlTable):
    name: ClassVar[str] = "dimension"
    about: ClassVar[str] = "grid: 8, 16, 32 and 64 features, without noise and with 2% on the state"

    NAMES: ClassVar[dict[str, int]] = {
        "ours_8_features": 8,
        "ours_16_features": 16,
        "ours_gaussian": 32,
        "ours_64_features": 64,
    }

    def rows(self, context: Context) -> list[dict[str, Any]]:
        return [
            {"world": "grid", "split": UNSEEN, "method": name, "features": size, "process_noise": noise}
            for noise in (0.0, 0.02)
            for name, size in self.NAMES.items()
        ]

    def report(self, records: Sequence[Record], folder: Path) -> str:
        names = "voltage_error", "features", "process_noise"
        return _error_and_cost(records, *names, lambda d: f"{d} features", _percent, paper.DIMENSION)


def _error_and_cost(
    records: Sequence[Record],
    error: str,
    row: str,
    column: str,
    row_title: Callable[[Any], str],
    column_title: Callable[[Any], str],
    known: Mapping[Any, tuple[paper.Figure, paper.Figure]],
    of: str = "",
) -> str:
    """Two tables by two settings. known: (cost, error) of the paper, by both; of: ends the headings."""
    parts = []
    for figure, what, place in ((error, "Control error", 1), ("cost", "Control cost", 0)):

        def beside(r: Any, c: Any, place: int = place) -> str:
            return f"; paper {known[r, c][place][0]}".replace("nan", "NaN") if (r, c) in known else ""

        table = grid_table(records, row, column, figure, row_title, column_title, beside)
        parts.append(f"## {what}{of}\n\n{table}")
    return "\n".join(parts)


def _percent(noise: float) -> str:
    return f"{100 * noise:g}%"
