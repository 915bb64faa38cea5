"""Finds runs of ops that can become sections, and the axes along which they can be cut.

In: an `Outer`. Out: `Candidate`s, in program order, none overlapping.

    h = norm(x)           ┐
    a = softmax(q @ k.T)  │ one section, cut along the batch of x
    y = x + a @ v         ┘
    loss = y.mean()         depends on the whole batch: outside

Starting at an op, each dim of each operand is tried. The run continues while every op's results are
independent along the axis. Sizes that are numbers (`x.view(n, -1)`) are checked by executing the
run twice on the meta device, with the whole axis and with a part: only sizes of views may differ,
and each tensor must have the shape of its part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from lowtide.budget.independence import (
    Dependent,
    Needs,
    cut_results,
    goes_on,
    is_lowered,
    selects,
)
from lowtide.budget.loops import Loops
from lowtide.budget.meta_interpreter import run_on_meta
from lowtide.budget.outer import Outer
from lowtide.execute.candidate import LEAST_BYTES, Candidate
from lowtide.execute.cut import ADDED, Cut, order_of
from lowtide.ir import opdefs
from lowtide.ir.core import Op, Value, free_values
from lowtide.memory.layouts import is_channels_last
from lowtide.memory.ledger import Ledger
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import storage_of

Tensor = torch.Tensor
_MOST_DIMS: Final = 4
_MOST_STARTS: Final = 8


def candidates(outer: Outer, start: int = 0, stop: int | None = None) -> list[Candidate]:
    """Return the candidates in ops [start, stop); see the module's text."""
    found: list[Candidate] = []
    pos, stop = start, outer.last if stop is None else stop
    finder = Finder(outer, stop)
    loops = Loops(outer.function, outer.known, outer.changed, outer.fixed, outer.records)
    with Ledger(), torch.no_grad():
        while pos < stop:
            is_loop = outer.ops[pos].name == "loop"
            best = loops.candidate(pos) if is_loop else finder.found(pos)
            if best is not None:
                found.append(best)
            pos = best.stop if best is not None else pos + 1
    return found


def longest_run(outer: Outer, start: int, stop: int) -> Candidate | None:
    """Return the longest run in [start, stop) that begins with its first op."""
    with Ledger(), torch.no_grad():
        return Finder(outer, stop).longest(start)


@dataclass(slots=True)
class Run:
    """A run that is being extended: values of a part, which tensors are cut, where it starts."""

    start: int
    seeds: dict[int, int]
    part: dict[Value, Any] = field(default_factory=dict[Value, Any])
    cut: dict[int, int] = field(default_factory=dict[int, int])
    # By which op a tensor was selected, which is as long as the data decide.
    selected: dict[int, Op] = field(default_factory=dict[int, Op])
    extent: int = 0


class Finder:
    def __init__(self, outer: Outer, last: int) -> None:
        self.outer = outer
        self.ops = outer.ops
        self.last = last
        self.known = outer.known

    def found(self, start: int) -> Candidate | None:
        """Return the run that extends farthest, without ops that belong to the kernel before it: an
        activation read only by the run, or a norm read only by that activation."""
        best = self.farthest(start)
        while best is not None and self._belongs_before(best.start):
            later = (p for p in range(best.start + 1, best.stop) if self.ops[p].name != "const")
            other = self.longest(next(later, best.start))
            if other is None or other.start == best.start or other.stop < best.stop:
                break
            best = other
        return best

    def _belongs_before(self, pos: int) -> bool:
        """Return whether the op is fused into the kernel before it."""
        op, outer = self.ops[pos], self.outer
        if not op.name.startswith("torch.") or not opdefs.has_kind(op.name, ("pointwise",)):
            return False
        held = {storage_of(x) for v in op.operands for x in outer.tensors(v)} - outer.given
        made = [outer.made_at[s] for s in held if s in outer.made_at]
        later = (v for o in self.ops[pos + 1 :] for v in free_values([o]))
        is_read = any(storage_of(x) in held for v in later for x in outer.tensors(v))
        return bool(made) and not is_read and all(map(self._is_lowered, range(min(made), pos + 1)))

    def _is_lowered(self, pos: int) -> bool:
        return is_lowered(self.ops[pos], [self.known.get(v) for v in self.ops[pos].operands])

    def farthest(self, start: int) -> Candidate | None:
        """Return the run that extends farthest from this op, or from an op that it reaches."""
        best = self.longest(start)
        pos = start + 1
        while best is not None and best.stop < self.last:
            if pos == min(best.stop, start + _MOST_STARTS):
                break
            other = self.longest(pos)
            if other is not None and other.stop > best.stop and not self._serves(best, other):
                best = other
            pos += 1
        return best

    def _serves(self, run: Candidate, other: Candidate) -> bool:
        """Return whether a run, with the one after it, extends as far as another and frees as
        much."""
        rest = self.longest(run.stop)
        if rest is None or rest.stop < other.stop:
            return False
        freed = self.outer.inner_bytes(run) + self.outer.inner_bytes(rest)
        return freed >= self.outer.inner_bytes(other)

    def longest(self, start: int) -> Candidate | None:
        """Return the longest run from this op; of equal ones the one with the longer axis."""
        if not self.outer.may_be_in(self.ops[start]):
            return None
        best: Candidate | None = None
        for tensor, dim in self._seeds(self.ops[start]):
            found = self._extended(start, {id(tensor): dim}, tensor.shape[dim])
            rank = (found.stop, found.extent) if found is not None else (0, 0)
            if best is None or rank > (best.stop, best.extent):
                best = found or best
        return best

    def _seeds(self, op: Op) -> list[tuple[Tensor, int]]:
        return [
            (x, d)
            for v in dict.fromkeys(op.operands)
            if isinstance(x := self.known.get(v), Tensor) and v in self.outer.fixed
            for d in range(min(x.dim(), _MOST_DIMS))
            if x.shape[d] > 1
        ]

    def _extended(self, start: int, seeds: dict[int, int], extent: int) -> Candidate | None:
        """Extend a run as far as possible, cutting further operands where an op needs that."""
        for _ in range(8):
            run = Run(start, seeds, extent=extent)
            stop, need = self._follow(run)
            if need is None:
                return self._closed(run, stop)
            tensor, dim = need
            if tensor.shape[dim] != extent or id(tensor) in seeds:
                return self._closed(run, stop)
            seeds = seeds | {id(tensor): dim}
        return None

    def _follow(self, run: Run) -> tuple[int, tuple[Tensor, int] | None]:
        """Return where the run ends, and the outer operand that must be cut to extend it."""
        outer: set[int] = set()
        for pos in range(run.start, self.last):
            op = self.ops[pos]
            if not self.outer.may_be_in(op):
                return pos, None
            updated = self.outer.own_statistics(op)
            for v in op.operands:
                if v not in run.part:
                    held = (storage_of(x) for x in self.outer.tensors(v))
                    if v not in updated and any(self.outer.is_written(s, run.start) for s in held):
                        return pos, None  # a later chunk might read another value
                    run.part[v] = self.part_of(self.known[v], run)
                    outer |= {id(x) for x in tensors_in(self.known[v])}
            try:
                self.step(op, run)
            except Dependent:
                return pos, None
            except Needs as need:
                return pos, self.before(need.tensor, need.dim, outer, run.start, pos)
        return self.last, None

    def before(
        self, tensor: Tensor, dim: int, outer: set[int], start: int, stop: int
    ) -> tuple[Tensor, int] | None:
        """Return the operand from before the run that a tensor is derived from, with a dim like
        that one."""
        for pos in range(stop - 1, start - 1, -1):
            if id(tensor) in outer:
                break
            op = self.ops[pos]
            if any(x is tensor for v in op.results for x in tensors_in(self.known[v])):
                alike = (
                    x
                    for v in op.operands
                    for x in tensors_in(self.known[v])
                    if x.dim() == tensor.dim() and x.shape[dim] == tensor.shape[dim]
                )
                tensor = next(alike, tensor)
        return (tensor, dim) if id(tensor) in outer else None

    def step(self, op: Op, run: Run) -> None:
        """Add one op to the run. Raises Dependent and Needs."""
        values = [self.known[v] for v in op.operands]
        results = [self.known[v] for v in op.results]
        self._cut(op, values, results, run)
        parts = run_on_meta(op, {v: run.part[v] for v in op.operands})
        if parts is None:
            raise Dependent("does not run on a part")
        run.part.update(zip(op.results, parts, strict=True))
        if len(tensors_in(results)) != len(tensors_in(parts)):
            raise Dependent("is a list that changes later")
        for whole, part in zip(tensors_in(results), tensors_in(parts), strict=True):
            shape, dim = tuple(part.shape), run.cut.get(id(whole))
            if dim == ADDED:  # its length may depend on how many there are
                shape = (*whole.shape[:1], *shape[1:])
            if shape != _part_shape(whole, dim, run):
                raise Dependent("has another shape on a part")

    def _cut(self, op: Op, values: Sequence[Any], results: Sequence[Any], run: Run) -> None:
        """Note which results are cut, and along which dim."""
        if op.name not in ("call_torch", "mutate") and not op.name.startswith("torch."):
            return  # Python passes on the same tensors
        if opdefs.has_kind(op.name, ("size",)):
            return
        if any(run.cut.get(id(x)) == ADDED for v in values for x in tensors_in(v)):
            raise Dependent("reads a sum of all chunks")
        is_other = any(differs(self.known[v], run.part[v]) for v in op.operands)
        if is_other and not opdefs.has_kind(op.name, ("view", "composite")):
            raise Dependent("computes with a size")
        if any(id(x) in run.cut for v in values for x in tensors_in(v)):
            run.cut |= cut_results(op, values, results, run.cut)
            self._note_selections(op, values, results, run)
        elif is_other:
            raise Dependent("is as large as a part")
        elif not opdefs.has_kind(op.name, ("view", "factory", "pointwise", "copy")):
            raise Dependent("would be computed for each chunk")

    def _note_selections(
        self, op: Op, values: Sequence[Any], results: Sequence[Any], run: Run
    ) -> None:
        """Note which results are as long as the data decide."""
        held = (id(x) for v in values for x in tensors_in(v))
        makers = [run.selected[k] for k in held if k in run.selected]
        if makers and not (goes_on(op) and all(m is makers[0] for m in makers)):
            raise Dependent("takes what is selected as a whole, or beside another selection")
        if makers or selects(op, values):
            made = (id(x) for v in results for x in tensors_in(v))
            maker = makers[0] if makers else op
            run.selected.update((k, maker) for k in made if run.cut.get(k) != ADDED)

    def part_of(self, value: Any, run: Run) -> Any:
        """Return a chunk's part of a value from before the run."""
        if isinstance(value, Tensor):
            dim = run.seeds.get(id(value))
            if dim is None:
                return value
            run.cut[id(value)] = dim
            return value.narrow(dim, 0, max(run.extent // 2, 1))
        return value

    # -- where it ends --

    def _closed(self, run: Run, stop: int) -> Candidate | None:
        """Return the longest prefix of the run whose results are tensors with their own memory."""
        while stop > run.start:
            found = self._candidate(run, stop)
            if found is not None:
                return found
            stop -= 1
        return None

    def _candidate(self, run: Run, stop: int) -> Candidate | None:
        ends = self.outer.ends(run.start, stop)
        if ends is None:
            return None
        inputs, outputs = ends
        if any(differs(self.known[v], run.part[v]) for v in outputs):
            return None
        if any(id(x) in run.selected for v in outputs for x in self.outer.tensors(v)):
            return None
        made = (v for op in self.ops[run.start : stop] for v in op.results)
        if not any(x.nbytes >= LEAST_BYTES for v in made for x in self.outer.tensors(v)):
            return None
        updated = {v for op in self.ops[run.start : stop] for v in self.outer.own_statistics(op)}
        joins = tuple(run.cut.get(id(self.known[v])) for v in outputs)
        if all(d is None for d in joins):
            return None
        dims = [run.cut.get(id(self.known[v])) for v in inputs]
        return Candidate(
            start=run.start,
            stop=stop,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            extent=run.extent,
            cuts=tuple(None if d is None else Cut(d) for d in dims),
            joins=joins,
            orders=tuple(self._order(v, self.ops[run.start : stop]) for v in outputs),
            updated=tuple(v for v in inputs if v in updated),
        )

    def _order(self, v: Value, ops: Sequence[Op]) -> tuple[int, ...] | None:
        """Return a result's order of dims in memory. Norms keep the layout of their input on the
        meta device, but on other devices only PyTorch's memory formats."""
        x = self.known[v]
        if not isinstance(x, Tensor):
            return None
        is_known = x.is_contiguous() or is_channels_last(x)
        is_norm = any(op.name in opdefs.STATISTICS for op in ops)
        return order_of(x) if is_known or not is_norm else None


def _part_shape(whole: Tensor, dim: int | None, run: Run) -> tuple[int, ...]:
    shape = list(whole.shape)
    if dim is not None and dim != ADDED:
        if shape[dim] % run.extent:
            raise Dependent("has another extent")
        shape[dim] = shape[dim] // run.extent * max(run.extent // 2, 1)
    return tuple(shape)


def differs(whole: Any, part: Any) -> bool:
    """Return whether a value without tensors differs between the whole and a part."""
    return not tensors_in(whole) and not (type(whole) is type(part) and whole == part)
