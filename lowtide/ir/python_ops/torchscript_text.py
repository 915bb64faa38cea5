"""Prints a value as TorchScript does, which prints by C++.

    text(2.0)                  "2."
    text([True, "a", 0.1])     "[True, a, 0.10000000000000001]"
    text(torch.arange(2))      " 0
 1
[ CPULongType{2} ]"

The form of a tensor is that of PyTorch's `ATen/core/Formatting.cpp`. A tensor that is sparse,
complex or quantized, and an object of a class, are shown as in Python.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable
from typing import Any, Final, cast

import torch

_LINE: Final = 80
_NAMES: Final = {
    torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int",
    torch.int64: "Long", torch.float16: "Half", torch.float32: "Float", torch.float64: "Double",
    torch.bool: "Bool", torch.bfloat16: "BFloat16", torch.uint16: "UInt16",
    torch.uint32: "UInt32", torch.uint64: "UInt64",
}  # fmt: skip


def text(value: object) -> str:
    """Return what `str(value)` and `print` show in TorchScript."""
    match value:
        case str():
            return value
        case float():
            return _float(value)
        case complex():
            sign = "+" if value.imag >= 0 else "-"
            return f"{_float(value.real)}{sign}{_float(abs(value.imag))}j"
        case enum.Enum():
            return f"Enum<{type(value).__name__}.{value.name}>"
        case torch.Tensor():
            return _tensor(value)
        case list():
            return f"[{_joined(cast('list[object]', value))}]"
        case tuple():
            parts = cast("tuple[object, ...]", value)
            return f"({_joined(parts)}{',' if len(parts) == 1 else ''})"
        case dict():
            rows = cast("dict[object, object]", value).items()
            return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in rows) + "}"
        case _:
            return str(value)


def _joined(parts: Iterable[object]) -> str:
    return ", ".join(map(text, parts))


def _float(value: float) -> str:
    if math.isfinite(value) and abs(value) < 2**63 and value == int(value):
        return f"{int(value)}."
    return f"{value:.17g}"


# ---- tensors ------------------------------------------------------------------------------------


def _tensor(x: torch.Tensor) -> str:
    if x.dtype not in _NAMES or x.layout is not torch.strided:
        return str(x)
    device = "CUDA" if x.is_cuda else x.device.type.upper()
    form = f"[ {device}{_NAMES[x.dtype]}Type{{{','.join(map(str, x.shape))}}} ]"
    rows: Any = x.detach().to("cpu", torch.float64)
    if x.dim() == 0:
        return f"{_shortest(rows.item())}\n{form}"
    if not x.numel():
        return form
    if x.dim() == 1:
        scale, numbers = _numbers(rows)
        return _scale(scale) + "".join(f"{n}\n" for n in numbers) + form
    if x.dim() == 2:
        return _matrix(rows, 0) + form
    parts: list[str] = []
    for backwards in itertools.product(*map(range, reversed(x.shape[:-2]))):
        place = backwards[::-1]  # the first index is counted up first
        at = "".join(f"{k + 1}," for k in place)
        parts.append(f"({at}.,.) = \n{_matrix(rows[place], 1)}")
    return "\n".join(parts) + form


def _matrix(rows: torch.Tensor, indent: int) -> str:
    scale, numbers = _numbers(rows.reshape(-1))
    columns = rows.shape[1]
    before = " " * indent
    each = max((_LINE - indent) // (len(numbers[0]) + 1), 1)
    lines = [numbers[k : k + columns] for k in range(0, len(numbers), columns)]
    found = ""
    for first in range(0, columns, each):
        last = min(first + each, columns)
        if each < columns:
            found += "\n" if first else ""
            found += f"Columns {first + 1} to {last}{before}"
        found += _scale(scale) + before if scale != 1 else ""
        start = before + " " if scale != 1 else before
        found += f"\n{start}".join(" ".join(line[first:last]) for line in lines) + "\n"
    return found


def _shortest(value: float) -> str:
    return repr(value).removesuffix(".0")


def _scale(scale: float) -> str:
    return f"{_shortest(scale)} *\n" if scale != 1 else ""


def _numbers(flat: torch.Tensor) -> tuple[float, list[str]]:
    """Return the factor before all numbers, and their texts of one width."""
    values = cast("list[float]", flat.tolist())
    finite = [v for v in values if math.isfinite(v)]
    least = most = abs(finite[0]) if finite else 1.0
    for v in finite:
        least = min(least, abs(v))
        most = abs(v) if v > most else most
    low, high = (math.floor(math.log10(v)) + 1 if v else 1 for v in (least, most))
    scale = 1.0
    if all(v == math.ceil(v) for v in finite):
        width, form = (11, ".4e") if high > 9 else (high + 1, "g")
    elif high - low > 4:
        width, form = (12 if abs(high) > 99 or abs(low) > 99 else 11), ".4e"
    else:
        form = ".4f"
        if high > 5 or high < 0:
            width, scale = 7, math.pow(10, high - 1)
        else:
            width = 7 if high == 0 else high + 6
    return scale, [f"{v / scale:{form}}".rjust(width) for v in values]
