"""Modules and functions of torch.jit, which compiled code uses by their twins.

In: what torch.jit made. Out: an nn.Module, or a function with source, that is compiled as any
other; None where there is none, and PyTorch runs the original.

    twin_of(torch.jit.load("old.pt"))       see `deploy/torchscript/twins.py`
"""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import Any, Final, cast

import torch

from lowtide.errors import CompileError

TWIN: Final = "_lowtide_twin"  # the attribute of a module of torch.jit
MODE: Final = "_lowtide_mode"  # the attribute of a twin
_TWINS: Final = "lowtide.deploy.torchscript.twins"  # above this layer
_MODULE: Final[Any] = torch.jit.ScriptModule  # pyright: ignore[reportPrivateImportUsage]
_FUNCTION: Final[Any] = torch.jit.ScriptFunction


def is_module(obj: object) -> bool:
    """Return whether torch.jit made this module."""
    return isinstance(obj, _MODULE)


def is_function(obj: object) -> bool:
    """Return whether torch.jit compiled this function."""
    return isinstance(obj, _FUNCTION)


def is_twin(module: torch.nn.Module) -> bool:
    """Return whether a module is the twin of one of torch.jit."""
    return MODE in vars(module)


def module_twin(old: Any) -> torch.nn.Module:
    """Return the twin of a module. Raises CompileError if there is none."""
    return importlib.import_module(_TWINS).module_twin(old)


def function_twin(old: Any) -> FunctionType:
    """Return the twin of a function. Raises CompileError if there is none."""
    return importlib.import_module(_TWINS).function_twin(old)


def twin_or_none(old: Any) -> torch.nn.Module | None:
    """Return the twin of a module; None if there is none."""
    known = cast("dict[str, object]", vars(old)).get(TWIN)
    if isinstance(known, torch.nn.Module):
        return known
    try:
        return module_twin(old)
    except CompileError:
        return None


def function_or_none(old: Any) -> FunctionType | None:
    """Return the twin of a function; None if there is none."""
    try:
        return function_twin(old)
    except CompileError:
        return None


def compiled(called: Any, known: dict[Any, Any]) -> Any:
    """Return what Lowtide calls in the place of a function or bound method of torch.jit. `known`:
    those that were made before. Raises CompileError if there is none."""
    return importlib.import_module(_TWINS).compiled(called, known)
