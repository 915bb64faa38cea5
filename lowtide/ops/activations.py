"""Activation functions: pointwise, floats only except where PyTorch takes ints.

    gelu(x: [N])   →   t[i] = 0.5 * x[i] * (1 + erf(x[i] * sqrt(1/2)))

`inplace=True` is not lowered: front ends make a `mutate` of it, or the plain op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lowtide.ir import dtypes
from lowtide.ir.effects import Effects
from lowtide.ops.operands import (  # fmt: skip
    Formula,
    Term,
    check_fits,
    constant_float,
    dim_of,
    pointwise,
    require_float,
)
from lowtide.ops.registry import Lower, add_op, op
from lowtide.ops.slicing import narrow
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.index import as_index
from lowtide.texpr.index_ranges import floordiv


def _relu(x: Term) -> Term:
    return x.fn("maximum", 0)


def _relu6(x: Term) -> Term:
    return x.fn("maximum", 0).fn("minimum", 6)


def _silu(x: Term) -> Term:
    return x * x.fn("sigmoid")


def _softplus_1(x: Term) -> Term:
    """log(1 + exp(x)) without overflow, at full precision."""
    return x.fn("maximum", 0.0) + (-x.fn("abs")).fn("exp").fn("log1p")


def _mish(x: Term) -> Term:
    return x * _softplus_1(x).fn("tanh")


def _logsigmoid(x: Term) -> Term:
    return x.fn("minimum", 0.0) - (-x.fn("abs")).fn("exp").fn("log1p")


def _hardsigmoid(x: Term) -> Term:
    return _relu6(x + 3.0) / 6.0


def _hardswish(x: Term) -> Term:
    return x * _relu6(x + 3.0) / 6.0


_ALPHA: Final = 1.6732632423543772848170429916717
_SCALE: Final = 1.0507009873554804934193349852946


def _selu(x: Term) -> Term:
    return (x > 0.0).where(_SCALE * x, (_SCALE * _ALPHA) * x.fn("expm1"))


# name · sources · formula · takes ints · has `inplace`
PLAIN: Final[list[tuple[str, str, Formula, bool, bool]]] = [
    ("relu", "F.relu torch.relu Tensor.relu", _relu, True, True),
    ("relu6", "F.relu6", _relu6, True, True),
    ("silu", "F.silu", _silu, False, True),
    ("mish", "F.mish", _mish, False, True),
    ("selu", "F.selu torch.selu", _selu, False, True),
    ("hardswish", "F.hardswish", _hardswish, False, True),
    ("hardsigmoid", "F.hardsigmoid", _hardsigmoid, False, True),
    ("logsigmoid", "F.logsigmoid", _logsigmoid, False, False),
    ("softsign", "F.softsign", lambda x: x / (x.fn("abs") + 1.0), False, False),
    ("tanhshrink", "F.tanhshrink", lambda x: x - x.fn("tanh"), False, False),
]


def _plain(formula: Formula, ints: bool) -> Lower:
    def lower(b: Builder, x: Val, inplace: Any = False) -> Val:
        _refuse_inplace(inplace)
        if not ints:
            require_float(x)
        elif x.dtype is dtypes.boolean:
            raise Unsupported("an activation of bools")
        return pointwise(b, [x], x.dtype, formula)

    return lower


def _refuse_inplace(inplace: Any) -> None:
    if inplace:
        raise Unsupported("inplace=True")


for _name, _sources, _formula, _ints, _inplace in PLAIN:
    add_op(
        _name,
        "(input: Tensor, inplace: bool = False) -> Tensor"
        if _inplace
        else "(input: Tensor) -> Tensor",
        _sources,
        kind="pointwise",
        effects=Effects.NONE,
        lower=_plain(_formula, _ints),
    )


# ---- with numbers -----------------------------------------------------------------------------

Numbers = Callable[..., Term]


def _leaky_relu(x: Term, slope: float) -> Term:
    return (x > 0.0).where(x, x * slope)


def _elu(x: Term, alpha: float) -> Term:
    return (x > 0.0).where(x, alpha * x.fn("expm1"))


def _celu(x: Term, alpha: float) -> Term:
    return (x > 0.0).where(x, alpha * (x / alpha).fn("expm1"))


def _softplus(x: Term, beta: float, threshold: float) -> Term:
    scaled = x * beta
    return (scaled > threshold).where(x, scaled.fn("exp").fn("log1p") / beta)


def _hardtanh(x: Term, low: float, high: float) -> Term:
    return x.fn("maximum", low).fn("minimum", high)


def _hardshrink(x: Term, lambd: float) -> Term:
    inside = (x >= -lambd) & (x <= lambd)
    return inside.where(0.0, x)


def _softshrink(x: Term, lambd: float) -> Term:
    rest = (x < -lambd).where(x + lambd, x * 0.0)
    return (x > lambd).where(x - lambd, rest)


def _threshold(x: Term, threshold: float, value: float) -> Term:
    return (x <= threshold).where(value, x)


# Of some the numbers that PyTorch refuses, and of some those that it converts to the dtype.
_REFUSED: Final[dict[str, Callable[..., bool]]] = {
    "celu": lambda alpha: alpha == 0,
    "hardtanh": lambda low, high: low > high,
    "softshrink": lambda lambd: not lambd >= 0,
}
_CONVERTED: Final = (
    "hardtanh", "threshold", "hardshrink", "softshrink", "leaky_relu", "elu", "softplus",
)  # fmt: skip

# name · sources · signature of the numbers · formula · has `inplace`
NUMBERED: Final[list[tuple[str, str, str, Numbers, bool]]] = [
    ("leaky_relu", "F.leaky_relu", "negative_slope: float = 0.01", _leaky_relu, True),
    ("elu", "F.elu", "alpha: float = 1.0", _elu, True),
    ("celu", "F.celu torch.celu", "alpha: float = 1.0", _celu, True),
    ("hardtanh", "F.hardtanh", "min_val: float = -1.0, max_val: float = 1.0", _hardtanh, True),
    (
        "threshold",
        "F.threshold torch.threshold",
        "threshold: float, value: float",
        _threshold,
        True,
    ),
    (
        "softplus",
        "F.softplus",
        "beta: float = 1.0, threshold: float = 20.0",
        _softplus,
        False,
    ),
    ("hardshrink", "F.hardshrink torch.hardshrink", "lambd: float = 0.5", _hardshrink, False),
    ("softshrink", "F.softshrink", "lambd: float = 0.5", _softshrink, False),
]


def _numbered(name: str, formula: Numbers, count: int) -> Lower:
    def lower(b: Builder, x: Val, *rest: Any) -> Val:
        require_float(x)
        numbers = [constant_float(v) for v in rest[:count]]
        if name in _REFUSED and _REFUSED[name](*numbers):
            raise b.error(f"{name} of {numbers}")
        if name in _CONVERTED:
            check_fits(b, x.dtype, *numbers)
        _refuse_inplace(any(rest[count:]))
        return pointwise(b, [x], x.dtype, lambda v: formula(v, *numbers))

    return lower


for _name, _sources, _numbers, _with, _inplace in NUMBERED:
    add_op(
        _name,
        f"(input: Tensor, {_numbers}{', inplace: bool = False' if _inplace else ''}) -> Tensor",
        _sources,
        kind="pointwise",
        lower=_numbered(_name, _with, _numbers.count(":")),
    )


# ---- of their own shape -----------------------------------------------------------------------


@op(
    "gelu",
    "(input: Tensor, *, approximate: str = 'none') -> Tensor",
    "F.gelu",
    kind="pointwise",
    effects=Effects.NONE,
)
def lower_gelu(b: Builder, x: Val, approximate: Any) -> Val:
    """x times the normal distribution function, exact or by tanh."""
    require_float(x)

    def exact(v: Term) -> Term:
        return 0.5 * v * (1.0 + (v * math.sqrt(0.5)).fn("erf"))

    def by_tanh(v: Term) -> Term:
        inner = math.sqrt(2.0 / math.pi) * (v + 0.044715 * (v * v * v))
        return 0.5 * v * (1.0 + inner.fn("tanh"))

    if approximate not in ("none", "tanh"):
        raise b.error("gelu: approximate")
    return pointwise(b, [x], x.dtype, exact if approximate == "none" else by_tanh)


@op("glu", "(input: Tensor, dim: int = -1) -> Tensor", "F.glu", kind="pointwise")
def lower_glu(b: Builder, x: Val, dim: Any) -> Val:
    """The first half times the sigmoid of the second."""
    require_float(x)
    d = dim_of(b, dim, x.ndim)
    if x.ndim == 0 or not b.divides(2, x.shape[d]):
        raise b.error("glu of an odd size")
    half = floordiv(as_index(x.shape[d]), 2)
    halves: Sequence[Val] = [narrow(b, x, d, 0, half), narrow(b, x, d, half, half)]
    return pointwise(b, halves, x.dtype, lambda u, v: u * v.fn("sigmoid"))


@op(
    "prelu",
    "(input: Tensor, weight: Tensor) -> Tensor",
    "F.prelu torch.prelu Tensor.prelu",
    kind="pointwise",
    eager=lambda x, weight: torch.nn.functional.prelu(x, weight),
)
def lower_prelu(b: Builder, x: Val, weight: Val) -> Val:
    """leaky_relu with a slope for each channel, or one for all."""
    require_float(x)
    if weight.dtype is not x.dtype or weight.ndim > 1:
        raise Unsupported("prelu with a weight of another dtype or rank")
    if weight.ndim == 1 and not b.equal(weight.shape[0], 1):
        if x.ndim < 2:
            raise Unsupported("prelu of channels that are not there")
        size = weight.shape[0]
        b.require_equal(size, x.shape[1], "prelu: channels differ")
        shape = [size, *(1 for _ in x.shape[2:])]
        slope = b.tensor(shape, weight.dtype, lambda idx: b.load(weight, idx[:1]))
    else:
        slope = b.tensor((), weight.dtype, lambda _: b.load(weight, [0] * weight.ndim))
    return pointwise(b, [x, slope], x.dtype, lambda v, w: (v > 0.0).where(v, w * v))
