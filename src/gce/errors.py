"""The one exception for input that a person can put right, and the warning about an answer not worth trusting."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Says what was found, where, and what to do about it; the command line prints it and exits with status 2."""


@contextmanager
def said_of(what: object) -> Iterator[None]:
    """Errors within say first what they are of."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


INSIDE = ("gce", "contextlib", "jaxtyping")


class Doubt(UserWarning):
    """Says why an answer, or the file that it follows from, is not worth trusting as it is."""


def warn(sentence: str) -> None:
    """A `Doubt`, told at the line outside this package that asked for the answer."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, Doubt, stacklevel=level)
