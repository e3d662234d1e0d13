"""`gce demo`: the main job, small."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Demo:
    """Record a rope and write its animation."""

    out: Path = Path("demo")
    """The folder for what the demo makes."""

    def run(self) -> None:
        from gce.cli.data import RecordRope, Show

        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / "rope.h5"
        file.unlink(missing_ok=True)
        RecordRope(out=file, episodes=1, objects="9", seed=3).run()
        Show(file=file, out=self.out / "rope.gif").run()
