"""Prints the lowest version that pyproject.toml allows of each thing that the package itself needs, as constraints."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = (each for name, group in project["optional-dependencies"].items() if name != "dev" for each in group)
for need in [*project["dependencies"], *extras]:
    found = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)", need)
    assert found is not None, f"{need} has no lower bound"
    print(f"{found[1]}=={found[2]}")
