"""`gce demo`: the main job, small."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Demo:
    """Take the model that comes with the package and a rope it has never seen; adapt, plan, act, and show it."""

    out: Path = Path("demo")
    """The folder for what the demo makes."""

    def run(self) -> None:
        from gce.cli.control import Control
        from gce.cli.report import Report

        Control(what="rope", objects=12, seed=3, out=self.out).run()
        Report(self.out).run()
