import pytest
import torch

from gce.graphs.topology import MANY_ROWS, Segments

ROWS, SEGMENTS = MANY_ROWS + 7, 300


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def segments() -> Segments:
    """Rows in any order; some segments are empty, the last one too."""
    of_row = torch.randint(0, SEGMENTS - 1, (ROWS,), generator=torch.Generator().manual_seed(0))
    of_row[of_row == 5] = 6
    return Segments.of(of_row, SEGMENTS)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_both_ways_add_up_the_same_rows(segments, shape):
    rows = draws(ROWS, *shape)
    expected = torch.zeros(SEGMENTS, *shape, dtype=rows.dtype).index_add(0, segments.of_row, rows)
    with_gradients = segments.sum(rows)
    with torch.no_grad():
        without = segments.sum(rows)
    assert torch.equal(with_gradients, expected)
    assert torch.allclose(without, expected, atol=1e-12)
    assert not without[[5, SEGMENTS - 1]].any()


def test_few_rows_are_added_up_too():
    few = Segments.of(torch.tensor([2, 0, 2]), 4)
    with torch.no_grad():
        assert few.sum(torch.tensor([1.0, 2.0, 4.0])).tolist() == [2.0, 0.0, 5.0, 0.0]


@pytest.mark.parametrize("gradients", [True, False])
def test_sums_are_their_own_derivative(segments, gradients):
    rows, along = draws(ROWS, 2), draws(ROWS, 2, seed=1)
    with torch.set_grad_enabled(gradients):
        _, tangent = torch.func.jvp(segments.sum, (rows,), (along,))
        several = torch.stack([along, 2 * along, rows])
        mapped = torch.func.vmap(lambda v: torch.func.jvp(segments.sum, (rows,), (v,))[1])(several)
        inner = torch.func.vmap(segments.sum, in_dims=1)(several.movedim(0, 1))
    assert torch.allclose(tangent, segments.sum(along), atol=1e-12)
    expected = torch.stack([segments.sum(v) for v in several])
    assert torch.allclose(mapped, expected, atol=1e-12)
    assert torch.allclose(inner, expected, atol=1e-12)


def test_gradients_reach_the_rows(segments):
    rows = draws(ROWS, 2).requires_grad_()
    weights = draws(SEGMENTS, 2, seed=1)
    (segments.sum(rows) * weights).sum().backward()
    assert torch.equal(rows.grad, weights[segments.of_row])


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("batch", [(), (1,), (2,)])
def test_weighted_sums_gather_weigh_and_add(segments, batch, gradients):
    values, weights = draws(40, *batch, 3), draws(ROWS, *batch, seed=1)
    source = torch.randint(0, 40, (ROWS,), generator=torch.Generator().manual_seed(2))
    with torch.set_grad_enabled(gradients):
        found = segments.weighted_sum(weights, values, source)
    assert torch.allclose(found, segments.sum(weights[..., None] * values[source]), atol=1e-12)


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_weighted_sums_are_differentiated_by_the_product_rule(segments, mapped):
    source = torch.randint(0, 40, (ROWS,), generator=torch.Generator().manual_seed(2))
    at = draws(ROWS), draws(40, 3, seed=1)
    several = [torch.stack([t, 3 * t]) for t in (draws(ROWS, seed=3), draws(40, 3, seed=4))]
    along = [t if axis == 0 else t[0] for t, axis in zip(several, mapped, strict=True)]

    def derivative(*tangents: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda w, v: segments.weighted_sum(w, v, source), at, tangents)[1]

    with torch.no_grad():
        fast = torch.func.vmap(derivative, in_dims=mapped)(*along)
    assert torch.allclose(fast, torch.func.vmap(derivative, in_dims=mapped)(*along), atol=1e-11)


def test_rows_without_columns_have_sums_without_columns(segments):
    with torch.no_grad():
        assert segments.sum(torch.zeros(len(segments.of_row), 1, 0)).shape == (SEGMENTS, 1, 0)
