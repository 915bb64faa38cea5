"""Ops whose backward formula is PyTorch's own instead of the chain rule.

In: a node of an op's definition and its cotangent. Out: cotangents of its parts; None if the node
is not the op's formula, and the chain rule applies.

    hypot(x, y) = big * sqrt(1 + (small / big)**2)     x: g * (x / r), y: g * (y / r)
    logit(x) = log(v / (1 - v))                        v: g / (v * (1 - v)); then x from v

At infinity, 0 and NaN these formulas give PyTorch's values, where the chain rule would divide by 0.
They also keep digits that the chain rule would lose in a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from lowtide.texpr.expr import Apply, Expr, Select
from lowtide.texpr.formula import F, is_number

Parts = tuple[tuple[Expr, F], ...]


def own_parts(e: Expr, g: Expr, op: str) -> Parts | None:
    """Return the parts of a node that get a cotangent, each with it."""
    rule = RULES.get(op)
    return None if rule is None else rule(e, F(g))


def _log_sum(fn: str) -> Callable[[Expr, F], Parts | None]:
    """log(exp(x) + exp(y)): max(x, y) is in front, and both are apart where they are infinite."""

    def shares(e: Expr, g: F) -> Parts | None:
        top = _applied(e.no, "add") if isinstance(e, Select) else None
        largest = _applied(top.args[0], "maximum") if top is not None else None
        if largest is None:
            return None
        x, y = map(F, largest.args)
        return (x.e, g / (1 + (y - x).fn(fn))), (y.e, g / (1 + (x - y).fn(fn)))

    return shares


def _hypot(e: Expr, g: F) -> Parts | None:
    if not isinstance(e, Select) or not isinstance(e.no, Select):
        return None
    big = _applied(e.no.yes, "maximum")
    sides = [_applied(a, "abs") for a in big.args] if big is not None else []
    return tuple((a.args[0], g * (F(a.args[0]) / F(e))) for a in sides if a is not None) or None


def _xlogy(e: Expr, g: F) -> Parts | None:
    """x log y, 0 where x is 0 and NaN where y is."""
    inner = e.no if isinstance(e, Select) else None
    product = _applied(inner.no, "mul") if isinstance(inner, Select) else None
    log = _applied(product.args[1], "log") if product is not None else None
    if product is None or log is None:
        return None
    x, y = F(product.args[0]), F(log.args[0])
    nothing = x.equals(0) & (y <= 0)
    return (x.e, nothing.where(g.like(0), g * F(log))), (y.e, g * (x / y))


def _logit(e: Expr, g: F) -> Parts | None:
    ratio = _applied(e, "log")
    odds = _applied(ratio.args[0], "div") if ratio is not None else None
    if odds is None:
        return None
    v = F(odds.args[0])
    slope = (v.equals(0) | v.equals(1)).where(g * math.inf, g / (v * (1 - v)))
    if isinstance(v.e, Select):  # held to a range: beyond it there is no slope
        return ((v.e, slope),)
    return ((v.e, ((v < 0) | (v > 1)).where(g.like(math.nan), slope)),)


def _cross_entropy(e: Expr, g: F) -> Parts | None:
    """-(y log x + (1 - y) log(1 - x)), where the logarithms are at least -100."""
    whole = _applied(e, "sub")
    near = _applied(whole.args[1], "mul") if whole is not None else None
    held = _applied(near.args[1], "maximum") if near is not None else None
    log = _applied(held.args[0], "log") if held is not None else None
    if near is None or log is None:
        return None
    x, y = F(log.args[0]), F(near.args[0])
    spread = ((1 - x) * x).fn("maximum", 1e-12)
    return (x.e, g * (x - y) / spread), (y.e, g * ((1 - x).fn("log") - F(log)))


def _cross_entropy_of_logits(e: Expr, g: F) -> Parts | None:
    """(1 - y) x + (1 + (p - 1) y) log(1 + exp(-x)). Without p the slope of x is sigmoid(x) - y. By
    the chain rule it would be 1 less nearly 1 at x = -10 and y = 0."""
    whole = _applied(e, "add")
    straight = _applied(whole.args[0], "mul") if whole is not None else None
    rest = _applied(straight.args[0], "sub") if straight is not None else None
    if whole is None or straight is None or rest is None:
        return None
    x, y, bend = F(straight.args[1]), F(rest.args[1]), whole.args[1]
    share = x.fn("sigmoid")
    weighted = _applied(bend, "mul")
    if weighted is None:
        return (x.e, g * (share - y)), (y.e, g * -x)
    more = weighted.args[0]  # 1 + (p - 1) y
    product = _applied(more.args[1], "mul") if isinstance(more, Apply) else None
    less = _applied(product.args[0], "sub") if product is not None else None
    if less is None:
        return None
    p, softplus = F(less.args[0]), F(weighted.args[1])
    slope = (p * y + 1 - y) * share - p * y
    return (x.e, g * slope), (y.e, g * ((p - 1) * softplus - x)), (p.e, g * y * softplus)


def _mean_of_numbers(e: Expr, g: F) -> Parts | None:
    """Return `nanmean`'s cotangents of its numbers: g for an element that is not NaN, else 0 *
    g."""
    if not isinstance(e, Select) or not is_number(e.yes, 0):
        return None
    return ((e.no, g * F(e.cond).where(g.like(0), 1)),)


def _nan_to_num(e: Expr, g: F) -> Parts | None:
    """0 times the cotangent where x is replaced: NaN, if the cotangent is."""
    x = e
    for _ in range(3):
        if not isinstance(x, Select):
            return None
        x = x.no
    finite = (F(x) - F(x)).equals(0)
    return ((x, g * finite.where(g.like(1), 0)),)


def _applied(e: Expr, fn: str) -> Apply | None:
    return e if isinstance(e, Apply) and e.fn == fn else None


RULES: Final[dict[str, Callable[[Expr, F], Parts | None]]] = {
    "logaddexp": _log_sum("exp"),
    "logaddexp2": _log_sum("exp2"),
    "hypot": _hypot,
    "xlogy": _xlogy,
    "kl_div": _xlogy,  # of the target with itself
    "logit": _logit,
    "binary_cross_entropy": _cross_entropy,
    "binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    "nanmean": _mean_of_numbers,
    "nan_to_num": _nan_to_num,
}
