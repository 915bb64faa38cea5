"""torch.jit: its marks, its warnings, and the schemas of operators that it knows."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Final

import torch
import torch.jit._builtins
from torch._jit_internal import FunctionModifiers
from torch.jit._trace import TracerWarning

__all__ = ["FunctionModifiers", "TracerWarning"]

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_builtins: Final[Any] = torch.jit._builtins
MODIFIER: Final = "_torchscript_modifier"  # the attribute of a function that has a mark
# The `__module__` of its functions.
MODULE: Final = "torch._jit_internal"
# A function that returns its argument, and raises an error for None.
unwrap_optional: Final[Any] = torch.jit._unwrap_optional  # pyright: ignore
check: Final[Any] = vars(torch)["_assert"]
ScriptList: Final[Any] = _C.ScriptList
COMPILED: Final[tuple[Any, ...]] = (_C.ScriptFunction, _C.ScriptMethod)
UNUSED: Final[tuple[Any, ...]] = tuple(
    getattr(FunctionModifiers, name)
    for name in ("UNUSED", "_DROP")
    if hasattr(FunctionModifiers, name)
)

# "__torch__.module.method" → class → what `torch._jit_internal._overload_method` was given.
OVERLOADS: Final[Mapping[str, Mapping[str, list[FunctionType]]]] = getattr(
    importlib.import_module(MODULE), "_overloaded_methods", {}
)


def module_of(c: Any) -> torch.nn.Module:
    """Return a module of torch.jit around its C++ object."""
    return importlib.import_module("torch.jit._recursive").wrap_cpp_module(c)


def schemas(name: str) -> list[Any]:
    """Return all schemas of an operator, such as `"aten::mm"`; [] if the name is unknown."""
    return _C._jit_get_schemas_for_operator(name)


def operator_name(function: Any) -> str | None:
    """Return `torch.mm` → `"aten::mm"`; None for what is no operator. Raises AttributeError."""
    found: Any = _builtins._find_builtin(function)
    return None if found is None else str(found)
