"""The figures of README and of the docs are those of the results."""

from pathlib import Path

import pytest

from gce.errors import InputError
from gce.reproduce.marked import TABLES, filled, pages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda page: page.name)
def test_marked_tables_are_those_of_the_results(page):
    assert filled(page.read_text(), ROOT / "results") == page.read_text(), "run `gce reproduce report`"


def test_a_figure_changed_by_hand_is_found():
    page = ROOT / "README.md"
    assert page in pages(ROOT)
    changed = page.read_text().replace("| doing nothing | ", "| doing nothing | 9", 1)
    assert filled(changed, ROOT / "results") != changed


def test_an_unknown_table_is_told():
    with pytest.raises(InputError, match=f"no table 'odd' to write; the tables are {', '.join(TABLES)}"):
        filled("<!-- table: odd -->\n<!-- end of table -->", ROOT / "results")
