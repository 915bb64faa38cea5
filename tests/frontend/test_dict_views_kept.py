"""Views of dicts that are put somewhere are Python's own; iterators that are put somewhere are
refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


@dataclasses.dataclass
class Held:
    view: Any


class Pair(NamedTuple):
    view: Any
    count: int


class Plain:
    def __init__(self, view: Any) -> None:
        self.view = view
        self.count = len(view)


@lt.ignore
def class_name(value: Any) -> str:
    return type(value).__name__


def in_tuples(d: dict[str, int]) -> Any:
    return d.keys(), (d.values(), 1), Pair(d.items(), 1)


def in_lists(d: dict[str, int]) -> Any:
    xs = [d.items()]
    xs.append(d.keys())
    xs.insert(0, d.values())
    return xs, [e.keys() for e in [d, {"z": 1}]]


def in_dicts(d: dict[str, int]) -> Any:
    e: dict[str, Any] = {"k": d.keys()}
    e["v"] = d.values()
    return e, e.setdefault("i", d.items()), {k: d.keys() for k in "ab"}


def in_objects(d: dict[str, int]) -> Any:
    plain = Plain(d.keys())
    held = Held(d.values())
    d["new"] = 5
    return plain.count, len(plain.view), list(held.view), isinstance(held.view, list)


def its_class(d: dict[str, int]) -> Any:
    keys = d.keys()
    return (
        isinstance(keys, list),
        isinstance(d.values(), (list, tuple)),
        type(keys) is list,
        hasattr(d.items(), "append"),
        class_name(keys),
        keys.isdisjoint({"q"}),
    )


def of_two_branches(d: dict[str, int]) -> Any:
    found = d.keys() if "a" in d else list(d)
    last: Any = d.values()
    for k in range(len(d)):
        last = d.items() if k % 2 else d.values()
    return found, isinstance(found, list), last


def typed(d: dict[str, int]) -> Any:
    keys, values = d.keys(), d.values()
    return sorted(keys), sum(values), [v * 2 for v in values], list(zip(keys, values, strict=True))


@pytest.mark.parametrize(
    "fn", [in_tuples, in_lists, in_dicts, in_objects, its_class, of_two_branches, typed]
)
def test_views_are_pythons(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for items in ({"a": 1, "b": 2}, {"c": 3}):
        assert repr(compiled(dict(items))) == repr(fn(dict(items)))


def test_a_view_in_a_module_is_live() -> None:
    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = {"a": 1}
            self.keys: Any = None

        def forward(self, x: Tensor) -> Tensor:
            self.keys = self.table.keys()
            self.table["b"] = 2
            return x * len(self.keys)

    compiled = lt.script(Seen())
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    compiled.table["c"] = 3
    assert list(compiled.keys) == ["a", "b", "c"]


def test_pytorch_takes_no_view() -> None:
    @lt.script
    def stacked(d: dict[str, Tensor]) -> Tensor:
        return torch.stack(d.values())  # pyright: ignore[reportArgumentType]

    with pytest.raises(TypeError, match="dict_values"):
        stacked({"a": torch.ones(2)})


def in_a_tuple(xs: list[int]) -> Any:
    return (x for x in xs), 1


def in_a_list(xs: list[int]) -> Any:
    return [map(str, xs)]


def appended(xs: list[int]) -> Any:
    out: list[Any] = []
    out.append(x for x in xs)
    return out


def as_an_item(xs: list[int]) -> Any:
    found: dict[str, Any] = {}
    found["xs"] = filter(None, xs)
    return found


@pytest.mark.parametrize("fn", [in_a_tuple, in_a_list, appended, as_an_item])
def test_iterators_are_not_put_anywhere(fn: Callable[..., Any]) -> None:
    with pytest.raises(lt.CompileError, match="an iterator, which can only be read"):
        lt.script(fn)([1])
