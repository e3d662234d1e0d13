"""Planning: where a world, an adapted system and a controller meet."""

from typing import TYPE_CHECKING

from gce.names import lazy

if TYPE_CHECKING:
    from gce.planning.closed_loop import control, run
    from gce.planning.controller import Controller, Plan

__all__ = ["Controller", "Plan", "control", "run"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Controller": "gce.planning.controller",
        "Plan": "gce.planning.controller",
        "control": "gce.planning.closed_loop",
        "run": "gce.planning.closed_loop",
    },
)
