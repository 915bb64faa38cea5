"""Tensors without values that Python keeps when it is called without being run: put back.

In: what such a call may reach, before it; which tensors have no values, after it. Out: nothing. A
gradient, an attribute, an item of a dict or a list that has one now is what it was before.

    before = Before((step, args, kwargs))       # step: zero_grad, forward, backward, optimizer.step
    ...                                         # p.grad, optimizer.state[p], module.h: no values
    before.put_back(has_no_values)

Looked through are the arguments, the function's closure, defaults and globals, those of functions
of the user's that it names, and the attributes of objects on the way. What has values stays: Python
that counts steps has counted one.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

import torch

from lowtide.memory.scopes.births import is_users

_MOST_SEEN: Final = 200_000
_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)
_LISTS: Final = (list, deque)
_INTERNALS: Final = ("torch._", "lowtide.")
_HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Before:
    """See the module's text."""

    def __init__(self, roots: object) -> None:
        self._seen: dict[int, Any] = {}
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[Any, list[Any]]] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor]] = []
        todo: list[Any] = [roots]
        while todo and len(self._seen) < _MOST_SEEN:
            x = todo.pop()
            if isinstance(x, (*_PLAIN, type, ModuleType)) or id(x) in self._seen:
                continue
            self._seen[id(x)] = x
            self._note(x)
            with suppress(Exception):  # the user's objects may do what they like when asked
                todo += _parts(x)

    def _note(self, x: Any) -> None:
        if isinstance(x, dict):
            kept = cast("dict[Any, Any]", x)
            self._dicts.append((kept, {**kept}))
        elif issubclass(type(x), _LISTS):
            self._lists.append((x, [*x]))
        elif isinstance(x, torch.Tensor) and x.is_leaf and x.grad is not None:
            self._gradients.append((x, x.grad))

    def put_back(self, has_no_values: Callable[[torch.Tensor], bool]) -> None:
        """Whatever is left of the call."""
        has_none = functools.partial(self._has_none, has_no_values)
        for now, before in self._dicts:
            for key in [k for k, x in now.items() if before.get(k, now) is not x and has_none(x)]:
                if key in before:
                    now[key] = before[key]
                else:
                    del now[key]
        for now, before in self._lists:
            old = set(map(id, before))
            if any(id(x) not in old and has_none(x) for x in now):
                now.clear()
                now.extend(before)
        for x in self._seen.values():
            gradient = x.grad if isinstance(x, torch.Tensor) and x.is_leaf else None
            if gradient is not None and has_no_values(gradient):
                x.grad = None
        for x, gradient in self._gradients:
            if x.grad is None:
                x.grad = gradient

    def _has_none(self, has_no_values: Callable[[torch.Tensor], bool], value: Any) -> bool:
        """Whether there is one in a value that was not there before."""
        seen: set[int] = set()
        todo: list[Any] = [value]
        while todo:
            x = todo.pop()
            if isinstance(x, (*_PLAIN, type, ModuleType)) or id(x) in seen:
                continue
            seen.add(id(x))
            if isinstance(x, torch.Tensor) and has_no_values(x):
                return True
            if id(x) not in self._seen:
                with suppress(Exception):
                    todo += _parts(x)
        return False


def _parts(x: Any) -> Iterator[Any]:
    """What is reached from it in one step."""
    if isinstance(x, torch.Tensor):
        for name in _HOOKS:
            yield getattr(x, name, None)
        return
    kind = cast("type[Any]", type(x))
    if issubclass(kind, FunctionType):
        if is_users(x.__code__):
            yield from _of_function(x)
    elif issubclass(kind, MethodType):
        yield from (x.__self__, x.__func__)
    elif issubclass(kind, functools.partial):
        yield from (x.func, x.args, x.keywords)
    elif issubclass(kind, Mapping):
        yield from x
        yield from x.values()
    elif issubclass(kind, (*_LISTS, tuple, set, frozenset)):
        yield from x
    if not kind.__module__.startswith(_INTERNALS):
        yield getattr(x, "__dict__", None)


def _of_function(x: FunctionType) -> Iterator[Any]:
    for cell in x.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty still
            continue
    yield x.__defaults__
    yield x.__kwdefaults__
    for name in _names(x.__code__):
        yield x.__globals__.get(name)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)
