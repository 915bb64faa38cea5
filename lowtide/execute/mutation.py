"""Finds the tensors that a call writes: running statistics and counters, arguments that overlap.

In: a Function (`ir/aliases` says which of its values share memory), or the arguments of a call.

    y = x[1:]; y += 1     f(a, a.view(-1)): the second argument changes, too
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.aliases import counts, may_change
from lowtide.ir.core import Function, Op, Value
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import storage_of

_STRIDED = torch.strided
_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)


def statistics(function: Function) -> frozenset[Value]:
    """Return the values whose memory a norm in training, or a counter of batches, may write."""
    ops = function.walk()
    return may_change(function, [op for op in ops if op.name in opdefs.STATISTICS or counts(op)])


def without_statistics(ops: Iterable[Op], outer: Container[Value]) -> list[Op]:
    """Return the same ops with norms that use batch statistics and write none, and without writes
    to counters among the values `outer`."""
    none = Value("none", t.NONE)
    found = [Op(name="const", attrs={"value": None}, results=[none])]
    for op in ops:
        if counts(op) and op.operands[0] in outer:
            found.append(replace(op, name="cast", operands=op.operands[:1], attrs={}))
            continue
        places = opdefs.STATISTICS.get(op.name, ())
        operands = [none if k in places else v for k, v in enumerate(op.operands)]
        found.append(replace(op, operands=operands) if places else op)
    return found


class Shared:
    """Tests whether a tensor that a Function writes shares memory with another argument of the
    call. A region copies a written tensor that its backward pass needs, but not the other one."""

    def __init__(self, function: Function) -> None:
        changed = may_change(function)
        self._written = [k for k, v in enumerate(function.params) if v in changed]
        self._others = [k for k, v in enumerate(function.params) if v not in changed]
        self.needs_check = bool(self._written)  # otherwise no call overlaps

    def overlaps(self, args: Sequence[Any]) -> bool:
        """Return whether a written tensor overlaps one that is not written."""
        memory = {storage_of(x) for k in self._written for x in _dense(args[k])}
        alike = [x for k in self._others for x in _dense(args[k]) if storage_of(x) in memory]
        if not alike:
            return False
        written = [_range(x) for k in self._written for x in _dense(args[k])]
        others = [_range(x) for x in alike]
        ends = sorted([(*r, True) for r in written] + [(*r, False) for r in others])
        reached = {True: 0, False: 0}  # end of the ranges that began before, by `is_written`
        for start, end, is_written in ends:
            if start < reached[not is_written]:
                return True
            reached[is_written] = max(reached[is_written], end)
        return False


class Apart:
    """Tests whether the running statistics and counters of a call lie apart: they share no memory.
    A region may then read some after others have been written."""

    def __init__(self, function: Function, written: Container[Value]) -> None:
        self.values = frozenset(v for v in function.params if v in written and v.type == t.TENSOR)
        self._places = [k for k, v in enumerate(function.params) if v in self.values]
        self.needs_check = len(self._places) > 1  # otherwise they are apart in each call
        self._known: tuple[int, ...] = ()

    def are(self, args: Sequence[Any]) -> bool:
        """Return whether they are apart in this call."""
        tensors = [args[k] for k in self._places]
        where = tuple(x.data_ptr() for x in tensors)
        if where == self._known:  # the same memory as before
            return True
        ranges = sorted(_range(x) for x in tensors)
        if any(a[1] > b[0] for a, b in itertools.pairwise(ranges)):
            return False
        self._known = where
        return True


def _range(x: torch.Tensor) -> tuple[int, int]:
    """Return the first and last address of the tensor's memory."""
    rows = zip(x.shape, x.stride(), strict=True)
    span = 1 + sum((n - 1) * step for n, step in rows) if x.numel() else 0
    return x.data_ptr(), x.data_ptr() + span * x.itemsize


def _dense(value: Any) -> Sequence[torch.Tensor]:
    if type(value) in _TENSOR_TYPES:  # quickly, as each call asks
        return (value,) if value.layout is _STRIDED and not value.is_meta else ()
    return [x for x in tensors_in(value) if x.layout is torch.strided and not x.is_meta]


def copied(x: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, since the kernels were compiled for these."""
    copy = x.clone()
    if copy.stride() == x.stride() or not x.numel():
        return copy
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    memory = x.detach().as_strided((span,), (1,)).clone()
    # Not `as_strided` of x itself: of an expanded x its gradient would be that of the mean.
    copy.data = memory.as_strided(x.shape, x.stride())
    return copy
