"""What decides a model's shape: the state, the kind of features, the operator.

A configuration is nested: settings of a kind of features are the kind's own. Commands, presets and models written
before give flat settings; `configured` reads both.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gce.errors import InputError
from gce.features import KINDS, Features, FeaturesConfig, StateShape, kind_named
from gce.features.message_passing import MessagePassingConfig
from gce.potentials import POTENTIALS

FLAT = {"features": "num_features", "linear_features": "num_linear"}
"""Flat settings whose names differ from those of a kind's own."""


@dataclass(frozen=True)
class ModelConfig(StateShape):
    """Everything that decides a model's shape; JSON values.

    features: the kind of features and its settings.
    form, own_block: of the operator. potential, potential_value, potential_learned: of the Gibbs weights, its
        hyper-parameter, and whether training changes that.
    ridge: of the regression. reproject: whether rollouts take the features of each predicted state anew; otherwise
        they stay in feature space.
    node_constants: whether each node has a constant of its own beside what all share, and how strongly it is drawn to
        zero, as a number of rows; 0 for none.
    """

    features: FeaturesConfig = field(default_factory=MessagePassingConfig)
    form: str = "hom_mean"
    own_block: bool = True
    potential: str = "gaussian"
    potential_value: float = 2.0
    potential_learned: bool = True
    ridge: float = 1e-4
    reproject: bool = True
    node_constants: float = 0.0

    def __post_init__(self) -> None:
        self.kind.check(self)

    @property
    def kind(self) -> type[Features]:
        return kind_named(self.features.kind)

    def described(self) -> dict[str, Any]:
        """As JSON values, nested; `configured` reads them."""
        return {**dataclasses.asdict(self), "features": {"kind": self.kind.name, **dataclasses.asdict(self.features)}}


SHARED = tuple(f.name for f in dataclasses.fields(ModelConfig) if f.name != "features")
"""Settings of all models."""
UNKNOWN = "there is no setting {!r} of a model; see gce.model.config for those there are"
DIVISORS, SMALLEST = ("dt", "potential_value", "bound"), 1e-12
NOTHING = "selection"
"""The value of a switch that asks for no kind: the observation is among the features, and selected."""


def configured(settings: Mapping[str, Any]) -> ModelConfig:
    """A configuration from nested settings, or from flat ones as commands, presets and older files give them."""
    settings = _tuples(dict(settings))
    kind, own = kind_and_settings(settings)
    config = ModelConfig(**{name: settings[name] for name in settings if name in SHARED}, features=kind.Config(**own))
    check_types(config)
    check_types(config.features)
    coordinates = [c for group in (*config.kinematics, *config.points) for c in group]
    if not all(0 <= c < config.num_observations for c in coordinates):
        raise InputError(f"kinematics or points name coordinate {max(coordinates)} of {config.num_observations}")
    return config


def check_types(config: Any) -> None:
    """That every field of a configuration is of its type, no size is negative, and no number infinite."""
    hints = typing.get_type_hints(type(config))
    for field_ in dataclasses.fields(config):
        value, hint = getattr(config, field_.name), hints[field_.name]
        least = SMALLEST if field_.name in DIVISORS else 0
        if not _fits(value, hint) or (type(value) in (int, float) and value < least):
            told = f"{getattr(hint, '__name__', hint)}, " + ("0 or more" if least == 0 else "a positive number")
            raise InputError(f"the setting {field_.name} of a model is {str(value)[:40]}, expected {told}")


def _fits(value: Any, hint: Any) -> bool:
    parts = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if typing.get_origin(hint) is tuple:
        each = parts[:1] * len(value) if parts[-1] is Ellipsis and isinstance(value, tuple) else parts
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if hint in (int, float):
        return type(value) in (int, hint) and abs(value) < float("inf")
    return not isinstance(hint, type) or isinstance(value, hint)


def check_asked(settings: Mapping[str, Any]) -> None:
    """Of settings as asked for: that a potential without a hyper-parameter is given none."""
    potential = POTENTIALS.get(settings.get("potential", ""))
    if potential is None or potential.valued:
        return
    none = f"the potential {potential.name!r} has no hyper-parameter"
    if "potential_value" in settings:
        raise InputError(f"{none}, but {settings['potential_value']} was given for it; leave that out")
    if settings.get("potential_learned"):
        raise InputError(f"{none} that training could change; leave that out")


def kind_and_settings(settings: Mapping[str, Any]) -> tuple[type[Features], dict[str, Any]]:
    """The kind of features that settings ask for, and the kind's own among them.

    Flat settings of other kinds are left out where they say nothing (False, 0), and refused where they do.
    """
    given = settings.get("features")
    if isinstance(given, Mapping):
        unknown = [name for name in settings if name not in (*SHARED, "features")]
        if unknown:
            raise InputError(UNKNOWN.format(unknown[0]))
        return kind_named(str(given.get("kind"))), {name: given[name] for name in given if name != "kind"}
    kind = kind_asked_for(settings)
    flat = {FLAT.get(name, name): value for name, value in settings.items() if name not in (*SHARED, "kind")}
    off = {f.name: f.default for other in KINDS.values() for f in dataclasses.fields(other.Config)}
    off |= {name: value for other in KINDS.values() for name, value in other.formerly.items()}
    mine = {f.name for f in dataclasses.fields(kind.Config)}
    for name, value in flat.items():
        if name not in off:
            raise InputError(UNKNOWN.format(name))
        if name not in mine and value and not off[name]:
            raise InputError(
                f"{name}={value} is not a setting of features of the kind {kind.name!r}; leave it out, or choose "
                f"{' or '.join(_asked_by(other) for other in KINDS.values() if _has(other, name))}"
            )
    return kind, {name: value for name, value in flat.items() if name in mine}


def _tuples(value: Any) -> Any:
    """JSON has lists alone."""
    if isinstance(value, dict):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def _has(kind: type[Features], name: str) -> bool:
    return any(f.name == name for f in dataclasses.fields(kind.Config))


def _asked_by(kind: type[Features]) -> str:
    return next((f"{name}={value}" for name, value in kind.formerly.items()), f"kind={kind.name!r}")


def kind_asked_for(settings: Mapping[str, Any]) -> type[Features]:
    """By the flat setting "kind", by the switch that asks for a kind, or message passing."""
    if "kind" in settings:
        return kind_named(settings["kind"])
    for name, value in ((name, value) for kind in KINDS.values() for name, value in kind.formerly.items()):
        given = settings.get(name, NOTHING)
        if isinstance(value, str) and given not in (value, NOTHING):
            raise InputError(f"there is no {name} {given!r}; the {name}s are {NOTHING}, {value}")
    asked = [kind for kind in KINDS.values() if kind.formerly and kind.formerly.items() <= settings.items()]
    if len(asked) > 1:
        switches = " and ".join(_asked_by(kind) for kind in asked)
        raise InputError(f"{switches} ask for different kinds of features; choose one of them")
    return asked[0] if asked else kind_named(MessagePassingConfig.kind)
