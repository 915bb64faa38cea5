"""Rows of an iteration over a tensor that are changed in place: refused where PyTorch refuses it,
and in a loop of one kernel where no gradient is recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt

Fn = Callable[[Tensor], Tensor]


def unbound(x: Tensor) -> Tensor:
    y = x * 2
    for r in y.unbind(0):
        r.mul_(3)
    return y


def along_another(x: Tensor) -> Tensor:
    y = x * 2
    for r in y.unbind(1):
        r.add_(1)
    return y


def iterated(x: Tensor) -> Tensor:
    y = x * 2
    for r in y:
        r.add_(1)
    return y


def element(x: Tensor) -> Tensor:
    y = x * 2
    for i, r in enumerate(y):
        r[0] = i
    return y


def operator(x: Tensor) -> Tensor:
    y = x * 2
    for r in y:
        r *= 2
    return y


def view_of_a_row(x: Tensor) -> Tensor:
    y = x * 2
    for r in y:
        r.view(-1).sub_(1)
    return y


def beside_another(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for r, row in zip(y, x, strict=True):
        r += row
    return y


FUNCTIONS = (unbound, along_another, iterated, element, operator, view_of_a_row, beside_another)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_refused_with_a_gradient(fn: Fn) -> None:
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    compiled = lt.script(fn)
    for _ in range(2):
        for f in (fn, compiled):
            with pytest.raises(RuntimeError, match="is being modified inplace"):
                f(x.clone().requires_grad_())
        assert torch.equal(compiled(x), fn(x))
    with torch.no_grad():
        assert torch.equal(compiled(x.clone().requires_grad_()), fn(x))


@pytest.mark.parametrize("fn", [f for f in FUNCTIONS if f is not along_another])
def test_lifted_without(fn: Fn) -> None:
    report = lt.script(fn).explain(torch.rand(5, 3))
    assert not report.torch_ops, str(report)
    assert "loop  " in str(report)


def only_read(x: Tensor) -> Tensor:
    y = x * 2
    total = torch.zeros_like(y[0])
    for r in y:
        total = total + r.exp()
    y.mul_(2)
    return total * y[0]


def test_rows_that_are_only_read() -> None:
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    given = x.detach().clone().requires_grad_()
    torch.testing.assert_close(lt.script(only_read)(given), only_read(x))
    assert not lt.script(only_read).explain(given).torch_ops
