"""Calls of which the data decide what they take count as for the worst data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.memory.contract import requested_bytes, with_room


def exponentials(x: Tensor) -> Tensor:
    return torch.matrix_exp(x)


def exponentials_by_method(x: Tensor) -> Tensor:
    return x.matrix_exp()


def along_rows(x: Tensor) -> Tensor:
    return torch.cumprod(x, 1)


def along_columns(x: Tensor) -> Tensor:
    return x.cumprod(dim=0)


def matrices(shape: tuple[int, ...], low: float, high: float, dtype: Any = torch.float32) -> Tensor:
    """Of norms from 10^low to 10^high."""
    made = torch.randn(shape, dtype=dtype)
    count = made[..., 0, 0].numel()
    norms = torch.logspace(low, high, count, dtype=dtype).view(*shape[:-2], 1, 1)
    return made / made.abs().sum(-2, keepdim=True).amax(-1, keepdim=True) * norms


def with_zeros(shape: tuple[int, ...], share: float) -> Tensor:
    made = torch.rand(shape) + 0.5
    made[torch.rand(shape) < share] = 0
    return made


def alike() -> Tensor:
    return matrices((120, 48, 48), 0.9, 1)


def mixed() -> Tensor:
    return matrices((120, 48, 48), -1.5, 1.5)


def tiny_and_huge() -> Tensor:
    """Of turned planes, whose exponentials are no larger than they."""
    made = torch.randn(4000, 4, 4)
    return (made - made.mT) * torch.logspace(-5, 4, 4000)[:, None, None]


def in_two_dims() -> Tensor:
    return matrices((3, 70, 40, 40), -1, 1, torch.float64)


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Tensor]]] = {
    "alike": (exponentials, alike),
    "mixed": (exponentials, mixed),
    "tiny and huge": (exponentials, tiny_and_huge),
    "in two dims": (exponentials_by_method, in_two_dims),
    "no zeros": (along_rows, lambda: with_zeros((800, 3000), 0)),
    "some zeros": (along_rows, lambda: with_zeros((800, 3000), 0.001)),
    "columns": (along_columns, lambda: with_zeros((800, 3000), 0)),
    "columns with zeros": (along_columns, lambda: with_zeros((800, 3000), 0.001)),
    "lying otherwise": (along_columns, lambda: with_zeros((1500, 1600), 0.001).t()),
}


def backward(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    y = run(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach(), gradient


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_no_more_is_asked_for_than_predicted(name: str, grad: bool) -> None:
    run, make = CALLS[name]
    torch.manual_seed(0)
    x = make().requires_grad_(grad)
    compiled: Any = lt.script(run)

    def call() -> object:
        return backward(compiled, x) if grad else compiled(x)

    call()
    assert requested_bytes(call) <= with_room(compiled.memory(x).peak_bytes)
