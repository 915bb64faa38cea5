"""Traces whose arguments are tuples, lists and dicts: saved, and called from scripted code."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.errors import CompileError


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), 3.0))

    def forward(self, d: dict[str, Tensor], pair: Any) -> Tensor:
        return d["x"] * self.w + d["y"] + pair[0] - pair[1][0]


def _arguments(x: Tensor) -> tuple[Any, ...]:
    return {"x": x, "y": x * 2}, (x * 5, [x * 3])


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        x = torch.ones(1, 2)
        self.parts = lt.trace(Parts(), _arguments(x))
        self.cell = lt.trace(nn.LSTMCell(2, 2), (x, (x, x)))

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.cell(x, (x, x * 2))
        return self.parts({"x": h, "y": c}, (x, [h]))


def _loaded(m: Any) -> Any:
    file = io.BytesIO()
    lt.save(m, file)
    file.seek(0)
    return lt.load(file)


@pytest.mark.parametrize("n", [1, 40])
def test_saved(n: int) -> None:
    traced = lt.trace(Parts(), _arguments(torch.ones(1, 2)))
    loaded, arguments = _loaded(traced), _arguments(torch.rand(n, 2))
    torch.testing.assert_close(loaded(*arguments), Parts()(*arguments))
    (grad,) = torch.autograd.grad(loaded(*arguments).sum(), list(loaded.parameters()))
    assert grad.shape == (2,)


def test_another_form_is_an_error_after_loading() -> None:
    x = torch.ones(1, 2)
    loaded = _loaded(lt.trace(Parts(), _arguments(x)))
    with pytest.raises(ValueError, match="too many values"):
        loaded({"x": x, "y": x}, (x, [x, x]))
    with pytest.raises(KeyError, match="y"):
        loaded({"x": x}, (x, [x]))


def test_called_from_scripted_code() -> None:
    uses = Uses()
    scripted = lt.script(uses)
    for n in (1, 40):
        x = torch.rand(n, 2)
        torch.testing.assert_close(scripted(x), uses(x))
        torch.testing.assert_close(_loaded(scripted)(x), uses(x))


def test_what_is_not_said_is_refused() -> None:
    x = torch.ones(2)

    def mixed(parts: Any) -> Tensor:
        return parts[0] + parts[1][0]

    traced = lt.trace(mixed, ([x, (x, x)],))
    torch.testing.assert_close(traced([x, (x, x)]), x * 2)
    with pytest.raises(CompileError, match="that cannot be saved"):
        _loaded(traced)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def test_mappings_and_named_tuples_are_dicts_and_tuples_in_a_file() -> None:
    def both(x: Tensor, d: OrderedDict[str, Tensor]) -> Any:
        return OrderedDict(sum=x + d["b"], pair=Pair(x, d["a"]).a), [Pair(x, x)]

    x = torch.ones(2)
    args = (x, OrderedDict(a=x * 2, b=x * 3))
    traced = lt.trace(both, args)
    found, (pair,) = traced(*args)
    assert type(found) is OrderedDict
    assert type(pair) is Pair
    torch.testing.assert_close(found["sum"], x * 4)
    saved, (pair,) = _loaded(traced)(*args)
    assert type(saved) is dict
    assert list(saved) == ["sum", "pair"]
    assert type(pair) is tuple
    torch.testing.assert_close(saved["sum"], x * 4)


def test_mappings_are_read_by_their_keys() -> None:
    def of(d: OrderedDict[str, Tensor]) -> Tensor:
        return d["a"] - d["b"]

    x = torch.ones(2)
    traced = lt.trace(of, (OrderedDict(a=x, b=x * 3),))
    torch.testing.assert_close(traced(OrderedDict(b=x, a=x * 5)), x * 4)
    with pytest.raises(TypeError, match="has the keys"):
        traced(OrderedDict(a=x, c=x))
