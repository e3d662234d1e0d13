"""The experiments by name, in the order of their value."""

from __future__ import annotations

from gce.errors import InputError
from gce.reproduce.control_tables import Bandwidth, Dimension, FittingNumber, GridNoise, Main
from gce.reproduce.experiment import Experiment
from gce.reproduce.picture_tables import ControlPictures, EvalTime, Weights
from gce.reproduce.prediction_tables import Prediction, SampleEfficiency
from gce.reproduce.recorded import Recorded
from gce.reproduce.tuning import ActionWeight, RunningWeight

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        ActionWeight(),
        RunningWeight(),
        Main(),
        GridNoise(),
        FittingNumber(),
        Prediction(),
        SampleEfficiency(),
        Bandwidth(),
        Dimension(),
        EvalTime(),
        Weights(),
        ControlPictures(),
        Recorded(),
    )
}


def experiment_named(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}; the experiments are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
