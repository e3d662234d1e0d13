"""`gce report`, `gce explore` and `gce demo`: what people look at."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from gce.cli.common import Place, episode_of, find_model, others_of_group
from gce.cli.control import Control


@dataclass
class Report:
    """Write one HTML page about a run: animation, errors, cost, actions, Gibbs weights, spectra, fit and versions.

    The page needs no network and opens in any browser.
    """

    run_folder: tyro.conf.Positional[Path]
    """The folder that `gce control ... --out` or `gce demo` wrote."""
    out: Place = None
    """The file to write; by default report.html in the folder."""

    def run(self) -> None:
        from gce.views.report import write_report

        file = self.out or self.run_folder / "report.html"
        write_report(self.run_folder, file)
        print(f"{file}: open it in a browser", file=sys.stderr)


@dataclass
class Explore:
    """Serve a page on this machine: pick a system, drag its goal, plan, and watch the simulator follow.

    The page is for this machine only, under the address that is printed. Ctrl-C stops.
    """

    data: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Data set files (.h5) to offer beside the worlds and test cases."""
    model: Place = None
    """The folder of a model for systems in these files; by default the one that comes with the package."""
    port: int = 8642
    """Where to listen; 0 takes any free port."""
    open: bool = False
    """Open the page in a browser."""

    def run(self) -> None:
        import webbrowser

        from gce.trajectory import Dataset
        from gce.views.explorer import Explorer, serve

        for file in self.data:
            Dataset.open(file).close()
        serve(self.port, webbrowser.open if self.open else lambda address: None, Explorer(self.data, self._read))

    def _read(self, file: Path, number: int) -> Any:
        """An episode of a data set with what the page needs to plan from it."""
        from gce.trajectory import Dataset, control_limits
        from gce.views.explorer.workshop import EPISODES, RecordedSystem

        with Dataset.open(file) as data:
            model, episode = find_model(self.model, data), episode_of(data, file, number)
            others = [data[k] for k in others_of_group(data, number, EPISODES)]
            _, low, high = control_limits(data, int(data.groups[number]))
            names = data.group(int(data.groups[number])).parameters.get("nodes")
        nodes = names or range(episode.num_nodes)
        return RecordedSystem(model, episode, others, low, high, [str(name) for name in nodes])


@dataclass
class Demo:
    """Take the model that comes with the package and a rope it has never seen; adapt, plan, act, and show it."""

    out: Path = Path("demo")
    """The folder for what the demo makes."""

    def run(self) -> None:
        Control(what="rope", objects=12, seed=3, out=self.out).run()
        Report(self.out).run()
