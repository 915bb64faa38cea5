"""Pointwise ops of three tensors: clamp, where, lerp and others.

where(c: [N, M], x: [M], 0.0)   →   t[i, j] = c[i, j] ? x[j] : 0.0
"""

from __future__ import annotations

from typing import Final

from lowtide.ir import dtypes
from lowtide.ops.arithmetic import check_alpha
from lowtide.ops.operands import (
    Number,
    Operand,
    Term,
    check_fits,
    pointwise,
    promote,
    promote_types,
    require_float,
)
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.derivatives import HALVED_CLAMP
from lowtide.torch_private.autograd import HALVES_AT_LIMITS

# ---- ternary ----------------------------------------------------------------------------------

_CLAMP: Final = "Tensor|Scalar?"


@op(
    "clamp",
    f"(self: Tensor, min: {_CLAMP} = None, max: {_CLAMP} = None) -> Tensor",
    "torch.clamp Tensor.clamp torch.clip Tensor.clip",
    kind="pointwise",
)
def lower_clamp(b: Builder, x: Val, low: Operand | None, high: Operand | None) -> Val:
    """min(max(self, min), max); NaN stays NaN."""
    bounds = [v for v in (low, high) if v is not None]
    if not bounds:
        raise b.error("clamp without bounds")
    tensors = [isinstance(v, Val) for v in bounds]
    if any(tensors) and not all(tensors):
        raise Unsupported("clamp between a tensor and a number")
    common = promote(x, *bounds)
    if common is dtypes.boolean:
        raise Unsupported("clamp of bools")
    check_fits(b, common, *bounds)

    def formula(v: Term, *limits: Term) -> Term:
        rest = list(limits)
        if low is not None:
            v = v.fn("maximum", rest.pop(0))
        if high is not None:
            v = v.fn("minimum", rest.pop(0))
        return v

    whole, b.op = b.op, HALVED_CLAMP if HALVES_AT_LIMITS and all(tensors) else b.op
    result = pointwise(b, [x, *bounds], common, formula)
    b.op = whole
    return result


@op(
    "clamp_min",
    "(self: Tensor, min: Tensor|Scalar) -> Tensor",
    "torch.clamp_min Tensor.clamp_min",
    kind="pointwise",
)
def lower_clamp_min(b: Builder, x: Val, low: Operand) -> Val:
    """max(self, min)."""
    return lower_clamp(b, x, low, None)


@op(
    "clamp_max",
    "(self: Tensor, max: Tensor|Scalar) -> Tensor",
    "torch.clamp_max Tensor.clamp_max",
    kind="pointwise",
)
def lower_clamp_max(b: Builder, x: Val, high: Operand) -> Val:
    """min(self, max)."""
    return lower_clamp(b, x, None, high)


@op(
    "where",
    "(condition: Tensor, self: Tensor|Scalar, other: Tensor|Scalar) -> Tensor",
    "torch.where",
    kind="pointwise",
)
def lower_where(b: Builder, cond: Val, x: Operand, y: Operand) -> Val:
    """self where the condition holds, else other."""
    if cond.dtype is not dtypes.boolean:
        raise Unsupported(f"a condition of {cond.dtype}")
    common = promote(x, y)
    check_fits(b, common, *(v for v in (x, y) if not isinstance(v, Val)))
    return pointwise(b, [x, y], common, lambda c, u, v: c.where(u, v), conditions=[cond])


@op(
    "Tensor.where",
    "(self: Tensor, condition: Tensor, other: Tensor|Scalar) -> Tensor",
    "Tensor.where",
    kind="pointwise",
)
def lower_where_method(b: Builder, x: Val, cond: Val, y: Operand) -> Val:
    """self where the condition holds, else other."""
    return lower_where(b, cond, x, y)


@op(
    "masked_fill",
    "(self: Tensor, mask: Tensor, value: Tensor|Scalar) -> Tensor",
    "torch.masked_fill Tensor.masked_fill",
    kind="pointwise",
)
def lower_masked_fill(b: Builder, x: Val, mask: Val, value: Operand) -> Val:
    """`value`, in the dtype of self, where the mask holds."""
    if mask.dtype is not dtypes.boolean:
        raise Unsupported(f"a mask of {mask.dtype}")
    if isinstance(value, Val) and value.ndim:
        raise b.error("masked_fill with a value that has dimensions")
    kind = promote_types(promote(value), x.dtype)
    if kind is not x.dtype and not x.dtype.is_float:
        raise Unsupported("masked_fill with a value of a higher kind")
    check_fits(b, x.dtype, value)
    return pointwise(b, [x, value], x.dtype, lambda m, u, v: m.where(v, u), conditions=[mask])


@op(
    "lerp",
    "(self: Tensor, end: Tensor, weight: Tensor|Scalar) -> Tensor",
    "torch.lerp Tensor.lerp",
    kind="pointwise",
)
def lower_lerp(b: Builder, x: Val, end: Val, weight: Operand) -> Val:
    """self + weight * (end - self), from the nearer end."""
    require_float(x, end)
    tensors = [x, end, *([weight] if isinstance(weight, Val) else [])]
    if len({t.dtype for t in tensors}) > 1:
        raise Unsupported("lerp of mixed dtypes")
    check_fits(b, x.dtype, weight)

    def formula(s: Term, e: Term, w: Term) -> Term:
        step = e - s
        return (w.fn("abs") < 0.5).where(s + w * step, e - step * (1.0 - w))

    return pointwise(b, [x, end, weight], x.dtype, formula, exact=True)


@op(
    "addcmul",
    "(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor",
    "torch.addcmul Tensor.addcmul",
    kind="pointwise",
)
def lower_addcmul(b: Builder, x: Val, t1: Val, t2: Val, value: Number) -> Val:
    """self + value * tensor1 * tensor2."""
    common = promote(x, t1, t2)
    check_alpha(b, common, value)
    return pointwise(b, [x, t1, t2, value], common, lambda u, p, q, v: u + v * p * q, exact=True)


@op(
    "addcdiv",
    "(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor",
    "torch.addcdiv Tensor.addcdiv",
    kind="pointwise",
)
def lower_addcdiv(b: Builder, x: Val, t1: Val, t2: Val, value: Number) -> Val:
    """self + value * tensor1 / tensor2."""
    common = promote(x, t1, t2)
    if not promote(t1, t2).is_float:
        raise Unsupported("addcdiv of ints")
    return pointwise(b, [x, t1, t2, value], common, lambda u, p, q, v: u + v * p / q, exact=True)


@op(
    "heaviside",
    "(self: Tensor, values: Tensor) -> Tensor",
    "torch.heaviside Tensor.heaviside",
    kind="pointwise",
)
def lower_heaviside(b: Builder, x: Val, values: Val) -> Val:
    """0 below zero, 1 above, `values` at zero."""
    if x.dtype is not values.dtype or x.dtype is dtypes.boolean:
        raise Unsupported("heaviside of mixed dtypes or bools")

    def formula(u: Term, v: Term) -> Term:
        step = (u > 0).where(u.like(1), u.like(0))
        return u.equals(0).where(v, step)

    return pointwise(b, [x, values], x.dtype, formula)
