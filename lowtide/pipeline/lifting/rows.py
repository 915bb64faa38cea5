"""Lists that a lifted loop fills: while it is followed, and after it.

    rows = [first]                          Rows((first,), t7)      t7: [n, m]
    for i in range(n): rows.append(f(i))
    torch.stack(rows)                  ->   cat([first[None], t7])

Always holds: only a stack or cat looks at such a list; where anything else would, the loop is not
lifted (`Escaped`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lowtide.ir.core import Op
from lowtide.ops.joins import lower_cat, lower_stack
from lowtide.ops.operands import dim_of
from lowtide.ops.views import reshape, view
from lowtide.pipeline.abstract import Abs, Map, Pending, Seq
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.index import Index, as_index


class Escaped(Exception):
    """The list that this loop filled is needed as a list."""

    def __init__(self, op: Op) -> None:
        super().__init__(str(op.loc))
        self.op = op


@dataclass(slots=True, eq=False)
class Growing(Pending):
    """A list in the body of a loop: what one iteration appends."""

    elems: list[Abs] = field(default_factory=list[Abs])


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Pending):
    """`before`, then the slices of `whole` along its first dim, which the loop `op` appended."""

    before: tuple[Abs, ...]
    whole: Val
    op: Op
    used: list[str] = field(default_factory=list[str])  # joined as: another time it is a copy


def joined(b: Builder, name: str, rows: Rows, dim: Any) -> Val:
    """The stack or cat of such a list; raises Unsupported."""
    first: list[Any] = [x.value for x in rows.before]
    whole = rows.whole
    if not all(isinstance(v, Val) and v.dtype is whole.dtype for v in first):
        raise Unsupported("a list of other things beside those of a loop")
    if name == "stack":
        if first:
            whole = lower_cat(b, [lower_stack(b, first, 0), whole], 0)
        d = dim_of(b, dim, whole.ndim)
        if d == 0 and rows.used and not first:
            return view(b, whole, whole.shape, list)
        rows.used.append(name)
        return _moved(b, whole, d)
    if whole.ndim < 2:
        raise b.error("cat of 0-dim tensors")
    d = dim_of(b, dim, whole.ndim - 1)
    moved = _moved(b, whole, d)
    size = as_index(moved.shape[d]) * moved.shape[d + 1]
    one = size if size.const is None else size.const
    parts = reshape(b, moved, [*moved.shape[:d], one, *moved.shape[d + 2 :]])
    return lower_cat(b, [*first, parts], d) if first else parts


def _moved(b: Builder, x: Val, d: int) -> Val:
    """The first dim in place d."""
    if d == 0:
        return x
    shape = [*x.shape[1 : d + 1], x.shape[0], *x.shape[d + 1 :]]

    def index(idx: tuple[Index, ...]) -> list[Index]:
        return [idx[d], *idx[:d], *idx[d + 1 :]]

    return view(b, x, shape, index)


def escaping(values: Iterable[Abs]) -> Op | None:
    """The loop that filled a list among these values, which outlive the region."""
    for x in values:
        if isinstance(x.value, Rows):
            return x.value.op
        if isinstance(x.value, Seq | Map):
            found = escaping(x.value.elems)
            if found is not None:
                return found
    return None
