"""Models on disk: a folder with tensors (safetensors) and a description (JSON), which cannot run code.

Version 2 keeps the settings of a kind of features nested, and the tensors of features under `features.`. Version 1 had
both flat; it is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

import gce
from gce.errors import InputError, warn
from gce.files import (
    ARRAY_BYTES,
    border,
    check_cap,
    is_checked,
    read_bytes,
    read_json,
    renamed_digest,
    sha256,
    written_together,
)
from gce.model.config import configured
from gce.model.model import Model
from gce.names import METHODS, folder_name

MODEL, VERSIONS = "gce-model", (2, 1)
"""The format, and its versions that can be read; the first is written."""
DIGEST = "sha256"
MODEST, LARGEST = 1000, 1e12
"""Whole numbers in a configuration: at most so large, or as many as the largest tensor has entries; any other."""
FARTHEST = 1e6
"""How far a step at the usual velocity may lead from 1 of the usual positions, as a factor."""
FORMERLY = {
    "encoder.": "features.encoder.",
    "implicit.": "features.channels.",
    "reach.": "features.spreading.",
    "decoder.": "features.decoder.",
    "memory.": "features.memory.",
    "held": "features.held",
}
"""How names of tensors in version 1 begin, and as what they are read."""


def save_model(model: Model, folder: Path | str, about: dict[str, Any] | None = None) -> str:
    """Write model.safetensors and model.json; returns their digest. about: where the model comes from, JSON values."""
    text = {"format": MODEL, "format_version": VERSIONS[0], "version": gce.__version__, "method": model.method}
    text |= {"about": about or {}, "config": model.config.described()}
    return write_pair(Path(folder), "model", dict(model.state_dict()), text)


def load_model(folder: Path | str) -> Model:
    tensors, text = read_pair(Path(folder), "model", MODEL, VERSIONS)
    if text["format_version"] == 1:
        tensors = {_present_name(name): value for name, value in tensors.items()}
    with border(f"{folder}/model.json", "the description of a model", "restore or train it again"):
        check_sizes(text["config"], tensors)
        config = configured(text["config"])
        with torch.device("meta"):  # shapes alone: nothing is allocated for what does not fit
            model = Model(config)
        expected = model.state_dict()
        absent = {f"features.{name}" for name in model.features.added} - tensors.keys()
        wrong = sorted(expected.keys() ^ tensors.keys() ^ absent) or [
            name for name, value in tensors.items() if value.shape != expected[name].shape
        ]
        if wrong:
            raise InputError(
                f"{folder}/model.safetensors does not fit model.json (look at {wrong[0]}); restore both files"
            )
        model = Model(config)
        model.load_state_dict(tensors, strict=not absent)
        if not all(1 / FARTHEST < ratio < FARTHEST for ratio in model.ratios):
            raise InputError(f"a step of {config.dt} s does not fit the units of its velocities and positions")
        model.method = text.get("method", model.method)  # older files do not say it: the kind of features does
        if model.method not in METHODS:
            raise InputError(f"it is of the method {model.method!r}, not one of {', '.join(METHODS)}")
        return model.eval()


def check_sizes(config: Any, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a configuration with a number that is far beyond what its tensors hold."""
    most = max([MODEST, *(value.numel() for value in tensors.values())])
    for name, value in walked(config):
        if isinstance(value, int | float) and not abs(value) < LARGEST:
            raise InputError(f"{name} is {value}")
        if isinstance(value, int):
            check_cap(abs(value), most, name)


def walked(value: Any, name: str = "config") -> Iterator[tuple[str, Any]]:
    """Every entry of JSON values."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield name, value
    for key, part in parts:
        yield from walked(part, str(key) if isinstance(value, dict) else name)


def about_model(folder: Path | str) -> dict[str, Any]:
    """Where a saved model comes from."""
    about: dict[str, Any] = read_pair(Path(folder), "model", MODEL, VERSIONS)[1].get("about", {})
    return about


def digest_of(folder: Path) -> str | None:
    """The digest of a saved model's tensors, as it was written; none of one written before there were any."""
    digest: str | None = (read_json(folder / "model.json").get(DIGEST) or {}).get("tensors")
    return digest


def shipped(world: str, method: str | None = None) -> Path:
    """The folder of the model that comes with the package for a world.

    method: another than the usual one; where a world has none of the usual one, it is the published one's.
    """
    place = Path(str(resources.files("gce"))) / "shipped"
    folder = place / folder_name(world, method)
    if method is None and not folder.is_dir() and (place / folder_name(world, "published")).is_dir():
        folder = place / folder_name(world, "published")
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


def write_pair(folder: Path, name: str, tensors: dict[str, Tensor], text: dict[str, Any]) -> str:
    """name.safetensors and name.json, whole or not at all; returns the digest of the tensors' file.

    name.json has SHA-256 digests of both, so that halves that do not belong together are told.
    """
    content = save({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    digest = sha256(content)
    text = json.loads(json.dumps({**text, DIGEST: {"tensors": digest}}))
    text[DIGEST]["text"] = sha256({**text, DIGEST: digest})
    with written_together(folder) as place:
        (place / f"{name}.safetensors").write_bytes(content)
        (place / f"{name}.json").write_text(json.dumps(text, indent=2) + "\n")
    return digest


def read_pair(folder: Path, name: str, kind: str, versions: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, text) of a pair whose digests fit; of a pair written before there were digests, with a warning."""
    files = [folder / f"{name}.{ending}" for ending in ("json", "safetensors")]
    for file in files:
        if not file.is_file():
            raise InputError(f"{folder} has no {file.name}; it is not the folder of a saved {name}")
    text = read_json(files[0])
    if not isinstance(text, dict) or text.get("format") != kind or text.get("format_version") not in versions:
        raise InputError(f"{files[0]} is not a {kind} of version {versions[0]}; make it again with this gce")
    with border(files[1], "a file of tensors (it is truncated or damaged)", "restore the file"):
        content = read_bytes(files[1], ARRAY_BYTES)
        if is_checked():
            _verify(text, files, content)
        tensors = load(content)
        for key, value in tensors.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise InputError(f"{files[1]} holds numbers in {key} that are not finite; restore the file")
    return tensors, text


def _verify(text: dict[str, Any], files: Sequence[Path], content: bytes) -> None:
    """That neither half was changed after both were written."""
    known = text.get(DIGEST)
    if renamed_digest({**text, "model": None}, DIGEST):
        raise InputError(f"{files[0]} was changed: its digest has another name; restore both files")
    if known is None:
        warn(f"{files[0]} has no digest; whether it or its tensors were changed cannot be seen")
        return
    digests = {"tensors": sha256(content)}
    digests["text"] = sha256({**text, DIGEST: digests["tensors"]})
    for part, file in (("tensors", files[1]), ("text", files[0])):
        if not isinstance(known, dict) or known.get(part) != digests[part]:
            raise InputError(
                f"{file} is not what was written with {files[part == 'text'].name}: its SHA-256 differs; "
                "restore both files, or add --unchecked where you know why"
            )


def _present_name(name: str) -> str:
    """The name of a tensor of version 1 as it is now."""
    return next((new + name[len(old) :] for old, new in FORMERLY.items() if name.startswith(old)), name)
