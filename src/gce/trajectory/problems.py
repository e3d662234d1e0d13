"""All that is wrong with a data set file, as sentences: `gce data check` reads every row."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

from gce.errors import InputError
from gce.files import as_bytes, border, parsed_json
from gce.graphs.hyperedges import check
from gce.trajectory.reading import EXPECTED, opened, pieces, structure_problems
from gce.trajectory.storage import (
    BOUNDS,
    CHECKSUM,
    HYPEREDGES,
    OPTIONAL_ROWS,
    ROWS,
    TABLES,
)


def check_file(path: Path | str, progress: Callable[[int], None] = lambda size: None) -> list[str]:
    """Everything that is wrong with a data set file, as sentences; none for a good one. progress: bytes just read."""
    path = Path(path)
    try:
        with opened(path) as file, border(path, EXPECTED):
            found = list(structure_problems(file)) or list(content_problems(file, progress))
            return [f"{path}: {problem}" for problem in found]
    except InputError as error:
        return [str(error)]


def content_problems(file: h5py.File, progress: Callable[[int], None] = lambda size: None) -> Iterator[str]:
    """Checksums, numbers that are not finite, edges to nowhere, parameters that are not JSON: reads everything."""
    for name in (*ROWS, *OPTIONAL_ROWS, *TABLES):
        if name not in file:
            continue
        array, kept = file[name], file[name].attrs.get(CHECKSUM)
        found, end = 0, 0
        for piece in pieces(array):
            start, end = end, end + len(piece)
            progress(piece.nbytes)
            found = zlib.crc32(as_bytes(piece), found)
            if name not in BOUNDS and np.issubdtype(piece.dtype, np.floating) and not np.isfinite(piece).all():
                row, column = np.argwhere(~np.isfinite(piece))[0]
                yield _nowhere(file, name, start + int(row), int(column), float(piece[row, column]))
                break
        else:
            if kept is not None and int(kept) != found:
                yield f"the checksum of {name} does not fit its content: the file was changed or damaged after writing"
    nodes = np.diff(file["groups/node_pointer"][:])
    edges, pointer = file["groups/edges"][:], file["groups/edge_pointer"][:]
    limit = np.repeat(nodes, np.diff(pointer))
    for row in np.flatnonzero((edges < 0).any(axis=1) | (edges.max(axis=1) >= limit))[:10]:
        group = int(np.searchsorted(pointer, row, side="right")) - 1
        yield (
            f"groups/edges row {row} joins {edges[row, 0]} to {edges[row, 1]}, but group {group} has nodes 0 to "
            f"{nodes[group] - 1}"
        )
    rows = file[HYPEREDGES][:] if HYPEREDGES in file else np.zeros((0, 4), np.int64)
    for group in np.unique(rows[:, 0]):
        try:
            check(rows[rows[:, 0] == group, 1:].T, int(nodes[group]))
        except InputError as error:
            yield f"group {group}: {error}"
    if BOUNDS[0] in file:
        low, high = (file[name][:] for name in BOUNDS)
        for row in np.flatnonzero(~(low <= high).all(axis=1))[:10]:
            yield f"{BOUNDS[0]} row {row} is {low[row].tolist()}, above {BOUNDS[1]}, which is {high[row].tolist()}"
    for group, text in enumerate(file["groups/parameters"][:]):
        try:
            if not isinstance(parsed_json(text), dict):
                raise ValueError
        except ValueError:
            yield f"groups/parameters of group {group} is not a JSON object"


def _nowhere(file: h5py.File, name: str, row: int, column: int, value: float) -> str:
    """Name the place of a number that is not finite."""
    place = f"row {row}, column {column}"
    if name.startswith("episodes/"):
        pointer_name = "observation_pointer" if name == "episodes/observations" else "action_pointer"
        pointer = file[f"episodes/{pointer_name}"][:]
        episode = int(np.searchsorted(pointer, row, side="right")) - 1
        group = file["episodes/group"][episode]
        nodes = int(np.diff(file["groups/node_pointer"][:])[group])
        step, node = divmod(row - int(pointer[episode]), nodes)
        place = f"episode {episode}, step {step}, node {node}, coordinate {column} (row {row})"
    return f"{name} holds {value} at {place}; expected finite numbers"
