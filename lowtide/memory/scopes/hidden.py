"""The scopes' own functions are never compiled by Dynamo as functions of the user's.

In: modules. Out: nothing; Dynamo runs their functions as they are.

    hide(scope)         # after a graph break, `with dispose_scope()` runs in plain Python

Always: Dynamo may still look into them from a function that it traces. After a graph break it would
compile each that is called, the mode's too, and take what it found for one operation to be so for
all: wrong results.
"""

from __future__ import annotations

from types import CodeType, ModuleType
from typing import Any

import torch

_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_eval: Any = _C._dynamo.eval_frame
_SKIP: Any = _eval._FrameExecStrategy(_eval._FrameAction.SKIP, _eval._FrameAction.DEFAULT)


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
