"""The reference meaning of tile programs: one tile after another, by torch tensors.

In:  a kernel, the strides of what lies in memory, that memory, the values of sizes and numbers.
Out: nothing; memory is written. For small sizes. One thread runs all tiles.

    kernel k0 grid (i:N by 64)         for i in 0, 64, …:
      nest (i, j)                  →     s[0:64, 0:M] = exp(x[i:i + 64, 0:M])
        s = exp(x[i, j])

A buffer is as long as `codegen/c` makes it. Its elements are NaN, or an unlikely number, until a
nest writes them. `one_tile` gives the kernel that computes the definitions of a group as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch

from lowtide.ir.dtypes import BY_NAME, DType
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import identity
from lowtide.texpr.evaluate import Evaluator, Scope, along
from lowtide.texpr.expr import AddAt, Expr, Load, Program
from lowtide.texpr.index import Axis, Index, as_index
from lowtide.texpr.sizes import evaluate as evaluate_size
from lowtide.tile.group import Group
from lowtide.tile.ir import (
    Accumulate,
    Buffer,
    Combine,
    Fill,
    Kernel,
    Nest,
    Stage,
    Stmt,
    Store,
    sweeps,
)
from lowtide.tile.items import ARG, address, place_in

Tensor = torch.Tensor
Strides = Mapping[str, tuple[Index, ...]]
# The elements [first, end) of a tensor's memory, in place, by the tensor's name.
Memory = Callable[[str, int, int], Tensor]
UNSET: Final = {"bool": True, "u8": 251}  # 1 << 20 for other integers
_OF_TRUTHS: Final = {"max": "any", "min": "all", "sum": "any", "prod": "all"}


def run_kernel(
    kernel: Kernel,
    strides: Strides,
    memory: Memory,
    sizes: Mapping[str, int],
    numbers: Mapping[str, float],
) -> None:
    """Run all tiles of a kernel."""
    _Run(kernel, strides, memory, sizes, numbers).run()


def one_tile(group: Group, name: str, stored: Iterable[str]) -> Kernel:
    """The kernel of a group that has one tile: each definition fills a buffer of its own."""
    buffers: dict[str, Buffer] = {}
    body: list[Stmt] = []
    outputs: list[str] = []
    adds: dict[str, str] = {}
    for d in group.defs.values():
        if isinstance(d.expr, AddAt):
            place = d.expr.place
            store = Store(target=place.source, index=place.index, expr=d.expr)
            body.append(Nest(axes=d.axes, writes=[store]))
            adds[d.name] = place.source
            continue
        buffers[d.name] = b = Buffer(
            name=d.name, dtype=BY_NAME[d.dtype.compute], axes=d.axes, whole=frozenset(d.axes)
        )
        body.append(Nest(axes=d.axes, writes=[Stage(buffer=b, expr=d.expr)]))
        if d.name in stored:
            here = tuple(map(as_index, d.axes))
            value = ex.load(d.name, here, d.dtype)
            body.append(Nest(axes=d.axes, writes=[Store(target=d.name, index=here, expr=value)]))
            outputs.append(d.name)
    last: list[Nest] = []
    for d in group.epilogue.values():
        zeros = tuple(as_index(0) for _ in d.axes)
        last.append(Nest(axes=(), writes=[Store(target=d.name, index=zeros, expr=d.expr)]))
        outputs.append(d.name)
    return Kernel(
        name=name, grid=(), buffers=[*buffers.values()], values=buffers, prologue=[], body=body,
        combines=[], epilogue=last, outputs=outputs, adds=adds, checks_nan=False, lanes=1,
    )  # fmt: skip


class _Run(Evaluator):
    def __init__(
        self,
        kernel: Kernel,
        strides: Strides,
        memory: Memory,
        sizes: Mapping[str, int],
        numbers: Mapping[str, float],
    ) -> None:
        super().__init__(Program(), {}, sizes, numbers)
        self.kernel = kernel
        self.strides = strides
        self.memory = memory
        self.tiles: dict[Axis, tuple[int, int]] = {}  # begin and end; other axes are whole
        self.in_buffers = dict(kernel.values)
        self.held: dict[Expr, Buffer] = {}
        self.buffers = {b.name: self.unset(b) for b in kernel.buffers}

    def run(self) -> None:
        kernel = self.kernel
        for b in kernel.buffers:
            if b.per_thread:
                is_index = b.twin is not None
                start = 0 if is_index else identity(_extreme_of(b.fn), b.dtype)
                self.buffers[b.name].fill_(start)
        self.body(kernel.prologue)
        axes = [t.axis for t in kernel.grid]
        begins = (range(0, self.size(t.axis.extent), t.tile or 1) for t in kernel.grid)
        for tile in itertools.product(*begins):
            for t, begin in zip(kernel.grid, tile, strict=True):
                self.open(t.axis, begin, t.tile or 1)
            self.body(kernel.body)
        for a in axes:
            self.tiles.pop(a, None)
        for c in kernel.combines:
            self.combine(c)
        self.in_buffers = {}
        self.body(kernel.epilogue)

    def size(self, index: Index) -> int:
        return evaluate_size(index, self.sizes)

    def open(self, a: Axis, begin: int, tile: int) -> None:
        """Enter a tile of an axis."""
        self.tiles[a] = begin, min(begin + tile, self.size(a.extent))

    def points(self, a: Axis) -> tuple[int, int]:
        return self.tiles.get(a) or (0, self.size(a.extent))

    # -- buffers --

    def unset(self, b: Buffer) -> Tensor:
        lengths = {t.axis: t.tile or 1 for t in self.kernel.grid}
        lengths |= {s.axis: s.tile for s in sweeps(self.kernel.body) if s.axis not in lengths}
        shape = [
            lengths[a] if a in lengths and a not in b.whole else self.size(a.extent) for a in b.axes
        ]
        value = float("nan") if b.dtype.is_float else UNSET.get(b.dtype.name, 1 << 20)
        return torch.full((*shape, 1), value, dtype=b.dtype.torch)

    def place(self, b: Buffer, scope: Scope) -> tuple[Tensor, ...]:
        """The elements of a buffer at all points of the scope."""
        at = [
            self.axis(a, scope) - (0 if a in b.whole else self.points(a)[0])
            for a in b.axes
        ]  # fmt: skip
        shape = [end - begin for begin, end in map(self.points, scope)]
        return tuple(i.expand(shape) for i in (*at, torch.zeros((1,) * len(scope)).long()))

    def read(self, b: Buffer, dtype: DType, scope: Scope) -> Tensor:
        return self.buffers[b.name][self.place(b, scope)].to(dtype.torch)

    # -- expressions: what `Evaluator` finds elsewhere --

    def axis(self, a: Axis, scope: Scope) -> Tensor:
        begin, end = self.points(a)
        if a not in scope and end - begin == 1:
            return torch.full((1,) * len(scope), begin)
        return along(torch.arange(begin, end), a, scope)

    def expr(self, e: Expr, scope: Scope) -> Tensor:
        b = self.held.get(e)
        return super().expr(e, scope) if b is None else self.read(b, e.dtype, scope)

    def load(self, e: Load, scope: Scope) -> Tensor:
        b = self.in_buffers.get(e.source)
        if b is not None:
            return self.read(b, e.dtype, scope)
        at = self.index(address(e, self.strides), scope)
        if not at.numel():
            return torch.empty(at.shape, dtype=e.dtype.torch)
        first = int(at.min())
        return self.memory(e.source, first, int(at.max()) + 1)[at - first]

    # -- statements --

    def body(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, Nest):
                self.nest(stmt)
            elif isinstance(stmt, Fill):
                if stmt.empty is None or any(not self.size(a.extent) for a in stmt.empty):
                    self.buffers[stmt.buffer.name].fill_(stmt.value)
            else:
                for begin in range(0, self.size(stmt.axis.extent), stmt.tile):
                    self.open(stmt.axis, begin, stmt.tile)
                    self.body(stmt.body)
                self.tiles.pop(stmt.axis, None)

    def nest(self, nest: Nest) -> None:
        """No write of a nest changes what another one of it reads: all values come first."""
        written = {w.buffer.name for w in nest.writes if isinstance(w, Stage)}
        self.held = {e: b for e, b in nest.reads.items() if b.name not in written}
        self.memo.clear()
        shape = [end - begin for begin, end in map(self.points, nest.axes)]
        parts = [w.expr.value if isinstance(w.expr, AddAt) else w.expr for w in nest.writes]
        values = [self.expr(e, nest.axes).expand(shape) for e in parts]
        for w, value in zip(nest.writes, values, strict=True):
            if isinstance(w, Accumulate):
                self.accumulate(w, value, nest.axes)
            elif isinstance(w, Stage):
                buffer = self.buffers[w.buffer.name]
                buffer.index_put_(self.place(w.buffer, nest.axes), value.to(buffer.dtype))
            else:
                at = self.index(place_in(w.index, self.strides[w.target]), nest.axes)
                self.store(w.target, at.expand(shape), value, add=isinstance(w.expr, AddAt))

    def store(self, target: str, at: Tensor, value: Tensor, *, add: bool = False) -> None:
        if at.numel():
            first = int(at.min())
            there = self.memory(target, first, int(at.max()) + 1)
            there.index_put_((at - first,), value.to(there.dtype), accumulate=add)

    def accumulate(self, w: Accumulate, value: Tensor, scope: Scope) -> None:
        b, buffer = w.buffer, self.buffers[w.buffer.name]
        kept = tuple(a for a in scope if a in b.axes)
        order = [*kept, *(a for a in scope if a not in b.axes)]
        value = value.permute([scope.index(a) for a in order])
        terms = value.reshape(*value.shape[: len(kept)], math.prod(value.shape[len(kept) :]))
        at = self.place(b, kept)
        if w.fn in ARG:
            self.extreme(w, terms, at)
            return
        fn = _OF_TRUTHS.get(w.fn, w.fn) if terms.dtype is torch.bool else w.fn
        is_first = w.first is not None and all(self.points(a)[0] == 0 for a in w.first)
        if terms.shape[-1]:
            made = _FOLDS[fn](terms).to(buffer.dtype)
            if not is_first:
                made = _FOLDS[fn](torch.stack([buffer[at], made], -1)).to(buffer.dtype)
            buffer.index_put_(at, made)

    def extreme(self, w: Accumulate, terms: Tensor, at: tuple[Tensor, ...]) -> None:
        """Keep the best value and its first index; NaN is the best of all."""
        assert w.buffer.twin is not None
        places, bests = self.buffers[w.buffer.name], self.buffers[w.buffer.twin.name]
        if not terms.shape[-1]:
            return
        best = terms.amax(-1, True) if w.fn == "argmax" else terms.amin(-1, True)
        hit = (terms == best) | ((terms != terms) & (best != best))
        here = torch.where(hit, torch.arange(terms.shape[-1]), terms.shape[-1]).amin(-1)
        here = here + self.points(w.reduced[0])[0]
        best, old, place = best.squeeze(-1), bests[at], places[at]
        best = best.to(old.dtype)
        beats = (best > old) if w.fn == "argmax" else (best < old)
        beats = beats | ((best != best) & (old == old))
        same = (best == old) | ((best != best) & (old != old))
        bests.index_put_(at, torch.where(beats, best, old))
        places.index_put_(at, torch.where(beats | (same & (here < place)), here, place))

    def combine(self, c: Combine) -> None:
        """There is one thread: its values are the results."""
        total = as_index(0)
        for a, step in zip(c.axes, self.strides[c.target], strict=True):
            total = total + (as_index(a) * step if a in c.buffer.axes else 0)
        scope = c.buffer.axes
        value = self.buffers[c.buffer.name][self.place(c.buffer, scope)]
        self.store(c.target, self.index(total, scope).expand(value.shape), value)


def _extreme_of(fn: str) -> str:
    return {"argmin": "min", "argmax": "max"}.get(fn, fn)


_FOLDS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "sum": lambda x: x.sum(-1), "prod": lambda x: x.prod(-1), "min": lambda x: x.amin(-1),
    "max": lambda x: x.amax(-1), "any": lambda x: x.any(-1), "all": lambda x: x.all(-1),
}  # fmt: skip
