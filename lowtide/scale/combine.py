"""Combines the parts of a result, in a tree whose form depends on the number of parts only.

In: parts in any order, each with its position. Out: the combined result.

    tree = Tree(4, sum);  tree.add(2, c); tree.add(0, a); tree.add(1, b); tree.add(3, d)
    tree.result           (a + b) + (c + d), to the bit, whatever the order

Sums of floats are added in float64 and rounded once. Of equal extremes the first wins, and a NaN
wins over all numbers, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import torch

from lowtide.budget.reduced_axes import Reduced

Tensor = torch.Tensor
Parts: TypeAlias = tuple[Tensor, ...]
Merge: TypeAlias = Callable[[Reduced, Parts, Parts], Parts]


class Tree:
    """See the module's text."""

    def __init__(self, count: int, merge: Callable[[Parts, Parts], Parts]) -> None:
        self.count = count
        self.merge = merge
        self.waiting: dict[tuple[int, int], Parts] = {}  # by level and position
        self.result: Parts | None = None

    def add(self, position: int, parts: Parts) -> None:
        """Add a part; `result` is set by the last one."""
        level, found, size = 0, parts, self.count
        while size > 1:
            other = position ^ 1
            if other < size:
                known = self.waiting.pop((level, other), None)
                if known is None:
                    self.waiting[level, position] = found
                    return
                first, second = (known, found) if other < position else (found, known)
                found = self.merge(first, second)
            level, position, size = level + 1, position // 2, (size + 1) // 2
        self.result = found


def wider(rule: Reduced, parts: Parts, start: int) -> Parts:
    """Return parts as they are combined: sums of floats in float64, positions counted from the
    start of the whole. `start`: the first point of the axis in this part."""
    match rule.kind:
        case "sum" | "counts" | "logsumexp" | "weighted":
            return tuple(x.to(_ACCUMULATED.get(x.dtype, x.dtype)) for x in parts)
        case "topk":
            return parts[0], parts[1] + start * rule.inner
        case kind if kind.endswith(".dim"):
            return parts[0], parts[1] + start * rule.inner
        case _:
            return parts


def finished(
    rule: Reduced, parts: Parts, taken: Sequence[int], forms: Sequence[Tensor], divide: float
) -> Parts:
    """Return the combined parts that the program reads, in the dtypes of the results."""
    rows = zip((parts[k] for k in taken), forms, strict=True)
    return tuple((x / divide if rule.divide else x).to(form.dtype) for x, form in rows)


def merge(rule: Reduced, a: Parts, b: Parts) -> Parts:
    """Return two neighbouring parts as one; `a` comes first."""
    return _MERGES[rule.kind](rule, a, b)


_ACCUMULATED: Final[Mapping[torch.dtype, torch.dtype]] = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def _sum(rule: Reduced, a: Parts, b: Parts) -> Parts:
    return (a[0] + b[0],)


def _counts(rule: Reduced, a: Parts, b: Parts) -> Parts:
    """Return the sum of counts, of which the longer one has more numbers."""
    long, short = (a[0], b[0]) if a[0].shape[0] >= b[0].shape[0] else (b[0], a[0])
    made = long.clone()
    made[: short.shape[0]] += short
    return (made,)


def _least(rule: Reduced, a: Parts, b: Parts) -> Parts:
    return (a[0] & b[0],) if a[0].dtype == torch.bool else (torch.minimum(a[0], b[0]),)


def _most(rule: Reduced, a: Parts, b: Parts) -> Parts:
    return (a[0] | b[0],) if a[0].dtype == torch.bool else (torch.maximum(a[0], b[0]),)


def _any(rule: Reduced, a: Parts, b: Parts) -> Parts:
    return (torch.logical_or(a[0], b[0]),)


def _all(rule: Reduced, a: Parts, b: Parts) -> Parts:
    return (torch.logical_and(a[0], b[0]),)


def _logsumexp(rule: Reduced, a: Parts, b: Parts) -> Parts:
    return (torch.logaddexp(a[0], b[0]),)


def _extreme(compare: Callable[[Tensor, Tensor], Tensor]) -> Merge:
    def merged(rule: Reduced, a: Parts, b: Parts) -> Parts:
        is_first = compare(a[0], b[0])
        if a[0].is_floating_point():
            is_first = a[0].isnan() | (is_first & ~b[0].isnan())
        return torch.where(is_first, a[0], b[0]), torch.where(is_first, a[1], b[1])

    return merged


def _topk(rule: Reduced, a: Parts, b: Parts) -> Parts:
    values, indices = (torch.cat(pair, rule.dim) for pair in zip(a, b, strict=True))
    order = values.sort(dim=rule.dim, descending=rule.largest, stable=True).indices
    order = order.narrow(rule.dim, 0, min(rule.k, order.shape[rule.dim]))
    return values.gather(rule.dim, order), indices.gather(rule.dim, order)


def _weighted(rule: Reduced, a: Parts, b: Parts) -> Parts:
    """Return the sum of two products with a softmax, each scaled by its share of the whole.
    A part whose scores are all -inf has no share."""
    lse = torch.logaddexp(a[1], b[1])
    both = a[0] * (a[1] - lse).exp() + b[0] * (b[1] - lse).exp()
    has_none, other_has = a[1] == -math.inf, b[1] == -math.inf
    return torch.where(has_none, b[0], torch.where(other_has, a[0], both)), lse


_MERGES: Final[Mapping[str, Merge]] = {
    "sum": _sum,
    "counts": _counts,
    "min": _least,
    "max": _most,
    "any": _any,
    "all": _all,
    "logsumexp": _logsumexp,
    "weighted": _weighted,
    "topk": _topk,
    "min.dim": _extreme(torch.le),
    "max.dim": _extreme(torch.ge),
    "flat.min.dim": _extreme(torch.le),
    "flat.max.dim": _extreme(torch.ge),
}
