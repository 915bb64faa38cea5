"""Finds loops that can run in chunks of steps, and builds the block of one chunk.

In: an op `loop` of the outer block, with its values on the meta device. Out: a `Candidate` with the
block of a chunk, or None.

    outs = []                             %h', %ys = section(%n, %h, %x, %w) {carried=1, …}
    for t in range(n):                      block(%first, %size, %h, %x, %w):
        h = f(x[t], h, w, t)       →          outs = []
        outs.append(h)                        for i in range(size): h = f(x[i], h, w, first + i)
    ys = torch.stack(outs)                                          outs.append(h)
                                              yield(h, torch.stack(outs))

Invariant: the steps run in their order, and the sizes of their values are equal, since the index is
used only in arithmetic and to read items `x[±t + const]`. The loop writes no outer tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch

from lowtide.execute.candidate import LEAST_BYTES, Candidate
from lowtide.execute.cut import Cut
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.aliases import CHANGING
from lowtide.ir.core import Block, Function, Op, Value, clone_block, free_values, walk, with_block
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.evolution import Evolution, evolution
from lowtide.passes.ir_queries import Makers, constant, make_constant, makers_of
from lowtide.specialise.signature import SMALL
from lowtide.torch_private.tensors import storage_of

Tensor = torch.Tensor
_JOINING: Final = ("torch.stack", "torch.cat")
_ARITHMETIC: Final = ("py.add", "py.sub", "py.mul", "py.neg")
_FAMILIES: Final = ("torch", "const", "cast", "tuple", "unpack", "py", "math")


@dataclass(frozen=True, slots=True)
class _Read:
    """An op of the body that reads one item of `tensor` in each step. `place`: the position of the
    operand that is the item's index."""

    op: Op
    place: int
    tensor: Value
    cut: Cut


@dataclass(slots=True)
class _Collected:
    """A list to which each step appends, and the op that joins it after the loop."""

    made: Op
    joined: Op
    dim: int


class Loops:
    """The loops of one Function."""

    def __init__(
        self,
        function: Function,
        known: Mapping[Value, Any],
        changed: frozenset[Value],
        fixed: frozenset[Value],
        records: bool,
    ) -> None:
        self.function = function
        self.records = records  # whether gradients are recorded
        self.known = known
        self.fixed = fixed  # see `plan_key`
        self.changed = changed
        self.makers = makers_of(function)
        self.uses = Counter(v for op in function.walk() for v in op.operands)
        self.readers = {v: op for op in function.block.ops for v in op.operands}

    def candidate(self, pos: int) -> Candidate | None:
        """Return the loop at this position of the outer block, if it can run in chunks."""
        op = self.function.block.ops[pos]
        trips = self.known.get(op.operands[0])
        if not isinstance(trips, int) or trips <= SMALL or not is_counted(op, self.makers):
            return None
        if not self._carries_tensors(op):
            return None
        found = _Loop(self, op, trips)
        lists = found.collected()
        if lists is None or not found.is_plain(lists):
            return None
        reads = found.reads()
        if reads is None or not self._is_large(trips, op.results, lists, reads):
            return None
        return found.made(pos, lists, reads)

    def _carries_tensors(self, op: Op) -> bool:
        """Return whether each carried value keeps its shape and dtype, and has its own memory."""
        rows = zip(op.operands[2:], op.results, strict=True)
        places: set[int] = set()
        for before, after in rows:
            a, b = self.known.get(before), self.known.get(after)
            if not isinstance(a, Tensor) or not isinstance(b, Tensor):
                return False
            if a.shape != b.shape or a.dtype != b.dtype:
                return False
            places.add(storage_of(b))
        return len(places) == len(op.results)

    def _is_large(
        self,
        trips: int,
        results: Sequence[Value],
        lists: Sequence[_Collected],
        reads: Sequence[_Read],
    ) -> bool:
        """Return whether a value with a row for each step is large, so that chunks pay. Carried
        values count if gradients are recorded, since each step saves them."""
        values = (*(c.joined.result for c in lists), *(r.tensor for r in reads))
        sizes = [x.nbytes for v in values if isinstance(x := self.known.get(v), Tensor)]
        if self.records:
            sizes += [
                trips * x.nbytes for v in results if isinstance(x := self.known.get(v), Tensor)
            ]
        return any(n >= LEAST_BYTES for n in sizes)


def is_counted(loop: Op, makers: Makers) -> bool:
    """Return whether the loop has no early exit: its conditions are constant and true."""
    going = loop.operands[1], loop.blocks[0].terminator.operands[0]
    return all(constant(v, makers) is True for v in going)


@dataclass(slots=True)
class _Loop:
    """The analysis of one loop."""

    around: Loops
    op: Op
    trips: int
    forms: dict[Value, Evolution] = field(default_factory=dict[Value, Evolution])

    @property
    def body(self) -> Block:
        return self.op.blocks[0]

    def collected(self) -> list[_Collected] | None:
        """Return the lists that the loop appends to; None if one of them is used elsewhere."""
        found: dict[Value, _Collected] = {}
        added: Counter[Value] = Counter()
        for op in self.body.ops:
            if op.name != "list.append":
                continue
            grown = op.operands[0]
            added[grown] += 1
            row = found.get(grown) or self._list(grown)
            if row is None or self.around.uses[op.result]:
                return None
            found[grown] = row
        alone = all(self.around.uses[v] == n + 1 for v, n in added.items())
        return list(found.values()) if alone else None

    def _list(self, grown: Value) -> _Collected | None:
        made, joined = self.around.makers.get(grown), self.around.readers.get(grown)
        if made is None or made.name != "list.make" or made.operands:
            return None
        if joined is None or joined.name not in _JOINING or joined.operands[0] is not grown:
            return None
        whole = self.around.known.get(joined.result)
        dim = self._number(joined.operands[1])
        if not isinstance(whole, Tensor) or dim is None:
            return None
        dim %= whole.dim()
        return _Collected(made, joined, dim) if whole.shape[dim] % self.trips == 0 else None

    def is_plain(self, lists: Sequence[_Collected]) -> bool:
        """Return whether the body only computes, and appends to these lists."""
        own = {c.made.result for c in lists}
        for op in walk(self.body):
            if op.name == "list.append" and op.operands[0] in own and op in self.body.ops:
                continue
            if op.name in ("yield", "loop"):
                continue  # but no `if`: its results might have other sizes in each step
            if op.name in CHANGING or opdefs.writes(op.name):
                return False
            if op.name != "call_torch" and op.name.partition(".")[0] not in _FAMILIES:
                return False
        outside = free_values([self.op])
        known = all(v in self.around.known for v in outside)
        known = known and all(_is_plain(self.around.known[v]) for v in outside if v not in own)
        return known and not self.around.changed.intersection((*outside, *self.op.results))

    def reads(self) -> list[_Read] | None:
        """Return the reads of items of outer tensors; None if the step's index has other uses."""
        index = self.body.args[0]
        self.forms = {index: Evolution(None, 1, 0)}
        found: list[_Read] = []
        for op in walk(self.body):
            places = [k for k, v in enumerate(op.operands) if v in self.forms]
            if not places:
                continue
            if op.name in _ARITHMETIC:
                form = evolution(op.result, index, self.around.makers, self._number)
                if form.base is not None:
                    return None
                self.forms[op.result] = form
            elif op.name in ("torch.getitem", "torch.select"):
                read = self._read(op, places)
                if read is None:
                    return None
                found.append(read)
            elif not opdefs.has_kind(op.name, ("pointwise",)):
                return None
        return found

    def _number(self, v: Value) -> int | None:
        found = constant(v, self.around.makers)
        if v in self.around.fixed:
            found = self.around.known.get(v, found)
        return found if type(found) is int else None

    def _read(self, op: Op, places: Sequence[int]) -> _Read | None:
        """Return the read `x[..., t, ...]` of an outer tensor."""
        tensor = op.operands[0]
        whole = self.around.known.get(tensor)
        if len(places) != 1 or not isinstance(whole, Tensor) or tensor in self.body.args:
            return None
        (place,) = places
        dim = self._dim(op, place, whole.dim())
        form = self.forms[op.operands[place]]
        if dim is None or abs(form.step) != 1:
            return None
        ends = form.offset, form.offset + form.step * (self.trips - 1)
        if min(ends) < 0 or max(ends) >= whole.shape[dim]:
            return None
        return _Read(op, place, tensor, Cut(dim, form.offset, form.step))

    def _dim(self, op: Op, place: int, rank: int) -> int | None:
        """Return the dim of the tensor that the operand at this position indexes."""
        if op.name == "torch.select":
            dim = self._number(op.operands[1]) if place == 2 else None
            return None if dim is None else dim % rank
        spec = cast("tuple[str, ...]", op.attrs["spec"])
        if not {"int", "slice", "none", "ellipsis"}.issuperset(spec):
            return None
        taken = sum(word in ("int", "slice") for word in spec)
        dim, operand = 0, 1
        for word in spec:
            if operand == place and word == "int":
                return dim
            dim += {"none": 0, "ellipsis": rank - taken}.get(word, 1)
            operand += opdefs.Indexing.ARITY[word]
        return None

    # -- the candidate --

    def made(self, pos: int, lists: Sequence[_Collected], reads: Sequence[_Read]) -> Candidate:
        """Return the candidate, with the block of a chunk."""
        count = len(self.op.results)
        cuts = dict.fromkeys((r.tensor, r.cut) for r in reads)
        taken = {id(r.op) for r in reads}
        whole = dict.fromkeys(self._whole(taken, {c.made.result for c in lists}))
        block = _LoopChunk(self, cuts, whole).block(lists, reads)
        bare = eliminate_dead_code(with_block(self.around.function, block)).block
        return Candidate(
            start=pos,
            stop=pos + 1,
            inputs=(*self._first_operands(), *(x for x, _ in cuts), *whole),
            outputs=(*self.op.results, *(c.joined.result for c in lists)),
            extent=self.trips,
            cuts=(*[None] * (1 + count), *(c for _, c in cuts), *[None] * len(whole)),
            joins=(*[None] * count, *(c.dim for c in lists)),
            carried=count,
            block=bare,
            moved=tuple(op for c in lists for op in (c.made, c.joined)),
        )

    def _first_operands(self) -> tuple[Value, ...]:
        return (self.op.operands[0], *self.op.operands[2:])

    def _whole(self, taken: set[int], own: set[Value]) -> Iterator[Value]:
        """Yield the outer values that the body reads as a whole, not by one item a step."""
        outside = set(free_values(self.body.ops)) - set(self.body.args) - own
        for op in walk(self.body):
            operands = op.operands[1:] if id(op) in taken else op.operands
            yield from (v for v in operands if v in outside)


def _is_plain(value: object) -> bool:
    """Return whether the value is a tensor or contains none: the autograd function of a section
    would miss a tensor in a container."""
    if isinstance(value, tuple | list):
        return not any(
            isinstance(v, Tensor) or not _is_plain(v) for v in cast("list[object]", value)
        )
    return value is None or isinstance(
        value, Tensor | int | float | complex | str | torch.dtype | torch.device
    )


class _LoopChunk:
    """Builds the block of a chunk."""

    def __init__(
        self, loop: _Loop, cuts: Mapping[tuple[Value, Cut], None], whole: Mapping[Value, None]
    ) -> None:
        self.loop = loop
        self.first, self.size = Value("first", t.INT), Value("size", t.INT)
        self.carried = [Value(v.name, v.type) for v in loop.op.operands[2:]]
        self.parts = {key: Value(key[0].name, key[0].type) for key in cuts}
        self.whole = {v: Value(v.name, v.type) for v in whole}

    def block(self, lists: Sequence[_Collected], reads: Sequence[_Read]) -> Block:
        """Return the block; see the module's text."""
        op = self.loop.op
        mapping = dict(self.whole)
        ops: list[Op] = []
        for row in lists:
            grown = mapping[row.made.result] = Value(row.made.result.name, row.made.result.type)
            ops.append(Op(name="list.make", results=[grown], loc=row.made.loc))
        size = self._size(ops)
        going = self._constant(ops, True, t.BOOL)
        last = self._op(ops, "py.sub", size, self._constant(ops, 1, t.INT))
        results = [Value(r.name, r.type) for r in op.results]
        ops.append(
            Op(
                name="loop",
                operands=[size, going, *self.carried],
                results=list(results),
                blocks=[self._body(mapping, reads, last)],
                loc=op.loc,
            )
        )
        for row in lists:
            joined = Value(row.joined.result.name, row.joined.result.type)
            dim = self._constant(ops, row.dim, t.INT)
            operands = [mapping[row.made.result], dim]
            ops.append(
                Op(name=row.joined.name, operands=operands, results=[joined], loc=row.joined.loc)
            )
            results.append(joined)
        ops.append(Op(name="yield", operands=results, loc=op.loc))
        args = (self.first, self.size, *self.carried, *self.parts.values(), *self.whole.values())
        return Block(list(args), ops)

    def _size(self, ops: list[Op]) -> Value:
        """Return the number of steps. If an operand is cut, it is the size of its part, so that
        indices are known to be in range."""
        for (_, cut), part in self.parts.items():
            return self._op(ops, "torch.size.dim", part, self._constant(ops, cut.dim, t.INT))
        return self.size

    def _body(self, mapping: dict[Value, Value], reads: Sequence[_Read], last: Value) -> Block:
        body = self.loop.body
        step = Value(body.args[0].name, t.INT)
        ops: list[Op] = []
        index = self._op(ops, "py.add", self.first, step)
        back = self._op(ops, "py.sub", last, step)
        inner = clone_block(body, dict(mapping))
        mapping = {inner.args[0]: index}
        by_op = {id(r.op): r for r in reads}
        for old, new in zip(walk(body), walk(inner), strict=True):
            new.operands = [mapping.get(v, v) for v in new.operands]
            read = by_op.get(id(old))
            if read is not None:
                new.operands[0] = self.parts[read.tensor, read.cut]
                new.operands[read.place] = step if read.cut.step > 0 else back
        return Block([step, *inner.args[1:]], [*ops, *inner.ops])

    def _constant(self, ops: list[Op], value: object, kind: t.Type) -> Value:
        result = Value("", kind)
        ops.append(make_constant(result, value, self.loop.op))
        return result

    def _op(self, ops: list[Op], name: str, *operands: Value) -> Value:
        result = Value("", t.INT)
        ops.append(Op(name=name, operands=list(operands), results=[result], loc=self.loop.op.loc))
        return result
