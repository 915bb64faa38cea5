"""Calls whose arguments do not fit: compiled functions say what Python says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

X = torch.ones(2)


def none() -> Tensor:
    return torch.ones(1)


def one(x: Tensor) -> Tensor:
    return x + 1


def some(x: Tensor, y: Tensor, n: int = 1) -> Tensor:
    return x + y * n


def only(x: Tensor, /, y: Tensor, *, k: int, m: int, n: int = 2) -> Tensor:
    return x + y * k * m * n


def rest(x: Tensor, *xs: Tensor, k: int = 1) -> Tensor:
    return x + len(xs) * k


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((), {"nope": X}),
    ((X,), {"x": X}),
    ((X,), {}),
    ((X, X), {}),
    ((X, X, 1, 2, 3), {}),
    ((X,), {"nope": 1, "x": X}),
    ((), {"x": X, "y": X}),
    ((X,), {"y": X, "k": 2}),
]


def outcome(fn: Any, args: Any, kwargs: Any) -> object:
    try:
        return fn(*args, **kwargs).tolist()
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("number", range(len(CALLS)))
@pytest.mark.parametrize("fn", [none, one, some, only, rest])
def test_functions(fn: Any, number: int) -> None:
    args, kwargs = CALLS[number]
    assert outcome(lt.script(fn), args, kwargs) == outcome(fn, args, kwargs)


class Net(nn.Module):
    def forward(self, x: Tensor, n: int = 1) -> Tensor:
        return x * n


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((), {"nope": X}), ((X, 1, 2), {})])
def test_modules(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError) as expected:
        Net()(*args, **kwargs)
    with pytest.raises(TypeError) as caught:
        lt.script(Net())(*args, **kwargs)
    assert str(caught.value) == str(expected.value).removeprefix("Net.")
