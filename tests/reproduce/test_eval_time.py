import pytest
import torch

from gce.graphs.topology import Topology
from gce.operators import PAPER_FORMS
from gce.reproduce.picture_tables import chart, measure, typed_lattice


@pytest.mark.parametrize("form", PAPER_FORMS)
def test_every_form_is_timed(form):
    timing = measure(form, side=3, steps=2, repeats=1)
    assert (timing["nodes"], timing["edges"]) == (9, 33)
    assert timing["seconds"] > 0


def test_all_relation_types_are_there():
    topology = Topology.of(typed_lattice(10, 8))
    assert topology.edge_type.unique().tolist() == list(range(8))
    assert bool((topology.edge_type[topology.senders == topology.receivers] == 7).all())
    assert torch.bincount(topology.edge_type)[:7].min() > 20


def test_the_picture_is_written(tmp_path):
    cells = [{"form": form, "side": side, "relations": 8} for form in PAPER_FORMS for side in (2, 3)]
    timings = [cell | measure(*cell.values(), steps=1, repeats=1) for cell in cells]
    chart(timings, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000
