"""Windows that are clipped at the ends, bounds that are computed, and steps other than 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.loops import clipped

LIFTED: list[tuple[Callable[..., Tensor], tuple[int, ...]]] = [
    (clipped.moving_mean, ()),
    (clipped.mean_of_earlier, ()),
    (clipped.moving_largest, ()),
    (clipped.where_largest, ()),
    (clipped.local_attention, ()),
    (clipped.weighted, ()),
    (clipped.roots, ()),
    (clipped.strided_largest, (3, 2)),
    (clipped.spread, ()),
    (clipped.neighbours, (2,)),
    (clipped.neighbours, (-1,)),
    (clipped.neighbours, (50,)),
    (clipped.every_third, ()),
    (clipped.back_by_two, ()),
    (clipped.sparse_neighbours, ()),
    (clipped.first_and_last, ()),
    (clipped.nearest_inside, ()),
    (clipped.with_borders, ()),
    (clipped.handed_out, (3,)),
    (clipped.without_outside, ()),
]
KEPT = [
    clipped.overwritten_parts,
    clipped.means_of_means,
    clipped.written_at_the_end,
    clipped.from_the_end,
    clipped.of_many_sizes,
]
SIZES = (1, 2, 4, 5, 40, 47)


def name_of(x: Any) -> str | None:
    return x.__name__ if callable(x) else None


def results(fn: Callable[..., Tensor], x: Tensor, numbers: tuple[int, ...]) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = fn(x, *numbers)
    if not y.requires_grad:
        return [y.detach()]
    weights = torch.linspace(0.5, 1.5, max(y.numel(), 1), dtype=y.dtype)[: y.numel()]
    (g,) = torch.autograd.grad((y.nan_to_num() * weights.view_as(y)).sum(), [x])
    return [y.detach(), g]


def same(f: Callable[..., Tensor], fn: Callable[..., Tensor], n: int, numbers: tuple[int, ...]):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
    want = results(fn, x.double(), numbers)
    got = results(f, x, numbers)
    for a, b in zip([f(x, *numbers), *got], [want[0], *want], strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize(("fn", "numbers"), LIFTED, ids=name_of)
def test_lifted_with_its_gradient(fn: Callable[..., Tensor], numbers: tuple[int, ...]) -> None:
    f = lt.script(fn)
    for n in SIZES:
        same(f, fn, n, numbers)
    for grad in (False, True):
        text = str(f.explain(torch.rand(47, 3, requires_grad=grad), *numbers))
        assert "not lifted" not in text
        assert ", 0 ops left to PyTorch" in text


@pytest.mark.parametrize("fn", KEPT, ids=name_of)
def test_kept(fn: Callable[..., Tensor]) -> None:
    f = lt.script(fn)
    for n in (1, 4, 40):
        same(f, fn, n, ())
    assert "not lifted" in str(f.explain(torch.rand(40, 3)))


def test_of_no_rows() -> None:
    for fn, numbers in (
        (clipped.spread, ()),
        (clipped.neighbours, (2,)),
        (clipped.every_third, ()),
    ):
        assert torch.equal(
            lt.script(fn)(torch.zeros(0, 3), *numbers), fn(torch.zeros(0, 3), *numbers)
        )


def test_a_window_is_as_large_as_its_largest() -> None:
    """Not as large as all rows: no value of pairs."""
    f = lt.script(clipped.local_attention)
    peaks = [f.memory(torch.rand(n, 8)).peak_bytes for n in (1000, 2000)]
    assert peaks[1] < 2.1 * peaks[0]
