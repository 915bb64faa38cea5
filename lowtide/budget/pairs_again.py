"""Recomputes values of pairs that would be stored for ops after one that ends a region.

In: an `Outer`, and the runs of ops that are done in chunks. Out: the block's ops, of which some
stand there twice.

    d = squared(a, b)                  d = squared(a, b)         in chunks, with topk
    v, i = d.topk(8)            →      v, i = d.topk(8)
    return v, d.amin(0)                d' = squared(a, b)
                                       return v, d'.amin(0)      a kernel, which does not store d'

The same holds for a `print`, for a branch with one, which makes the pairs that it reads itself, and
for changes of buffers and objects. Only values whose elements are short formulas of small operands
are recomputed: without float sums of more than eight terms. Two kernels may add up a longer sum in
different orders, and the program may compare what it finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from lowtide.budget.independence import is_lowered, program_of
from lowtide.budget.outer import Outer, is_torch
from lowtide.execute.candidate import Candidate
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone_block, free_values, walk
from lowtide.specialise.region_boundaries import static_reason
from lowtide.specialise.stand_ins import NUMBERS
from lowtide.specialise.torch_ops import SHARED
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import UNROLL_EXTENT
from lowtide.texpr.expr import Reduce
from lowtide.torch_private.tensors import storage_of

_MOST_OPS: Final = 40


def ends_in_branch(op: Op) -> bool:
    """Return whether the op is a branch in which something ends a region, such as a `print`."""
    return op.name == "if" and any(static_reason(o) for b in op.blocks for o in walk(b))


def reads_numbers(op: Op) -> bool:
    """Return whether the op makes Python's numbers of a tensor, such as `.tolist()` or `int`."""
    if op.name in ("py.int", "py.bool"):
        return op.operands[0].type == t.TENSOR
    types = {part for v in op.results for part in t.types_in(v.type)}
    return op.name == "call_torch" and t.TENSOR not in types


def may_stand_between(function: Function) -> bool:
    """Return whether the outer block has an op that ends a region for its effect: a `print`, a
    branch with one, a read of numbers, a change of an object or of a tensor by what was computed.
    """
    constants = {v for op in function.block.ops if op.name == "const" for v in op.results}
    return any(
        op.name in ("print", "attr.set")
        or ends_in_branch(op)
        or reads_numbers(op)
        or (op.name == "mutate" and not constants.issuperset(op.operands[1:]))
        for op in function.block.ops
    )


def with_pairs_again(outer: Outer, runs: Sequence[Candidate], least: int, times: int) -> list[Op]:
    """Return the ops; see the module's text. A value of pairs has `least` bytes, and `times` as
    many elements as the operands of its formula."""
    return _Recomputing(outer, runs, least, times).ops()


class _Recomputing:
    def __init__(self, outer: Outer, runs: Sequence[Candidate], least: int, times: int) -> None:
        self.outer = outer
        self.least, self.times = least, times
        self.makers = {v: op for op in outer.ops for v in op.results}
        self.place = {v: k for k, op in enumerate(outer.ops) for v in op.results}
        self.inside = {k: run for run in runs for k in range(run.start, run.stop)}
        self.ends = self._ends()
        self.chains: dict[Value, list[Op] | None] = {}

    def ops(self) -> list[Op]:
        """Return the block's ops, with clones after each end of a region whose later ops read
        pairs."""
        before: dict[int, list[Op]] = {}
        clones: dict[int, dict[Value, Value]] = {}
        renamed: dict[int, dict[Value, Value]] = {}
        branches: dict[int, list[Block]] = {}
        doubled = set[Value]()
        for k, op in enumerate(self.outer.ops):
            if ends_in_branch(op):
                branches[k] = [self._branch(block, doubled) for block in op.blocks]
                continue
            for v in dict.fromkeys(free_values([op])):
                end = self._end_between(v, k)
                chain = self._chain(v) if end is not None else None
                if end is None or chain is None:
                    continue
                known = clones.setdefault(end, {})
                before.setdefault(end, []).extend(self._cloned(chain, known))
                renamed.setdefault(k, {})[v] = known[v]
        doubled.update(v for known in clones.values() for v in known)
        if not doubled:
            return list(self.outer.ops)
        found: list[Op] = []
        for k, op in enumerate(self.outer.ops):
            found += before.get(k, [])
            names = renamed.get(k, {})
            if not doubled.isdisjoint(op.results):
                op = _shared(op, False)
            if names:
                op = replace(op, operands=[names.get(v, v) for v in op.operands])
            found.append(replace(op, blocks=branches[k]) if k in branches else op)
        return found

    def _branch(self, block: Block, doubled: set[Value]) -> Block:
        """Return a branch that makes the pairs that it reads."""
        made, known = list[Op](), dict[Value, Value]()
        for v in dict.fromkeys(free_values(block.ops)):
            if self._nbytes(v) >= self.least and not self._is_stored(v):
                made += self._cloned(self._chain(v) or (), known)
        if not made:
            return block
        doubled.update(known)
        copy = clone_block(block, dict(known))
        return Block(copy.args, [*made, *copy.ops])

    def _ends(self) -> list[int]:
        """Return the positions after ops that end a region, or after runs in chunks."""
        found = {run.stop for run in self.inside.values()}
        for k, op in enumerate(self.outer.ops[: self.outer.last]):
            if k not in self.inside and self._ends_region(op):
                found.add(k + 1)
        return sorted(found)

    def _ends_region(self, op: Op) -> bool:
        if op.name == "mutate" and self._is_callers(op.operands[0]):
            return True
        if is_torch(op) or op.name == "mutate":
            return not is_lowered(op, self._operands(op))
        return bool(static_reason(op)) or ends_in_branch(op) or reads_numbers(op)

    def _operands(self, op: Op) -> list[Any]:
        """Return an op's operands; any number in the place of one that only the data knows."""
        return [self.outer.known.get(v, NUMBERS.get(v.type)) for v in op.operands]

    def _is_callers(self, v: Value) -> bool:
        return any(storage_of(x) in self.outer.given for x in self.outer.tensors(v))

    def _end_between(self, v: Value, reader: int) -> int | None:
        """Return the last end between the op that makes a value of pairs and one that reads it;
        None if there is none, or if the value is stored in any case."""
        made = self.place.get(v)
        if made is None or reader in self.inside or self._nbytes(v) < self.least:
            return None
        ends = [e for e in self.ends if made < e <= reader]
        return None if not ends or self._is_stored(v) else ends[-1]

    def _is_stored(self, v: Value) -> bool:
        """Return whether an op that is not done in chunks reads the value as it is."""
        return any(
            v in free_values([op])
            and k not in self.inside
            and (
                any(v in b.ops[-1].operands for b in op.blocks)
                if ends_in_branch(op)
                else k >= self.outer.last or op.blocks or self._ends_region(op)
            )
            for k, op in enumerate(self.outer.ops)
        )

    def _chain(self, v: Value) -> list[Op] | None:
        """Return the ops that make a value from small ones, in order; None if it is not to be
        recomputed."""
        if v not in self.chains:
            found: dict[int, Op] = {}
            is_short = self._collect(v, self._numel(v) / self.times, found)
            self.chains[v] = [found[k] for k in sorted(found)] if is_short else None
        return self.chains[v]

    def _collect(self, v: Value, large: float, found: dict[int, Op]) -> bool:
        """Add the ops that make a value from tensors of at most `large` elements, and its numbers.
        Return False if that cannot be done."""
        place = self.place.get(v)
        if place is None:
            return not self.outer.tensors(v)
        if place in found:
            return True
        op = self.outer.ops[place]
        if t.is_number(v.type) and not self._is_plain(op):
            return True  # it is at hand; constants are repeated, since kernels are made for them
        is_short = self._is_short(op) if self.outer.tensors(v) else self._is_plain(op)
        if len(found) >= _MOST_OPS or not is_short:
            return False
        found[place] = op
        for o in op.operands:
            tensors = self.outer.tensors(o)
            if any(self.outer.is_written(storage_of(x), 0) for x in tensors):
                return False
            is_small = bool(tensors) and all(x.numel() <= large for x in tensors)
            if not is_small and not self._collect(o, large, found):
                return False
        return True

    def _is_plain(self, op: Op) -> bool:
        return not op.blocks and opdefs.is_removable(op, self.makers)

    def _is_short(self, op: Op) -> bool:
        """Return whether the op's results are short formulas, which any kernel computes alike."""
        if not op.name.startswith("torch.") or op.blocks:
            return False
        if not (opdefs.is_removable(op, self.makers) and all(map(self._is_free, op.results))):
            return False
        program = program_of(op, self._operands(op))
        reduces = [
            node
            for d in (program.defs.values() if program is not None else ())
            for node in ex.walk(d.expr)
            if isinstance(node, Reduce)
        ]
        return program is not None and all(map(_is_written_out, reduces))

    def _is_free(self, v: Value) -> bool:
        """Return whether nothing writes into the value's memory."""
        return not any(self.outer.is_written(storage_of(x), 0) for x in self.outer.tensors(v))

    def _cloned(self, chain: Iterable[Op], known: dict[Value, Value]) -> list[Op]:
        """Return copies of ops, without those whose results are `known`."""
        made: list[Op] = []
        for op in chain:
            if op.results[0] in known:
                continue
            known.update((r, Value(r.name, r.type)) for r in op.results)
            operands = [known.get(v, v) for v in op.operands]
            copy = replace(op, operands=operands, results=[known[r] for r in op.results])
            made.append(_shared(copy, True))
        return made

    def _nbytes(self, v: Value) -> int:
        return sum(x.nbytes for x in self.outer.tensors(v))

    def _numel(self, v: Value) -> int:
        return sum(x.numel() for x in self.outer.tensors(v))


def _shared(op: Op, is_second: bool) -> Op:
    if not op.name.startswith("torch."):
        return op
    return replace(op, attrs={**op.attrs, SHARED: is_second})


def _is_written_out(node: Reduce) -> bool:
    extents = [a.extent.const for a in node.axes]
    known = [n for n in extents if n is not None]
    return len(known) == len(extents) and math.prod(known) <= UNROLL_EXTENT
