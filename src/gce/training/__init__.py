"""Training: a data set in, a trained model out."""

from typing import TYPE_CHECKING

from gce.names import lazy

if TYPE_CHECKING:
    from gce.training.batches import TrainingConfig
    from gce.training.learning import train

__all__ = ["TrainingConfig", "train"]

__getattr__, __dir__ = lazy(__name__, {"TrainingConfig": "gce.training.batches", "train": "gce.training.learning"})
