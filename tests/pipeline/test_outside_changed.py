"""What a program changes outside of itself: global containers, and attributes of classes and
objects, are changed as in Python, and never a copy of them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class State:
    """An object from outside."""


class Counted:
    calls = 0


TABLE: list[list[int]] = []
LOG: list[Any] = []
CACHE: dict[str, Any] = {}
GROUPS: defaultdict[str, list[int]] = defaultdict(list)
SEEN: set[int] = set()
ITSELF: list[Any] = [2]
ITSELF.append(ITSELF)
STATE: Any = State()


@pytest.fixture(autouse=True)
def _as_at_first() -> None:  # pyright: ignore[reportUnusedFunction]
    reset()


def reset() -> None:
    TABLE[:] = [[], []]
    LOG.clear()
    CACHE.clear()
    GROUPS.clear()
    SEEN.clear()
    STATE.__dict__.clear()
    STATE.count, STATE.items = 1, [1]
    Counted.calls = 0


def state() -> list[Any]:
    held: list[Any] = [TABLE, LOG, CACHE, dict(GROUPS), SEEN, vars(STATE), Counted.calls]
    return [copy.deepcopy(part) for part in held]


def appended(n: int) -> int:
    LOG.append(n)
    return len(LOG)


def added_in_place(n: int) -> int:
    held = STATE.items
    held += [n]
    held *= 2
    return len(STATE.items)


def by_index(n: int) -> int:
    TABLE[n % 2].append(n)
    return len(TABLE[0])


def in_a_loop(n: int) -> int:
    for row in TABLE:
        row.append(n)
    for rows in CACHE.values():
        rows.append(n)
    return len(TABLE[1])


def one_of_two(n: int) -> int:
    chosen = LOG if n % 2 else [0]
    chosen.append(n)
    return len(chosen)


def within_another(n: int) -> list[Any]:
    both = {"log": LOG}
    both["log"].append(n)
    return LOG


def with_defaults(n: int) -> int:
    GROUPS["a"].append(n)
    SEEN.add(n)
    return len(GROUPS["b"]) + len(SEEN)


def of_itself(n: int) -> int:
    return ITSELF[0] + n


def counted(n: int) -> int:
    STATE.count += n
    Counted.calls += 1
    STATE.new = n
    return STATE.count + STATE.new + Counted.calls


@lt.ignore
def ignored_append(to: list[Any], n: int) -> None:
    to.append(n)


def by_python(n: int) -> int:
    ignored_append(LOG, n)
    return len(LOG)


@pytest.mark.parametrize(
    "program",
    [appended, added_in_place, by_index, in_a_loop, one_of_two, within_another, with_defaults,
     of_itself, counted, by_python],
)  # fmt: skip
def test_what_is_outside_changes_as_in_python(program: Callable[[int], Any]) -> None:
    expected: list[Any] = []
    for made in (program, lt.script(program)):
        reset()
        CACHE["rows"] = []
        found: list[Any] = [(copy.deepcopy(made(n)), state()) for n in range(1, 4)]
        expected = expected or found
        assert found == expected


def cached(x: Tensor, key: str) -> Tensor:
    if key in CACHE:
        x = torch.cat([CACHE[key], x])
    CACHE[key] = x
    return (x * 3).sum()


def test_a_global_cache_holds_tensors_with_their_gradients() -> None:
    made, w = lt.script(cached), torch.ones(2, requires_grad=True)
    assert [made(w * 2, key).item() for key in "aab"] == [12.0, 24.0, 12.0]
    CACHE.pop("a")
    made(w * 2, "a").backward()
    assert w.grad is not None
    assert w.grad.tolist() == [6.0, 6.0]
    assert CACHE["a"].requires_grad


def test_of_a_list_put_elsewhere_it_is_the_list_itself_that_is_there() -> None:
    def stored(held: dict[str, Any]) -> None:
        held["log"] = LOG

    held: dict[str, Any] = {}
    lt.script(stored)(held)
    assert held["log"] is LOG


class Model(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Model.calls += 1
        LOG.append(x.shape[0])
        return x * self.calls


def test_a_module_counts_its_calls_in_its_class() -> None:
    made, other = lt.script(Model()), lt.script(Model())
    found = [m(torch.ones(n)).tolist() for m, n in [(made, 1), (other, 2), (made, 1)]]
    assert found == [[1.0], [2.0, 2.0], [3.0]]
    assert (Model.calls, LOG) == (3, [1, 2, 1])


def asked(x: Tensor) -> Tensor:
    if hasattr(STATE, "scale"):
        x = x * STATE.scale
    return x * getattr(STATE, "count")  # noqa: B009


def test_whether_there_is_an_attribute_and_what_getattr_gives_is_asked_at_each_call() -> None:
    made, x = lt.script(asked), torch.ones(1)
    assert made(x) == 1
    STATE.scale, STATE.count = 3.0, 2
    assert made(x) == 6
    del STATE.scale
    assert made(x) == 2


def weighted(x: Tensor) -> Tensor:
    return x * STATE.weight


def test_a_tensor_of_an_object_from_outside_is_read_at_each_call() -> None:
    STATE.weight = torch.full((2,), 2.0)
    made, x = lt.script(weighted), torch.ones(2)
    assert torch.equal(made(x), x * 2)
    STATE.weight = torch.full((2,), 5.0)
    assert torch.equal(made(x), x * 5)
