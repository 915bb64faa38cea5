"""Keeps Dynamo and `lt.script` from compiling the scopes' own functions.

In: modules and functions. Out: nothing; Python runs them as they are.

    hide(scope)         # after a graph break, Dynamo leaves the functions of `scope` alone

    @by_python          # as torch.jit.ignore: a scripted program calls it, and does not compile it
    def dispose(*ts): ...

Without `hide`, Dynamo would compile each function that runs after a graph break, the function
mode's too. It would specialise the mode to the first operation, and give wrong results for others.
Dynamo may still trace into hidden functions from a function that it compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from lowtide.torch_private.graph_capture import skip, skip_with_callees
from lowtide.torch_private.torch_jit import MODIFIER, FunctionModifiers

Marked = TypeVar("Marked", bound=Callable[..., Any])


def hide_with_callees(function: Callable[..., Any]) -> None:
    """Make Dynamo skip the function and everything that it calls."""
    code = _code_of(function)
    assert code is not None
    skip_with_callees(code)


def by_python(member: Marked) -> Marked:
    """Mark a function, or the methods of a class, to be called by scripted programs, not
    compiled."""
    of_class: bool = isinstance(member, type)
    for one in vars(member).values() if of_class else (member,):
        function = getattr(one, "fget", one)
        if isinstance(function, FunctionType):
            vars(function)[MODIFIER] = FunctionModifiers.IGNORE
    return member


def hide(module: ModuleType) -> None:
    """Make Dynamo skip every function and method of the module, nested ones too."""
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
