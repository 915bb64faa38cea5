"""Losses: a pointwise formula and a reduction "none", "mean" or "sum".

mse_loss(x: [N], y: [N])   →   t = sum(i < N: (x[i] - y[i]) ** 2) / N
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lowtide.ir import dtypes
from lowtide.ops.indexing import gathered
from lowtide.ops.normalisation import softmax
from lowtide.ops.operands import (
    Operand,
    Term,
    compute,
    constant_float,
    pointwise,
    promote,
    require_float,
    same_dtype,
)
from lowtide.ops.reductions import mean_over, reduce_over
from lowtide.ops.registry import Lower, add_op, op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index

OLD: Final = "size_average: bool? = None, reduce: bool? = None"


def reduced(b: Builder, loss: Val, reduction: Any) -> Val:
    """Return the loss after the reduction."""
    if reduction == "none":
        return loss
    dims = list(range(loss.ndim))
    if reduction == "mean":
        return mean_over(b, loss, dims, False, loss.dtype)
    if reduction == "sum":
        within = compute(loss.dtype)
        return reduce_over(b, loss, dims, False, "sum", within=within, result=loss.dtype)
    raise b.error(f"reduction {reduction!r}")


def _refuse_old(*old: Any) -> None:
    if any(v is not None for v in old):
        raise Unsupported("size_average and reduce, which PyTorch deprecates")


# `near` is a value of its own so that the slope of the square is 0, not 0 * inf, far away.
def _smooth_l1(x: Term, y: Term, beta: float) -> Term:
    apart = (x - y).fn("abs")
    if beta == 0.0:  # as `l1_loss`, whose slope at NaN is 0
        return (x - y).fn("maximum", y - x)
    near = (apart < beta).where(apart, 0.0)
    return (apart < beta).where(0.5 * near * near / beta, apart - 0.5 * beta)


def _huber(x: Term, y: Term, delta: float) -> Term:
    apart = (x - y).fn("abs")
    near = (apart <= delta).where(apart, 0.0)
    return (apart <= delta).where(0.5 * near * near, delta * (apart - 0.5 * delta))


def _cross(x: Term, y: Term) -> Term:
    """-(y log x + (1 - y) log(1 - x)), the logarithms held to at least -100."""
    near = x.fn("log").fn("maximum", -100.0)
    far = (-x).fn("log1p").fn("maximum", -100.0)
    return (y - 1.0) * far - y * near


# name · more operands · their number · formula · both must have one shape
PAIRS: Final[list[tuple[str, str, int, Callable[..., Term], bool]]] = [
    ("mse_loss", OLD + ", reduction: str = 'mean', weight: Tensor? = None", 0,
     lambda x, y: (x - y) * (x - y), False),
    ("l1_loss", OLD + ", reduction: str = 'mean', weight: Tensor? = None", 0,
     lambda x, y: (x - y).fn("abs"), False),
    ("smooth_l1_loss", OLD + ", reduction: str = 'mean', beta: float = 1.0", 1, _smooth_l1, False),
    ("huber_loss", "reduction: str = 'mean', delta: float = 1.0, weight: Tensor? = None", 1,
     _huber, False),
]  # fmt: skip


def _pair(names: list[str], formula: Callable[..., Term]) -> Lower:
    def lower(b: Builder, x: Val, y: Val, *rest: Any) -> Val:
        given = dict(zip(names, rest, strict=True))
        _refuse_old(given.get("size_average"), given.get("reduce"))
        if given.get("weight") is not None:
            raise Unsupported("a loss with weights")
        require_float(x, y)
        numbers = [constant_float(given[k]) for k in ("beta", "delta") if k in given]
        if any(n < 0 for n in numbers) or given.get("delta") == 0:
            raise Unsupported("a loss with a negative width")
        loss = pointwise(b, [x, y], promote(x, y), lambda u, v: formula(u, v, *numbers))
        return reduced(b, loss, given["reduction"])

    return lower


for _name, _more, _count, _formula, _ in PAIRS:
    _names = [part.split(":")[0].strip() for part in _more.split(",")]
    add_op(
        _name,
        f"(input: Tensor, target: Tensor, {_more}) -> Tensor",
        f"F.{_name}",
        kind="composite",
        lower=_pair(_names, _formula),
    )


def _same_shape(b: Builder, x: Val, y: Val) -> None:
    if x.ndim != y.ndim:
        raise b.error("input and target have different ranks")
    for s, t in zip(x.shape, y.shape, strict=True):
        b.require_equal(s, t, "input and target have different shapes")


def _check_probabilities(b: Builder, x: Val) -> None:
    """Numbers outside [0, 1], NaN among them, are PyTorch's to refuse."""

    def inside(idx: tuple[Index, ...]) -> Expr:
        v = Term(b, b.cast(b.load(x, idx), compute(x.dtype)))
        return ((v >= 0.0) & (v <= 1.0)).expr

    ok = b.tensor((), dtypes.boolean, lambda _: b.reduce("all", x.shape, inside))
    b.program.checks.append(ok.name)


@op(
    "binary_cross_entropy",
    f"(input: Tensor, target: Tensor, weight: Tensor? = None, {OLD}, reduction: str = 'mean') "
    "-> Tensor",
    "F.binary_cross_entropy",
    kind="composite",
)
def lower_bce(
    b: Builder, x: Val, y: Val, weight: Val | None, average: Any, reduce: Any, reduction: Any
) -> Val:
    """Cross entropy of probabilities; a check is recorded that they lie in [0, 1]."""
    _refuse_old(average, reduce)
    require_float(x, y)
    _same_shape(b, x, y)
    same_dtype(x, y, weight)
    for probabilities in (x, y):
        _check_probabilities(b, probabilities)
    rest: list[Operand] = [] if weight is None else [weight]

    def formula(u: Term, v: Term, *w: Term) -> Term:
        return _cross(u, v) * w[0] if w else _cross(u, v)

    return reduced(b, pointwise(b, [x, y, *rest], x.dtype, formula), reduction)


@op(
    "binary_cross_entropy_with_logits",
    f"(input: Tensor, target: Tensor, weight: Tensor? = None, {OLD}, reduction: str = 'mean', "
    "pos_weight: Tensor? = None) -> Tensor",
    "F.binary_cross_entropy_with_logits",
    kind="composite",
)
def lower_bce_logits(
    b: Builder,
    x: Val,
    y: Val,
    weight: Val | None,
    average: Any,
    reduce: Any,
    reduction: Any,
    pos_weight: Val | None,
) -> Val:
    """(1 - y) x + (1 + (p - 1) y) log(1 + exp(-x))."""
    _refuse_old(average, reduce)
    require_float(x, y)
    _same_shape(b, x, y)
    operands: list[Operand] = [x, y]
    operands += [v for v in (weight, pos_weight) if v is not None]

    def formula(u: Term, v: Term, *more: Term) -> Term:
        rest = list(more)
        w = rest.pop(0) if weight is not None else None
        tail = (-u.fn("abs")).fn("exp").fn("log1p") + (-u).fn("maximum", 0.0)
        if rest:
            tail = (1.0 + (rest[0] - 1.0) * v) * tail
        loss = (1.0 - v) * u + tail
        return loss if w is None else loss * w

    return reduced(b, pointwise(b, operands, promote(*operands), formula), reduction)


@op(
    "kl_div",
    f"(input: Tensor, target: Tensor, {OLD}, reduction: str = 'mean', log_target: bool = False) "
    "-> Tensor",
    "F.kl_div",
    kind="composite",
)
def lower_kl_div(
    b: Builder, x: Val, y: Val, average: Any, reduce: Any, reduction: Any, log_target: Any
) -> Val:
    """target * (log target - input); "batchmean" divides the sum by the first size."""
    _refuse_old(average, reduce)
    require_float(x, y)

    def formula(u: Term, v: Term) -> Term:
        if log_target:
            return v.fn("exp") * (v - u)
        own = v.equals(0.0).where(0.0, v * v.fn("log"))
        return v.fn("isnan").where(v, own) - v * u

    loss = pointwise(b, [x, y], promote(x, y), formula)
    if reduction != "batchmean":
        return reduced(b, loss, reduction)
    if not x.ndim:
        raise Unsupported("batchmean of a 0-dim tensor")
    within, size = compute(loss.dtype), x.shape[0]
    return reduce_over(
        b, loss, list(range(loss.ndim)), False, "sum", within=within, result=loss.dtype,
        finish=lambda s: s / Term(b, b.cast(b.at(size), within)),
    )  # fmt: skip


# ---- classes ----------------------------------------------------------------------------------


def _class_loss(
    b: Builder, logp: Val, target: Val, weight: Val | None, ignore: int, reduction: Any,
    smoothing: float,
) -> Val:  # fmt: skip
    """nll_loss, with label smoothing: -w[y] log p[y], mixed with the weighted mean of all."""
    channel = 1 if logp.ndim > 1 else 0
    classes = logp.shape[channel]
    outer = [*logp.shape[:channel], *logp.shape[channel + 1 :]]
    if target.dtype is not dtypes.i64 or target.ndim != len(outer):
        raise Unsupported("targets that are not one i64 class for each element")
    for s, t in zip(target.shape, outer, strict=True):
        b.require_equal(s, t, "input and target have different shapes")
    if weight is not None:
        same_dtype(logp, weight)
        if weight.ndim != 1:
            raise b.error("a weight that is not a vector")
        b.require_equal(weight.shape[0], classes, "one weight for each class")
    if not b.at_least(classes, 1):
        raise Unsupported("a loss over no classes")
    within, i64 = compute(logp.dtype), dtypes.i64
    kept = b.tensor(
        target.shape, i64, lambda idx: _counts(b, target, idx, ignore).where(
            Term(b, b.load(target, idx)), 0).expr
    )  # fmt: skip
    b.check_bounds(kept, 0, classes)

    def weigh(idx: tuple[Index, ...]) -> Term:
        w = Term(b, b.const(1.0, within))
        if weight is not None:
            at = gathered(b, kept, idx, classes, wraps=False)
            w = Term(b, b.load(weight, [at])).cast(within)
        return _counts(b, target, idx, ignore).where(w, 0.0)

    def loss_at(idx: tuple[Index, ...]) -> Term:
        at = gathered(b, kept, idx, classes, wraps=False)
        picked = Term(b, b.load(logp, [*idx[:channel], at, *idx[channel:]])).cast(within)
        valid = _counts(b, target, idx, ignore)
        plain = valid.where(-picked * weigh(idx), 0.0)
        if not smoothing:
            return plain

        def one(k: tuple[Index, ...]) -> Expr:
            v = Term(b, b.load(logp, [*idx[:channel], k[0], *idx[channel:]])).cast(within)
            return (v if weight is None else v * Term(b, b.load(weight, k)).cast(within)).expr

        spread = valid.where(-Term(b, b.reduce("sum", [classes], one)), 0.0)
        share = smoothing / Term(b, b.cast(b.at(classes), within))
        return plain * (1.0 - smoothing) + spread * share

    losses = b.tensor(target.shape, logp.dtype if reduction == "none" else within,
                      lambda idx: loss_at(idx).expr)  # fmt: skip
    if reduction == "none":
        return losses
    dims = list(range(target.ndim))
    total = reduce_over(b, losses, dims, False, "sum", within=within, result=within)
    if reduction == "sum":
        return b.tensor((), logp.dtype, lambda _: b.load(total, []))
    if reduction != "mean":
        raise b.error(f"reduction {reduction!r}")
    weights = b.tensor(target.shape, within, lambda idx: weigh(idx).expr)
    mass = reduce_over(b, weights, dims, False, "sum", within=within, result=within)
    return b.tensor((), logp.dtype, lambda _: b.apply("div", b.load(total, []), b.load(mass, [])))


def _counts(b: Builder, target: Val, idx: tuple[Index, ...], ignore: int) -> Term:
    return Term(b, b.load(target, idx)).fn("ne", ignore)


_CLASSES: Final = f"weight: Tensor? = None, size_average: bool? = None, ignore_index: int = -100, reduce: bool? = None, reduction: str = 'mean'"  # noqa: E501, F541


@op(
    "nll_loss",
    f"(input: Tensor, target: Tensor, {_CLASSES}) -> Tensor",
    "F.nll_loss",
    kind="composite",
)
def lower_nll_loss(
    b: Builder,
    x: Val,
    target: Val,
    weight: Val | None,
    average: Any,
    ignore_index: Any,
    reduce: Any,
    reduction: Any,
) -> Val:
    """-input at the target class; classes in dim 1."""
    _refuse_old(average, reduce)
    require_float(x)
    if not x.ndim >= 1:
        raise b.error("nll_loss of a 0-dim tensor")
    return _class_loss(b, x, target, weight, b.static_int(ignore_index), reduction, 0.0)


@op(
    "cross_entropy",
    f"(input: Tensor, target: Tensor, {_CLASSES}, label_smoothing: float = 0.0) -> Tensor",
    "F.cross_entropy",
    kind="composite",
)
def lower_cross_entropy(
    b: Builder,
    x: Val,
    target: Val,
    weight: Val | None,
    average: Any,
    ignore_index: Any,
    reduce: Any,
    reduction: Any,
    label_smoothing: Any,
) -> Val:
    """log_softmax, then nll_loss; or targets that are probabilities."""
    _refuse_old(average, reduce)
    require_float(x)
    if not x.ndim:
        raise b.error("cross_entropy of a 0-dim tensor")
    smoothing = constant_float(label_smoothing)
    if not 0.0 <= smoothing <= 1.0:
        raise b.error("label_smoothing")
    channel = 1 if x.ndim > 1 else 0
    logp = softmax(b, x, channel, log=True)
    if not target.dtype.is_float:
        ignore = b.static_int(ignore_index)
        return _class_loss(b, logp, target, weight, ignore, reduction, smoothing)
    return _probability_loss(b, logp, target, weight, reduction, smoothing, channel)


def _probability_loss(
    b: Builder, logp: Val, target: Val, weight: Val | None, reduction: Any, smoothing: float,
    channel: int,
) -> Val:  # fmt: skip
    """-sum over classes of w * target * log p; the mean is over everything but classes."""
    _same_shape(b, logp, target)
    same_dtype(logp, target, weight)
    if weight is not None:
        if weight.ndim != 1:
            raise b.error("a weight that is not a vector")
        b.require_equal(weight.shape[0], logp.shape[channel], "one weight for each class")
    within, classes = compute(logp.dtype), logp.shape[channel]

    def term(v: Term, full: list[Index], _counts: list[Index]) -> Term:
        share = Term(b, b.load(target, full)).cast(within)
        if smoothing:
            share = share * (1.0 - smoothing) + smoothing / Term(b, b.cast(b.at(classes), within))
        if weight is not None:
            share = share * Term(b, b.load(weight, [full[channel]])).cast(within)
        return -(v * share)

    losses = reduce_over(
        b, logp, [channel], False, "sum", within=within, result=logp.dtype, term=term
    )
    return reduced(b, losses, reduction)
