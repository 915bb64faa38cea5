"""Numbers that stand for dtypes, layouts and memory formats in an archive's code.

In: a schema of PyTorch's, and the arguments of a call. Out: the arguments with objects for codes.

    torch.zeros([2], dtype=6, layout=0)   →  dtype=torch.float32, layout=torch.strided

The codes are c10's ScalarType, Layout and MemoryFormat.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from lowtide.frontend.script.context import Context
from lowtide.ir import python_objects
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
DTYPES: Final = {k: getattr(torch, n) for k, n in enumerate(_DTYPE_NAMES) if hasattr(torch, n)}
_LAYOUTS: Final = {
    k: getattr(torch, n)
    for k, n in enumerate(("strided", "sparse_coo", "sparse_csr", "_mkldnn", "sparse_csc"))
}
_FORMATS: Final = {
    k: getattr(torch, n)
    for k, n in enumerate(
        ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
    )
}
_TABLES: Final[dict[str, tuple[dict[int, Any], Type]]] = {
    "ScalarType": (DTYPES, t.DTYPE),
    "Layout": (_LAYOUTS, t.LAYOUT),
    "MemoryFormat": (_FORMATS, t.MEMORY_FORMAT),
}


def dtype_of(code: int) -> torch.dtype:
    """Return the dtype of a code, when the program runs."""
    return DTYPES[code]


def code_of(dtype: torch.dtype) -> int:
    """Return the code of a dtype, when the program runs."""
    return next(k for k, d in DTYPES.items() if d is dtype)


def layout_of(code: int) -> torch.layout:
    """Return the layout of a code, when the program runs."""
    return _LAYOUTS[code]


def format_of(code: int) -> torch.memory_format:
    """Return the memory format of a code, when the program runs."""
    return _FORMATS[code]


_AT_RUN: Final = {"ScalarType": dtype_of, "Layout": layout_of, "MemoryFormat": format_of}


def decoded(
    c: Context, schema: Any, args: list[Value], keywords: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    """Return the arguments with objects for codes; keywords that are None are left out."""
    by_name = {str(a.name): a for a in schema.arguments}
    positional = [a for a in schema.arguments if not a.kwarg_only]
    made = [
        _decoded(c, str(a.real_type), v) for a, v in zip(positional, args, strict=False)
    ] + args[len(positional) :]
    named = {
        k: _decoded(c, str(by_name[k].real_type), v) if k in by_name else v
        for k, v in keywords.items()
        if v.type != t.NONE
    }
    return made, named


def _decoded(c: Context, real_type: str, value: Value) -> Value:
    kind = real_type.removeprefix("Optional[").removesuffix("]").removesuffix("?")
    if kind not in _TABLES:
        return value
    return decode(c, kind, value)


def decode(c: Context, kind: str, value: Value) -> Value:
    """Return the object for a code of this kind; other values stay as they are."""
    table, type_ = _TABLES[kind]
    known = c.constant(value)
    if isinstance(known, int) and known in table:
        return c.const(table[known])
    plain = value.type.elem if isinstance(value.type, t.OptionalType) else value.type
    if known is not UNKNOWN or plain not in (t.INT, t.NUMBER):
        return value
    target = python_objects.name_of(_AT_RUN[kind])
    return c.builder.emit("py.call", [value], [type_], target=target, kwnames=()).result
