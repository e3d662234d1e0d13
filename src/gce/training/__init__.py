"""Training: a data set in, a trained model out."""

from typing import TYPE_CHECKING

from gce.names import lazy

if TYPE_CHECKING:
    from gce.training.learning import train

__all__ = ["train"]

__getattr__, __dir__ = lazy(__name__, {"train": "gce.training.learning"})
