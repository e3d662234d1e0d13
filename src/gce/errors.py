"""The one exception for input that a person can put right."""

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
