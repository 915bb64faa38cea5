"""Keeps Dynamo and `lt.script` from compiling the scopes' own functions.

In: modules. Out: nothing; Dynamo runs their functions as they are.

    hide(scope)         # after a graph break, `with dispose_scope()` runs in plain Python

    @by_python          # compilers that read the source call it, as they do what `ignore` marks
    def dispose(*ts): ...

Always: Dynamo may still look into them from a function that it traces. After a graph break it would
compile each that is called, the mode's too, and take what it found for one operation to be so for
all: wrong results.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from lowtide.torch_private.graph_capture import skip, skip_with_callees
from lowtide.torch_private.torch_jit import MODIFIER, FunctionModifiers

Marked = TypeVar("Marked", bound=Callable[..., Any])


def hide_with_callees(function: Callable[..., Any]) -> None:
    """The function, and whatever it calls."""
    code = _code_of(function)
    assert code is not None
    skip_with_callees(code)


def by_python(member: Marked) -> Marked:
    """A function that compiled programs call, never a part of one; or a class of them."""
    of_class: bool = isinstance(member, type)
    for one in vars(member).values() if of_class else (member,):
        function = getattr(one, "fget", one)
        if isinstance(function, FunctionType):
            vars(function)[MODIFIER] = FunctionModifiers.IGNORE
    return member


def hide(module: ModuleType) -> None:
    """Every function and method that the module defines, and those within them."""
    for value in vars(module).values():
        if getattr(value, "__module__", None) == module.__name__:
            members: list[Any] = list(vars(value).values()) if isinstance(value, type) else [value]
            for member in members:
                _skip(_code_of(member))


def _code_of(member: Any) -> CodeType | None:
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return getattr(function, "__code__", None)


def _skip(code: CodeType | None) -> None:
    if code is not None:
        skip(code)
        for const in code.co_consts:
            if isinstance(const, CodeType):
                _skip(const)
