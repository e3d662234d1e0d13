"""A stopped training on disk: one safetensors file with a JSON note in its header, replaced at once.

A stop at any moment leaves a whole checkpoint, the old one or the new one. No pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from gce.errors import InputError
from gce.graphs.graph import Graph

NAME = "checkpoint.safetensors"


def write(folder: Path, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
    """note: JSON values."""
    temporary = folder / f".{NAME}.tmp"
    contiguous = {k: v.detach().clone().contiguous() for k, v in tensors.items()}
    save_file(contiguous, temporary, {"note": json.dumps(note)})
    os.replace(temporary, folder / NAME)


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """(tensors, note); None where there is no checkpoint."""
    file = folder / NAME
    if not file.is_file():
        return None
    try:
        with safe_open(file, "pt") as opened:
            note: dict[str, Any] = json.loads(opened.metadata()["note"])
        return load_file(file), note
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise InputError(f"the checkpoint in {folder} is damaged: {error}; choose another folder") from None


def packed(model: nn.Module, best: dict[str, Tensor], optimiser: Optimizer) -> dict[str, Tensor]:
    """The tensors of a training: the model, the best one so far, and the optimiser's state."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"best.{k}": v for k, v in best.items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{k}": torch.as_tensor(v) for k, v in state.items()}
    return tensors


def unpacked(tensors: dict[str, Tensor], model: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """Puts the model and the optimiser where `packed` found them; gives the best model so far."""

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    model.load_state_dict(part("model."))
    state = optimiser.state_dict()
    state["state"] = {}
    for key, value in part("adam.").items():
        index, name = key.split(".")
        state["state"].setdefault(int(index), {})[name] = value
    optimiser.load_state_dict(state)
    return part("best.")


@contextmanager
def stops_between() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C only asks to stop: work looks for it between two iterations, when its state is whole.

    Gives a function that tells whether it was asked. A second Ctrl-C ends the work where it is.
    """
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    foreign = threading.current_thread() is not threading.main_thread()
    if foreign or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False  # somebody else decides what an interrupt means
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def fingerprint(parts: Iterable[Graph | np.ndarray | None]) -> str:
    """A digest of graphs and arrays, in order."""
    digest = hashlib.sha256()
    for part in parts:
        arrays = (
            [getattr(part, field.name) for field in dataclasses.fields(part)] if isinstance(part, Graph) else [part]
        )
        for array in arrays:
            if array is not None:
                digest.update(f"{array.dtype} {array.shape} ".encode())
                digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
