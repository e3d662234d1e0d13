"""Tables in CSV files, and a list of what is wrong with them that names file, row and column."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gce.errors import InputError

DELIMITERS = ",;\t"


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
            words[name].append(cells[place].strip())
        for name, place in places:
            values.append(_number(cells[place].strip(), file, line, name, problems))
        lines.append(line)
    table = np.array(values).reshape(len(lines), len(places))
    return Table(file, words, {name: table[:, k] for k, (name, _) in enumerate(places)}, lines)


def _open(file: Path, problems: Problems) -> tuple[list[str], Iterator[tuple[int, list[str]]]] | None:
    """(header, rows with their numbers) of a file; None, with a problem, for one that has no header."""
    try:
        content = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        problems.add(file, "this is not text in UTF-8; save it as CSV (UTF-8)")
        return None
    except OSError as error:
        problems.add(file, f"cannot be read: {error.strerror}")
        return None
    first = content.split("\n", 1)[0]
    rows = _numbered(csv.reader(io.StringIO(content), delimiter=max(DELIMITERS, key=first.count)), file, problems)
    names = [cell.strip() for cell in next(rows, (1, []))[1]]
    if not any(names):
        problems.add(file, "there is no header; the first row names the columns", 1)
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
