"""The methods by one word each: which features, forms, losses and plans belong together.

A model carries its method, from the kind of its features or as its file says. To add one, write it here, name it in a
kind of features (`Features.method`) and say how it is trained (`gce.training.preparation`).
"""

from __future__ import annotations

from typing import Literal, get_args

from gce.errors import InputError

Method = Literal["published", "structured", "general"]
METHODS: tuple[str, ...] = get_args(Method)
USUAL = "structured"
"""What worlds use unless another is asked for."""


def check_method(name: str) -> str:
    """The name of a method; others are refused."""
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}; the methods are {', '.join(METHODS)}")
    return name


def check_same(asked: str | None, found: str, what: str) -> None:
    """That a model is of the method asked for, if one is; what: the model, in a sentence."""
    if asked is not None and check_method(asked) != found:
        raise InputError(f"{what} is of the method {found}, asked for as {asked}; leave --method out, or give another")


def folder_name(name: str, method: str | None) -> str:
    """The folder of a shipped model, by the name of its world and its method."""
    method = USUAL if method is None else check_method(method)
    return name if method == USUAL else f"{name}_{method}"
