"""The pages build without a warning, and every block of them runs, with small settings: what a reader copies works."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from matplotlib import pyplot

import gce
from gce.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "tutorials").glob("*.md"))]

SMALL = (
    (r"^(SYSTEMS, EPISODES, STEPS, ITERATIONS) = .*$", r"\1 = 3, 4, 12, 2"),
    (r"--iterations \d+", "--iterations 2"),
    (r"iterations=\d+", "iterations=2"),
    (r"(--minutes |minutes=)[\d.]+", r"\g<1>0.02"),
    (r"--objects (12|8|5-7)", "--objects 5"),
    (r"nodes=\[[\d, ]+\]", "nodes=[0]"),
    (r"--episodes 48 --group-size 6", "--episodes 8 --group-size 2"),
    (r"(--goal-step |--horizon |horizon=|observations\[)(40|20)", r"\1 8"),
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


def runs(language: str, file: str, text: str) -> bool:
    return language == "python" or (language == "sh" and not file and "gce " in text)


def smaller(text: str) -> str:
    for pattern, replacement in SMALL:
        text = re.sub(pattern, replacement, text, flags=re.M)
    return text


def run_command(arguments: list[str]) -> None:
    try:
        main(arguments)
    except SystemExit as end:  # as after --help
        assert not end.code


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(runs(*block) for block in blocks(page))], ids=lambda page: page.stem
)
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
                    run_command(smaller(command).split("#")[0].split())
                    ran += 1
    assert ran


@pytest.mark.parametrize("file", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem)
def test_notebooks_run_from_top_to_bottom(file, tmp_path, monkeypatch):
    """Their cells, with small settings; the pages' build runs them in full."""
    for stem, needed in (("grid", "pandapower"), ("swimmer", "mujoco")):
        pytest.importorskip(needed, reason=f"{needed} is not installed") if file.stem == stem else None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 1 and not any(cell["outputs"] for cell in cells)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in cells:
            exec(compile(smaller("".join(cell["source"])), str(file), "exec"), names)
    pyplot.close("all")


def test_no_page_tells_to_install_another_project():
    for page in [*PAGES, *sorted(Path(gce.__file__).parent.rglob("*.py"))]:
        assert not re.search(r"pip install ['\"]?gce\b", page.read_text()) or page.name == "from_0.1.md", page


def test_pages_build_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("GCE_NOTEBOOKS", "off")
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install '.[docs]'")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "<svg" in (tmp_path / "_images" / "overview.svg").read_text()
    told = (tmp_path / "api.html").read_text()
    for name in ("gce.Controller", "gce.views.plot.prediction", "gce.Regressor", "gce.baselines.base.adapt"):
        assert f'id="{name}"' in told, name
    assert "ForwardRef" not in told and "_NestedSequence" not in told
    assert "<math" in (tmp_path / "method.html").read_text() and "merror" not in (tmp_path / "method.html").read_text()
    assert (tmp_path / "notebooks" / "rope.html").is_file() and (tmp_path / "results" / "main.html").is_file()
    assert "copybtn" in (tmp_path / "tutorial.html").read_text() or (tmp_path / "_static" / "copybutton.js").is_file()
