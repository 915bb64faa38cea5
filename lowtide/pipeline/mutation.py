"""Which values of a Function may share memory with a tensor that it changes in place.

In: a Function. Out: the set of values. A region that needs one of them in its backward pass keeps a
copy: eager PyTorch often needs none of it (`relu` keeps its result), so that a later change in
place must not be an error there.

    y = x[1:]       x and y may share memory
    y += 1          both may change
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import torch

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value

# what may write into a tensor
CHANGING: Final = ("mutate", "py.call", "py.call_method", "call_module")
_FRESH: Final = ("pointwise", "reduction", "contraction", "composite", "copy", "factory", "size")
# of what has no record here, ops whose results never are views of an operand, nor it itself
_FRESH_CALLS: Final = frozenset(
    f"{space}.{name}{dims}d"
    for space in ("torch", "F")
    for name in ("conv", "conv_transpose", "max_pool", "avg_pool", "adaptive_max_pool")
    for dims in (1, 2, 3)
)
# what a block is given, and gives, is one operand, or result, each
_IN_ORDER: Final = ("section", "recalled")


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
        for inner in op.blocks:
            _block(inner, classes)
        if op.name in _IN_ORDER:
            for inner in op.blocks:
                ends = zip(op.results, inner.terminator.operands, strict=False)
                for pair in (*zip(op.operands, inner.args, strict=False), *ends):
                    classes.unite(pair)
            if op.name == "recalled":  # it gives what it is given
                classes.unite([*op.operands, *op.results])
        elif op.blocks:
            inner = [v for b in op.blocks for v in (*b.args, *b.terminator.operands)]
            classes.unite([*op.operands, *op.results, *inner])
        elif not _is_fresh(op):
            classes.unite([*op.operands, *op.results])


def _is_fresh(op: Op) -> bool:
    """Do its results share no memory with its operands?"""
    return opdefs.has_kind(op.name, _FRESH) or op.attrs.get("target") in _FRESH_CALLS


def statistics(function: Function) -> frozenset[Value]:
    """Values whose memory a norm in training may write into."""
    return may_change(function, [op for op in function.walk() if op.name in opdefs.STATISTICS])


def without_statistics(ops: Iterable[Op]) -> list[Op]:
    """The same ops, of which norms in training take those of the batch and write none."""
    none = Value("none", t.NONE)
    found = [Op(name="const", attrs={"value": None}, results=[none])]
    for op in ops:
        places = opdefs.STATISTICS.get(op.name, ())
        operands = [none if k in places else v for k, v in enumerate(op.operands)]
        found.append(replace(op, operands=operands) if places else op)
    return found


class Shared:
    """Whether what a Function writes into is seen by another argument of a call, by another name:
    a region that needs that one in its backward pass keeps no copy of it."""

    def __init__(self, function: Function) -> None:
        changed = may_change(function)
        self._written = [k for k, v in enumerate(function.params) if v in changed]
        self._others = [k for k, v in enumerate(function.params) if v not in changed]

    def seen(self, args: Sequence[Any]) -> bool:
        """Does the memory of one that is written overlap that of one that is not?"""
        if not self._written:
            return False
        memory = {_memory(x) for k in self._written for x in _tensors(args[k])}
        alike = [x for k in self._others for x in _tensors(args[k]) if _memory(x) in memory]
        if not alike:
            return False
        written = [_range(x) for k in self._written for x in _tensors(args[k])]
        others = [_range(x) for x in alike]
        ends = sorted([(*r, True) for r in written] + [(*r, False) for r in others])
        reached = {True: 0, False: 0}  # by those that began before
        for start, end, is_written in ends:
            if start < reached[not is_written]:
                return True
            reached[is_written] = max(reached[is_written], end)
        return False


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _range(x: torch.Tensor) -> tuple[int, int]:
    """Addresses between which it lies."""
    rows = zip(x.shape, x.stride(), strict=True)
    span = 1 + sum((n - 1) * step for n, step in rows) if x.numel() else 0
    return x.data_ptr(), x.data_ptr() + span * x.itemsize


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Dense ones, those in lists and dicts too."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_meta:
            yield value
    elif isinstance(value, dict):
        for item in cast("dict[Any, Any]", value).values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in cast("Sequence[Any]", value):
            yield from _tensors(item)


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
