"""Gradients that are equal are written once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt


def added(x: Tensor, y: Tensor) -> Tensor:
    return torch.lgamma(torch.lgamma(x) + torch.lgamma(y))


def subtracted(x: Tensor, y: Tensor) -> Tensor:
    return torch.lgamma(torch.lgamma(x) - torch.lgamma(y))


def bounded(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(torch.lgamma(x) + torch.lgamma(y))


def leaves(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def turned(x: Tensor, y: Tensor) -> Tensor:
    return torch.lgamma(x) + torch.lgamma(y).flip(0)


def widened(x: Tensor, y: Tensor) -> Tensor:
    return torch.lgamma(x) + torch.lgamma(y)[:1]


FUNCTIONS = {added: 1, subtracted: 2, bounded: 1, leaves: 1, turned: 2, widened: 2}  # written


def inputs() -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    made = [torch.rand(250, 260, generator=g, dtype=torch.float64) + 2 for _ in range(2)]
    return [x.requires_grad_() for x in made]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_gradients_are_those_of_eager(fn: Callable[..., Tensor]) -> None:
    found: list[list[Tensor]] = []
    for run in (lt.script(fn), fn):
        args = inputs()
        z = run(*args)
        given = torch.rand(250, 260, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
        kept = given.clone()
        z.backward(given, retain_graph=True)
        z.sum().backward()  # an expanded cotangent, added to what is there
        torch.testing.assert_close(given, kept, rtol=0, atol=0)
        grads = [x.grad for x in args if x.grad is not None]
        assert grads[0].data_ptr() != grads[1].data_ptr()
        found.append(grads)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_nothing_is_written_twice(fn: Callable[..., Tensor]) -> None:
    (region,) = lt.script(fn).explain(*inputs()).regions
    assert region.backward is not None
    written = [name for kernel in region.backward.kernels for name in kernel.outputs]
    assert len(written) == FUNCTIONS[fn]
