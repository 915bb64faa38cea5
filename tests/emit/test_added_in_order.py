"""Additions at places that are data, by kernels of the CPU: values, order, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.blocks.test_added import FUNCTIONS, along_rows, check, elements, in_the_middle, index


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_slices(fn: Any) -> None:
    torch.manual_seed(0)
    compiled = check(fn, [torch.randn(20, 37), index(20, 90), torch.randn(90, 37)], (0, 2), 1e-4)
    assert "at places of data" in str(
        compiled.explain(torch.randn(20, 37), index(20, 90), torch.randn(90, 37))
    )


@pytest.mark.parametrize("fn", [elements, along_rows])
def test_elements(fn: Any) -> None:
    """Lanes that lie along the axis that the data name would add to one element at once."""
    torch.manual_seed(0)
    check(fn, [torch.randn(50, 40), index(50, 50, 36), torch.randn(50, 36)], (0, 2))


def test_columns_of_other_layouts() -> None:
    x, v = torch.randn(3, 5, 4, 20), torch.randn(3, 5, 4, 50)
    check(in_the_middle, [x.movedim(3, 1), index(20, 50), v.movedim(3, 1)], (0, 2))


@pytest.mark.parametrize("n", [0, 1, 33])
@pytest.mark.parametrize("columns", [0, 1, 40])
def test_small_sizes(n: int, columns: int) -> None:
    x, v = torch.randn(20, columns), torch.randn(n, columns)
    check(FUNCTIONS[1], [x, index(20, n), v], (0, 2))
    check(elements, [x, index(20, n, min(n, columns)), v[:, :n]], (0, 2))


def counted(i: Tensor, w: Tensor) -> Tensor:
    return torch.zeros(7).index_add(0, i, w.exp())


def embedded(table: Tensor, i: Tensor) -> Tensor:
    return (table[i] * torch.sigmoid(table[i].sum(-1, keepdim=True))).sum(1)


def test_the_same_bits_with_more_threads() -> None:
    torch.manual_seed(0)
    table, words, w = torch.randn(50, 33), index(50, 400, 30), torch.randn(4000)
    found: list[list[Tensor]] = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            given = table.clone().requires_grad_()
            lt.script(embedded)(given, words).sum().backward()
            assert given.grad is not None
            found.append([given.grad, lt.script(counted)(index(7, 4000) * 0 + 3, w)])
    finally:
        torch.set_num_threads(before)
    assert all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def test_terms_of_a_gradient_are_not_stored() -> None:
    """Values of 12,000 x 33 and their places would be 3 MB."""
    table = torch.randn(50, 33, requires_grad=True)
    plan = lt.script(embedded).memory(table, index(50, 400, 30))
    assert plan.peak_bytes < 1_200_000, plan


def test_a_place_that_is_outside() -> None:
    given = torch.randn(20, 37), index(20, 90) + 20, torch.randn(90, 37)
    for fn in (FUNCTIONS[0], lt.script(FUNCTIONS[0])):
        with pytest.raises(RuntimeError, match="out of"):
            fn(*given)
