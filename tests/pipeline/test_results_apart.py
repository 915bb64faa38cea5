"""Equal results that leave a program are as many tensors as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt


def both(x: Tensor, w: Tensor):
    return x * 2, x * 2


def in_a_list(x: Tensor, w: Tensor):
    return [x * 2 for _ in range(3)]


def in_a_dict(x: Tensor, w: Tensor):
    return {"a": x @ w, "b": x @ w}


def sums(x: Tensor, w: Tensor):
    return x.sum(0) * 0, x.sum(0) * 0


def views(x: Tensor, w: Tensor):
    return x.t(), x.t()


def one_twice(x: Tensor, w: Tensor):
    y = x * 2
    return y, y


def inputs(x: Tensor, w: Tensor):
    return x, x * 1, x + 0, w


def held(x: Tensor, w: Tensor):
    a = x.exp()
    b = x.exp()
    return [a], b


PROGRAMS = [both, in_a_list, in_a_dict, sums, views, one_twice, inputs, held]


def leaves(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
        return
    for x in result.values() if isinstance(result, dict) else result:
        yield from leaves(x)


def sameness(result: Any) -> list[tuple[bool, bool]]:
    found = list(leaves(result))
    return [(a is b, a.data_ptr() == b.data_ptr()) for a in found for b in found]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("how", ["script", "trace"])
def test_as_many_tensors(fn: Callable[..., Any], how: str) -> None:
    args = (torch.rand(3, 3), torch.rand(3, 3))
    compiled = lt.script(fn) if how == "script" else lt.trace(fn, args, check_trace=False)
    assert sameness(compiled(*args)) == sameness(fn(*args))


def test_gradients_go_to_one_of_them() -> None:
    x = torch.ones(2, requires_grad=True)
    a, b = lt.script(both)(x, x)
    (got,) = torch.autograd.grad(a.sum() + 3 * b.sum(), [a])
    assert got.tolist() == [1, 1]


class State(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = torch.zeros(2)
        self.c = torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        self.h += x
        self.c -= x
        return self.h

    @lt.export
    def reset(self, x: Tensor) -> None:
        self.h = x * 0.5
        self.c = x * 0.5


def test_state_stays_apart() -> None:
    m = lt.script(State())
    x = torch.ones(2)
    m.reset(x)
    m(x)
    assert m(x).tolist() == [2.5, 2.5]
    assert m.c.tolist() == [-1.5, -1.5]
