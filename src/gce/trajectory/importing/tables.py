"""Tables in CSV files, system.toml beside them, and a list of what is wrong that names file, row and column."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gce.errors import InputError
from gce.files import read_bytes, read_toml, unguarded
from gce.trajectory.structure import FORMS, SAID

COLUMNS = 2000
DELIMITERS = ",;\t"
NAME = "system.toml"
Bounds = tuple[float, float]
Reader = Callable[[Any], Any]


class Problems:
    """Sentences about what is wrong, in the order found. Rows are counted as in a spreadsheet: the header is row 1."""

    SHOWN = 20

    def __init__(self, root: Path) -> None:
        self.count = 0
        self._sentences: list[str] = []
        self._root = root

    def add(self, file: Path, what: str, row: int | None = None, column: str | None = None) -> None:
        self.count += 1
        if self.count > self.SHOWN:
            return
        place = [str(file.relative_to(self._root) if file.is_relative_to(self._root) else file)]
        place += [] if row is None else [f"row {row}"]
        place += [] if column is None else [f"column {column}"]
        self._sentences.append(f"{', '.join(place)}: {what}")

    def raise_any(self) -> None:
        """All of them as one error, the first twenty in words."""
        more = self.count - self.SHOWN
        if self.count:
            raise InputError("\ngce: ".join(self._sentences + ([f"and {more} more"] if more > 0 else [])))


@dataclass
class Table:
    """Text columns by name and number columns by name; `rows` are the numbers of the rows in the file."""

    file: Path
    text: dict[str, list[str]]
    numbers: dict[str, np.ndarray]
    rows: list[int]

    def __len__(self) -> int:
        return len(self.rows)


def header_of(file: Path, problems: Problems) -> list[str] | None:
    """The names of a file's columns; None, with a problem, where there are none."""
    opened = _open(file, problems)
    return None if opened is None else opened[0]


def read_table(
    file: Path, problems: Problems, text: Sequence[str], numbers: Sequence[str] | None = None
) -> Table | None:
    """Columns of text (missing ones are left out) and of numbers (None: all the others); an empty cell is NaN."""
    opened = _open(file, problems)
    if opened is None:
        return None
    header, rows = opened
    wanted = [name for name in header if name not in text] if numbers is None else list(numbers)
    text_places = [(name, header.index(name)) for name in text if name in header]
    places = [(name, header.index(name)) for name in wanted]
    words: dict[str, list[str]] = {name: [] for name, _ in text_places}
    values, lines = array("d"), []
    for line, cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            problems.add(file, f"there are {len(cells)} cells, the header has {len(header)}", line)
            continue
        for name, place in text_places:
            words[name].append(unguarded(cells[place].strip()))
        for name, place in places:
            values.append(_number(cells[place].strip(), file, line, name, problems))
        lines.append(line)
    table = np.array(values).reshape(len(lines), len(places))
    return Table(file, words, {name: table[:, k] for k, (name, _) in enumerate(places)}, lines)


def _open(file: Path, problems: Problems) -> tuple[list[str], Iterator[tuple[int, list[str]]]] | None:
    """(header, rows with their numbers) of a file; None, with a problem, for one that has no header."""
    try:
        content = read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        problems.add(file, "this is not text in UTF-8; save it as CSV (UTF-8)")
        return None
    except (InputError, OSError) as error:
        problems.add(file, f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
    first = content.split("\n", 1)[0]
    rows = _numbered(csv.reader(io.StringIO(content), delimiter=max(DELIMITERS, key=first.count)), file, problems)
    names = [unguarded(cell.strip()) for cell in next(rows, (1, []))[1]]
    if not any(names):
        problems.add(file, "there is no header; the first row names the columns", 1)
        return None
    if len(names) > COLUMNS:
        problems.add(file, f"there are {len(names)} columns, more than {COLUMNS}; is it a table of steps and nodes?", 1)
        return None
    for k, name in enumerate(names):
        if not name or name in names[:k]:
            problems.add(file, f"column {k + 1} is called {name!r}; give every column a name of its own", 1)
            return None
    return names, rows


def _numbered(reader: Any, file: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        problems.add(file, f"this is not CSV: {error}", reader.line_num)


def _number(cell: str, file: Path, line: int, column: str, problems: Problems) -> float:
    if not cell:
        return np.nan
    try:
        return float(cell)
    except ValueError:
        problems.add(file, f"{cell!r} is not a number", line, column)
        return 0.0  # told once is enough


@dataclass(frozen=True)
class Settings:
    """Everything optional.

    dt: seconds a step. observations, actions, exogenous: names of columns. structure: what a model should know.
    undirected: edges run both ways. actuated: nodes that take an action. action_bounds: of each action, or of all
    under the name "". parameters: anything worth keeping.
    """

    dt: float = 1.0
    observations: list[str] | None = None
    actions: list[str] | None = None
    exogenous: list[str] | None = None
    structure: dict[str, Any] = field(default_factory=dict)
    undirected: bool = False
    actuated: list[str] | None = None
    action_bounds: dict[str, Bounds] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)


def read_settings(folder: Path, problems: Problems, shared: dict[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of `Settings` that a folder's file gives, with those of the folder above, which it may override.

    shared: of the folder above. Columns, time step and structure are the same for all systems, so a system's own file
        cannot give them.
    """
    file = folder / NAME
    found = dict(shared or {})
    if not file.is_file():
        return found
    try:
        given = read_toml(file)
    except InputError as error:
        problems.add(file, str(error))
        return found
    for key, value in given.items():
        if key not in READERS:
            problems.add(file, f"{key!r} means nothing here; the entries are {', '.join(READERS)}")
        elif shared is not None and key not in OF_A_SYSTEM:
            problems.add(file, f"{key} is the same for all systems; say it in the {NAME} of the folder above")
        else:
            try:
                found[key] = READERS[key](value)
            except (OverflowError, TypeError, ValueError) as error:
                problems.add(file, f"{key} is {repr(value)[:80]}, expected {error}")
    return found


def _reader(fits: Callable[[Any], bool], expected: str, make: Callable[[Any], Any] = lambda value: value) -> Reader:
    """Takes a value that fits; another is refused with what was expected."""

    def read(value: Any) -> Any:
        if not fits(value):
            raise ValueError(expected)
        return make(value)

    return read


def _list_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and all(type(part) in kinds for part in value)


_names = _reader(lambda value: _list_of(value, str), 'a list of columns such as ["x", "v"]')
_table = _reader(lambda value: isinstance(value, dict), "a table of entries")


def _structure(value: Any) -> dict[str, Any]:
    value = _table(value)
    points = value.get("points", [])
    fits = isinstance(points, list) and all(isinstance(p, list) and len(p) == 4 for p in points)
    fits = fits and all(type(column) in (int, str) for point in points for column in point)
    if not fits or any(key not in (*SAID, *FORMS) for key in value):
        raise ValueError(
            'points = [["x", "y", "vx", "vy"]] (the columns of each point in the plane), late_action and fresh_start '
            f"(true or false), {', '.join(name for name in FORMS if name not in SAID)} (what `gce data check` finds)"
        )
    return dict(value)


def _bounds(value: Any) -> dict[str, Bounds]:
    pairs = value if isinstance(value, dict) else {"": value}
    for pair in pairs.values():
        numbers = isinstance(pair, list) and all(isinstance(v, int | float) for v in pair)
        if not numbers or len(pair) != 2 or not pair[0] <= pair[1]:
            raise ValueError("[lowest, highest], or one such pair for each action: {torque = [-1, 1]}")
    return {name: (float(low), float(high)) for name, (low, high) in pairs.items()}


READERS: dict[str, Reader] = {
    "dt": _reader(
        lambda value: type(value) in (int, float) and 0 < value < math.inf,
        "the seconds a step takes, such as 0.02",
        float,
    ),
    "observations": _names,
    "actions": _names,
    "exogenous": _names,
    "structure": _structure,
    "undirected": _reader(lambda value: isinstance(value, bool), "true or false"),
    "actuated": _reader(
        lambda value: _list_of(value, str, int), "a list of nodes such as [0, 3]", lambda value: [str(v) for v in value]
    ),
    "action_bounds": _bounds,
    "parameters": _table,
}
OF_A_SYSTEM = ("undirected", "actuated", "action_bounds", "parameters")
