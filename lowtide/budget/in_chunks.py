"""A Driver that never stores a tensor of pairs for an op of PyTorch's: it runs both in chunks.

In: a Function. Out: a callable like a Driver. At the first call with some sizes, the ops that make
a value of pairs and the op that reads it become a `section`. Its chunks are of about 4 MB.

    d = ((a[:, None] - b[None]) ** 2).sum(-1)      d: [N, M] of the first rows, and their topk;
    v, i = d.topk(8)                          →    then the same of the next rows, …

A *value of pairs* is at least four times as large as all its operands. Other values that PyTorch's
op reads, such as a large argument, stay as they are. While gradients are recorded, the backward
pass recomputes each chunk, so slow ops (`sort`) stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from lowtide.budget.chunk_forms import in_chunk_form, puts_at_places
from lowtide.budget.effects import ObservedEffects
from lowtide.budget.find import candidates, longest_run
from lowtide.budget.independence import is_lowered
from lowtide.budget.outer import Outer
from lowtide.budget.pairs_again import may_stand_between, with_pairs_again
from lowtide.budget.planned import PlannedDriver
from lowtide.budget.rewrite import UNKNOWN, Known, with_sections
from lowtide.budget.torch_rules import is_pointwise, name_of
from lowtide.diagnostics import faults
from lowtide.execute.backend import Tiles
from lowtide.execute.candidate import Candidate
from lowtide.execute.driver import Driver
from lowtide.ir import effects, opdefs
from lowtide.ir.core import Block, Function, Op, Value, with_block
from lowtide.memory import watching
from lowtide.specialise.signature import Ineligible
from lowtide.specialise.torch_ops import SHARED
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import storage_of

Tensor = torch.Tensor
_ALONG_ROWS: Final = frozenset((
    "topk", "kthvalue", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "cross", "det",
    "inv", "inverse", "solve", "cholesky", "slogdet", "logdet", "cholesky_solve",
    "solve_triangular", "bincount", "histc", "put_in_part",
))  # fmt: skip
_SLOW: Final = frozenset((
    "sort", "argsort", "msort", "median", "nanmedian", "mode", "quantile", "nanquantile",
))  # fmt: skip
_LEAST_NUMBERS: Final = 1 << 11  # of an argument: pairs of fewer take less than `_LEAST_BYTES`
_LEAST_BYTES: Final = 1 << 23  # of a value of pairs
_CHUNK_BYTES: Final = {True: 1 << 22, False: 1 << 26}  # on the CPU, on GPUs
_FEW: Final = 16  # plans distinguish sizes below
_MOST_KNOWN: Final = 256
_TIMES: Final = 4  # as large as what it is made of


def reads_pairs(function: Function) -> bool:
    """Return whether the function's outer block may have ops of PyTorch's that read pairs: those of
    the tables, pointwise ones, writes at indices, and all ops on complex numbers; or one that pairs
    outlive."""
    return may_stand_between(function) or any(
        (op.name == "const" and type(op.attrs["value"]) is complex)
        or puts_at_places(op)
        or (bool(name_of(op)) and _may_read(op))
        for op in function.block.ops
    )


def _may_read(op: Op) -> bool:
    if puts_at_places(op):
        return True
    name = name_of(op)
    is_torch = op.name == "call_torch" or op.name.startswith("torch.")
    return name in _ALONG_ROWS or name in _SLOW or (is_torch and is_pointwise(op))


class ChunkedDriver(PlannedDriver[Driver]):
    """See the module's text. `_without`: the arguments, by `_about`, for which there was nothing to
    cut: sizes that grow, and numbers that count calls, are not searched for each time."""

    def __init__(self, function: Function, *, tiles: Tiles = "usual") -> None:
        super().__init__(function, tiles=tiles)
        self._without: set[Any] = set()
        self._reads_floats = any(name_of(op) == "histc" for op in function.block.ops)

    def __call__(self, args: Sequence[Any]) -> Any:
        """See the base class."""
        if self.demands is not None and (why := self.demands.unmet(args)):
            raise Ineligible(why)
        return self.planned(args)(args)

    def planned(self, args: Sequence[Any]) -> Driver:
        """Return the driver for these arguments."""
        # There may be many parameters, whose sizes hardly change.
        others = tensors_in([x for x in args if type(x) is not torch.nn.Parameter])
        about = torch.is_grad_enabled(), *(_about(x) for x in others if not x.is_nested)
        if about in self._without:
            return self._plain
        if not any(not x.is_nested and x.numel() >= _LEAST_NUMBERS for x in tensors_in(args)):
            return self._plain
        found = self._plan_of(args)
        if found is self._plain:
            if len(self._without) >= _MOST_KNOWN:
                self._without.clear()
            self._without.add(about)
        return found

    def _search(self, args: Sequence[Any]) -> Driver:
        try:
            with watching.aside():
                outer = Outer(self._plain, args)
                for rewritten in (_in_chunk_form, _with_small_ops_first):
                    function = rewritten(outer)
                    if function is not outer.function:
                        outer = Outer(Driver(function), args)
                chunks = dict(_runs(outer))
                function = _with_ops(
                    outer.function, with_pairs_again(outer, list(chunks), _LEAST_BYTES, _TIMES)
                )
                if function is not outer.function:
                    outer = Outer(Driver(function), args)
                    chunks = dict(_runs(outer))
                function = outer.function
        except Exception as fault:
            faults.survive(fault, f"{self.function.name}: what can be done in chunks")
            return self._plain
        if not chunks and function is self.function:
            return self._plain
        known = Known(sources=ObservedEffects(outer).sources) if outer.records else UNKNOWN
        return Driver(with_sections(function, chunks, {}, known=known), tiles=self.tiles)


def _about(x: Tensor) -> tuple[object, ...]:
    """Return the dtype and sizes, to a quarter of a power of two."""
    sizes = (n if n < _FEW else round(4 * math.log2(n)) + _FEW for n in x.shape)
    return x.dtype, x.requires_grad, *sizes


def _runs(outer: Outer) -> Iterator[tuple[Candidate, int]]:
    """Yield the runs that are done in chunks, and how many chunks."""
    stop = 0
    for pos in range(outer.last):
        start = _first(outer, pos) if pos >= stop else None
        if start is None:
            continue
        run = _run_over(outer, max(start, stop), pos)
        if run is None:
            continue
        count = math.ceil(_stored_bytes(outer, run) / _CHUNK_BYTES[outer.on_host])
        if (count := run.more(1, count)) > 1:
            yield run, count
            stop = run.stop


def _run_over(outer: Outer, start: int, pos: int) -> Candidate | None:
    """Return a run from `start`, or from where one can begin, that has the op at `pos`. It ends
    with the last op that reads pairs: what follows is done once, and views are PyTorch's."""
    later = range(pos + 1, outer.last)
    end = next((k for k in later if outer.ops[k].attrs.get(SHARED)), outer.last)
    run = longest_run(outer, start, end)
    if run is not None and run.stop > pos:
        last = max(k for k in range(pos, run.stop) if k == pos or _reads_pairs(outer, k))
        shorter = longest_run(outer, start, last + 1)
        return shorter if shorter is not None and shorter.stop > pos else run
    return next((c for c in candidates(outer, start, pos + 1) if c.stop > pos), None)


def _in_chunk_form(outer: Outer) -> Function:
    """Rewrite the ops between those that make pairs and those of PyTorch's that read them."""
    reach = [(first, pos) for pos in range(outer.last) if (first := _first(outer, pos)) is not None]
    if not reach:
        return outer.function
    ops, begin, end = list(outer.ops), min(a for a, _ in reach), max(b for _, b in reach)
    in_chunk_form(outer, ops, begin, end + 1, _LEAST_BYTES)
    return _with_ops(outer.function, ops)


def _with_small_ops_first(outer: Outer) -> Function:
    """Move ops that do not depend on pairs in front of those that make them. Their results are then
    operands of the section, which may read both the whole and a part. Numbers that they read are
    copied, because constants of the section are constants of its kernels."""
    ops = list(outer.ops)
    makers = {v: op for op in ops for v in op.results}
    for pos in range(outer.last):
        first = _first(outer, pos)
        if first is None:
            continue
        begin, end = ops.index(outer.ops[first]), ops.index(outer.ops[pos])
        between = ops[begin:end]
        moved = _movable(outer, between, makers)
        inside = {v: op for op in between for v in op.results}
        ids = {id(op) for op in moved}
        left = [op for op in between if id(op) not in ids]
        ops[begin:end] = _with_own_numbers(moved, inside) + left
    return _with_ops(outer.function, ops)


def _with_ops(function: Function, ops: list[Op]) -> Function:
    if ops == list(function.block.ops):
        return function
    return with_block(function, Block(function.block.args, ops))


def _movable(outer: Outer, ops: Sequence[Op], makers: Mapping[Value, Op]) -> list[Op]:
    """Return the ops that make small tensors from values before `ops`, up to an op that may change
    those values."""
    pairs, moved = set[Value](), list[Op]()
    for op in ops:
        if not opdefs.is_removable(op, makers):
            break
        is_tensor = any(map(outer.tensors, op.results))
        is_small = all(_nbytes(outer, v) < _LEAST_BYTES for v in op.results)
        if not pairs.isdisjoint(op.operands) or not is_small or op.blocks:
            pairs.update(op.results)
        elif is_tensor and (opdefs.is_shareable(op, makers) or _makes_only(outer, op, makers)):
            moved.append(op)
        elif is_tensor:
            pairs.update(op.results)
    return moved


def _makes_only(outer: Outer, op: Op, makers: Mapping[Value, Op]) -> bool:
    """Return whether the op makes a tensor that nothing writes into later."""
    is_written = any(outer.is_written(storage_of(x), 0) for x in outer.tensors(op.results[0]))
    return not is_written and not opdefs.effects_of(op, makers) & effects.Effects.READS


def _with_own_numbers(moved: Sequence[Op], inside: Mapping[Value, Op]) -> list[Op]:
    """Return the ops, each number that they read made in front of them."""
    found, made = list[Op](), {v: v for op in moved for v in op.results}

    def number(v: Value) -> Value:
        if v in made or v not in inside:
            return made.get(v, v)
        maker = inside[v]
        made.update((r, Value(r.name, r.type)) for r in maker.results)
        operands = [number(o) for o in maker.operands]
        found.append(replace(maker, operands=operands, results=[made[r] for r in maker.results]))
        return made[v]

    for op in moved:
        operands = [number(v) for v in op.operands]
        found.append(replace(op, operands=operands))
    return found


def _first(outer: Outer, pos: int) -> int | None:
    """Return the first of the ops that make the value of pairs that PyTorch's op at `pos` reads;
    None if it reads none."""
    op = outer.ops[pos]
    if not _may_read(op) or (outer.records and name_of(op) in _SLOW):
        return None
    if is_lowered(op, [outer.known.get(v) for v in op.operands]):
        return None
    read = max(op.operands, key=lambda v: _nbytes(outer, v), default=None)
    return _origin(outer, read) if read and _nbytes(outer, read) >= _LEAST_BYTES else None


def _origin(outer: Outer, pairs: Value) -> int | None:
    """Return the first op that makes values nearly as large; None if one of them is given."""
    makers = {v: k for k, op in enumerate(outer.ops) for v in op.results}
    least = _numel(outer, pairs) / _TIMES
    first, seen, left = len(outer.ops), set[Value](), [pairs]
    while left:
        v = left.pop()
        if v in seen:
            continue
        seen.add(v)
        if v not in makers:
            return None
        first = min(first, makers[v])
        left += [o for o in outer.ops[makers[v]].operands if _numel(outer, o) >= least]
    return first


def _reads_pairs(outer: Outer, pos: int) -> bool:
    return any(_nbytes(outer, v) >= _LEAST_BYTES for v in outer.ops[pos].operands)


def _stored_bytes(outer: Outer, run: Candidate) -> int:
    """Return the most bytes that one op of PyTorch's reads and gives in the run."""
    return max(
        sum(_nbytes(outer, v) for v in {*op.operands, *op.results})
        for op in outer.ops[run.start : run.stop]
        if not is_lowered(op, [outer.known.get(v) for v in op.operands])
    )


def _nbytes(outer: Outer, v: Value) -> int:
    return sum(x.nbytes for x in outer.tensors(v))


def _numel(outer: Outer, v: Value) -> int:
    return sum(x.numel() for x in outer.tensors(v))
