"""Tensors without values that Python keeps when it is called without being run: put back.

In: what such a call may reach, before it. Out: nothing; an attribute, a variable, an item of a
dict, a list or a set, a gradient or the data of a tensor that has no values now is what it was.

    before = Before((step, args, kwargs), stand_in)
    ...                     zero_grad, forward, backward, optimizer.step; state["h"] = …
    before.put_back(has_no_values)

During the call a `stand_in` is in the place of each tensor that has a graph: going backward through
that would let go of what it has saved. What has values stays: Python that counts steps has counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any, Final, Protocol, cast

import torch
from torch.nn.parameter import is_lazy

from lowtide.memory.reached import LISTS, MOST, classes_of, everything, names_of
from lowtide.memory.scopes.births import is_users

Tensor = torch.Tensor
HasNone = Callable[[Any], bool]
_GONE: Final = object()


class Before:
    """See the module's text."""

    def __init__(self, roots: object, stand_in: Callable[[Tensor], Tensor]) -> None:
        self._seen = everything(roots)
        self._kept: list[_Kept] = [*self._found()]
        self._tensors = [
            (x, x.grad if x.is_leaf else None, x.detach(), x.requires_grad)
            for x in self._seen.values()
            if _is_dense(x) and not is_lazy(x)
        ]
        made: dict[int, Tensor] = {}
        self._stand_ins: set[int] = set()

        def exchange(x: Any) -> Any:
            if not _is_dense(x) or x.is_leaf or x.is_meta:
                return x
            if id(x) not in made:
                made[id(x)] = stand_in(x)
                self._stand_ins.add(id(made[id(x)]))
            return made[id(x)]

        for kept in self._kept:
            kept.exchange(exchange)

    @property
    def is_all(self) -> bool:
        """Whether that is all that may be reached, and not only the first of it."""
        return len(self._seen) < MOST

    def _found(self) -> Iterator[_Kept]:
        modules: dict[int, tuple[dict[str, Any], set[str]]] = {}
        classes: dict[type, None] = {}
        for x in self._seen.values():
            kind = cast("Any", type(x))
            if issubclass(kind, dict):
                yield _Names(x, None)
            elif issubclass(kind, (*LISTS, set)):
                yield _Items(x)
            elif issubclass(kind, CellType):
                yield _Cell(x)
            elif issubclass(kind, FunctionType) and is_users(x.__code__):
                modules.setdefault(id(x.__globals__), (x.__globals__, set()))[1].update(names_of(x))
            classes.update(dict.fromkeys(classes_of(x)))
            names = (name for owner in classes_of(x) for name in _slots(owner))
            slots = [name for name in names if hasattr(x, name)]
            if slots:
                yield _Slots(x, slots)
        for module, used in modules.values():
            yield _Names(module, used)
        for owner in classes:
            values = [(k, v) for k, v in vars(owner).items() if not k.startswith("__")]
            plain = [k for k, v in values if not (callable(v) or hasattr(v, "__get__"))]
            yield _Slots(owner, plain)

    def put_back(self, has_no_values: Callable[[Tensor], bool]) -> None:
        """Whatever is left of the call."""
        has_none = functools.partial(self._has_none, has_no_values)
        for kept in self._kept:
            kept.put_back(has_none)
        for x, gradient, data, requires_grad in self._tensors:
            if has_no_values(x):
                x.data = data
            if x.is_leaf and x.requires_grad != requires_grad:
                x.requires_grad_(requires_grad)
            now = x.grad if x.is_leaf else None
            if now is not gradient and (now is None or has_no_values(now)):
                x.grad = gradient

    def _has_none(self, has_no_values: Callable[[Tensor], bool], value: Any) -> bool:
        """Whether there is one in a value that was not there before."""
        found = everything(value, lambda x: id(x) not in self._seen)
        return any(
            id(x) in self._stand_ins or (_is_dense(x) and has_no_values(x)) for x in found.values()
        )


class _Kept(Protocol):
    def exchange(self, change: Callable[[Any], Any]) -> None: ...
    def put_back(self, has_none: HasNone) -> None: ...


class _Names:
    """A dict. `used`: of these keys, or all."""

    def __init__(self, now: dict[Any, Any], used: set[str] | None) -> None:
        self._now = now
        self._others = () if used is None else now.keys() - used  # what these hold is not known
        self._before = {k: v for k, v in [*now.items()] if used is None or k in used}

    def exchange(self, change: Callable[[Any], Any]) -> None:
        for key, x in self._before.items():
            if (other := change(x)) is not x:
                self._now[key] = other

    def put_back(self, has_none: HasNone) -> None:
        now, before = self._now, self._before
        mine = [(k, x) for k, x in [*now.items()] if k not in self._others]
        for key in [k for k, x in mine if before.get(k, now) is not x and has_none(x)]:
            if key in before:
                now[key] = before[key]
            else:
                del now[key]


class _Items:
    """A list, or a set."""

    def __init__(self, now: Any) -> None:
        self._now, self._before = now, [*now]

    def exchange(self, change: Callable[[Any], Any]) -> None:
        items = [change(x) for x in self._before]
        if any(x is not y for x, y in zip(items, self._before, strict=True)):
            self._set(items)

    def put_back(self, has_none: HasNone) -> None:
        old = set(map(id, self._before))
        if any(id(x) not in old and has_none(x) for x in [*self._now]):
            self._set(self._before)

    def _set(self, items: list[Any]) -> None:
        self._now.clear()
        getattr(self._now, "extend", getattr(self._now, "update", None))(items)  # pyright: ignore


class _Cell:
    """A variable of a function that functions within it have, too."""

    def __init__(self, cell: CellType) -> None:
        self._cell, self._before = cell, self._content(cell)

    @staticmethod
    def _content(cell: CellType) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return _GONE

    def exchange(self, change: Callable[[Any], Any]) -> None:
        if (other := change(self._before)) is not self._before:
            self._cell.cell_contents = other

    def put_back(self, has_none: HasNone) -> None:
        now = self._content(self._cell)
        if now is self._before or not has_none(now):
            return
        if self._before is _GONE:
            del self._cell.cell_contents
        else:
            self._cell.cell_contents = self._before


class _Slots:
    """Attributes of an object or a class that has no dict to write into."""

    def __init__(self, owner: Any, names: list[str]) -> None:
        self._owner = owner
        self._before = {name: getattr(owner, name) for name in names}

    def exchange(self, change: Callable[[Any], Any]) -> None:
        for name, x in self._before.items():
            if (other := change(x)) is not x:
                setattr(self._owner, name, other)

    def put_back(self, has_none: HasNone) -> None:
        for name, x in self._before.items():
            now = getattr(self._owner, name, _GONE)
            if now is not x and has_none(now):
                setattr(self._owner, name, x)


def _is_dense(x: Any) -> bool:
    try:
        return isinstance(x, Tensor) and x.layout is torch.strided and not x.is_nested
    except Exception:  # one that was disposed
        return False


def _slots(kind: type) -> list[str]:
    names: Any = vars(kind).get("__slots__", ())
    return [names] if isinstance(names, str) else [*names]
