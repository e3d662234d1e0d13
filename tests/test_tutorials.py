"""Every block of the tutorials runs, with small settings: what a reader copies works."""

import re
import warnings
from pathlib import Path

import pytest

from gce.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [DOCS / "own_data.md", *sorted((DOCS / "tutorials").glob("*.md"))]

SMALL = (
    (r"^(SYSTEMS, EPISODES, STEPS, ITERATIONS) = .*$", r"\1 = 3, 4, 12, 2"),
    (r"--iterations \d+", "--iterations 2"),
    (r"iterations=\d+", "iterations=2"),
)
"""Settings of the pages that take time, and what the tests put in their place."""


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(language, the file named above it or "", text) of the fenced blocks, in order."""
    text = page.read_text()
    found = []
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        above = text[: block.start()].rstrip().rsplit("\n", 1)[-1]
        named = re.search(r"`([\w./]+)`:$", above)
        found.append((block[1], named[1] if named else "", block[2]))
    return found


def smaller(text: str) -> str:
    for pattern, replacement in SMALL:
        text = re.sub(pattern, replacement, text, flags=re.M)
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_reader_copies_works(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    ran = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for language, file, text in blocks(page):
            if language == "python":
                exec(compile(smaller(text), str(page), "exec"), names)
                ran += 1
            elif file:
                Path(file).parent.mkdir(parents=True, exist_ok=True)
                Path(file).write_text(text)
            elif language == "sh":
                for command in re.findall(r"^gce (.*)$", text, re.M):
                    main(smaller(command).split("#")[0].split())
                    ran += 1
    assert ran >= 3
