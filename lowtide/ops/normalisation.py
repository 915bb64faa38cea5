"""Softmax, log-softmax and the normalisation layers.

    softmax(x: [N, M], 1)   →   m[i] = max(j: x[i, j]) · s[i] = sum(j: exp(x[i, j] - m[i]))
                                t[i, j] = exp(x[i, j] - m[i]) / s[i]

Statistics are computed in the compute dtype (f32 for bf16 and f16).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowtide.ir import dtypes
from lowtide.ir.effects import Effects
from lowtide.ops.operands import (
    Size,
    Term,
    cast_to,
    compute,
    constant_float,
    dim_of,
    from_torch,
    number,
    pointwise,
    require_float,
    same_dtype,
    size_list,
    wide_on,
)
from lowtide.ops.reductions import mean_over, reduce_over
from lowtide.ops.registry import Lower, add_op, op
from lowtide.ops.views import reshape
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index, product

# ---- softmax ----------------------------------------------------------------------------------


def softmax(b: Builder, x: Val, dim: Any, *, log: bool = False, negate: bool = False) -> Val:
    """softmax or log_softmax along a dim, of -x if `negate`."""
    require_float(x)
    dims = [dim_of(b, dim, x.ndim)] if x.ndim else []
    dim_of(b, dim, x.ndim)
    if any(not b.at_least(x.shape[d], 1) for d in dims):
        return b.tensor(x.shape, x.dtype, lambda idx: b.load(x, idx))  # it has no elements
    within = compute(x.dtype)

    def signed(v: Term) -> Term:
        return -v if negate else v

    top = reduce_over(
        b, x, dims, True, "max", within=within, result=within,
        term=lambda v, _full, _kept: signed(v),
    )  # fmt: skip
    total = reduce_over(
        b, x, dims, True, "sum", within=within, result=within,
        term=lambda v, _full, kept: (signed(v) - Term(b, b.load(top, kept))).fn("exp"),
    )  # fmt: skip

    def body(idx: tuple[Index, ...]) -> Expr:
        kept = [as_index(0) if d in dims else i for d, i in enumerate(idx)]
        below = signed(Term(b, b.cast(b.load(x, idx), within))) - Term(b, b.load(top, kept))
        mass = Term(b, b.load(total, kept))
        return (below - mass.fn("log") if log else below.fn("exp") / mass).cast(x.dtype).expr

    return b.tensor(x.shape, x.dtype, body)


def _softmax(log: bool, negate: bool, where: int) -> Lower:
    def lower(b: Builder, x: Val, dim: Any, *rest: Any) -> Val:
        if dim is None:
            raise Unsupported("softmax along a dim chosen by PyTorch")
        dtype = rest[where]
        if negate and dtype is not None:  # in its own dtype first, in which ints wrap around
            x = pointwise(b, [x], x.dtype, lambda v: -v)
        x = x if dtype is None else cast_to(b, x, from_torch(dtype))
        return softmax(b, x, dim, log=log, negate=negate and dtype is None)

    return lower


def _eager(name: str) -> Callable[..., torch.Tensor]:
    fn = getattr(torch, name)

    def call(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
        return fn(x, dim, dtype=dtype)

    return call


_F_SIGNATURE = (
    "(input: Tensor, dim: int? = None, _stacklevel: int = 3, dtype: dtype? = None) -> Tensor"
)
_T_SIGNATURE = "(self: Tensor, dim: int, dtype: dtype? = None) -> Tensor"
for _name, _log in (("softmax", False), ("log_softmax", True)):
    add_op(
        _name,
        _T_SIGNATURE,
        f"torch.{_name} Tensor.{_name} torch.special.{_name}",
        kind="composite",
        eager=_eager(_name),
        lower=_softmax(_log, False, 0),
    )
    add_op(
        f"F.{_name}", _F_SIGNATURE, f"F.{_name}", kind="composite", lower=_softmax(_log, False, 1)
    )
add_op("softmin", _F_SIGNATURE, "F.softmin", kind="composite", lower=_softmax(False, True, 1))


# ---- over groups of elements ------------------------------------------------------------------


def standardise(
    b: Builder, x: Val, dims: Sequence[int], eps: float, *, centred: bool = True
) -> tuple[Val | None, Val]:
    """Mean and reciprocal root of (variance + eps) over dims, keepdim, in the compute dtype."""
    within = compute(x.dtype)
    mean = mean_over(b, x, dims, True, within) if centred else None
    n = product(x.shape[d] for d in dims)

    def squared(v: Term, _full: list[Index], kept: list[Index]) -> Term:
        apart = v if mean is None else v - Term(b, b.load(mean, kept))
        return apart * apart

    def finish(total: Term) -> Term:
        return (total / Term(b, b.cast(b.at(n), within)) + eps).fn("rsqrt")

    root = reduce_over(
        b, x, dims, True, "sum", within=within, result=within, term=squared, finish=finish
    )
    return mean, root


def _scaled(
    b: Builder,
    x: Val,
    dims: Sequence[int],
    mean: Val | None,
    root: Val,
    weight: Val | None,
    bias: Val | None,
    channel: Any,
) -> Val:
    """Return (x - mean) * root * weight + bias; `channel` gives the index into weight and bias."""
    within = compute(x.dtype)

    def body(idx: tuple[Index, ...]) -> Expr:
        kept = [as_index(0) if d in dims else i for d, i in enumerate(idx)]
        v = Term(b, b.cast(b.load(x, idx), within))
        if mean is not None:
            v = v - Term(b, b.load(mean, kept))
        v = v * Term(b, b.load(root, kept))
        if weight is not None:
            v = v * Term(b, b.load(weight, channel(idx))).cast(within)
        if bias is not None:
            v = v + Term(b, b.load(bias, channel(idx))).cast(within)
        return v.expr

    return b.tensor(x.shape, x.dtype, body)


def _fitting_dtypes(b: Builder, x: Val, *params: Val | None, machines: Sequence[str]) -> None:
    """All of one dtype; or, where PyTorch takes that, half floats with parameters in float32."""
    found = {p.dtype for p in params if p is not None}
    is_mixed = x.dtype.is_float and x.dtype.itemsize < 4 and found == {dtypes.f32}
    if not (is_mixed and b.device.type in machines):
        same_dtype(x, *params)


def _last_dims(b: Builder, x: Val, normalized_shape: Any, *params: Val | None) -> list[int]:
    sizes = size_list(normalized_shape)
    if not sizes or len(sizes) > x.ndim:
        raise b.error("normalized_shape")
    dims = list(range(x.ndim - len(sizes), x.ndim))
    for d, s in zip(dims, sizes, strict=True):
        b.require_equal(x.shape[d], s, "normalized_shape differs from the tensor's")
        if not b.at_least(x.shape[d], 1):
            raise Unsupported("normalisation over an empty dimension")
    for p in params:
        if p is not None:
            if p.ndim != len(sizes):
                raise b.error("a weight or bias of another rank than normalized_shape")
            for s, t in zip(p.shape, sizes, strict=True):
                b.require_equal(s, t, "a weight or bias of another shape")
    return dims


@op(
    "layer_norm",
    "(input: Tensor, normalized_shape: int[], weight: Tensor? = None, bias: Tensor? = None, "
    "eps: float = 1e-05) -> Tensor",
    "F.layer_norm torch.layer_norm",
    kind="composite",
)
def lower_layer_norm(
    b: Builder, x: Val, shape: Any, weight: Val | None, bias: Val | None, eps: Any
) -> Val:
    """The last dims brought to mean 0 and variance 1, then weight and bias."""
    require_float(x)
    _fitting_dtypes(b, x, weight, bias, machines=("cpu",))
    dims = _last_dims(b, x, shape, weight, bias)
    mean, root = standardise(b, x, dims, constant_float(eps))
    return _scaled(b, x, dims, mean, root, weight, bias, lambda idx: idx[dims[0] :])


@op(
    "rms_norm",
    "(input: Tensor, normalized_shape: int[], weight: Tensor? = None, eps: float? = None) "
    "-> Tensor",
    "F.rms_norm torch.rms_norm",
    kind="composite",
)
def lower_rms_norm(b: Builder, x: Val, shape: Any, weight: Val | None, eps: Any) -> Val:
    """The last dims over their root mean square, then weight."""
    require_float(x)
    same_dtype(x, weight)
    dims = _last_dims(b, x, shape, weight)
    if eps is None and x.dtype.itemsize < 4:
        raise Unsupported("rms_norm of half floats without eps")
    small = torch.finfo(x.dtype.torch).eps if eps is None else constant_float(eps)
    _, root = standardise(b, x, dims, small, centred=False)
    return _scaled(b, x, dims, None, root, weight, None, lambda idx: idx[dims[0] :])


def _check_channels(b: Builder, x: Val, *params: Val | None) -> None:
    for p in params:
        if p is not None:
            if p.ndim != 1:
                raise b.error("a weight, bias or statistic that is not a vector")
            b.require_equal(p.shape[0], x.shape[1], "channels differ")


def _batch_statistics(
    b: Builder, x: Val, eps: float, running: tuple[Val | None, Val | None], momentum: Any
) -> tuple[Val, Val]:
    """Mean and reciprocal root of (variance + eps) of each channel, in the compute dtype. What the
    running mean and variance become is written. Sums of f32 are f64 on the CPU, as PyTorch's."""
    within = compute(x.dtype)
    wide = wide_on(b, x.dtype)
    dims = [0, *range(2, x.ndim)]
    n = product(x.shape[d] for d in dims)
    if not b.at_least(n, 2) or not b.at_least(x.shape[1], 1):
        raise Unsupported("batch_norm in training of one value per channel, or of none")
    size = Term(b, b.cast(b.at(n), wide))

    def squared(_v: Term, full: list[Index], kept: list[Index]) -> Term:
        # in the compute dtype, so that its gradient is taken in that, too
        apart = Term(b, b.cast(b.load(x, full), within)) - Term(b, b.load(near, kept))
        return (apart * apart).cast(wide)

    def written(old: Val, value: Callable[[list[Index]], Term]) -> None:
        def body(idx: tuple[Index, ...]) -> Expr:
            share = Term(b, number(b, momentum, dtypes.f64)).cast(wide)
            kept = [idx[0] if d == 1 else as_index(0) for d in range(x.ndim)]
            left = (1 - share) * Term(b, b.cast(b.load(old, idx), wide))
            return (share * value(kept) + left).cast(old.dtype).expr

        b.writes.append((old, b.tensor(old.shape, old.dtype, body)))

    mean = reduce_over(
        b, x, dims, True, "sum", within=wide, result=wide, finish=lambda total: total / size
    )
    near = cast_to(b, mean, within)
    total = reduce_over(b, x, dims, True, "sum", within=wide, result=wide, term=squared)
    root = b.tensor(
        total.shape, within, lambda idx: (Term(b, b.load(total, idx)) / size + eps).fn("rsqrt").expr
    )
    old_mean, old_variance = running
    b.op, op = "detach", b.op  # of what is written there is no gradient
    if old_mean is not None:
        written(old_mean, lambda at: Term(b, b.load(mean, at)))
    if old_variance is not None:
        written(old_variance, lambda at: Term(b, b.load(total, at)) / (size - 1))
    b.op = op
    return near, root


def _of_statistics(operands: Sequence[object]) -> Effects:
    """In training it writes the running statistics, if there are any."""
    _, mean, var, _, _, of_the_batch, *_ = operands
    writes = of_the_batch is not False and not mean is var is None
    return Effects.RAISES | Effects.WRITES if writes else Effects.RAISES


@op(
    "batch_norm",
    "(input: Tensor, running_mean: Tensor?, running_var: Tensor?, weight: Tensor? = None, "
    "bias: Tensor? = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-05) "
    "-> Tensor",
    "F.batch_norm",
    kind="composite",
    effects=_of_statistics,
)
def lower_batch_norm(
    b: Builder,
    x: Val,
    running_mean: Val | None,
    running_var: Val | None,
    weight: Val | None,
    bias: Val | None,
    training: Any,
    momentum: Any,
    eps: Any,
) -> Val:
    """Batch norm. Training uses and records batch statistics; evaluation uses the running ones."""
    require_float(x)
    if not isinstance(training, bool):
        raise Unsupported("batch_norm whose training mode is known only at run time")
    if (running_mean is None) is not (running_var is None):
        raise Unsupported("batch_norm with one of two running statistics")
    if x.ndim < 2:
        raise b.error("batch_norm of fewer than two dimensions")
    _check_channels(b, x, running_mean, running_var, weight, bias)
    params = running_mean, running_var, weight, bias
    _fitting_dtypes(b, x, *params, machines=("cpu", "cuda"))
    within, small = compute(x.dtype), constant_float(eps)
    if training:
        mean, root = _batch_statistics(b, x, small, (running_mean, running_var), momentum)
        dims = [0, *range(2, x.ndim)]
        return _scaled(b, x, dims, mean, root, weight, bias, lambda idx: [idx[1]])
    if running_mean is None or running_var is None:
        raise b.error("batch_norm without statistics, not in training")

    def body(idx: tuple[Index, ...]) -> Expr:
        def of(p: Val) -> Term:
            return Term(b, b.cast(b.load(p, [idx[1]]), within))

        v = Term(b, b.cast(b.load(x, idx), within)) - of(running_mean)
        v = v * (of(running_var) + small).fn("rsqrt")
        v = v if weight is None else v * of(weight)
        return (v if bias is None else v + of(bias)).expr

    return b.tensor(x.shape, x.dtype, body)


@op(
    "group_norm",
    "(input: Tensor, num_groups: int, weight: Tensor? = None, bias: Tensor? = None, "
    "eps: float = 1e-05) -> Tensor",
    "F.group_norm",
    kind="composite",
)
def lower_group_norm(
    b: Builder, x: Val, num_groups: Any, weight: Val | None, bias: Val | None, eps: Any
) -> Val:
    """Each group of channels brought to mean 0 and variance 1, then weight and bias."""
    require_float(x)
    if x.ndim < 2 or not b.at_least(num_groups, 1) or not b.divides(num_groups, x.shape[1]):
        raise b.error("group_norm: the channels do not divide into groups")
    _check_channels(b, x, weight, bias)
    _fitting_dtypes(b, x, weight, bias, machines=("cpu",))
    if any(not b.at_least(s, 1) for s in x.shape):
        raise Unsupported("group_norm of an empty tensor")
    shape: list[Size] = [x.shape[0], num_groups, -1, *x.shape[2:]]
    grouped = reshape(b, x, shape)
    dims = list(range(2, grouped.ndim))
    mean, root = standardise(b, grouped, dims, constant_float(eps))
    inner = grouped.shape[2]
    scaled = _scaled(
        b, grouped, dims, mean, root, weight, bias, lambda idx: [idx[1] * inner + idx[2]]
    )
    return reshape(b, scaled, x.shape)


@op(
    "instance_norm",
    "(input: Tensor, running_mean: Tensor? = None, running_var: Tensor? = None, "
    "weight: Tensor? = None, bias: Tensor? = None, use_input_stats: bool = True, "
    "momentum: float = 0.1, eps: float = 1e-05) -> Tensor",
    "F.instance_norm",
    kind="composite",
    effects=_of_statistics,
)
def lower_instance_norm(
    b: Builder,
    x: Val,
    running_mean: Val | None,
    running_var: Val | None,
    weight: Val | None,
    bias: Val | None,
    use_input_stats: Any,
    momentum: Any,
    eps: Any,
) -> Val:
    """Each channel of each sample brought to mean 0 and variance 1, then weight and bias."""
    require_float(x)
    if not use_input_stats:
        return lower_batch_norm(b, x, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        raise Unsupported("instance_norm that writes its running statistics")
    if x.ndim < 3 or any(not b.at_least(s, 1) for s in x.shape):
        raise Unsupported("instance_norm of fewer than three dimensions or an empty tensor")
    if not b.at_least(product(x.shape[2:]), 2):
        raise b.error("instance_norm of a single element")
    _check_channels(b, x, weight, bias)
    _fitting_dtypes(b, x, weight, bias, machines=("cpu",))
    dims = list(range(2, x.ndim))
    mean, root = standardise(b, x, dims, constant_float(eps))
    return _scaled(b, x, dims, mean, root, weight, bias, lambda idx: [idx[1]])
