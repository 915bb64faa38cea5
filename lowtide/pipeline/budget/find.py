"""Which runs of ops can become sections, and along which axes they can be cut.

In: a Driver and the arguments of a call. Out: `Candidate`s, in program order, none overlapping.

    h = norm(x)           ┐
    a = softmax(q @ k.T)  │ one section, cut along the batch of x
    y = x + a @ v         ┘
    loss = y.mean()         takes everything: outside

From an op on, each dim of each operand is tried; the run goes on as long as every op's results are
independent along the axis. Sizes that are numbers (`x.view(n, -1)`) are followed by running
everything twice on the meta device, once with all and once with a part: what differs may only be
sizes of views, and no tensor may come out with another shape than that of its part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Op, Value, free_values, walk
from lowtide.memory.ledger import Ledger
from lowtide.pipeline.budget.candidate import LEAST_BYTES, Candidate, storage_of
from lowtide.pipeline.budget.chunks import Cut
from lowtide.pipeline.budget.independence import (
    Dependent,
    Needs,
    cut_results,
    is_pointwise_write,
)
from lowtide.pipeline.budget.loops import Loops
from lowtide.pipeline.driver import Driver
from lowtide.pipeline.followed import Followed, run_on_meta
from lowtide.pipeline.mutation import CHANGING, may_change
from lowtide.runtime.played_arena import PlayedArena

Tensor = torch.Tensor
_MOST_DIMS: Final = 4
_MOST_STARTS: Final = 8
_STRUCTURE: Final = ("const", "cast", "tuple", "list", "unpack", "py", "math")
_BARRIERS: Final = (
    "py.call", "py.call_method", "call_module", "print", "assert", "raise", "use", "with", "undef",
    "list.append", "list.extend",
)  # fmt: skip


def candidates(driver: Driver, args: Sequence[Any]) -> list[Candidate]:
    """See the module's text."""
    found: list[Candidate] = []
    pos, last = 0, driver.plan.last
    with torch.no_grad():
        known = Followed(driver, args).known
    finder = _Finder(driver, known)
    loops = Loops(driver.function, known, driver.plan.changed)
    with Ledger(PlayedArena()), torch.no_grad():
        while pos < last:
            is_loop = driver.plan.ops[pos].name == "loop"
            best = loops.candidate(pos) if is_loop else finder.farthest(pos)
            if best is not None:
                found.append(best)
            pos = best.stop if best is not None else pos + 1
    return found


@dataclass(slots=True)
class _Run:
    """A run that is being extended: values of a part, which tensors are cut, where it starts."""

    start: int
    seeds: dict[int, int]
    part: dict[Value, Any] = field(default_factory=dict[Value, Any])
    cut: dict[int, int] = field(default_factory=dict[int, int])
    extent: int = 0


class _Finder:
    def __init__(self, driver: Driver, known: dict[Value, Any]) -> None:
        self.ops = driver.plan.ops
        self.last = driver.plan.last
        self.live_at = driver.plan.live_at
        self.known = known
        self.function = driver.function
        self.written = self._written(self.ops)

    def _written(self, ops: Sequence[Op]) -> set[int]:
        """The memory that some of these ops may write into: of values in the outer block it is
        known which that is."""
        inner = [o for op in ops for block in op.blocks for o in walk(block)]
        changed = set(may_change(self.function, inner))
        for op in ops:
            if op.name in CHANGING:
                changed.update(op.operands[:1] if op.name == "mutate" else op.operands)
        return {storage_of(x) for v in changed for x in _tensors(self.known.get(v))}

    def _is_written(self, value: Any) -> bool:
        return any(storage_of(x) in self.written for x in _tensors(value))

    def farthest(self, start: int) -> Candidate | None:
        """The run that gets farthest, from this op on or from one that it reaches."""
        best = self._longest(start)
        pos = start + 1
        while best is not None and best.stop < self.last:
            if pos == min(best.stop, start + _MOST_STARTS):
                break
            other = self._longest(pos)
            if other is not None and other.stop > best.stop:
                best = other
            pos += 1
        return best

    def _longest(self, start: int) -> Candidate | None:
        """The longest run from this op on; of equal ones the one with the longer axis."""
        if not self._may_be_in(self.ops[start]):
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
            if isinstance(x := self.known.get(v), Tensor)
            for d in range(min(x.dim(), _MOST_DIMS))
            if x.shape[d] > 1
        ]

    def _may_be_in(self, op: Op) -> bool:
        family = op.name.partition(".")[0]
        if op.blocks or op.name in _BARRIERS or opdefs.writes(op.name):
            return False
        if op.name == "mutate" and not is_pointwise_write(op):
            return False
        if op.name not in ("call_torch", "mutate") and family not in ("torch", *_STRUCTURE):
            return False
        if self._asks_a_tensor(op):
            return False
        return all(v in self.known for v in (*op.operands, *op.results))

    def _asks_a_tensor(self, op: Op) -> bool:
        """Asks it which tensor it is, or anything else that a part may answer otherwise?"""
        if op.name in ("py.is", "py.is_not"):
            return all(v.type != t.NONE for v in op.operands)
        is_torch = op.name == "call_torch" or op.name.startswith("torch.")
        gives = any(_tensors(self.known.get(v)) for v in op.results)
        return is_torch and not gives and not opdefs.has_kind(op.name, ("size",))

    def _extended(self, start: int, seeds: dict[int, int], extent: int) -> Candidate | None:
        """As far as it goes, with further operands cut where an op needs that."""
        for _ in range(8):
            run = _Run(start, seeds, extent=extent)
            stop, need = self._follow(run)
            if need is None:
                return self._closed(run, stop)
            tensor, dim = need
            if tensor.shape[dim] != extent or id(tensor) in seeds:
                return self._closed(run, stop)
            seeds = seeds | {id(tensor): dim}
        return None

    def _follow(self, run: _Run) -> tuple[int, tuple[Tensor, int] | None]:
        """Where the run ends, and which operand from before it would have to be cut to go on."""
        outer: set[int] = set()
        for pos in range(run.start, self.last):
            op = self.ops[pos]
            if not self._may_be_in(op):
                return pos, None
            for v in op.operands:
                if v not in run.part:
                    if self._is_written(
                        self.known[v]
                    ):  # when a chunk runs, or runs again, it may be another
                        return pos, None
                    run.part[v] = self._part_of(self.known[v], run)
                    outer |= {id(x) for x in _tensors(self.known[v])}
            try:
                self._step(op, run)
            except Dependent:
                return pos, None
            except Needs as need:
                return pos, self._before(need.tensor, need.dim, outer, run.start, pos)
        return self.last, None

    def _before(
        self, tensor: Tensor, dim: int, outer: set[int], start: int, stop: int
    ) -> tuple[Tensor, int] | None:
        """The operand from before the run that a tensor was made of, with a dim like that one."""
        for pos in range(stop - 1, start - 1, -1):
            if id(tensor) in outer:
                break
            op = self.ops[pos]
            if any(x is tensor for v in op.results for x in _tensors(self.known[v])):
                alike = (
                    x
                    for v in op.operands
                    for x in _tensors(self.known[v])
                    if x.dim() == tensor.dim() and x.shape[dim] == tensor.shape[dim]
                )
                tensor = next(alike, tensor)
        return (tensor, dim) if id(tensor) in outer else None

    def _step(self, op: Op, run: _Run) -> None:
        """One op, on the part too; raises Dependent and Needs."""
        values = [self.known[v] for v in op.operands]
        results = [self.known[v] for v in op.results]
        self._cut(op, values, results, run)
        parts = run_on_meta(op, {v: run.part[v] for v in op.operands})
        if parts is None:
            raise Dependent("does not run on a part")
        run.part.update(zip(op.results, parts, strict=True))
        if len(_tensors(results)) != len(_tensors(parts)):
            raise Dependent("is a list that changes later")
        for whole, part in zip(_tensors(results), _tensors(parts), strict=True):
            if tuple(part.shape) != _part_shape(whole, run.cut.get(id(whole)), run):
                raise Dependent("has another shape on a part")

    def _cut(self, op: Op, values: Sequence[Any], results: Sequence[Any], run: _Run) -> None:
        """Which of the results are cut, and where."""
        if op.name not in ("call_torch", "mutate") and not op.name.startswith("torch."):
            return  # tensors that Python hands on are the same ones
        if opdefs.has_kind(op.name, ("size",)):
            return
        differs = any(_differs(self.known[v], run.part[v]) for v in op.operands)
        if differs and not opdefs.has_kind(op.name, ("view", "composite")):
            raise Dependent("computes with a size")
        if any(id(x) in run.cut for v in values for x in _tensors(v)):
            run.cut |= cut_results(op, values, results, run.cut)
        elif differs:
            raise Dependent("is as large as a part")
        elif not opdefs.has_kind(op.name, ("view", "factory", "pointwise", "copy")):
            raise Dependent("would be computed for each chunk")

    def _part_of(self, value: Any, run: _Run) -> Any:
        """A value from before the run, as a chunk sees it."""
        if isinstance(value, Tensor):
            dim = run.seeds.get(id(value))
            if dim is None:
                return value
            run.cut[id(value)] = dim
            return value.narrow(dim, 0, max(run.extent // 2, 1))
        return value

    # -- where it ends --

    def _closed(self, run: _Run, stop: int) -> Candidate | None:
        """The longest beginning of the run whose results are tensors of their own."""
        while stop > run.start:
            found = self._candidate(run, stop)
            if found is not None:
                return found
            stop -= 1
        return None

    def _candidate(self, run: _Run, stop: int) -> Candidate | None:
        ops = self.ops[run.start : stop]
        inputs = free_values(ops)
        made = [v for op in ops for v in op.results]
        outputs = [v for v in made if v in self.live_at[stop]]
        given = {storage_of(x) for v in inputs for x in _tensors(self.known[v])}
        if not outputs or any(_holds(self.known[v]) for v in (*inputs, *outputs)):
            return None
        for v in outputs:
            value = self.known[v]
            if not isinstance(value, Tensor) and _differs(value, run.part[v]):
                return None
            if isinstance(value, Tensor) and storage_of(value) in given:
                return None  # a view of what was there before
        made_here = {storage_of(x) for v in outputs for x in _tensors(self.known[v])}
        if not made_here.isdisjoint(self._written(self.ops[stop:])):
            return None  # what is joined is no view of another result, nor autograd's to be changed
        if not any(x.nbytes >= LEAST_BYTES for v in made for x in _tensors(self.known[v])):
            return None
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
        )


def _part_shape(whole: Tensor, dim: int | None, run: _Run) -> tuple[int, ...]:
    shape = list(whole.shape)
    if dim is not None:
        if shape[dim] != run.extent:
            raise Dependent("has another extent")
        shape[dim] = max(run.extent // 2, 1)
    return tuple(shape)


def _differs(whole: Any, part: Any) -> bool:
    """Whether a value without tensors is another on a part."""
    return not _tensors(whole) and not (type(whole) is type(part) and whole == part)


def _holds(value: Any) -> bool:
    """Is it a list or the like with tensors in it?"""
    return not isinstance(value, Tensor) and bool(_tensors(value))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [x for v in cast("Sequence[Any]", value) for x in _tensors(v)]
    return []
