"""Comparisons, logic and bits.

lt(x: [N] i64, 2.5)   →   t[i] = f32(x[i]) < 2.5      bool
"""

from __future__ import annotations

from typing import Any, Final

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ops.operands import (
    INF,
    Formula,
    Operand,
    Term,
    broadcast,
    broadcast_index,
    constant_float,
    pointwise,
    promote,
)
from lowtide.ops.registry import Lower, add_op, op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index

# name · sources
COMPARE: Final[list[tuple[str, str]]] = [
    ("lt", "torch.lt Tensor.lt torch.less Tensor.less operator.lt"),
    ("le", "torch.le Tensor.le torch.less_equal Tensor.less_equal operator.le"),
    ("gt", "torch.gt Tensor.gt torch.greater Tensor.greater operator.gt"),
    ("ge", "torch.ge Tensor.ge torch.greater_equal Tensor.greater_equal operator.ge"),
    ("eq", "torch.eq Tensor.eq operator.eq"),
    ("ne", "torch.ne Tensor.ne torch.not_equal Tensor.not_equal operator.ne"),
]


def _compare(fn: str) -> Lower:
    def lower(b: Builder, x: Operand, y: Operand) -> Val:
        return pointwise(b, [x, y], promote(x, y), lambda u, v: u.fn(fn, v), dtypes.boolean)

    return lower


for _name, _sources in COMPARE:
    add_op(
        _name,
        "(self: Tensor|Scalar, other: Tensor|Scalar) -> Tensor",
        _sources,
        kind="pointwise",
        eager=f"operator.{_name}",
        lower=_compare(_name),
    )


# ---- classes of numbers -----------------------------------------------------------------------


def _classify(of_floats: Formula, of_ints: bool) -> Lower:
    def lower(b: Builder, x: Val) -> Val:
        if not x.dtype.is_float:
            return b.tensor(x.shape, dtypes.boolean, lambda _: b.const(of_ints, dtypes.boolean))
        return pointwise(b, [x], x.dtype, of_floats, dtypes.boolean)

    return lower


# name · formula for floats · the answer for ints
CLASSES: Final[list[tuple[str, Formula, bool]]] = [
    ("isnan", lambda x: x.fn("isnan"), False),
    ("isinf", lambda x: x.fn("isinf"), False),
    ("isfinite", lambda x: x.fn("isfinite"), True),
    ("isposinf", lambda x: x.equals(INF), False),
    ("isneginf", lambda x: x.equals(-INF), False),
]

for _name, _formula, _of_ints in CLASSES:
    add_op(
        _name,
        "(self: Tensor) -> Tensor",
        f"torch.{_name} Tensor.{_name}",
        kind="pointwise",
        eager=f"torch.{_name}",
        lower=_classify(_formula, _of_ints),
    )


@op(
    "isclose",
    "(self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, "
    "equal_nan: bool = False) -> Tensor",
    "torch.isclose Tensor.isclose",
    kind="pointwise",
)
def lower_isclose(b: Builder, x: Val, y: Val, rtol: Any, atol: Any, equal_nan: Any) -> Val:
    """|self - other| <= atol + rtol * |other|, and equal infinities."""
    if x.dtype is not y.dtype or not x.dtype.is_float:
        raise Unsupported("isclose of ints or of mixed dtypes")
    relative, absolute = constant_float(rtol), constant_float(atol)
    if not (relative >= 0 and absolute >= 0):
        raise b.error("a negative tolerance")

    def formula(u: Term, v: Term) -> Term:
        apart = (u - v).fn("abs")
        near = apart.fn("isfinite") & (apart <= absolute + relative * v.fn("abs"))
        close = u.equals(v) | near
        return close | (u.fn("isnan") & v.fn("isnan")) if equal_nan else close

    return pointwise(b, [x, y], x.dtype, formula, dtypes.boolean)


# ---- logic: any dtype, "is it not zero" -------------------------------------------------------

# name · texpr function of bools
LOGIC: Final[list[tuple[str, str]]] = [
    ("logical_and", "and"),
    ("logical_or", "or"),
    ("logical_xor", "xor"),
]


def _truth(b: Builder, x: Val, idx: tuple[Index, ...]) -> Expr:
    return b.cast(b.load(x, broadcast_index(b, x.shape, idx)), dtypes.boolean)


def _logic(fn: str) -> Lower:
    def lower(b: Builder, x: Val, y: Val) -> Val:
        shape = broadcast(b, x.shape, y.shape)
        return b.tensor(
            shape, dtypes.boolean, lambda idx: b.apply(fn, _truth(b, x, idx), _truth(b, y, idx))
        )

    return lower


for _name, _fn in LOGIC:
    add_op(
        _name,
        "(self: Tensor, other: Tensor) -> Tensor",
        f"torch.{_name} Tensor.{_name}",
        kind="pointwise",
        lower=_logic(_fn),
    )


@op(
    "logical_not",
    "(self: Tensor) -> Tensor",
    "torch.logical_not Tensor.logical_not",
    kind="pointwise",
)
def lower_logical_not(b: Builder, x: Val) -> Val:
    """x == 0."""
    return b.tensor(x.shape, dtypes.boolean, lambda idx: b.apply("not", _truth(b, x, idx)))


# ---- bits: bools and ints ---------------------------------------------------------------------

# name · texpr function · sources
BITS: Final[list[tuple[str, str, str]]] = [
    ("bitwise_and", "and", "torch.bitwise_and Tensor.bitwise_and operator.and_"),
    ("bitwise_or", "or", "torch.bitwise_or Tensor.bitwise_or operator.or_"),
    ("bitwise_xor", "xor", "torch.bitwise_xor Tensor.bitwise_xor operator.xor"),
    (
        "bitwise_left_shift",
        "shl",
        "torch.bitwise_left_shift Tensor.bitwise_left_shift operator.lshift",
    ),
    (
        "bitwise_right_shift",
        "shr",
        "torch.bitwise_right_shift Tensor.bitwise_right_shift operator.rshift",
    ),
]


def _bits(fn: str) -> Lower:
    def lower(b: Builder, x: Operand, y: Operand) -> Val:
        common = _bit_dtype(promote(x, y))
        if fn in ("shl", "shr"):
            width = 8 * common.itemsize
            if not (isinstance(y, int) and 0 <= y < width - 1) or common is dtypes.boolean:
                raise Unsupported("a shift by what is not a small constant")
        return pointwise(b, [x, y], common, lambda u, v: u.fn(fn, v))

    return lower


def _bit_dtype(dtype: DType) -> DType:
    if dtype.is_float:
        raise Unsupported("bits of floats")
    return dtype


for _name, _fn, _sources in BITS:
    add_op(
        _name,
        "(self: Tensor|Scalar, other: Tensor|Scalar) -> Tensor",
        _sources,
        kind="pointwise",
        lower=_bits(_fn),
    )


@op(
    "bitwise_not",
    "(self: Tensor) -> Tensor",
    "torch.bitwise_not Tensor.bitwise_not",
    kind="pointwise",
)
@op(  # of floats it raises another error
    "invert",
    "(self: Tensor) -> Tensor",
    "operator.invert operator.inv",
    kind="pointwise",
)
def lower_bitwise_not(b: Builder, x: Val) -> Val:
    """Every bit flipped; `not` of bools."""
    if x.dtype is dtypes.boolean:
        return lower_logical_not(b, x)
    return pointwise(b, [x], _bit_dtype(x.dtype), lambda v: v.fn("not"))
