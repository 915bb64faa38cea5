"""The derivative of each pointwise function, as PyTorch has it: one table row per function.

In: `g`, the cotangent of r = fn(a, b), and a, b, r themselves. Out: the cotangents of the operands,
None where there is none.

    mul: g, a, b  ->  (g * b, g * a)            exp: g, a, r  ->  (g * r,)

PyTorch's ops differ at kinks: `torch.maximum` gives half of a tie to each side, `clamp` gives all
to the tensor (before PyTorch 2.14), `relu` gives nothing. The op that the formula comes from
decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from lowtide.texpr.expr import Apply, Const, Expr
from lowtide.texpr.formula import F
from lowtide.torch_private.autograd import HALVES_AT_LIMITS

Cotangents = tuple[F | None, ...]
Rule1 = Callable[[F, F, F], F | None]
Rule2 = Callable[[F, F, F, F], Cotangents]

_LN2: Final = math.log(2.0)
_LN10: Final = math.log(10.0)
_ERF: Final = 2.0 / math.sqrt(math.pi)

# (g, a, r) -> cotangent of a
UNARY: Final[dict[str, Rule1]] = {
    "neg": lambda g, a, r: -g,
    "abs": lambda g, a, r: g * a.fn("sign"),
    "exp": lambda g, a, r: g * r,
    "exp2": lambda g, a, r: g * r * _LN2,
    "expm1": lambda g, a, r: g * (r + 1),
    "log": lambda g, a, r: g / a,
    "log2": lambda g, a, r: g / (a * _LN2),
    "log10": lambda g, a, r: g / (a * _LN10),
    "log1p": lambda g, a, r: g / (a + 1),
    "sqrt": lambda g, a, r: g / (r * 2),
    "rsqrt": lambda g, a, r: g * -0.5 * (r * r * r),
    "sin": lambda g, a, r: g * a.fn("cos"),
    "cos": lambda g, a, r: g * -a.fn("sin"),
    "tan": lambda g, a, r: g * (r * r + 1),
    "asin": lambda g, a, r: g * (1 - a * a).fn("rsqrt"),
    "acos": lambda g, a, r: g * -(1 - a * a).fn("rsqrt"),
    "atan": lambda g, a, r: g / (a * a + 1),
    "sinh": lambda g, a, r: g * a.fn("cosh"),
    "cosh": lambda g, a, r: g * a.fn("sinh"),
    "tanh": lambda g, a, r: g * (1 - r * r),
    "asinh": lambda g, a, r: g * (a * a + 1).fn("rsqrt"),
    "acosh": lambda g, a, r: g * (a * a - 1).fn("rsqrt"),
    "atanh": lambda g, a, r: g / (1 - a * a),
    "sigmoid": lambda g, a, r: g * ((1 - r) * r),
    "erf": lambda g, a, r: g * (-(a * a)).fn("exp") * _ERF,
    "erfc": lambda g, a, r: g * (-(a * a)).fn("exp") * -_ERF,
    "floor": lambda g, a, r: None,
    "ceil": lambda g, a, r: None,
    "round": lambda g, a, r: None,
    "trunc": lambda g, a, r: None,
    "sign": lambda g, a, r: None,
}

# (g, a, b, r) -> cotangents of a and b
BINARY: Final[dict[str, Rule2]] = {
    "add": lambda g, a, b, r: (g, g),
    "sub": lambda g, a, b, r: (g, -g),
    "mul": lambda g, a, b, r: (g * b, g * a),
    "div": lambda g, a, b, r: (g / b, -g * (r / b)),
    "pow": lambda g, a, b, r: _pow(g, a, b, r),
    "mod": lambda g, a, b, r: (g, -g * a.fn("floordiv", b)),
    "fmod": lambda g, a, b, r: (g, -g * (a / b).fn("trunc")),
    "fmax": lambda g, a, b, r: _one_of(g, (a >= b) | b.test("isnan")),
    "fmin": lambda g, a, b, r: _one_of(g, (a <= b) | b.test("isnan")),
    "atan2": lambda g, a, b, r: _atan2(g, a, b),
    "copysign": lambda g, a, b, r: (a.equals(0).where(g.like(0), g * (r / a)), None),
    "floordiv": lambda g, a, b, r: (None, None),
}


def _pow(g: F, a: F, b: F, r: F) -> Cotangents:
    is_root = isinstance(b.e, Const) and b.e.value == 1.5  # PyTorch's root of -inf is NaN
    lower = a.fn("sqrt") if is_root else a.fn("pow", b - 1)
    base = b.equals(0).where(g.like(0), g * (b * lower))
    flat = a.equals(0) & (b >= 0)
    return base, flat.where(g.like(0), g * (r * a.fn("log")))


def _is_above_one(power: Expr) -> bool:
    """Return whether the power is a constant above 1. Its slope at 0 is 0, without an exception."""
    return isinstance(power, Const) and power.value > 1


def _one_of(g: F, first: F) -> Cotangents:
    return first.where(g, 0), first.where(g.like(0), g)


def _atan2(g: F, a: F, b: F) -> Cotangents:
    square = a * a + b * b
    scale = square.equals(0).where(g.like(0), 1 / square)
    return g * (b * scale), g * (-a * scale)


# ---- kinks: what each op does there -------------------------------------------------------------

# with limits that are tensors, where this PyTorch's formula is another one than with numbers
HALVED_CLAMP: Final = "clamp.Tensor"
CLAMPS: Final = frozenset({"clamp", "clamp_min", "clamp_max", "normalize", HALVED_CLAMP})
BETWEEN: Final = frozenset({"clamp", HALVED_CLAMP})
STRICT: Final = frozenset({
    "relu", "relu6", "hardtanh", "hardsigmoid", "hardswish", "rnn_relu_cell",
})  # fmt: skip
# a limit that PyTorch applies without recording it: what is below gets the cotangent, too
UNRECORDED: Final = frozenset({"cosine_similarity"})
# losses whose slope is NaN, not 0, where the distance is NaN
LIPSCHITZ: Final = frozenset({"smooth_l1_loss", "huber_loss"})
# the slope at NaN, where a backward formula asks on which side of a kink it lies: that of PyTorch's
# vectorised kernels, from which its scalar code, for what is left of a vector, differs
AT_NAN: Final = {
    **dict.fromkeys(("elu", "celu", "selu", "hardswish"), math.nan),
    **dict.fromkeys(("hardtanh", "relu6", "hardsigmoid", "hardshrink", "softshrink"), 0.0),
}
# whose slope keeps its digits where exp(x) is small: exp(x) - 1, from which PyTorch's `expm1` takes
# its own, does not
EXPONENTIAL: Final = frozenset({"elu", "celu", "selu"})
# a root of 0 has the slope 0 where it is a norm, a distance or a deviation; norms multiply by it
NORMS: Final = frozenset({
    "norm", "linalg.vector_norm", "linalg.norm", "normalize", "pairwise_distance",
})  # fmt: skip
ROOTS: Final = NORMS | {
    "std", "std.unbiased", "std_mean", "std_mean.unbiased", "cdist", "cosine_similarity",
}  # fmt: skip


def _extreme(g: F, a: F, b: F, larger: bool, op: str) -> Cotangents:
    if op in CLAMPS and op != HALVED_CLAMP:
        return _clamped(g, a, b, larger)
    if op in UNRECORDED:
        return g, None
    if op in STRICT:
        outside = a <= b if larger else a >= b
        return outside.where(g.like(0), g), outside.where(g, 0)
    return _halved(g, a, b, larger)


def _halved(g: F, a: F, b: F, larger: bool) -> Cotangents:
    half = a.equals(b).where(g * 0.5, g)
    loses, wins = (a < b, a > b) if larger else (a > b, a < b)
    return loses.where(half.like(0), half), wins.where(half.like(0), half)


def _clamped(g: F, a: F, b: F, larger: bool) -> Cotangents:
    """Return the cotangents of a clamp. The tensor's is 0 beyond the limits; a limit gets it
    there."""
    if HALVES_AT_LIMITS:
        return (a > b if larger else a < b).where(g, 0), None
    inside = a >= b if larger else a <= b
    beyond = a < b if larger else a > b
    return inside.where(g, 0), beyond.where(g, 0)


def halved_between(g: F, x: F, low: F, high: F) -> tuple[Expr, Expr, Expr]:
    """Return the cotangents of clamp(x, low, high) of tensors. Limits that are equal get all, or
    none; a NaN leaves all to x."""
    half, is_range = g * 0.5, low < high
    tie = is_range & (x.equals(low) | x.equals(high))
    below = (x < low) & (low <= high)
    above = (high < low) | ((x > high) & (low <= high))
    return (
        ((x < low) | (x > high)).where(g.like(0), tie.where(half, g)).e,
        (is_range & x.equals(low)).where(half, below.or_zero(g)).e,
        (is_range & x.equals(high)).where(half, above.or_zero(g)).e,
    )


def cotangents(node: Apply, g: Expr, op: str) -> tuple[Expr | None, ...] | None:
    """Return the cotangents of a function's operands, None if the function has no derivative here.

    `op`: the operation to whose formula the function belongs.
    """
    fn, args, cot = node.fn, [F(a) for a in node.args], F(g)
    found: Cotangents
    if fn in ("maximum", "minimum"):
        found = _extreme(cot, args[0], args[1], fn == "maximum", op)
    elif fn in ("fmax", "fmin") and HALVES_AT_LIMITS:
        found = _halved(cot, args[0], args[1], fn == "fmax")
    elif fn == "sqrt" and op in ROOTS:
        r = F(node)
        none = cot * 0 if op in NORMS else cot.like(0)
        found = (r.equals(0).where(none, cot / (r * 2)),)
    elif fn == "abs" and op in LIPSCHITZ:
        found = (cot * args[0].equals(args[0]).where(args[0].fn("sign"), math.nan),)
    elif fn == "expm1" and op in EXPONENTIAL:
        found = (cot * args[0].fn("exp"),)
    elif fn == "pow" and op in ROOTS and not _is_above_one(node.args[1]):
        base, power = BINARY[fn](cot, args[0], args[1], F(node))
        assert base is not None
        found = (args[0].equals(0).where(cot.like(0), base), power)
    elif fn in UNARY:
        found = (UNARY[fn](cot, args[0], F(node)),)
    elif fn in BINARY:
        found = BINARY[fn](cot, args[0], args[1], F(node))
    else:
        return None
    return tuple(None if f is None else f.e for f in found)
