"""`gce report`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass
class Report:
    """Write one HTML page about a run: animation, errors, cost, actions, Gibbs weights, spectra, fit and versions.

    The page needs no network and opens in any browser.
    """

    run_folder: tyro.conf.Positional[Path]
    """The folder that `gce control ... --out` or `gce demo` wrote."""
    out: Path | None = None
    """The file to write; by default report.html in the folder."""

    def run(self) -> None:
        from gce.views.report import write_report

        file = self.out or self.run_folder / "report.html"
        write_report(self.run_folder, file)
        print(f"{file}: open it in a browser", file=sys.stderr)
