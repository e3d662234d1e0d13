"""Results kept one a line as they come, so that a stopped experiment goes on after the last."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gce.errors import InputError
from gce.progress import progress
from gce.reproduce.experiment import write_file

Record = dict[str, Any]


class Lines:
    """A file with a JSON object a line; what is there already is read first, and `records` holds all of it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text() if file.exists() else ""
        except OSError as error:
            raise InputError(
                f"cannot write {file}: {error.strerror or error}; give another folder with --out"
            ) from None
        whole = text[: text.rfind("\n") + 1]
        try:
            self.records: list[Record] = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise InputError(f"{file} is not a file of results ({error}); move it away to begin anew") from None
        if whole != text:  # a stop in the middle of a line
            os.truncate(file, len(whole.encode()))

    def add(self, record: Record) -> None:
        with self.file.open("a") as opened:
            opened.write(json.dumps(record) + "\n")
        self.records.append(record)

    def fill(
        self,
        description: str,
        asked: Sequence[Record],
        run: Callable[..., Record],
        summarise: Callable[[list[Record]], None],
    ) -> None:
        """Add a line for each of the settings asked for that has none, and summarise all lines.

        run: of the settings by name, what else the line says. summarise: called after each line, and at the end.
        """
        import torch

        torch.set_num_threads(1)
        known = {tuple(record.get(name) for name in asked[0]) for record in self.records}
        missing = [settings for settings in asked if tuple(settings.values()) not in known]
        with progress(description, len(asked), "runs") as done:
            done(len(asked) - len(missing))
            for settings in missing:
                self.add({**settings, **run(**settings)})
                summarise(self.records)
                done(1)
        summarise(self.records)


def write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, indent=2) + "\n", "--out")
