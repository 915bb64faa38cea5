"""Prints pointwise functions as Triton: one table row per function and kind of operand.

In:  a function's name, its operands' dtype and texts. Out: the text of an expression.

    call("add", f32, ["a", "b"])  →  "(a + b)"       call("exp", f32, ["a"])  →  "lib.exp(a)"

A bf16 or f16 is held as a float32 of the same value, a bool as int1. `lib` is libdevice, NVIDIA's
mathematical library; `lt_…` are functions of the prelude (`module`).
"""

from __future__ import annotations

import math

from lowtide.ir.dtypes import BY_NAME, DType

TYPES = {
    "f64": "tl.float64", "f32": "tl.float32", "bf16": "tl.bfloat16", "f16": "tl.float16",
    "i64": "tl.int64", "i32": "tl.int32", "u8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip

_LIBRARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "rsqrt", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "pow", "floor", "ceil", "trunc", "copysign", "fmod",
)  # fmt: skip
_ALL = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "neg": "(-{0})",
    "lt": "({0} < {1})", "le": "({0} <= {1})", "gt": "({0} > {1})", "ge": "({0} >= {1})",
    "eq": "({0} == {1})", "ne": "({0} != {1})", "abs": "tl.abs({0})",
    "sign": "(({0} > 0).to({t}) - ({0} < 0).to({t}))",
}  # fmt: skip
_FLOAT = {
    **{name: f"lib.{name}({{0}})" for name in _LIBRARY},
    **{name: f"lib.{name}({{0}}, {{1}})" for name in ("pow", "atan2", "copysign", "fmod")},
    "sqrt": "tl.sqrt_rn({0})", "div": "tl.div_rn({0}, {1})", "fma": "tl.fma({0}, {1}, {2})",
    "neg": "({0} * -1.0)",  # some versions of Triton compute 0.0 - x, which is 0.0 for 0.0
    "round": "lib.rint({0})", "reciprocal": "tl.div_rn(lt_like(1, {0}), {0})",
    "sigmoid": "lt_sigmoid({0})", "mod": "lt_remainder({0}, {1})",
    "floordiv": "lt_floor_divide({0}, {1})",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "fmax": "lt_number({0}, {1}, tl.maximum({0}, {1}))",
    "fmin": "lt_number({0}, {1}, tl.minimum({0}, {1}))",
    "isnan": "({0} != {0})", "isinf": "(tl.abs({0}) == float('inf'))",
    "isfinite": "(tl.abs({0}) < float('inf'))",
}  # fmt: skip
_DOUBLE = {"sqrt": "lib.sqrt({0})", "div": "({0} / {1})", "reciprocal": "(lt_like(1, {0}) / {0})"}
_INT = {
    "and": "({0} & {1})", "or": "({0} | {1})", "xor": "({0} ^ {1})", "not": "(~{0})",
    "shl": "({0} << {1})", "shr": "({0} >> {1})", "floordiv": "lt_floordiv_any({0}, {1})",
    "mod": "lt_mod_any({0}, {1})", "fmod": "({0} % {1})", "pow": "lt_power({0}, {1})",
    "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})",
    "fmax": "tl.maximum({0}, {1})", "fmin": "tl.minimum({0}, {1})",
    "isnan": "({0} != {0})", "isinf": "({0} != {0})", "isfinite": "({0} == {0})",
    "div": "lt_trunc_divide({0}, {1})",
}  # fmt: skip
_MASKS = {
    "and": "({0} & {1})", "or": "({0} | {1})", "xor": "({0} ^ {1})", "not": "({0} == 0)",
    "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "(({0} == 0) & {1})",
    "le": "(({0} == 0) | {1})", "gt": "({0} & ({1} == 0))", "ge": "({0} | ({1} == 0))",
    "minimum": "({0} & {1})", "maximum": "({0} | {1})", "fmin": "({0} & {1})",
    "fmax": "({0} | {1})", "mul": "({0} & {1})", "add": "({0} | {1})",
    "isnan": "({0} != {0})", "isinf": "({0} != {0})", "isfinite": "({0} == {0})",
}  # fmt: skip


def table(dtype: DType) -> dict[str, str]:
    """Return the functions of operands of a dtype, and their texts."""
    if dtype.name == "bool":
        return _MASKS
    if not dtype.is_float:
        return {**_ALL, **_INT}
    return {**_ALL, **_FLOAT, **(_DOUBLE if dtype.name == "f64" else {})}


def register_dtype(dtype: DType) -> DType:
    """Return the dtype in which a program holds values of a dtype."""
    return BY_NAME[dtype.compute]


def type_of(dtype: DType) -> str:
    """Return Triton's name of the dtype in which values are held."""
    return TYPES[register_dtype(dtype).name]


def call(fn: str, dtype: DType, args: list[str]) -> str:
    """Return the text of `fn(args)` for operands of a dtype. Raises NotImplementedError."""
    found = table(dtype).get(fn)
    if found is None:
        raise NotImplementedError(f"{fn} of {dtype} on a GPU")
    return found.format(*args, t=type_of(dtype))


def cast(source: DType, to: DType, arg: str) -> str:
    """Return the text of a cast; it rounds if `to` is a 16-bit float."""
    if source is to:
        return arg
    if to.name == "bool":
        return f"({arg} != 0)"
    if to.name in ("bf16", "f16"):
        single = arg if type_of(source) == "tl.float32" else f"{arg}.to(tl.float32)"
        return f"lt_{to.name}({single})"
    if to.name == "u8" and source.is_float:
        return f"{arg}.to(tl.int64).to(tl.uint8)"
    return arg if type_of(source) == type_of(to) else f"{arg}.to({type_of(to)})"


def rounded(value: str, dtype: DType) -> str:
    """Return the text that converts a held value to its dtype in memory."""
    if type_of(dtype) == TYPES[dtype.name]:
        return value
    return f"lt_{dtype.name}({value}).to({TYPES[dtype.name]})"


def literal(value: float | int | bool, dtype: DType) -> str:
    """Return the Python text of a number."""
    if not dtype.is_float:
        return repr(int(value))
    x = float(value)
    return repr(x) if math.isfinite(x) else f"float('{x}')"


def constant(value: float | int | bool, dtype: DType) -> str:
    """Return a typed number. -0.0 is a product: some versions of Triton make it 0.0."""
    if dtype.is_float and value == 0 and math.copysign(1, value) < 0:
        return f"({constant(0, dtype)} * -1.0)"
    return f"tl.full((), {literal(value, dtype)}, {type_of(dtype)})"
