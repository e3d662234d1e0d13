"""A model adapted to one system: evidence of episodes, predictions, how far they are off, files."""

from typing import TYPE_CHECKING

from gce.names import lazy

if TYPE_CHECKING:
    from gce.system.files import load_system, save_system
    from gce.system.system import System, adapt

__all__ = ["System", "adapt", "load_system", "save_system"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "System": "gce.system.system",
        "adapt": "gce.system.system",
        "load_system": "gce.system.files",
        "save_system": "gce.system.files",
    },
)
