"""Models on disk: a folder with tensors (safetensors) and a description (JSON), which cannot run code.

Version 2 keeps the settings of a kind of features nested, and the tensors of features under `features.`. Version 1 had
both flat; it is read as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import gce
from gce.errors import InputError
from gce.model.config import configured
from gce.model.methods import METHODS, folder_name
from gce.model.model import Model

MODEL, VERSIONS = "gce-model", (2, 1)
"""The format, and its versions that can be read; the first is written."""
FORMERLY = {
    "encoder.": "features.encoder.",
    "implicit.": "features.channels.",
    "reach.": "features.spreading.",
    "decoder.": "features.decoder.",
    "memory.": "features.memory.",
    "held": "features.held",
}
"""How names of tensors in version 1 begin, and as what they are read."""


def save_model(model: Model, folder: Path | str, about: dict[str, Any] | None = None) -> None:
    """Write model.safetensors and model.json. about: where the model comes from, JSON values."""
    text = {"format": MODEL, "format_version": VERSIONS[0], "version": gce.__version__, "method": model.method}
    text |= {"about": about or {}, "config": model.config.described()}
    write_pair(Path(folder), "model", dict(model.state_dict()), text)


def load_model(folder: Path | str) -> Model:
    tensors, text = read_pair(Path(folder), "model", MODEL, VERSIONS)
    if text["format_version"] == 1:
        tensors = {_present_name(name): value for name, value in tensors.items()}
    try:
        model = Model(configured(text["config"]))
    except InputError as error:
        raise InputError(f"{folder}/model.json cannot be used: {error}") from None
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder}/model.json does not describe a model: {error}; restore or train it again") from None
    expected = model.state_dict()
    for name in model.features.added:
        tensors.setdefault(f"features.{name}", expected[f"features.{name}"])
    wrong = sorted(expected.keys() ^ tensors.keys()) or [
        name for name, value in expected.items() if value.shape != tensors[name].shape
    ]
    if wrong:
        raise InputError(f"{folder}/model.safetensors does not fit model.json (look at {wrong[0]}); restore both files")
    model.load_state_dict(tensors)
    model.method = text.get("method", model.method)  # older files do not say it: the kind of features does
    if model.method not in METHODS:
        raise InputError(f"{folder}/model.json is of the method {model.method!r}, not one of {', '.join(METHODS)}")
    return model.eval()


def about_model(folder: Path | str) -> dict[str, Any]:
    """Where a saved model comes from."""
    about: dict[str, Any] = read_pair(Path(folder), "model", MODEL, VERSIONS)[1].get("about", {})
    return about


def shipped(world: str, method: str | None = None) -> Path:
    """The folder of the model that comes with the package for a world; method: another than the usual one."""
    place = Path(str(resources.files("gce"))) / "shipped"
    folder = place / folder_name(world, method)
    if not (folder / "model.json").is_file():
        names = sorted(p.parent.name for p in place.glob("*/model.json"))
        others = {folder_name("", other) for other in METHODS} - {""}
        ending = folder_name("", method)
        mine = [n for n in names if n.endswith(ending) and (ending or not n.endswith(tuple(others)))]
        known = ", ".join(n.removesuffix(ending) for n in mine) or "no world"
        of_method = "" if method is None else f" by the method {method}"
        how = "name one" if method is None else f"train one with `gce train {world} --method {method}`, or name a world"
        raise InputError(f"no model of {world!r}{of_method} comes with the package, only of {known}; {how}")
    return folder


# ---- inside ----


def write_pair(folder: Path, name: str, tensors: dict[str, Tensor], text: dict[str, Any]) -> None:
    """name.safetensors and name.json, both under temporary names first: a stop in between leaves the old ones."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = [folder / f".{name}.{os.getpid()}.{kind}" for kind in ("safetensors", "json")]
        contiguous = {key: value.detach().contiguous() for key, value in tensors.items()}
        save_file(contiguous, temporary[0])
        temporary[1].write_text(json.dumps(text, indent=2) + "\n")
        temporary[0].chmod(temporary[1].stat().st_mode)  # safetensors writes for its owner only
        for path, kind in zip(temporary, ("safetensors", "json"), strict=True):
            os.replace(path, folder / f"{name}.{kind}")
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"cannot write {folder}: {getattr(error, 'strerror', None) or error}; give another folder"
        ) from None


def read_pair(folder: Path, name: str, kind: str, versions: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    for ending in ("json", "safetensors"):
        if not (folder / f"{name}.{ending}").is_file():
            raise InputError(f"{folder} has no {name}.{ending}; it is not the folder of a saved {name}")
    try:
        text = json.loads((folder / f"{name}.json").read_text())
    except ValueError as error:
        raise InputError(f"{folder}/{name}.json is not JSON: {error}; restore the file") from None
    if not isinstance(text, dict) or text.get("format") != kind or text.get("format_version") not in versions:
        raise InputError(f"{folder}/{name}.json is not a {kind} of version {versions[0]}; make it again with this gce")
    try:
        tensors = load_file(folder / f"{name}.safetensors")
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{folder}/{name}.safetensors is truncated or damaged: {error}; restore the file") from None
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(
                f"{folder}/{name}.safetensors holds numbers in {key} that are not finite; restore the file"
            )
    return tensors, text


def _present_name(name: str) -> str:
    """The name of a tensor of version 1 as it is now."""
    return next((new + name[len(old) :] for old, new in FORMERLY.items() if name.startswith(old)), name)
