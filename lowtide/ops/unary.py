"""Functions of one tensor, element by element.

exp(x: [N] i64)   →   t[i] = exp(f32(x[i]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ir.effects import Effects
from lowtide.ops.operands import (
    INF,
    Formula,
    Term,
    constant_float,
    pointwise,
    require_float,
    to_float,
)
from lowtide.ops.registry import Lower, add_op, op
from lowtide.texpr.build import Builder, Unsupported, Val

# ---- unary ------------------------------------------------------------------------------------


def _rule_float(x: Val) -> DType:
    """Ints and bools become the default float."""
    return to_float(x.dtype)


def _rule_only_float(x: Val) -> DType:
    require_float(x)
    return x.dtype


def _rule_number(x: Val) -> DType:
    """Return the same dtype; PyTorch refuses bools."""
    if x.dtype is dtypes.boolean:
        raise Unsupported("arithmetic on bools")
    return x.dtype


Rule = Callable[[Val], DType]


def _unary(rule: Rule, formula: Formula) -> Lower:
    def lower(b: Builder, x: Val) -> Val:
        return pointwise(b, [x], rule(x), formula)

    return lower


def _fn(name: str) -> Formula:
    return lambda x: x.fn(name)


def _rounding(name: str) -> Formula:
    return lambda x: x.fn(name) if x.dtype.is_float else x


def _sign(x: Term) -> Term:
    if not x.dtype.is_signed:
        return (x > 0).cast(x.dtype)
    return x.fn("sign")


def _abs(x: Term) -> Term:
    return x.fn("abs") if x.dtype.is_signed else x


# name · sources · rule · formula
UNARY: Final[list[tuple[str, str, Rule, Formula]]] = [
    (
        "neg",
        "torch.neg Tensor.neg torch.negative Tensor.negative operator.neg",
        _rule_number,
        _fn("neg"),
    ),
    ("abs", "torch.abs Tensor.abs torch.absolute Tensor.absolute operator.abs", _rule_number, _abs),
    ("sign", "torch.sign Tensor.sign", _rule_number, _sign),
    ("sgn", "torch.sgn Tensor.sgn", _rule_number, _sign),  # of complex numbers, another than sign
    ("square", "torch.square Tensor.square", _rule_number, lambda x: x * x),
    ("exp", "torch.exp Tensor.exp", _rule_float, _fn("exp")),
    ("exp2", "torch.exp2 Tensor.exp2 torch.special.exp2", _rule_float, _fn("exp2")),
    ("expm1", "torch.expm1 Tensor.expm1 torch.special.expm1", _rule_float, _fn("expm1")),
    ("log", "torch.log Tensor.log", _rule_float, _fn("log")),
    ("log2", "torch.log2 Tensor.log2", _rule_float, _fn("log2")),
    ("log10", "torch.log10 Tensor.log10", _rule_float, _fn("log10")),
    ("log1p", "torch.log1p Tensor.log1p torch.special.log1p", _rule_float, _fn("log1p")),
    ("sqrt", "torch.sqrt Tensor.sqrt", _rule_float, _fn("sqrt")),
    ("rsqrt", "torch.rsqrt Tensor.rsqrt", _rule_float, _fn("rsqrt")),
    ("sin", "torch.sin Tensor.sin", _rule_float, _fn("sin")),
    ("cos", "torch.cos Tensor.cos", _rule_float, _fn("cos")),
    ("tan", "torch.tan Tensor.tan", _rule_float, _fn("tan")),
    ("asin", "torch.asin Tensor.asin torch.arcsin Tensor.arcsin", _rule_float, _fn("asin")),
    ("acos", "torch.acos Tensor.acos torch.arccos Tensor.arccos", _rule_float, _fn("acos")),
    ("atan", "torch.atan Tensor.atan torch.arctan Tensor.arctan", _rule_float, _fn("atan")),
    ("sinh", "torch.sinh Tensor.sinh", _rule_float, _fn("sinh")),
    ("cosh", "torch.cosh Tensor.cosh", _rule_float, _fn("cosh")),
    ("tanh", "torch.tanh Tensor.tanh F.tanh", _rule_float, _fn("tanh")),
    ("asinh", "torch.asinh Tensor.asinh torch.arcsinh Tensor.arcsinh", _rule_float, _fn("asinh")),
    ("acosh", "torch.acosh Tensor.acosh torch.arccosh Tensor.arccosh", _rule_float, _fn("acosh")),
    ("atanh", "torch.atanh Tensor.atanh torch.arctanh Tensor.arctanh", _rule_float, _fn("atanh")),
    (
        "sigmoid",
        "torch.sigmoid Tensor.sigmoid F.sigmoid torch.special.expit",
        _rule_float,
        _fn("sigmoid"),
    ),
    ("erf", "torch.erf Tensor.erf torch.special.erf", _rule_float, _fn("erf")),
    ("erfc", "torch.erfc Tensor.erfc torch.special.erfc", _rule_float, _fn("erfc")),
    ("floor", "torch.floor Tensor.floor", _rule_number, _rounding("floor")),
    ("ceil", "torch.ceil Tensor.ceil", _rule_number, _rounding("ceil")),
    ("trunc", "torch.trunc Tensor.trunc torch.fix Tensor.fix", _rule_number, _rounding("trunc")),
    ("frac", "torch.frac Tensor.frac", _rule_only_float, lambda x: x - x.fn("trunc")),
    ("reciprocal", "torch.reciprocal Tensor.reciprocal", _rule_float, lambda x: 1.0 / x),
    ("deg2rad", "torch.deg2rad Tensor.deg2rad", _rule_float, lambda x: x * (math.pi / 180.0)),
    ("rad2deg", "torch.rad2deg Tensor.rad2deg", _rule_float, lambda x: x * (180.0 / math.pi)),
]

for _name, _sources, _rule, _formula in UNARY:
    add_op(
        _name,
        "(self: Tensor) -> Tensor",
        _sources,
        kind="pointwise",
        effects=Effects.NONE,
        lower=_unary(_rule, _formula),
    )


@op(
    "round",
    "(self: Tensor, *, decimals: int = 0) -> Tensor",
    "torch.round Tensor.round",
    kind="pointwise",
    effects=Effects.NONE,
)
def lower_round(b: Builder, x: Val, decimals: Any) -> Val:
    """Half to even."""
    if decimals != 0:
        raise Unsupported("round to decimals")
    return pointwise(b, [x], _rule_number(x), _rounding("round"))


@op(
    "sinc",
    "(self: Tensor) -> Tensor",
    "torch.sinc Tensor.sinc torch.special.sinc",
    kind="pointwise",
    effects=Effects.NONE,
)
def lower_sinc(b: Builder, x: Val) -> Val:
    """sin(pi x) / (pi x), 1 at 0."""

    def formula(v: Term) -> Term:
        p = v * math.pi
        # 1 to the last digit, with the slope 0, long before 1 / p overflows
        return (v.fn("abs") < 1e-20).where(1.0, p.fn("sin") / p)

    return pointwise(b, [x], to_float(x.dtype), formula)


@op(
    "logit",
    "(self: Tensor, eps: float? = None) -> Tensor",
    "torch.logit Tensor.logit torch.special.logit",
    kind="pointwise",
    effects=Effects.NONE,
)
def lower_logit(b: Builder, x: Val, eps: Any) -> Val:
    """log(x / (1 - x)), x first held to [eps, 1 - eps]."""

    def formula(v: Term) -> Term:
        if eps is not None:
            low = constant_float(eps)
            v = (v < low).where(low, (v > 1.0 - low).where(1.0 - low, v))
        return (v / (1.0 - v)).fn("log")

    return pointwise(b, [x], to_float(x.dtype), formula)


@op(
    "nan_to_num",
    "(self: Tensor, nan: float? = None, posinf: float? = None, neginf: float? = None) -> Tensor",
    "torch.nan_to_num Tensor.nan_to_num",
    kind="pointwise",
    effects=Effects.NONE,
)
def lower_nan_to_num(b: Builder, x: Val, nan: Any, posinf: Any, neginf: Any) -> Val:
    """NaN and the infinities become numbers, the dtype's largest by default."""
    if not x.dtype.is_float:
        return pointwise(b, [x], x.dtype, lambda v: v)
    info = torch.finfo(x.dtype.torch)
    for_nan = 0.0 if nan is None else constant_float(nan)
    high = info.max if posinf is None else constant_float(posinf)
    low = info.min if neginf is None else constant_float(neginf)

    def formula(v: Term) -> Term:
        finite = v.equals(INF).where(high, v.equals(-INF).where(low, v))
        return v.fn("isnan").where(for_nan, finite)

    return pointwise(b, [x], x.dtype, formula)
