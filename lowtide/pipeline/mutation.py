"""Which values of a Function may share memory with a tensor that it changes in place.

In: a Function. Out: the set of values. A region that needs one of them in its backward pass keeps a
copy: eager PyTorch often needs none of it (`relu` keeps its result), so that a later change in
place must not be an error there.

    y = x[1:]       x and y may share memory
    y += 1          both may change
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value

# what may write into a tensor
CHANGING: Final = ("mutate", "py.call", "py.call_method", "call_module")
_FRESH: Final = ("pointwise", "reduction", "contraction", "composite", "copy", "factory", "size")


def may_change(function: Function, writers: Iterable[Op] | None = None) -> frozenset[Value]:
    """Values whose memory some op may write into, or one of `writers`."""
    ops = list(function.walk() if writers is None else writers)
    changed = [v for op in ops if op.name in CHANGING for v in op.operands]
    changed += [op.operands[k] for op in ops for k in opdefs.STATISTICS.get(op.name, ())]
    if not changed:
        return frozenset()
    classes = _Classes()
    _block(function.block, classes)
    roots = {classes.root(v) for v in changed}
    return frozenset(v for v in classes.members() if classes.root(v) in roots)


def _block(block: Block, classes: _Classes) -> None:
    for op in block.ops:
        if not opdefs.has_kind(op.name, _FRESH):
            classes.unite([*op.operands, *op.results])
        for inner in op.blocks:
            classes.unite([*op.operands, *op.results, *inner.args, *inner.terminator.operands])
            _block(inner, classes)


class _Classes:
    """Disjoint sets of values."""

    def __init__(self) -> None:
        self._parent: dict[Value, Value] = {}

    def root(self, v: Value) -> Value:
        parent = self._parent.setdefault(v, v)
        while parent is not v:
            grand = self._parent[parent]
            self._parent[v] = grand
            v, parent = parent, grand
        return v

    def unite(self, values: Iterable[Value]) -> None:
        roots = [self.root(v) for v in values if _holds_tensors(v)]
        for other in roots[1:]:
            self._parent[self.root(other)] = self.root(roots[0])

    def members(self) -> Iterable[Value]:
        return list(self._parent)


def _holds_tensors(v: Value) -> bool:
    return v.type not in (t.INT, t.FLOAT, t.BOOL, t.STR, t.NONE)
