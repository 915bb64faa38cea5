"""What the user's code may reach, from some of his objects on.

    everything((step, args))        by id: the arguments, the function's closure, defaults and
                                    globals, those of functions of his that it names, and the items
                                    and attributes of what is on the way

Left out: numbers and text, Python's modules, types that are not the user's, and what the functions
of installed packages name.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, cast

import torch

from lowtide.memory.scopes.births import is_users

LISTS: Final = (list, deque)
MOST: Final = 200_000
_PLAIN: Final = (
    *(int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device),
    *(type, ModuleType),
)
_INSTALLED: Final = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_INTERNALS: Final = ("torch._", "lowtide.")
_HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")


def everything(roots: object, goes_on: Callable[[Any], bool] = lambda _: True) -> dict[int, Any]:
    """In the order in which it was found. `goes_on`: whether to look into an object, too."""
    seen: dict[int, Any] = {}
    todo: list[Any] = [roots]
    while todo and len(seen) < MOST:
        x = todo.pop()
        if id(x) in seen or (isinstance(x, _PLAIN) and not classes_of(x)):
            continue
        seen[id(x)] = x
        if goes_on(x):
            with suppress(Exception):  # the user's objects may do what they like when asked
                todo += _parts(x)
    return seen


def _parts(x: Any) -> Iterator[Any]:
    """What is reached from it in one step."""
    if isinstance(x, torch.Tensor):
        for name in _HOOKS:
            yield getattr(x, name, None)
        return
    kind = cast("type[Any]", type(x))
    if issubclass(kind, CellType):
        with suppress(ValueError):  # it is empty still
            yield x.cell_contents
    elif issubclass(kind, FunctionType):
        if is_users(x.__code__):
            yield from _of_function(x)
    elif issubclass(kind, MethodType):
        yield from (x.__self__, x.__func__)
    elif issubclass(kind, functools.partial):
        yield from (x.func, x.args, x.keywords)
    elif issubclass(kind, Mapping):
        yield from x
        yield from x.values()
    elif issubclass(kind, (*LISTS, tuple, set, frozenset)):
        yield from x
    if not (issubclass(kind, type) or kind.__module__.startswith(_INTERNALS)):
        yield getattr(x, "__dict__", None)
    for owner in classes_of(x):
        for member in [*vars(owner).values()]:
            yield getattr(member, "fget", getattr(member, "__func__", member))
        for name in vars(owner).get("__slots__", ()):
            yield getattr(x, name, None)


def classes_of(x: object) -> list[type]:
    """The user's, of which it is; of a class itself, that and those that it is made of."""
    kind = cast("type[Any]", x if isinstance(x, type) else type(x))
    return [owner for owner in kind.__mro__ if _is_users_class(owner)]


@functools.cache
def _is_users_class(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    if package in sys.stdlib_module_names or package in ("torch", "lowtide"):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return not file.startswith(_INSTALLED)


def names_of(x: FunctionType) -> set[str]:
    """Of globals and attributes, those of functions within it, too."""
    return {*_names(x.__code__)}


def _of_function(x: FunctionType) -> Iterator[Any]:
    yield from x.__closure__ or ()
    yield x.__defaults__
    yield x.__kwdefaults__
    if not x.__code__.co_filename.startswith(_INSTALLED):
        for name in _names(x.__code__):
            yield x.__globals__.get(name)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)
