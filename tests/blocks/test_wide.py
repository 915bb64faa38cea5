"""What a kernel holds in full may outgrow what a GPU has room for: then there is another one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.execute import replan
from tests.blocks.programs import attention


def inputs(columns: int, *, grad: bool = False) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    sizes = (70, 36), (90, 36), (90, columns)
    q, k, v = (torch.randn(s, requires_grad=grad) for s in sizes)
    return q, k, v


def widths(text: str) -> int:
    return text.count(": tl.constexpr, INDEX")


def test_a_size_held_in_full(made: list[BlockKernels]) -> None:
    compiled = lt.script(attention)
    narrow, wide = inputs(40), inputs(3000)
    for given in (narrow, wide, narrow, inputs(2900), inputs(50)):
        torch.testing.assert_close(compiled(*given), attention(*given), rtol=1e-4, atol=1e-4)
    first, second = dict.fromkeys(made)
    assert widths(first.source)
    assert not widths(second.source)
    assert replan.TOO_WIDE in str(compiled.explain(*wide))
    assert replan.TOO_WIDE not in str(compiled.explain(*narrow))


def test_sizes_of_one_width(made: list[BlockKernels]) -> None:
    """Up to a power of two there is one kernel; a width that can be held needs no other plan."""
    compiled = lt.script(attention)
    for columns in (40, 50, 64, 100, 120, 33):
        given = inputs(columns)
        torch.testing.assert_close(compiled(*given), attention(*given), rtol=1e-4, atol=1e-4)
    assert len(dict.fromkeys(made)) <= 2


@pytest.mark.parametrize("columns", [33, pytest.param(513, marks=pytest.mark.long), 4096])
def test_gradients(columns: int) -> None:
    compiled = lt.script(attention)
    compiled(*inputs(40, grad=True)).sum().backward()
    given, same = inputs(columns, grad=True), inputs(columns, grad=True)
    compiled(*given).square().sum().backward()
    attention(*same).square().sum().backward()
    for x, want in zip(given, same, strict=True):
        torch.testing.assert_close(x.grad, want.grad, rtol=2e-3, atol=2e-3)
