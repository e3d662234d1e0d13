"""A model adapted to one system: evidence of episodes, predictions, how far they are off, files."""

from typing import TYPE_CHECKING

from gce.names import lazy

if TYPE_CHECKING:
    from gce.system.files import load_model, load_system, save_model, save_system, shipped
    from gce.system.system import System, adapt

__all__ = ["System", "adapt", "load_model", "load_system", "save_model", "save_system", "shipped"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "System": "gce.system.system",
        "adapt": "gce.system.system",
        "load_model": "gce.system.files",
        "save_model": "gce.system.files",
        "load_system": "gce.system.files",
        "save_system": "gce.system.files",
        "shipped": "gce.system.files",
    },
)
