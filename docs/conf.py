"""How Sphinx builds these pages: `make docs`."""

import re

import gce

project = "gce"
author = "the gce developers"
release = version = gce.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "gce"
html_static_path: list[str] = []
exclude_patterns = ["_build"]
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "Array": "Array"}
autodoc_default_options = {"members": True}
suppress_warnings = ["myst.xref_missing"]
nitpicky = False


def as_written(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text: "name: meaning" lines become a list, indented formulas stay as they are."""
    item = re.compile(r"([a-z_]\w*(?:(?: \[[^\]]*\])?, [a-z_]\w*)*(?: \[[^\]]*\])?): ")
    written: list[str] = []
    formula = False
    for k, line in enumerate(lines):
        begins = line.startswith("    ") and (k == 0 or not lines[k - 1].strip())
        if begins and not formula:
            written += ["::", ""]
        formula = begins or (formula and (line.startswith("    ") or not line.strip()))
        if formula:
            written.append(line)
            continue
        text = line.strip().replace("*", r"\*").replace("|", r"\|")
        text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text)
        if found := item.match(text):
            written += ["", f"- ``{found[1]}``: {text[found.end() :]}"]
        elif text and written and written[-1].startswith(("- ", "  ")):
            written.append(f"  {text}")
        else:
            written.append(text)
    lines[:] = written


def setup(app) -> None:
    app.connect("autodoc-process-docstring", as_written)
