"""Functions from outside are as they are at the call: their code and defaults, what a partial
holds, builtins that a global hides, and what a cache keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt


def scaled(x: Tensor, k: float = 2.0) -> Tensor:
    return x * k


def by_word(x: Tensor, *, k: float = 2.0) -> Tensor:
    return x * k


def raised(x: Tensor) -> Tensor:
    return x + 1


def lowered(x: Tensor) -> Tensor:
    return x - 1


def counted(x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
    return x + len(seen)


PART = functools.partial(by_word, k=3.0)


def calls_all(x: Tensor) -> Tensor:
    return scaled(x) + by_word(x) + raised(x) + counted(x) + PART(x)


def changes(m: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    words: Any = by_word.__kwdefaults__
    held: Any = counted.__defaults__
    return [
        lambda: m.setattr(scaled, "__defaults__", (5.0,)),
        lambda: m.setitem(words, "k", 7.0),
        lambda: m.setattr(by_word, "__kwdefaults__", {"k": 9.0}),
        lambda: m.setattr(raised, "__code__", lowered.__code__),
        lambda: m.setitem(PART.keywords, "k", 11.0),
        lambda: held[0].append(1),
    ]


def test_code_defaults_and_partials_are_as_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "__defaults__", (list[int](),))
    made, x = lt.script(calls_all), torch.ones(2)
    assert torch.equal(made(x), calls_all(x))
    for change in changes(monkeypatch):
        change()
        assert torch.equal(made(x), calls_all(x))


def test_the_functions_own_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = lt.script(scaled), torch.ones(2)
    assert torch.equal(made(x), x * 2)
    monkeypatch.setattr(scaled, "__defaults__", (5.0,))
    assert torch.equal(made(x), x * 5)


def remembers(x: int, seen: list[int] = []) -> int:  # noqa: B006
    seen.append(x)
    return len(seen)


def calls_remembers(x: int) -> int:
    return remembers(x)


def test_a_list_as_a_default_is_shared_by_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembers, "__defaults__", (list[int](),))
    made = lt.script(remembers)
    assert [made(1), made(2), remembers(3)] == [1, 2, 3]
    inner = lt.script(calls_remembers)
    assert [inner(1), remembers(2), inner(3)] == [4, 5, 6]


def with_builtins(x: Tensor, xs: list[int]) -> Tensor:
    for k in range(2):
        x = x + k
    return x + len(xs) + max(xs) + sum(xs)


def five_and(n: int) -> list[int]:
    return [5, n]


def always_77(xs: list[int]) -> int:
    return 77


@pytest.mark.parametrize("name", ["len", "max", "sum", "range"])
def test_a_global_hides_a_builtin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = lt.script(with_builtins), torch.ones(2)
    other = five_and if name == "range" else always_77
    assert torch.equal(made(x, [1, 2]), with_builtins(x, [1, 2]))
    with monkeypatch.context() as m:
        m.setitem(globals(), name, other)
        assert torch.equal(made(x, [1, 2]), with_builtins(x, [1, 2]))
    assert torch.equal(made(x, [1, 2]), with_builtins(x, [1, 2]))


# ---- functools.lru_cache ------------------------------------------------------------------------

OFFSET = 1


@functools.lru_cache
def squared(n: int) -> int:
    return n * n


@functools.lru_cache
def shifted(n: int) -> int:
    return n + OFFSET


@functools.cache
def zeros(n: int) -> Tensor:
    return torch.zeros(n)


@functools.cache
def one(n: int) -> list[int]:
    return [n]


def by_squared(n: int) -> int:
    return squared(n)


def by_shifted(n: int) -> int:
    return shifted(n)


def by_zeros(n: int) -> Tensor:
    x = zeros(n)
    x += 1
    return x


def by_one(n: int) -> int:
    xs = one(n)
    xs.append(n)
    return len(xs)


def test_a_cache_keeps_what_it_was_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (shifted, zeros, one):
        cached.cache_clear()
    made = lt.script(by_shifted)
    assert made(1) == 2
    monkeypatch.setitem(globals(), "OFFSET", 5)
    assert [made(1), made(2)] == [2, 7]
    same = lt.script(by_zeros)
    assert [same(2)[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
    grows = lt.script(by_one)
    assert [grows(2) for _ in range(3)] == [2, 3, 4]


def test_a_function_of_numbers_alone_is_inlined() -> None:
    made = lt.script(by_squared)
    assert made(3) == 9
    assert "py.call" not in str(made.graph)
