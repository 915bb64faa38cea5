"""One list or dict as two arguments, or as an argument and an attribute, is one in the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


def item_set(a: list[Any], b: list[Any], x: Tensor) -> Tensor:
    a[0] = x
    return x - 1 if b[0] is None else x + b[0]


def item_put(a: dict[str, Any], b: dict[str, Any], x: Tensor) -> Tensor:
    a[0] = x  # pyright: ignore[reportArgumentType]
    return x - 1 if b[0] is None else x + b[0]  # pyright: ignore[reportArgumentType]


def appended(a: list[Any], b: list[Any], x: Tensor) -> Tensor:
    a.append(x)
    return x - 1 if isinstance(b[-1], int) else x + 1


def nested(a: list[Any], b: list[Any], x: Tensor) -> Tensor:
    a[0][0] = x
    return x - 1 if b[0] is None else x + b[0]


def in_a_tuple(a: tuple[Any, int], b: list[Any], x: Tensor) -> Tensor:
    b[0] = x
    return x - 1 if a[0][0] is None else x + a[0][0]


CASES: list[tuple[Callable[..., Tensor], Callable[[], Any], Callable[[Any], Any]]] = [
    (item_set, lambda: [None], lambda held: held),
    (item_put, lambda: {0: None}, lambda held: held),
    (appended, lambda: [1], lambda held: held),
    (nested, lambda: [None], lambda held: [held]),
    (in_a_tuple, lambda: [None], lambda held: (held, 1)),
]


@pytest.mark.parametrize(("fn", "make", "around"), CASES)
def test_two_arguments(
    fn: Callable[..., Tensor], make: Callable[[], Any], around: Callable[[Any], Any]
) -> None:
    made, x = lt.script(fn), torch.ones(2)
    assert torch.equal(made(around(make()), make(), x), fn(around(make()), make(), x))
    before = lt.cache_stats()
    one, other = make(), make()
    assert torch.equal(made(around(one), one, x), fn(around(other), other, x))
    assert lt.cache_stats().calls_eager == before.calls_eager + 1
    third = make()
    assert "are one list or dict" in str(made.explain(around(third), third, x))


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: Any = {"k": None}
        self.other: Any = {"k": None}


class WritesArgument(Holds):
    def forward(self, cache: dict[str, Any], x: Tensor) -> Tensor:
        cache["k"] = x
        return x - 1 if self.cache["k"] is None else x + self.cache["k"]


class WritesOwn(Holds):
    def forward(self, cache: dict[str, Any], x: Tensor) -> Tensor:
        self.cache["k"] = x
        return x - 1 if cache["k"] is None else x + cache["k"]


class WritesOther(Holds):
    def forward(self, cache: dict[str, Any], x: Tensor) -> Tensor:
        self.other["k"] = x
        return x - 1 if self.cache["k"] is None else x + self.cache["k"]


@pytest.mark.parametrize("kind", [WritesArgument, WritesOwn, WritesOther])
def test_an_argument_that_the_module_holds(kind: type[Holds]) -> None:
    x = torch.ones(2)

    def run(wrap: Callable[[Any], Any]) -> list[float]:
        m = kind()
        made = wrap(m)
        found = [made({"k": None}, x)]
        m.cache = m.other = {"k": None}
        return [r[0].item() for r in (*found, made(m.cache, x))]

    assert run(lt.script) == run(lambda m: m)
