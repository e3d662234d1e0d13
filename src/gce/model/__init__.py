"""The model: features, operators fitted in them, steps under these, and files."""

from typing import TYPE_CHECKING

from gce.names import lazy

if TYPE_CHECKING:
    from gce.model.config import ModelConfig
    from gce.model.files import load_model, save_model, shipped
    from gce.model.model import Model

__all__ = ["Model", "ModelConfig", "load_model", "save_model", "shipped"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Model": "gce.model.model",
        "ModelConfig": "gce.model.config",
        "load_model": "gce.model.files",
        "save_model": "gce.model.files",
        "shipped": "gce.model.files",
    },
)
