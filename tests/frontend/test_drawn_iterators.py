"""Loops over Python's iterators, which a loop that ends early leaves where it stopped."""

from __future__ import annotations

import collections
import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class Logged:
    """An iterable whose iterator notes each step."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.log: list[Any] = []

    def __iter__(self) -> Iterator[int]:
        for k in range(self.count):
            self.log.append(k)
            yield k


def up_to(xs: Any, last: int) -> list[Any]:
    out = []
    for x in xs:
        out.append(x)
        if x == last:
            break
    return out


def second(xs: Any) -> Any:
    found = None
    for k, x in enumerate(xs):
        found = x, k
        if k == 1:
            break
    return found


def of_unknown_type(d: dict[str, Any]) -> tuple[int, list[Any]]:
    total = 0
    for x in d["xs"]:
        total += x
        if x == 2:
            break
    return total, list(d["xs"])


def grows(d: dict[str, Any]) -> int:
    total = 0
    for x in d["xs"]:
        total += x
        if x < 3:
            d["xs"].append(x + 1)
    return total


def changes(queue: Any) -> Any:
    for x in queue:
        if x == 2:
            queue.append(5)
    return queue


def only_read(xs: Any) -> int:
    for _ in xs:
        pass
    return 1


def ends_in_an_error(xs: Any) -> float:
    total = 0.0
    for x in xs:
        total += 1 / x
    return total


def logged(xs: Logged) -> int:
    total = 0
    for x in xs:
        xs.log.append("body")
        total += x
        if x == 2:
            return total
    return -1


def lines(file: Any) -> list[str]:
    out = []
    for line in file:
        if not line.strip():
            break
        out.append(line.strip())
    return out


def scaled(xs: Any, x: Tensor) -> Tensor:
    for k in xs:
        x = x * k
        if k >= 2:
            break
    return x


def _outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except (ZeroDivisionError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (up_to, lambda: (iter([1, 2, 3, 4]), 2)),
        (up_to, lambda: (collections.deque([1, 2, 3]), 2)),
        (up_to, lambda: ([1, 2, 3], 2)),
        (second, lambda: (iter("abcdef"),)),
        (of_unknown_type, lambda: ({"xs": iter([1, 2, 3]), "n": 1},)),
        (of_unknown_type, lambda: ({"xs": [1, 2, 3], "n": 1},)),
        (grows, lambda: ({"xs": [1, 2], "n": 1},)),
        (changes, lambda: (collections.deque([1, 2, 3]),)),
        (only_read, lambda: (iter([1, 2]),)),
        (ends_in_an_error, lambda: (iter([1, 0, 3]),)),
        (logged, lambda: (Logged(5),)),
        (lines, lambda: (io.StringIO("a\n\nb\n"),)),
    ],
)
def test_an_iterator_goes_on_where_it_stopped(fn: Any, args: Any) -> None:
    """Two calls give what Python gives, and leave as much of the iterator."""
    ours, theirs = args(), args()
    compiled = lt.script(fn)
    for _ in range(2):
        assert _outcome(compiled, *ours) == _outcome(fn, *theirs)
    for left, right in zip(ours, theirs, strict=True):
        if hasattr(left, "__next__"):
            assert list(left) == list(right)
        assert getattr(left, "log", None) == getattr(right, "log", None)


def test_an_iterator_in_a_module() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = iter([1.0, 2.0, 3.0])

        def forward(self, x: Tensor) -> Tensor:
            for k in self.scales:
                x = x * k
                if k >= 2:
                    break
            return x

    plain = Scales()
    compiled = lt.script(copy.deepcopy(plain))
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), plain(torch.ones(2)))


def test_a_prediction_leaves_iterators_alone() -> None:
    """`explain` runs no Python of the user's, and takes nothing from an iterator."""
    compiled = lt.script(scaled)
    source, object_ = iter([1.0, 2.0, 3.0]), Logged(3)
    compiled.explain(source, torch.ones(2))
    compiled.explain(object_, torch.ones(2))
    assert list(source) == [1.0, 2.0, 3.0]
    assert object_.log == []


def test_zip_of_an_iterator_is_refused() -> None:
    """It would have to stop in the middle of a step."""

    @lt.script
    def pairs(xs: Any, count: int) -> list[Any]:
        return [(x, k) for x, k in zip(xs, range(count), strict=False)]

    with pytest.raises(TypeError, match=r"zip\(\) of an iterator is not compiled"):
        pairs(iter([1, 2, 3]), 2)
    assert pairs(collections.deque([1, 2, 3]), 2) == [(1, 0), (2, 1)]
