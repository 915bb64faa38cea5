"""Tensors without values that Python keeps when it is called without being run: put back.

In: what such a call may reach, before it; which tensors have no values, after it. Out: nothing. A
gradient, an attribute, a variable, an item of a dict or a list that has one now is what it was
before.

    before = Before((step, args, kwargs))       # step: zero_grad, forward, backward, optimizer.step
    ...                                         # p.grad, optimizer.state[p], module.h: no values
    before.put_back(has_no_values)

What has values stays: Python that counts steps has counted one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any, Final, cast

import torch

from lowtide.memory.reached import LISTS, everything
from lowtide.memory.scopes.births import is_users

_EMPTY: Final = object()  # a cell


class Before:
    """See the module's text."""

    def __init__(self, roots: object) -> None:
        self._seen = everything(roots)
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[Any, list[Any]]] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._cells: list[tuple[CellType, Any]] = []
        modules: set[int] = set()
        for x in self._seen.values():
            if isinstance(x, dict):
                kept = cast("dict[Any, Any]", x)
                self._dicts.append((kept, {**kept}))
            elif issubclass(type(x), LISTS):
                self._lists.append((x, [*x]))
            elif isinstance(x, CellType):
                self._cells.append((x, _content(x)))
            elif isinstance(x, FunctionType) and is_users(x.__code__):
                names = x.__globals__
                if id(names) not in modules:
                    modules.add(id(names))
                    self._dicts.append((names, {**names}))
            elif isinstance(x, torch.Tensor) and x.is_leaf:
                self._gradients.append((x, x.grad))

    def put_back(self, has_no_values: Callable[[torch.Tensor], bool]) -> None:
        """Whatever is left of the call."""
        has_none = functools.partial(self._has_none, has_no_values)
        for now, before in self._dicts:
            for key in [
                k for k, x in [*now.items()] if before.get(k, now) is not x and has_none(x)
            ]:
                if key in before:
                    now[key] = before[key]
                else:
                    del now[key]
        for now, items in self._lists:
            old = set(map(id, items))
            if any(id(x) not in old and has_none(x) for x in now):
                now.clear()
                now.extend(items)
        for cell, content in self._cells:
            now = _content(cell)
            if now is not content and has_none(now):
                if content is _EMPTY:
                    del cell.cell_contents
                else:
                    cell.cell_contents = content
        for x, gradient in self._gradients:
            if x.grad is not gradient and (x.grad is None or has_no_values(x.grad)):
                x.grad = gradient

    def _has_none(self, has_no_values: Callable[[torch.Tensor], bool], value: Any) -> bool:
        """Whether there is one in a value that was not there before."""
        found = everything(value, lambda x: id(x) not in self._seen)
        return any(isinstance(x, torch.Tensor) and has_no_values(x) for x in found.values())


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY
