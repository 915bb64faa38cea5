"""The scopes' own functions are never compiled as functions of the user's.

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

import torch
from torch._jit_internal import FunctionModifiers

Marked = TypeVar("Marked", bound=Callable[..., Any])

_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_eval: Any = _C._dynamo.eval_frame
_SKIP: Any = _eval._FrameExecStrategy(_eval._FrameAction.SKIP, _eval._FrameAction.DEFAULT)

_SKIP_BELOW: Any = _eval._FrameExecStrategy(_eval._FrameAction.SKIP, _eval._FrameAction.SKIP)


def hide_with_callees(function: Callable[..., Any]) -> None:
    """The function, and whatever it calls."""
    code = _code_of(function)
    assert code is not None
    _eval.set_code_exec_strategy(code, _SKIP_BELOW)


def by_python(member: Marked) -> Marked:
    """A function that compiled programs call, never a part of one; or a class of them."""
    of_class: bool = isinstance(member, type)
    for one in vars(member).values() if of_class else (member,):
        function = getattr(one, "fget", one)
        if isinstance(function, FunctionType):
            vars(function)["_torchscript_modifier"] = FunctionModifiers.IGNORE
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
        _eval.set_code_exec_strategy(code, _SKIP)
        for const in code.co_consts:
            if isinstance(const, CodeType):
                _skip(const)
