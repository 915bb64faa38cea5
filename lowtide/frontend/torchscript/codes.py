"""Numbers that stand for dtypes, layouts and memory formats in an archive's code.

In: a schema of PyTorch's, and the arguments of a call. Out: the arguments with objects for codes.

    torch.zeros([2], dtype=6, layout=0)   →  dtype=torch.float32, layout=torch.strided

    ops.prim.dtype(x)                     →  the code of x.dtype

The codes are c10's ScalarType, Layout and MemoryFormat.
Invariant: in the program, a dtype is its code, an int, as in TorchScript; objects are operands of
PyTorch's functions alone.
"""

from __future__ import annotations

import ast
from typing import Any, Final

import torch

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.flow import choose
from lowtide.frontend.script.nodes import Node
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value
from lowtide.ir.types import Type

_DTYPE_NAMES: Final = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    *("uint16", "uint32", "uint64"),
)
_LAYOUT_NAMES: Final = (
    *("strided", "sparse_coo", "sparse_csr", "_mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc"),
)
_FORMAT_NAMES: Final = (
    *("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
)


def _objects(names: tuple[str, ...]) -> tuple[Any, ...]:
    """By code; None where this PyTorch has no such object."""
    return tuple(getattr(torch, name, None) for name in names)


_TABLES: Final[dict[str, tuple[tuple[Any, ...], Type]]] = {
    "ScalarType": (_objects(_DTYPE_NAMES), t.DTYPE),
    "Layout": (_objects(_LAYOUT_NAMES), t.LAYOUT),
    "MemoryFormat": (_objects(_FORMAT_NAMES), t.MEMORY_FORMAT),
}
_CODES: Final = {
    found: code for table, _ in _TABLES.values() for code, found in enumerate(table) if found
}
_KIND_OF: Final[dict[Type, str]] = {type_: kind for kind, (_, type_) in _TABLES.items()}


def code_of(x: object) -> int | None:
    """Return the code of a dtype, a layout or a memory format; None for anything else."""
    return (
        _CODES.get(x) if isinstance(x, torch.dtype | torch.layout | torch.memory_format) else None
    )


def decoded(
    c: Context, node: ast.AST, schema: Any, args: list[Value], keywords: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    """Return the arguments with objects for codes; keywords that are None are left out."""
    by_name = {str(a.name): a for a in schema.arguments}
    positional = [a for a in schema.arguments if not a.kwarg_only]
    made = [
        _decoded(c, node, str(a.real_type), v) for a, v in zip(positional, args, strict=False)
    ] + args[len(positional) :]
    named = {
        k: _decoded(c, node, str(by_name[k].real_type), v) if k in by_name else v
        for k, v in keywords.items()
        if v.type != t.NONE
    }
    return made, named


def _decoded(c: Context, node: ast.AST, real_type: str, value: Value) -> Value:
    kind = real_type.removeprefix("Optional[").removesuffix("]").removesuffix("?")
    return decode(c, node, kind, value) if kind in _TABLES else value


def decode(c: Context, node: ast.AST, kind: str, value: Value) -> Value:
    """Return the object for a code of this kind; other values stay as they are."""
    table, type_ = _TABLES[kind]
    known = c.constant(value)
    if isinstance(known, int) and not isinstance(known, bool) and 0 <= known < len(table):
        return c.const(table[known])
    maker = c.builder.makers.get(value)
    if maker is not None and maker.name == "list.index" and maker.operands[1].type == type_:
        return maker.operands[1]  # the code of an object
    if known is not UNKNOWN:
        return value

    def decoded() -> Value:
        return c.builder.emit("list.get", [c.const(table), value], [type_]).result

    if value.type == t.optional(t.INT):
        is_none = c.py(node, "py.is", value, c.const(None))
        return choose(c, node, is_none, lambda: c.const(None), decoded)
    return decoded() if value.type in (t.INT, t.NUMBER) else value


_KINDS: Final = {"dtype": "ScalarType", "memory_format": "MemoryFormat", "layout": "Layout"}


def decode_named(c: Context, node: ast.AST, name: str, value: Value) -> Value:
    """Return the object for a code that is the argument of this name."""
    return decode(c, node, _KINDS[name], value) if name in _KINDS else value


def encoded(c: Context, found: Node) -> Node:
    """Return the code of a dtype, a layout or a memory format; other values as they are."""
    if not isinstance(found, Value) or found.type not in _KIND_OF:
        return found
    table = _TABLES[_KIND_OF[found.type]][0]
    known = c.constant(found)
    if known is not UNKNOWN:
        return c.const(table.index(known))
    return c.builder.emit("list.index", [c.const(table), found], [t.INT]).result
