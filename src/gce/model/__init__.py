"""The model: an embedding, operators fitted in it, and steps under them."""

from typing import TYPE_CHECKING

from gce.names import lazy

if TYPE_CHECKING:
    from gce.model.config import ModelConfig, TrainingConfig
    from gce.model.model import Model

__all__ = ["Model", "ModelConfig", "TrainingConfig"]

__getattr__, __dir__ = lazy(
    __name__, {"Model": "gce.model.model", "ModelConfig": "gce.model.config", "TrainingConfig": "gce.model.config"}
)
