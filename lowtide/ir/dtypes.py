"""Element types: one record per dtype, with its names in torch, in C and in printed IR.

from_torch(torch.float32)  is  f32
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """`name` is how IR prints it; `compute` the name of the dtype in which arithmetic is done."""

    name: str
    torch: torch.dtype
    itemsize: int
    c: str  # how one element lies in memory
    compute: str
    is_float: bool
    is_signed: bool = True

    def __repr__(self) -> str:
        return self.name


f64 = DType(name="f64", torch=torch.float64, itemsize=8, c="double", compute="f64", is_float=True)
f32 = DType(name="f32", torch=torch.float32, itemsize=4, c="float", compute="f32", is_float=True)
bf16 = DType(
    name="bf16", torch=torch.bfloat16, itemsize=2, c="uint16_t", compute="f32", is_float=True
)
f16 = DType(name="f16", torch=torch.float16, itemsize=2, c="uint16_t", compute="f32", is_float=True)
i64 = DType(name="i64", torch=torch.int64, itemsize=8, c="int64_t", compute="i64", is_float=False)
i32 = DType(name="i32", torch=torch.int32, itemsize=4, c="int32_t", compute="i32", is_float=False)
u8 = DType(
    name="u8",
    torch=torch.uint8,
    itemsize=1,
    c="uint8_t",
    compute="u8",
    is_float=False,
    is_signed=False,
)
boolean = DType(
    name="bool",
    torch=torch.bool,
    itemsize=1,
    c="uint8_t",
    compute="bool",
    is_float=False,
    is_signed=False,
)

HALVES = ("bf16", "f16")  # names of the floats of 16 bits
_PRECISION = {"bf16": 8, "f16": 11}  # bits of a number's digits
_LEAST = {"bf16": -133, "f16": -24}  # the least number above 0 is 2 to this
_LARGEST = {"bf16": float.fromhex("0x1.fep127"), "f16": 65504.0}


def nearest(value: float, dtype: DType) -> float:
    """Return the number of this float dtype that is nearest to `value`, as PyTorch stores it."""
    if dtype is f64 or not math.isfinite(value):
        return value
    value = ctypes.c_float(value).value
    if dtype is f32 or not math.isfinite(value):
        return value
    exponent = math.frexp(value)[1]
    step = math.ldexp(1.0, max(exponent - _PRECISION[dtype.name], _LEAST[dtype.name]))
    rounded = math.copysign(round(value / step) * step, value)  # round() takes the even one of two
    return rounded if abs(rounded) <= _LARGEST[dtype.name] else math.copysign(math.inf, value)


def wrapped(value: int, dtype: DType) -> int:
    """Return the number of this int dtype that has the last bits of `value`, as arithmetic
    wraps."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.is_signed and value >> (bits - 1) else value


ALL = (f64, f32, bf16, f16, i64, i32, u8, boolean)
BY_NAME = {d.name: d for d in ALL}
_BY_TORCH = {d.torch: d for d in ALL}


def from_torch(dtype: torch.dtype) -> DType | None:
    """Return the record of a torch dtype; None where Lowtide does not compute in it (complex,
    int16…)."""
    return _BY_TORCH.get(dtype)
