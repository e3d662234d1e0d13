"""What decides a kept run beside its settings and seed, so that the layout of the code does not.

Versions are declared by hand. Raise one where the numbers of a world, a method or an experiment are meant to change:
tests/golden fails where numbers change and no version does. Of a model its tensors count without their names, and its
configuration without what is as by default: neither a new name nor a new field with a default voids a run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from gce.baselines.folder import BASELINES, baseline_named
from gce.envs import WORLDS, Protocol, world_named
from gce.errors import InputError
from gce.files import border, read_json
from gce.model.config import ModelConfig, configured
from gce.reproduce.recipes import GENERAL, OURS, PUBLISHED

METHODS = {OURS: 1, PUBLISHED: 1, GENERAL: 1, "nothing": 1, "oracle": 1}
"""The versions of methods that are no baselines; those of worlds, baselines and experiments stand in their classes."""


def method_version(name: str) -> int:
    return METHODS[name] if name in METHODS else baseline_named(name).version


def declared() -> dict[str, dict[str, int]]:
    """The versions of all worlds and methods."""
    return {
        "worlds": {name: world.version for name, world in WORLDS.items()},
        "methods": {name: method_version(name) for name in (*METHODS, *BASELINES)},
    }


def conditions(world: str, method: str, model: tuple[Path, Path] | None, planned: bool) -> dict[str, Any]:
    """JSON values that decide a run of a method in a world.

    model: its tensors and its description, where there is one; planned: whether the world's protocol counts.
    """
    kind = world_named(world)
    stated: dict[str, Any] = {"world": [world, kind.version], "method": [method, method_version(method)]}
    if planned:
        stated["protocol"] = without_defaults(dataclasses.asdict(kind.recipe.protocol), Protocol)
    if model is not None:
        stated["model"] = {"tensors": tensor_digest(model[0]), "config": config_in(model[1])}
    return stated


@cache
def tensor_digest(file: Path) -> str:
    """Of what the tensors hold, whatever their names and order."""
    try:
        tensors = [
            [str(tensor["dtype"]), list(tensor["shape"]), hashlib.sha256(tensor["data"]).hexdigest()]
            for _, tensor in deserialize(file.read_bytes())
        ]
    except SafetensorError as error:
        raise InputError(f"{file} is truncated or damaged: {error}; restore the file") from None
    return hashlib.sha256(json.dumps(sorted(tensors)).encode()).hexdigest()


@cache
def config_in(file: Path) -> dict[str, Any]:
    """What the description of a model or a baseline says of its configuration."""
    with border(file, "the description of a model", "restore or train it again"):
        text = read_json(file)
        if "baseline" in text:
            return without_defaults(text["config"], baseline_named(text["baseline"]).config_class)
        return canonical_config(text["config"])


def canonical_config(text: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of our model as model.json has it, whatever the layout: what is not as by default."""
    config = configured(text)
    shared = {name: value for name, value in config.described().items() if name != "features"}
    own = without_defaults(dataclasses.asdict(config.features), config.kind.Config)
    return {**without_defaults(shared, ModelConfig), "features": {"kind": config.kind.name, **own}}


def without_defaults(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """JSON values of a dataclass by name, but for those as by default; without a default, those that say nothing."""
    defaults = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    kept = {}
    for name, value in sorted(values.items()):
        usual = _json(value) == _json(defaults[name]) if name in defaults else not value
        if not usual:
            kept[name] = value
    return kept


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))
