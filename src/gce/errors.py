"""The one exception for input that a person can put right, the warning about an answer not worth trusting, and the
border that numbers pass: finite, real, in range.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


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


@contextmanager
def undoubted() -> Iterator[None]:
    """Within, doubts are not told: of answers that are only measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Doubt)
        yield


def warn(sentence: str) -> None:
    """A `Doubt`, told at the line outside this package that asked for the answer."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, Doubt, stacklevel=level)


def of_kind(what: str, value: Any, kind: type, how: str) -> None:
    """Refuse what is of another class. how: one is made, as part of the sentence."""
    if not isinstance(value, kind):
        raise InputError(f"{what} is {_short(value)} ({type(value).__name__}), expected {kind.__name__}: {how}")


def real(name: str, value: Any, low: float = float("-inf"), above: float | None = None) -> float:
    """A finite number, at least `low`, or more than `above`."""
    array = table(name, value)
    least = f"{low:g} or more" if above is None else f"more than {above:g}"
    if array.ndim or not array >= low or (above is not None and not array > above):
        raise InputError(f"{name} is {_short(value)}, expected a number, {least}")
    return float(array)


def whole(name: str, value: Any, low: int = 0) -> int:
    """A whole number from `low` on."""
    number = real(name, value)
    if number != int(number) or not low <= number < 2**63 or isinstance(value, bool):
        raise InputError(f"{name} is {_short(value)}, expected a whole number, {low} or more")
    return int(value)


def table(name: str, value: Any, finite: bool | None = True) -> np.ndarray:
    """Real numbers in double precision. finite: whether infinity is refused as well as NaN; None: neither is."""
    import numpy as np

    try:
        array = np.asarray(value)
    except Exception:  # of whatever class was given
        raise InputError(f"{name} is {_short(value)}, expected an array of numbers") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} is {_short(value)} ({array.dtype} values), expected real numbers")
    array = array.astype(np.float64)
    wrong = ~np.isfinite(array) if finite else np.isnan(array)
    if finite is not None and wrong.any():
        at = np.argwhere(wrong)[0].tolist()
        raise InputError(f"{name} holds {array[tuple(at)]}{f' at {at}' if at else ''}; expected finite numbers")
    return array


def integers(name: str, value: Any) -> np.ndarray:
    """Whole numbers, of 64 bits."""
    import numpy as np

    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return value.astype(np.int64)
    array = table(name, value)
    if not np.array_equal(array, np.rint(array)) or (np.abs(array) >= 2**63).any():
        raise InputError(f"{name} holds {_short(value)}, expected whole numbers")
    return array.astype(np.int64)


def listed(name: str, value: Any, of: str) -> list[Any]:
    """The entries of a list, a tuple or an array; text is none. of: what they should be, as part of the sentence."""
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise InputError(f"{name} is {_short(value)} ({type(value).__name__}), expected a list of {of}")
    try:
        return list(value)
    except TypeError:  # an array without axes
        raise InputError(f"{name} is {_short(value)}, expected a list of {of}") from None


def _short(value: Any) -> str:
    return repr(value).replace("\n", " ")[:60]
