"""The experiment on real grids: a case is controlled after eight episodes, and a table is made of it."""

import json

import pytest

pytest.importorskip("pandapower", reason="real grids come with pandapower (extra grid)")

from bench.real_grids import METHODS, RealGrids


def test_a_small_real_grid_is_controlled_nearly_as_well_as_by_the_oracle(tmp_path):
    experiment = RealGrids(seeds=1, cases=("case14",), out=tmp_path)
    experiment.run()
    found = json.loads((tmp_path / "real_grids.json").read_text())["cases"]["case14"]["methods"]
    assert 0.8 < found["nothing"]["error"] < 1.2
    assert found["ours_often"]["error"] < 1.3 * found["oracle"]["error"]
    assert found["ours"]["cost"] < 0.2 * found["nothing"]["cost"]
    page = (tmp_path / "real_grids.md").read_text()
    assert all(name in page for name in METHODS.values())
    before = (tmp_path / "real_grids.jsonl").read_text()
    experiment.run()  # nothing is left to do
    assert (tmp_path / "real_grids.jsonl").read_text() == before
