"""Rewrites a program so that its convolutions run on channels-last images.

In: an `Outer`. Out: a Function whose convolutions receive channels-last images; None if that does
not pay, or would change results.

    y = conv2d(x, w)          x1 = clone(x, channels_last)
    z = relu(y)               y = conv2d(x1, w)                   y and z are channels-last, too
    return z            →     z = relu(y)
                              z1 = clone(z, contiguous_format)    strides as in the original
                              return z1

oneDNN copies contiguous images into its blocked layout and back. That takes 1.2 to 1.6 times as
long, most for single images, and doubles the bytes. A chunk may begin or end with a conversion, so
that no whole tensor is converted.

Invariant: on the meta device, every number, shape and dtype is unchanged, and results share memory
with the same operands. An op for which that fails, or that draws random numbers, gets its operands
in their original layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from lowtide.budget.meta_interpreter import run_on_meta
from lowtide.budget.outer import Outer
from lowtide.execute.saved_products import Products
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone_op, free_values, with_block
from lowtide.memory import layouts
from lowtide.memory.ledger import Ledger
from lowtide.memory.like_device import LikeTheCpu
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import storage_of

Tensor = torch.Tensor
_LEAST: Final = 0.5  # share of convolutions in the operations of all products
_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
_MAKING: Final = ("tuple.make", "list.make", "dict.make")
_CONVOLUTIONS: Final = ("torch.conv2d", "torch.conv3d", "F.conv2d", "F.conv3d")


def to_channels_last(outer: Outer) -> Function | None:
    """Return the rewritten Function, None if it would not pay or would change results."""
    if not outer.on_host or any(
        layouts.is_channels_last(x) for v in outer.args for x in outer.tensors(v)
    ):
        return None
    rewriter = _Rewriter(outer)
    with Ledger(), LikeTheCpu(), torch.no_grad():
        found = rewriter.function()
    return found if rewriter.noted.are_most() else None


class _NotTheSame(Exception):
    """The rewritten program would compute something else."""


class _Rewriter:
    def __init__(self, outer: Outer) -> None:
        self.outer = outer
        self.env: dict[Value, Any] = {v: outer.known[v] for v in outer.args if v in outer.known}
        self.now: dict[Value, Value] = {}  # replacements of values from here on
        self.copies: dict[tuple[Value, Any], Value] = {}
        self.ops: list[Op] = []
        self.noted = _Convolutions()
        self.has_turned = False
        self.handed_out, self.given = _escaping(outer.ops)

    def function(self) -> Function | None:
        outer = self.outer
        try:
            for pos, op in enumerate(outer.ops[: outer.last]):
                self._op(pos, op)
            self._end(outer.ops[outer.last])
        except _NotTheSame:
            return None
        if not self.has_turned:
            return None
        return with_block(outer.function, Block(outer.function.block.args, self.ops))

    def _op(self, pos: int, op: Op) -> None:
        if op.attrs.get("target") in _CONVOLUTIONS:
            self._turn(pos, op)
        known = [self.outer.known.get(v) for v in op.results]
        if self.outer.may_be_in(op) and self.handed_out.isdisjoint(op.results):
            self.noted.has_drawn = False
            with self.noted:
                made = run_on_meta(op, {v: self.env[v] for v in op.operands})
            if self.noted.has_drawn and self._is_in_other_order(op):
                made = None  # random numbers go to elements in the order of memory
            if self._escapes_in_other_order(op, made, known):
                made = None
            if made is not None and self._agrees(op, made, known):
                self._add(op, {v: self.now[v] for v in op.operands if v in self.now}, made)
                return
        back = {v: self._as_it_was(pos, v, op) for v in free_values([op])}
        self._add(op, {v: b for v, b in back.items() if b is not v}, known)

    def _add(self, op: Op, mapping: dict[Value, Value], made: Sequence[Any]) -> None:
        """Add the op with these operands; its results replace the original ones."""
        if mapping:
            changed = clone_op(op, dict(mapping))
            changed.results = op.results
            op = changed
        self.ops.append(op)
        for v, x in zip(op.results, made, strict=True):
            self.env[v] = x

    def _turn(self, pos: int, op: Op) -> None:
        """Replace the images of a convolution by a channels-last copy from here on, if allowed."""
        v = op.operands[0]
        x, known = self.env.get(v), self.outer.known.get(v)
        if not isinstance(x, Tensor) or not isinstance(known, Tensor) or not _can_turn(x):
            return
        if self.outer.is_written(storage_of(known), pos):
            return  # the copy would not see the write
        self.now[v] = self._copied(v, _LAST[x.dim()], op)
        self.env[v] = x.contiguous(memory_format=_LAST[x.dim()])
        self.has_turned = True

    def _as_it_was(self, pos: int, v: Value, op: Op) -> Value:
        """Return a value with the layout that it has in the original program."""
        x, known = self.env.get(v), self.outer.known.get(v)
        if v in self.now:
            return v  # the original still exists
        pairs = list(zip(tensors_in(x), tensors_in(known), strict=False))
        if all(y.stride() == k.stride() for y, k in pairs):
            return v
        if not isinstance(known, Tensor):
            raise _NotTheSame
        if not known.is_contiguous():
            return self._view_of_original(pos, v, op)
        end = op is self.outer.ops[self.outer.last]
        if not end and self.outer.is_written(storage_of(known), pos):
            raise _NotTheSame
        return self._copied(v, torch.contiguous_format, op)

    def _escapes_in_other_order(
        self, op: Op, made: Sequence[Any] | None, known: Sequence[Any]
    ) -> bool:
        """Return whether the caller gets a result whose order of dims would change."""
        given = zip(op.results, made or (), known, strict=False)
        return any(
            v in self.given and not k.is_contiguous() and k.stride() != x.stride()
            for v, x, k in given
            if isinstance(x, Tensor) and isinstance(k, Tensor)
        )

    def _is_in_other_order(self, op: Op) -> bool:
        rows = ((self.env[v], self.outer.known[v]) for v in op.operands)
        pairs = (
            p for now, known in rows for p in zip(tensors_in(now), tensors_in(known), strict=True)
        )
        return any(x.stride() != k.stride() for x, k in pairs)

    def _view_of_original(self, pos: int, v: Value, op: Op) -> Value:
        """Return a view, taken of the base in its original layout."""
        made = next(o for o in self.outer.ops if v in o.results)
        if not opdefs.has_kind(made.name, ("view",)) or len(made.results) != 1:
            raise _NotTheSame
        mapping = {u: self._as_it_was(pos, u, op) for u in made.operands}
        cloned = clone_op(made, mapping)
        self.ops.append(cloned)
        return cloned.result

    def _copied(self, v: Value, how: torch.memory_format, op: Op) -> Value:
        """Return a channels-last copy, made before this op if there is none yet."""
        found = self.copies.get((v, how))
        if found is None:
            format_ = Value("format", t.MEMORY_FORMAT)
            found = self.copies[v, how] = Value(v.name, v.type)
            self.ops += [
                Op(name="const", attrs={"value": how}, results=[format_], loc=op.loc),
                Op(name="torch.clone", operands=[v, format_], results=[found], loc=op.loc),
            ]
        return found

    def _end(self, op: Op) -> None:
        given = [storage_of(x) for v in op.operands for x in self.outer.tensors(v)]
        back = {v: self._as_it_was(self.outer.last, v, op) for v in op.operands}
        if any(b is not v for v, b in back.items()) and len(set(given)) < len(given):
            raise _NotTheSame  # results would no longer share memory
        self._add(op, {v: b for v, b in back.items() if b is not v}, [])

    def _agrees(self, op: Op, made: Sequence[Any], known: Sequence[Any]) -> bool:
        """Return whether numbers are equal, and tensors are equal except for strides and share
        memory in the same way."""
        if not all(map(_alike, made, known)):
            return False
        before = [x for v in op.operands for x in tensors_in(self.outer.known[v])]
        now = [x for v in op.operands for x in tensors_in(self.env[v])]
        theirs = [[storage_of(x) == storage_of(y) for y in before] for x in tensors_in(known)]
        return theirs == [[storage_of(x) == storage_of(y) for y in now] for x in tensors_in(made)]


def _escaping(ops: Sequence[Op]) -> tuple[set[Value], set[Value]]:
    """Return the containers that the caller gets, and all values that the caller gets."""
    found: set[Value] = set()
    given = set(ops[-1].operands)
    for op in reversed(ops):
        if op.name in _MAKING and not given.isdisjoint(op.results):
            found |= {*op.results}
            given |= {*op.operands}
    return found, given


def _can_turn(x: Tensor) -> bool:
    """Return whether these are contiguous images whose layout would change."""
    last = _LAST.get(x.dim())
    return last is not None and x.is_contiguous() and not x.is_contiguous(memory_format=last)


class _Convolutions(Products):
    """Counts products, and those of them that are convolutions by oneDNN."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[Tensor, Sequence[Any]]] = []  # result, arguments
        self.has_drawn = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        self.has_drawn |= torch.Tag.nondeterministic_seeded in func.tags
        if func is torch.ops.aten.convolution.default:
            self.rows.append((made, args))
        return made

    def are_most(self) -> bool:
        """Return whether most multiplications are in convolutions by oneDNN."""
        names = {id(made) for made, args in self.rows if layouts.is_onednns(*args[:2], *args[3:9])}
        total = sum(count for _, count in self.found)
        ours = sum(count for made, count in self.found if id(made) in names)
        return ours > 0 and ours >= _LEAST * total


def _alike(made: Any, known: Any) -> bool:
    ours, theirs = tensors_in(made), tensors_in(known)
    if not ours and not theirs:
        return type(made) is type(known) and made == known
    if isinstance(made, Tensor) and isinstance(known, Tensor):
        return made.shape == known.shape and made.dtype == known.dtype
    if type(made) is not type(known) or not isinstance(made, list | tuple):
        return False
    return len(made) == len(known) and all(map(_alike, made, known))  # pyright: ignore
