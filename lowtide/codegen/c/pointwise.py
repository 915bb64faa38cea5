"""Prints pointwise functions as C on vectors: one table row per function and kind of operand.

In:  a function's name, its operands' dtype and C names.
Out: C text, and the library functions that it calls.

    call("add", f32, ["a", "b"])  →  "a + b"       call("exp", f32, ["a"])  →  "exp_f32(a)"

A bool is a mask of lanes 0 or -1 (`i32v`). bf16 and f16 are held as `f32v` of the same value.
"""

from __future__ import annotations

from lowtide.ir.dtypes import DType
from lowtide.vecmath import NAMES

REGISTER = {
    "f64": "f64", "f32": "f32", "bf16": "f32", "f16": "f32", "i64": "i64", "i32": "i32", "u8": "u8",
    "bool": "bool",
}  # fmt: skip
VECTOR = {n: ("i32v" if r == "bool" else f"{r}v") for n, r in REGISTER.items()}
SCALAR = {
    "f64": "double", "f32": "float", "i64": "int64_t", "i32": "int32_t", "u8": "uint8_t",
    "bool": "int32_t",
}  # fmt: skip
MEMORY = {
    "f64": "double", "f32": "float", "bf16": "uint16_t", "f16": "uint16_t", "i64": "int64_t",
    "i32": "int32_t", "u8": "uint8_t", "bool": "uint8_t",
}  # fmt: skip

_ARITHMETIC = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}"}
COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_BITS = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "~{0}"}
_MASKS = {
    **_BITS,
    "eq": "~({0} ^ {1})",
    "ne": "{0} ^ {1}",
    "lt": "~{0} & {1}",
    "le": "~{0} | {1}",
    "gt": "{0} & ~{1}",
    "ge": "{0} | ~{1}",
    "minimum": "{0} & {1}",
    "maximum": "{0} | {1}",
    "mul": "{0} & {1}",
    "add": "{0} | {1}",
}
# names that differ from the library's, by kind of dtype
_FLOAT = {"mod": "remainder"}
_INT = {"shl": "shiftleft", "shr": "shiftright", "fmin": "minimum", "fmax": "maximum"}
# functions made of others: {0} {1} operands, {t} dtype of the register, {v} its vector
_MADE = {
    "neg": "-{0}",
    "isnan": "{0} != {0}",
    "isfinite": "{0} - {0} == {0} - {0}",
    "isinf": "({0} == {0}) & ({0} - {0} != {0} - {0})",
    "reciprocal": "1 / {0}",
    "fmin": "blend_{t}({1} != {1}, {0}, blend_{t}({0} != {0}, {1}, fastmin_{t}({0}, {1})))",
    "fmax": "blend_{t}({1} != {1}, {0}, blend_{t}({0} != {0}, {1}, fastmax_{t}({0}, {1})))",
    "floordiv": "floordiv_{t}({0}, {1})",
}
_SIGN = "({v})(({0} > 0) & ({m})({one})) + ({v})(({0} < 0) & ({m})(-({one})))"
_RESULT_IS_MASK = frozenset({*COMPARE, "isnan", "isinf", "isfinite"})

# torch: div(a, b, rounding_mode="floor") for floats
FLOORDIV = """\
LT_INLINE {v} floordiv_{t}({v} a, {v} b) {{
  {v} r = fmod_{t}(a, b), q = (a - r) / b;
  {m} wrong = (r != 0) & ((b < 0) ^ (r < 0));
  q = blend_{t}(wrong, q - 1, q);
  {v} whole = floor_{t}(q);
  whole = blend_{t}(q - whole > (q - q) + 0.5f, whole + 1, whole);
  whole = blend_{t}(q == 0, copysign_{t}(q, a / b), whole);
  return blend_{t}(b == 0, a / b, whole);
}}
"""


def uses(fn: str, dtype: DType) -> list[str]:
    """Return the library functions that the text of `call` names."""
    t = REGISTER[dtype.name]
    if fn == "floordiv" and dtype.is_float:
        return [f"{n}_{t}" for n in ("fmod", "blend", "floor", "copysign")]
    if fn in ("fmin", "fmax") and dtype.is_float:
        return [f"blend_{t}", f"fast{fn[1:]}_{t}"]
    name = _library_name(fn, t, dtype)
    return [name] if name in NAMES else []


def _library_name(fn: str, t: str, dtype: DType) -> str:
    return f"{(_FLOAT if dtype.is_float else _INT).get(fn, fn)}_{t}"


def call(fn: str, dtype: DType, args: list[str]) -> str:
    """Return the C of `fn(args)` for operands of a dtype; masks are i32v. Raises
    NotImplementedError, or KeyError for bool operands, without such a function."""
    t = REGISTER[dtype.name]
    if t == "bool":
        return _MASKS[fn].format(*args)
    if fn in COMPARE:
        return _mask(f"({args[0]} {COMPARE[fn]} {args[1]})", t)
    if fn in _ARITHMETIC and (dtype.is_float or fn != "div"):
        return _ARITHMETIC[fn].format(*args)
    if fn in _BITS and not dtype.is_float:
        return _BITS[fn].format(*args)
    if fn == "sign":
        m = {"f32": "i32v", "f64": "i64v", "u8": "u8v"}.get(t, f"{t}v")
        return _SIGN.format(args[0], v=f"{t}v", m=m, one=f"({t}v){{0}} + 1")
    if fn in _RESULT_IS_MASK and not dtype.is_float:
        return f"(i32v){{0}} - {1 if fn == 'isfinite' else 0}"
    name = _library_name(fn, t, dtype)
    if fn in _MADE and (dtype.is_float or fn == "neg"):
        text = _MADE[fn].format(*args, t=t, v=f"{t}v")
        return _mask(f"({text})", t) if fn in _RESULT_IS_MASK else text
    if name not in NAMES:
        raise NotImplementedError(f"{fn} of {dtype}")
    return f"{name}({', '.join(args)})"


def exists(fn: str, dtype: DType) -> bool:
    """Return whether `call` can print this function."""
    try:
        call(fn, dtype, ["a", "b", "c"])
    except (NotImplementedError, KeyError):
        return False
    return True


def _mask(comparison: str, t: str) -> str:
    if t in ("f32", "i32"):
        return comparison
    return f"__builtin_convertvector({comparison}, i32v)"


def cast(source: DType, to: DType, arg: str) -> tuple[str, list[str]]:
    """Return the C of a cast, rounded if `to` is a 16-bit float, and the functions it calls."""
    a, b = REGISTER[source.name], REGISTER[to.name]
    name = f"cast_{a}_{b}"
    used = [] if a == b else [name]
    text = arg if a == b else f"{name}({arg})"
    if to.name in ("bf16", "f16") and source is not to:
        if to.name == "bf16":
            return f"round_f32_bf16({text})", [*used, "round_f32_bf16"]
        down, up = f"cast_f32_{to.name}", f"cast_{to.name}_f32"
        return f"{up}({down}({text}))", [*used, down, up]
    return text, used
