"""The page that says how the code is laid out is true."""

import re
from pathlib import Path

import gce

SOURCE, PAGE = Path(gce.__file__).parent, Path(__file__).parents[1] / "docs" / "rooms.md"
BESIDE = {"__init__", "__main__"}


def rows() -> list[list[str]]:
    table = PAGE.read_text().split("| room | owns")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def test_every_room_has_a_row_and_no_other():
    named = [room for row in rows() for room in re.findall(r"`(\w+)`", row[0])]
    there = {f.stem for f in SOURCE.iterdir() if f.suffix == ".py" or (f / "__init__.py").is_file()} - BESIDE
    assert sorted(named) == sorted(there)
    assert len(rows()) <= 18


def test_tests_mirror_the_rooms():
    folders = {f.name for f in SOURCE.iterdir() if (f / "__init__.py").is_file()}
    assert folders <= {f.name for f in Path(__file__).parent.iterdir() if f.is_dir()}
