"""How Sphinx builds these pages: `make docs`."""

import os
import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import gce

project = "gce"
author = "the gce developers"
release = version = gce.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "gce"
html_static_path: list[str] = []
html_show_copyright = False
exclude_patterns = ["_build", "**.ipynb_checkpoints", "results/notes.md", "results/models"]
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
copybutton_exclude = ".linenos, .gp"
suppress_warnings = ["myst.xref_missing"]
nitpicky = False
# Notebooks run when the pages are built; GCE_NOTEBOOKS=off shows them as they are in the repository.
nb_execution_mode = os.environ.get("GCE_NOTEBOOKS", "force")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_output_stderr = "remove"
html_math_renderer = "mathml"


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
        parts = re.split(r"(?<!`)`([^`]+)`(?!`)", line.strip())
        parts[::2] = [part.replace("*", r"\*").replace("|", r"\|") for part in parts[::2]]
        parts[1::2] = [f"``{part}``" for part in parts[1::2]]
        text = "".join(parts)
        if found := item.match(text):
            written += ["", f"- ``{found[1]}``: {text[found.end() :]}"]
        elif text and written and written[-1].startswith(("- ", "  ")):
            written.append(f"  {text}")
        else:
            written.append(text)
    lines[:] = written


def readable(app, what, name, obj, options, signature, returned):
    """Names of arrays as they are written in the source."""

    def plain(text: str | None) -> str | None:
        text = text and re.sub(r"(TypeAliasForwardRef|ForwardRef)\('([^']*)'\)", r"\2", text).replace("~", "")
        text = text and re.sub(r"numpy\._typing\._array_like\._Buffer.*?\[complex \| bytes \| str\]", "ArrayLike", text)
        return text and re.sub(
            r"\b(jaxtyping|collections\.abc|numpy|pathlib|typing|torch)\.(?=[A-Z]|ndarray)", "", text
        )

    return plain(signature), plain(returned)


def equation(self, node: nodes.Element, block: bool) -> None:
    """Equations as MathML: browsers draw it without a script or a network."""
    tex = re.sub(r"\\[Bb]ig\s*([\[(])", r"\\left\1", node.astext())
    tex = re.sub(r"\\[Bb]ig\s*([\])])", r"\\right\1", tex).replace(r"\tfrac", r"\frac")
    found = tex2mathml(tex, as_block=block)
    self.body.append(f'<div class="math" style="overflow-x: auto">{found}</div>' if block else found)
    raise nodes.SkipNode


def from_here(app, docname: str, source: list[str]) -> None:
    """The folder of results stands beside these pages in the repository, and among them here, by a symbolic link."""
    if docname.startswith("results/"):
        source[0] = source[0].replace("](../docs/", "](../")
    source[0] = re.sub(r"\[([^]\n]*)\]\(results/(\w+)\.md\)", r"{doc}`\1 </results/\2>`", source[0])


def setup(app) -> None:
    app.connect("source-read", from_here)
    app.connect("autodoc-process-docstring", as_written)
    app.connect("autodoc-process-signature", readable)
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(lambda self, node: equation(self, node, False), None),
        block_renderers=(lambda self, node: equation(self, node, True), None),
    )
