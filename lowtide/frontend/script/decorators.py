"""Marks on methods and classes: `lt.export`, `lt.ignore`, `lt.unused`, `lt.interface`, `lt.Final`.

In: a function or a class. Out: the same, marked; in plain Python a mark changes nothing. The marks
are torch.jit's own attributes, so that code marked for it means the same here.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, TypeVar

from lowtide.torch_private.torch_jit import MODIFIER, FunctionModifiers

__all__ = ["MODIFIER", "Attribute", "Final", "export", "ignore", "interface", "unused"]

Marked = TypeVar("Marked", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

EXPORTED: typing.Final = (FunctionModifiers.EXPORT,)
IGNORED: typing.Final = (FunctionModifiers.IGNORE,)


def modifier(fn: object) -> object:
    """Return the mark of a function, None without one."""
    return getattr(fn, MODIFIER, None)


def export(fn: Marked) -> Marked:
    """Mark a method to be compiled, too, as a further entry point of its module."""
    setattr(fn, MODIFIER, FunctionModifiers.EXPORT)
    return fn


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Mark a method or function that compiled code calls in Python. `drop=True`: as `unused`."""
    if isinstance(drop, FunctionType | property):
        return _mark(drop, FunctionModifiers.IGNORE)
    del kwargs
    kind = FunctionModifiers.UNUSED if drop else FunctionModifiers.IGNORE
    return lambda fn: _mark(fn, kind)  # pyright: ignore[reportUnknownVariableType]


def unused(fn: Marked) -> Marked:
    """Mark a method or function that is not compiled: a call in compiled code raises."""
    return _mark(fn, FunctionModifiers.UNUSED)


def _mark(fn: Any, kind: str) -> Any:
    for one in (fn.fget, fn.fset) if isinstance(fn, property) else (fn,):
        if one is not None:
            setattr(one, MODIFIER, kind)
    return fn


def interface(obj: Class) -> Class:
    """Mark a class as the interface of a submodule: signatures of its methods, without bodies."""
    if not isinstance(obj, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"lt.interface takes a class, not {type(obj).__name__}")
    obj.__lowtide_interface__ = True  # pyright: ignore[reportAttributeAccessIssue]
    return obj


class Attribute(typing.NamedTuple):
    """`self.cache = lt.Attribute({}, Dict[str, int])`: a module's attribute with its type."""

    value: Any
    type: Any
