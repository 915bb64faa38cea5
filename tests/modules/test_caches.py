"""Lists and dicts that a module keeps are state: what is put into them is there in the next call,
and no branch is decided by what they held before. Written after reports of caches in attributes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class InDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = {"k": None}

    def forward(self, x: Tensor) -> Tensor:
        if self.cache["k"] is not None:
            x = x + self.cache["k"]
        self.cache["k"] = x
        return x


class Declared(nn.Module):
    cache: dict[str, Tensor | None]

    def __init__(self) -> None:
        super().__init__()
        self.cache = {"k": None}

    def forward(self, x: Tensor) -> Tensor:
        k = self.cache["k"]
        if k is not None:
            x = x + k
        self.cache["k"] = x
        return x


class InList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = [None]

    def forward(self, x: Tensor) -> Tensor:
        if self.cache[0] is not None:
            x = x + self.cache[0]
        self.cache[0] = x
        return x


class ByGet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = {}

    def forward(self, x: Tensor) -> Tensor:
        k = self.cache.get("k")
        if k is not None:
            x = x + k
        self.cache["k"] = x
        return x


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = []

    def forward(self, x: Tensor) -> Tensor:
        last = self.cache[-1] if len(self.cache) > 0 else None
        if last is not None:
            x = x + last
        self.cache.append(x)
        return x


class OfTwoTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = [0]

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.cache[0], int):
            self.cache[0] = x
            return x
        self.cache[0] = self.cache[0] + x
        return self.cache[0]


class InTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = (None, None)

    def forward(self, x: Tensor) -> Tensor:
        if self.cache[0] is not None:
            x = x + self.cache[0]
        self.cache = (x, x)
        return x


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = [[None, None] for _ in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        for i in range(2):
            if self.cache[i][0] is None:
                self.cache[i][0] = x
            else:
                self.cache[i][0] = torch.cat([self.cache[i][0], x])
            x = self.cache[i][0].sum(0, keepdim=True)
        return x


class ByTwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = [[None]]

    def forward(self, x: Tensor) -> Tensor:
        for row in self.cache:
            row[0] = x
        if self.cache[0][0] is None:
            x = x * 100
        return x


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = InDict()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


class SharedByNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = [None]
        self.again = self.cache

    def forward(self, x: Tensor) -> Tensor:
        self.cache[0] = x
        if self.again[0] is not None:
            x = x * 10
        return x


class MadeInTheFirstCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = None
        self.counts: dict[str, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cache is None or self.counts is None:
            self.cache, self.counts = {}, {"calls": 0}
        if "k" in self.cache:
            x = x + self.cache["k"]
        self.cache["k"] = x
        self.counts["calls"] += 1
        return x * self.counts["calls"]


class ListMadeInTheFirstCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = None

    def forward(self, x: Tensor) -> Tensor:
        if self.layers is None:
            self.layers = [None, None]
        for k in range(2):
            self.layers[k] = x if self.layers[k] is None else self.layers[k] + x
            x = self.layers[k]
        return x


class ByAppend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cache is None:
            self.cache = []
        self.cache.append(x)
        return torch.stack(self.cache).sum(0)


class BySetdefault(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = {}

    def forward(self, x: Tensor) -> Tensor:
        self.cache.setdefault("k", []).append(x)
        return torch.stack(self.cache["k"]).sum(0)


class FilledLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = None

    def forward(self, x: Tensor) -> Tensor:
        cache = self.cache
        if cache is None:
            cache = {}
            self.cache = cache
        cache["n"] = cache.get("n", 0) + 1
        cache["x"] = x
        return x * cache["n"]


class OfOneName(nn.Module):
    """`a` assigns `cache`, so that the one of `b` is read where it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = ByAppend(), InDict()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


KINDS = [
    MadeInTheFirstCall, ListMadeInTheFirstCall, ByAppend, BySetdefault, FilledLater, OfOneName,
    InDict, Declared, InList, ByGet, Grows, OfTwoTypes, InTuple, Layers, ByTwoNames, Nested,
    SharedByNames,
]  # fmt: skip


def scripted(m: nn.Module) -> Any:
    return lt.script(m)


def loaded(m: nn.Module) -> Any:
    return again(lt.script(m))


def again(made: Any) -> Any:
    file = io.BytesIO()
    lt.save(made, file)
    file.seek(0)
    return lt.load(file)


def copied(m: nn.Module) -> Any:
    return copy.deepcopy(lt.script(m))


@pytest.mark.parametrize("way", [scripted, loaded, copied])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_put_in_is_there(kind: type[nn.Module], way: Callable[[nn.Module], Any]) -> None:
    plain, made = kind(), way(kind())
    for k in range(3):
        x = torch.ones(1) + k
        assert torch.equal(made(x), plain(x)), k


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_may_be_made_in_the_first_call(kind: type[nn.Module]) -> None:
    plain, made = kind(), lt.script(kind())
    for k, way in enumerate([lambda m: m, lambda m: m, copy.deepcopy, again, again]):
        made = way(made)
        x = torch.ones(1) + k
        assert torch.equal(made(x), plain(x)), k


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Any] = {"k": None}

    def forward(self, x: Tensor) -> Tensor:
        if self.cache["k"] is not None:
            return x + self.cache["k"]
        return x


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = (None, None)

    def forward(self, x: Tensor) -> Tensor:
        return x + 100 if self.pair[0] is not None else x + len(self.pair)


def test_tuples_that_only_a_branch_has_looked_at() -> None:
    m = Looks()
    s, x = lt.script(m), torch.ones(1)
    for pair in [(None, None), (torch.ones(1), None), (None,), (2, 3, 4)]:
        m.pair = pair
        assert torch.equal(s(x), m(x))


def test_what_others_put_in_is_seen() -> None:
    m = Reads()
    s, x = lt.script(m), torch.ones(1)
    assert s(x) == 1
    m.cache["k"] = torch.ones(1) * 5
    assert s(x) == 6
    m.cache["k"] = 2.5
    assert s(x) == 3.5
    m.cache = {"k": None}
    assert s(x) == 1


class Peeks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = []

    def forward(self, x: Tensor) -> Tensor:
        last = self.cache[-1] if len(self.cache) > 0 else None
        return x if last is None else x + last


def test_a_loaded_program_was_made_for_an_empty_list() -> None:
    m = loaded(Peeks())
    assert m(torch.ones(1)) == 1
    m.cache.append(torch.ones(1))
    with pytest.raises(lt.CompileError, match=r"type of `self.cache` was .*, is List\[Tensor\]"):
        m(torch.ones(1))


class Scales(nn.Module):
    scales: list[float]

    def __init__(self) -> None:
        super().__init__()
        self.scales = []

    def forward(self, x: Tensor) -> Tensor:
        return x * sum(self.scales)


def test_an_int_is_no_item_of_a_loaded_list_of_floats() -> None:
    m = loaded(Scales())
    m.scales.append(0.5)
    assert m(torch.ones(1)) == 0.5
    m.scales.append(1)
    with pytest.raises(lt.CompileError, match=r"`self.scales` was List\[float\], is List\[number"):
        m(torch.ones(1))


def test_a_loaded_program_is_not_run_with_what_it_was_not_made_for() -> None:
    m = loaded(Reads())
    assert m(torch.ones(1)) == 1
    m.cache["k"] = torch.ones(1)
    with pytest.raises(lt.CompileError, match=r"type of `self.cache` was .*None.*, is .*Tensor"):
        m(torch.ones(1))


class MadeByPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = None

    def forward(self, x: Tensor, more: bool) -> Tensor:
        if more:
            self.cache["k"] += x
        else:
            self.cache["k"] = x
        return self.cache["k"] * 2


def test_a_cache_that_is_not_there_takes_no_items() -> None:
    made = lt.script(MadeByPython())
    with pytest.raises(TypeError, match="NoneType"):
        made(torch.ones(1), False)
    made.cache = {}
    assert made(torch.ones(1), False) == 2
    assert made(torch.ones(1), True) == 4
    made.cache = None
    with pytest.raises(TypeError, match="NoneType"):
        made(torch.ones(1), True)
