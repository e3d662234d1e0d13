"""Imports run one way."""

import ast
import sys
from pathlib import Path

import pytest

import gce

SOURCE = Path(gce.__file__).parent
EVERYTHING = {file.stem for file in SOURCE.iterdir() if file.suffix == ".py" or (file / "__init__.py").is_file()}

EVERY_ROOM = {"errors", "files", "names"}
"""What all may use."""

MAY_IMPORT = {
    "__init__": "",
    "__main__": "cli",
    "errors": "",
    "names": "",
    "files": "",
    "command": "",
    "progress": "",
    "metrics": "",
    "cluster": "__init__ progress",
    "graphs": "",
    "trajectory": "graphs",
    "envs": "cluster graphs trajectory",
    "potentials": "graphs",
    "operators": "graphs potentials",
    "features": "graphs operators",
    "model": "__init__ features graphs operators potentials trajectory",
    "system": "__init__ graphs metrics model operators potentials trajectory",
    "training": "cluster envs features graphs metrics model operators progress system trajectory",
    "control": "",
    "dynamics": "control features graphs model operators potentials system",
    "planning": "control dynamics envs model system trajectory",
    "views": "__init__ control dynamics envs metrics model operators planning potentials system trajectory",
    "interop": "graphs model system training trajectory",
    "baselines": "__init__ cluster command control features graphs metrics model operators planning progress training "
    "trajectory",
    "reproduce": EVERYTHING - {"cli", "interop"},
    "cli": EVERYTHING,
}
"""One line a room. Imports run down this list, but for `control` and `envs`, which know nothing of models."""


def rooms_imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gce":
            names.add(node.module.split(".")[1] if "." in node.module else "__init__")
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gce.")}
    return names


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: str(f.relative_to(SOURCE)))
def test_a_room_imports_only_what_it_may(file):
    relative = file.relative_to(SOURCE)
    room = relative.parts[0].removesuffix(".py")
    allowed = MAY_IMPORT[room].split() if isinstance(MAY_IMPORT[room], str) else MAY_IMPORT[room]
    assert rooms_imported(file) <= {*allowed, *EVERY_ROOM, room}


def test_at_most_eight_modules_stand_beside_the_rooms():
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_help_imports_nothing_heavy():
    import subprocess

    heavy = ("numpy", "torch", "h5py", "gymnasium")
    code = f"import sys; import gce, gce.cli; print([m for m in {heavy} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
