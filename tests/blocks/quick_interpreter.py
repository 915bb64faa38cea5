"""Triton's interpreter in a fraction of the time: what leads to nothing is left out.

It runs the same text, block by block, by the same calls of NumPy. Left out, or kept from one time
to the next:

    sums of integers once more in 64 bits     compared, for an assertion that only `debug` makes
    triton.language, looked through           at each launch, and again at each call of a function
                                              within a kernel, for functions that are to be replaced
    Triton's error around Python's own        of a function that a kernel calls
    NumPy's name of a dtype                   in a table that is made at each question
    shapes of types and values                as constants of Triton's, for each value once more

    quicken(patch)                            until `patch` is undone

Kernels are compiled by a Triton that is as it was: types and values are quick within launches only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_VERSIONS = ("3.6.", "3.7.")  # whose interpreters are meant


def quicken(patch: pytest.MonkeyPatch) -> None:
    """See the module's text; with another Triton than those that it is of, nothing is done."""
    if not triton.__version__.startswith(_VERSIONS):
        return
    builder = interpreter.interpreter_builder
    options = dataclasses.replace(builder.options, sanitize_overflow=False)
    assert not options.debug
    patch.setattr(builder, "options", options)
    patch.setattr(interpreter, "_patch_lang", _replaced)
    patch.setattr(interpreter, "_get_np_dtype", _dtype_of_numpy)
    patch.setattr(interpreter.InterpretedFunction, "__call__", _called)


def _called(self: Any, *given: Any, **named: Any) -> Any:
    """A function within a kernel: what it needs was replaced at the launch."""
    return self.rewrite()(*given, **named)


_patch_lang = interpreter._patch_lang
_replacements: dict[tuple[str, ...], list[tuple[Any, str, Any]]] = {}


def _replaced(function: Any) -> Any:
    """As Triton's: what kernels call is replaced until the scope that it gives is restored."""
    languages = tuple(k for k, v in function.__globals__.items() if v is tl or v is tl.core)
    if languages not in _replacements:
        scope = _patch_lang(function)
        _replacements[languages] = [(x, k, getattr(x, k)) for x, k, _ in scope._changes] + [
            (tl.tensor, "__init__", _init_value),
            (tl.block_type, "__init__", _init_type),
            (TritonSemantic, "broadcast_impl_value", _broadcast),
        ]
        scope.restore()
    scope = interpreter._LangPatchScope()
    for x, name, value in _replacements[languages]:
        scope.set_attr(x, name, value)
    return scope


_get_np_dtype = interpreter._get_np_dtype
_dtypes: dict[str, Any] = {}


def _dtype_of_numpy(dtype: tl.dtype) -> Any:
    found = _dtypes.get(dtype.name)
    if found is None:
        found = _dtypes[dtype.name] = _get_np_dtype(dtype)
    return found


_real_init_type, _real_init_value = tl.block_type.__init__, tl.tensor.__init__
_real_broadcast = TritonSemantic.broadcast_impl_value
_shapes: dict[tuple[int, ...], tuple[Any, int, str]] = {}  # of types
_shapes_of_values: dict[tuple[int, ...], tuple[Any, Any]] = {}


def _init_type(self: Any, element_ty: Any, shape: Sequence[Any]) -> None:
    sizes = tuple(shape)
    if any(type(n) is not int for n in sizes):
        _real_init_type(self, element_ty, shape)
        return
    if sizes not in _shapes:
        _real_init_type(self, element_ty, shape)
        _shapes[sizes] = self.shape, self.numel, f"<{self.shape}, "
    self.element_ty = element_ty
    self.shape, self.numel, start = _shapes[sizes]
    self.name = f"{start}{element_ty}>"


def _init_value(self: Any, handle: Any, type: Any) -> None:
    sizes = tuple(type.shape.values) if type.is_block() else ()
    if sizes not in _shapes_of_values:
        _real_init_value(self, handle, type)
        _shapes_of_values[sizes] = self.numel, self.shape
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.numel, self.shape = _shapes_of_values[sizes]


def _broadcast(self: Any, left: Any, right: Any) -> Any:
    """Blocks of as many axes; others, and what does not fit, as Triton has it."""
    a, b = left.type, right.type
    if not (a.is_block() and b.is_block()):
        return _real_broadcast(self, left, right)
    m, n = a.shape.values, b.shape.values
    if m == n:
        return left, right
    if len(m) != len(n) or any(x != y and x != 1 and y != 1 for x, y in zip(m, n, strict=True)):
        return _real_broadcast(self, left, right)
    sizes = [y if x == 1 else x for x, y in zip(m, n, strict=True)]
    return tuple(
        x
        if x.type.shape.values == sizes
        else self.tensor(
            self.builder.create_broadcast(x.handle, sizes), tl.block_type(x.type.scalar, sizes)
        )
        for x in (left, right)
    )
