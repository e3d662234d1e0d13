"""`gce explore`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Explore:
    """Serve a page on this machine: pick a system, drag its goal, plan, and watch the simulator follow.

    The page is for this machine only, under the address that is printed. Ctrl-C stops.
    """

    port: int = 8642
    """Where to listen; 0 takes any free port."""
    open: bool = False
    """Open the page in a browser."""

    def run(self) -> None:
        import webbrowser

        from gce.views.explorer import serve

        serve(self.port, webbrowser.open if self.open else lambda address: None)
