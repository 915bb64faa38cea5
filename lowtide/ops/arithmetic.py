"""Arithmetic of two tensors, or a tensor and a number.

    add(x: [N, 1] f32, y: [M] f32)   →   t[i, j] = x[i, 0] + y[j]

PyTorch runs an integer division whose divisor may be zero, and raises.
"""

from __future__ import annotations

import math
from typing import Final

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ops.operands import (
    INF,
    Formula,
    Number,
    Operand,
    Term,
    check_fits,
    is_one,
    pointwise,
    promote,
    require_float,
    to_float,
)
from lowtide.ops.registry import Lower, add_op, op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index

# ---- binary arithmetic ------------------------------------------------------------------------


@op(
    "add",
    "(self: Tensor|Scalar, other: Tensor|Scalar, *, alpha: Scalar = 1) -> Tensor",
    "torch.add Tensor.add operator.add",
    kind="pointwise",
)
def lower_add(b: Builder, x: Operand, y: Operand, alpha: Number) -> Val:
    """self + alpha * other; `or` of bools."""
    common = promote(x, y)
    if common is dtypes.boolean:
        if not is_one(alpha):
            raise Unsupported("alpha with bools")
        return pointwise(b, [x, y], common, lambda u, v: u | v)
    if is_one(alpha):
        return pointwise(b, [x, y], common, lambda u, v: u + v)
    check_alpha(b, common, alpha)
    return pointwise(b, [x, y, alpha], common, lambda u, v, a: u + a * v)


@op(
    "sub",
    "(self: Tensor|Scalar, other: Tensor|Scalar, *, alpha: Scalar = 1) -> Tensor",
    "torch.sub Tensor.sub torch.subtract Tensor.subtract operator.sub",
    kind="pointwise",
)
def lower_sub(b: Builder, x: Operand, y: Operand, alpha: Number) -> Val:
    """self - alpha * other."""
    common = promote(x, y)
    if any(_is_bool(v) for v in (x, y)):
        raise Unsupported("subtraction of bools")
    if is_one(alpha):
        return pointwise(b, [x, y], common, lambda u, v: u - v)
    check_alpha(b, common, alpha)
    return pointwise(b, [x, y, alpha], common, lambda u, v, a: u - a * v)


@op(
    "rsub",
    "(self: Tensor, other: Tensor|Scalar, *, alpha: Scalar = 1) -> Tensor",
    "torch.rsub Tensor.__rsub__",
    kind="pointwise",
)
def lower_rsub(b: Builder, x: Val, y: Operand, alpha: Number) -> Val:
    """other - alpha * self."""
    return lower_sub(b, y, x, alpha)


def _is_bool(x: Operand) -> bool:
    return x.dtype is dtypes.boolean if isinstance(x, Val | Expr) else isinstance(x, bool)


def check_alpha(b: Builder, common: DType, alpha: Number) -> None:
    is_float = isinstance(alpha, float) or (isinstance(alpha, Expr) and alpha.dtype.is_float)
    if common is dtypes.boolean or (is_float and not common.is_float):
        raise Unsupported("alpha of another kind than the tensors")
    check_fits(b, common, alpha)


@op(
    "mul",
    "(self: Tensor|Scalar, other: Tensor|Scalar) -> Tensor",
    "torch.mul Tensor.mul torch.multiply Tensor.multiply operator.mul",
    kind="pointwise",
)
def lower_mul(b: Builder, x: Operand, y: Operand) -> Val:
    """The product; `and` of bools."""
    common = promote(x, y)
    if common is dtypes.boolean:
        return pointwise(b, [x, y], common, lambda u, v: u & v)
    return pointwise(b, [x, y], common, lambda u, v: u * v, exact=True)


@op(
    "div",
    "(self: Tensor|Scalar, other: Tensor|Scalar, *, rounding_mode: str? = None) -> Tensor",
    "torch.div Tensor.div torch.divide Tensor.divide torch.true_divide Tensor.true_divide "
    "operator.truediv",
    kind="pointwise",
)
def lower_div(b: Builder, x: Operand, y: Operand, rounding_mode: str | None) -> Val:
    """The true quotient (ints become the default float), or rounded to "floor" or "trunc"."""
    common = promote(x, y)
    if rounding_mode is None:
        return pointwise(b, [x, y], to_float(common), lambda u, v: u / v, exact=True)
    if rounding_mode == "floor":
        return lower_floor_divide(b, x, y)
    if rounding_mode != "trunc":
        raise b.error("rounding_mode")
    if common.is_float:
        return pointwise(b, [x, y], common, lambda u, v: (u / v).fn("trunc"), exact=True)
    _check_divisor(common, y)

    def truncated(u: Term, v: Term) -> Term:
        quotient = u.fn("floordiv", v)
        inexact = u.fn("mod", v).fn("ne", 0)
        differ = (u < 0).fn("ne", v < 0)
        return (inexact & differ).where(quotient + 1, quotient)

    return pointwise(b, [x, y], common, truncated)


@op(
    "floor_divide",
    "(self: Tensor|Scalar, other: Tensor|Scalar) -> Tensor",
    "torch.floor_divide Tensor.floor_divide operator.floordiv",
    kind="pointwise",
)
def lower_floor_divide(b: Builder, x: Operand, y: Operand) -> Val:
    """The quotient rounded down, as Python's."""
    common = promote(x, y)
    if not common.is_float:
        _check_divisor(common, y)
    return pointwise(b, [x, y], common, lambda u, v: u.fn("floordiv", v), exact=True)


@op(
    "remainder",
    "(self: Tensor|Scalar, other: Tensor|Scalar) -> Tensor",
    "torch.remainder Tensor.remainder operator.mod",
    kind="pointwise",
)
def lower_remainder(b: Builder, x: Operand, y: Operand) -> Val:
    """The remainder with the sign of the divisor, as Python's."""
    common = promote(x, y)
    if not common.is_float:
        _check_divisor(common, y)
    return pointwise(b, [x, y], common, lambda u, v: u.fn("mod", v))


@op(
    "fmod",
    "(self: Tensor, other: Tensor|Scalar) -> Tensor",
    "torch.fmod Tensor.fmod",
    kind="pointwise",
)
def lower_fmod(b: Builder, x: Val, y: Operand) -> Val:
    """The remainder with the sign of the dividend, as C's."""
    common = promote(x, y)
    if not common.is_float:
        _check_divisor(common, y)

        def of_ints(u: Term, v: Term) -> Term:
            rest = u.fn("mod", v)
            differ = (u < 0).fn("ne", v < 0)
            return (rest.fn("ne", 0) & differ).where(rest - v, rest)

        return pointwise(b, [x, y], common, of_ints)
    return pointwise(b, [x, y], common, lambda u, v: u.fn("fmod", v))


def _check_divisor(common: DType, divisor: Operand) -> None:
    """Integer division by zero raises in PyTorch and traps in C: the divisor must be known."""
    if common is dtypes.boolean:
        raise Unsupported("division of bools")
    known = isinstance(divisor, int) and divisor not in (0, -1)
    if not (known or (isinstance(divisor, Index) and _is_positive(divisor))):
        raise Unsupported("integer division by what may be zero")


def _is_positive(size: Index) -> bool:
    from lowtide.texpr.index_ranges import nonnegative

    return nonnegative(size - 1)


@op(
    "pow",
    "(self: Tensor|Scalar, exponent: Tensor|Scalar) -> Tensor",
    "torch.pow Tensor.pow Tensor.__pow__ operator.pow",
    kind="pointwise",
)
def lower_pow(b: Builder, x: Operand, exponent: Operand) -> Val:
    """self ** exponent; small constant exponents become products and roots."""
    common = promote(x, exponent)
    if common is dtypes.boolean:
        raise Unsupported("pow of bools")
    if not isinstance(exponent, Val):
        check_fits(b, common, exponent)
    if isinstance(exponent, int | float) and not isinstance(exponent, bool):
        if not common.is_float and exponent < 0:
            raise Unsupported("a negative power of ints")
        if (formula := _POWERS.get(exponent)) is not None and isinstance(x, Val):
            return pointwise(b, [x], common, formula)
    elif not common.is_float:
        raise Unsupported("an integer power that may be negative")
    return pointwise(b, [x, exponent], common, lambda u, v: u.fn("pow", v))


_POWERS: Final[dict[float, Formula]] = {
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    4: lambda x: (x * x) * (x * x),
    0.5: lambda x: x.fn("sqrt"),
    -0.5: lambda x: x.fn("rsqrt"),
    -1: lambda x: 1.0 / x,
    -2: lambda x: 1.0 / (x * x),
}


def _binary(formula: Formula, *, float_only: bool = False) -> Lower:
    def lower(b: Builder, x: Operand, y: Operand) -> Val:
        common = promote(x, y)
        return pointwise(b, [x, y], to_float(common) if float_only else common, formula)

    return lower


def _hypot(x: Term, y: Term) -> Term:
    """Scaled, so that squares neither overflow nor vanish."""
    u, v = x.fn("abs"), y.fn("abs")
    big, small = u.fn("maximum", v), u.fn("minimum", v)
    ratio = small / big
    plain = big * (1.0 + ratio * ratio).fn("sqrt")
    infinite = u.equals(INF) | v.equals(INF)
    return infinite.where(INF, big.equals(0.0).where(big, plain))


def _xlogy(x: Term, y: Term) -> Term:
    return y.fn("isnan").where(y, x.equals(0.0).where(0.0, x * y.fn("log")))


def _logaddexp(x: Term, y: Term) -> Term:
    same = x.equals(y) & x.fn("isinf")
    top = x.fn("maximum", y)
    return same.where(x, top + (-(x - y).fn("abs")).fn("exp").fn("log1p"))


def _logaddexp2(x: Term, y: Term) -> Term:
    same = x.equals(y) & x.fn("isinf")
    top = x.fn("maximum", y)
    low = (-(x - y).fn("abs")).fn("exp2")
    return same.where(x, top + low.fn("log1p") * (1.0 / math.log(2.0)))


# name · signature of operands · sources · formula · ints become floats
BINARY: Final[list[tuple[str, str, str, Formula, bool]]] = [
    ("maximum", "T", "torch.maximum Tensor.maximum", lambda x, y: x.fn("maximum", y), False),
    ("minimum", "T", "torch.minimum Tensor.minimum", lambda x, y: x.fn("minimum", y), False),
    ("max.other", "T", "torch.max Tensor.max", lambda x, y: x.fn("maximum", y), False),
    ("min.other", "T", "torch.min Tensor.min", lambda x, y: x.fn("minimum", y), False),
    ("fmax", "T", "torch.fmax Tensor.fmax", lambda x, y: _fmax(x, y, "fmax", "maximum"), False),
    ("fmin", "T", "torch.fmin Tensor.fmin", lambda x, y: _fmax(x, y, "fmin", "minimum"), False),
    (
        "atan2",
        "T",
        "torch.atan2 Tensor.atan2 torch.arctan2 Tensor.arctan2",
        lambda x, y: x.fn("atan2", y),
        True,
    ),
    ("xlogy", "T|S", "torch.xlogy Tensor.xlogy torch.special.xlogy", _xlogy, True),
]


def _fmax(x: Term, y: Term, of_floats: str, of_ints: str) -> Term:
    return x.fn(of_floats if x.dtype.is_float else of_ints, y)


_OTHER: Final = {"T": "Tensor", "T|S": "Tensor|Scalar"}
for _name, _type, _sources, _formula, _floats in BINARY:
    add_op(
        _name,
        f"(self: Tensor, other: {_OTHER[_type]}) -> Tensor",
        _sources,
        kind="pointwise",
        lower=_binary(_formula, float_only=_floats),
    )

# Both operands must be floats of one kind: name · sources · formula
FLOAT_BINARY: Final[list[tuple[str, str, Formula]]] = [
    ("hypot", "torch.hypot Tensor.hypot", _hypot),
    ("copysign", "torch.copysign Tensor.copysign", lambda x, y: x.fn("copysign", y)),
    ("logaddexp", "torch.logaddexp Tensor.logaddexp", _logaddexp),
    ("logaddexp2", "torch.logaddexp2 Tensor.logaddexp2", _logaddexp2),
]


def _float_binary(formula: Formula) -> Lower:
    def lower(b: Builder, x: Val, y: Val) -> Val:
        require_float(x, y)
        return pointwise(b, [x, y], promote(x, y), formula)

    return lower


for _name, _sources, _formula in FLOAT_BINARY:
    add_op(
        _name,
        "(self: Tensor, other: Tensor) -> Tensor",
        _sources,
        kind="pointwise",
        lower=_float_binary(_formula),
    )
