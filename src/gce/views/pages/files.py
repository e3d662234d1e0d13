"""Files of pages: templates, scripts and styles that come with the package."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def asset(room: str, name: str) -> str:
    """The text of a file in the folder assets/ of a room."""
    return (resources.files("gce.views") / room / "assets" / name).read_text(encoding="utf-8")


def assets_of(room: str) -> dict[str, bytes]:
    """All files in the folder assets/ of a room."""
    return {file.name: file.read_bytes() for file in (resources.files("gce.views") / room / "assets").iterdir()}


def filled(template: str, parts: dict[str, str], data: Any) -> str:
    """A template with {{name}} replaced by text, and {{data}} by JSON that cannot end the script it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    for name, value in {**parts, "data": text}.items():
        template = template.replace("{{" + name + "}}", value)
    return template
