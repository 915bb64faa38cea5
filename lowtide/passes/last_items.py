"""A loop that appends to a list and reads `xs[-1]` carries the last item as a variable.

In, out: a Function. Invariant: the items that are read are the same objects. The function makes
the list, nothing else refers to it, and each step adds exactly one item.

    hs = [h0]                                   hs = [h0]
    loop(%n):                                   %last = loop(%n, h0):
      block(%t):                                  block(%t, %h):
        %h: Tensor = list.get(%hs, %-1)    →
        %g: Tensor = torch.tanh(%h)                 %g: Tensor = torch.tanh(%h)
        list.append(%hs, %g)                        list.append(%hs, %g)
    hs[-1]                                          yield(%g)
                                                %last

Then a recurrence through a list is like any other recurrence. `hs[t]`, where t counts the steps, is
also the last item; after `hs.insert(0, g)`, `hs[0]` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone, walk
from lowtide.ir.types import ListType
from lowtide.passes.evolution import evolution, number_of
from lowtide.passes.ir_queries import constant, drop, final, makers_of, users_of, with_inner
from lowtide.passes.run import only_with

_READERS: Final = ("torch.stack", "torch.cat", "list.get", "py.len", "list.slice", "list.of")
_WRITERS: Final = ("list.append", "list.insert", "list.extend", "list.reverse")
_DEEPEST: Final = 8  # so many items are carried at most


@only_with("loop")
def carry_last_items(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    _Items(result).block(result.block)
    return result


@dataclass(slots=True)
class _Known:
    """The items at one end of a list, from there on; all of them, if `is_whole`."""

    items: list[Value]
    is_whole: bool
    in_front: bool = False


@dataclass(frozen=True, slots=True)
class _Added:
    """The item that each step of a loop adds to a list, and the op of the body that adds it."""

    op: Op
    place: int
    item: Value
    in_front: bool


class _Items:
    def __init__(self, fn: Function) -> None:
        self.makers = makers_of(fn)
        self.users = users_of(fn)
        self.stand_ins: dict[Value, Value] = {}

    def block(self, block: Block, given: Mapping[Value, _Known] | None = None) -> None:
        """Replace the reads in a block. `given`: what is known of lists at its start."""
        known = dict(given or {})
        kept: list[Op] = []
        for op in block.ops:
            self.replace(op)
            for inner in op.blocks:
                self.block(inner, known if op.name == "if" else None)
            if op.name == "loop":
                for xs in [xs for xs in known if _touches(op, xs)]:
                    after = self.carried(op, xs, known[xs])
                    if after is None:
                        del known[xs]
                    else:
                        known[xs] = after
            elif op.blocks:
                known = {xs: k for xs, k in known.items() if not _touches(op, xs)}
            elif op.name == "list.get" and op.operands[0] in known:
                item = self.item(known[op.operands[0]], op)
                if item is not None:
                    self.stand_ins[op.result] = item
                    continue
            elif op.name == "list.make" and self.is_private(op.result):
                known[op.result] = _Known(list(op.operands[::-1]), True)
            elif op.name in _WRITERS and op.operands[0] in known:
                self.written(op, known)
            kept.append(op)
        block.ops = kept

    def replace(self, op: Op) -> None:
        op.operands = [final(v, self.stand_ins) for v in op.operands]

    def is_private(self, xs: Value) -> bool:
        """Return whether only ops on lists read or change the list."""
        return isinstance(xs.type, ListType) and all(
            u.name in (*_READERS, *_WRITERS) and u.operands[0] is xs and xs not in u.operands[1:]
            for u in self.users[xs]
        )

    def item(self, known: _Known, get: Op) -> Value | None:
        """Return the carried item that an op outside of loops reads, else None."""
        at = number_of(get.operands[1], self.makers)
        if at is None or known.is_whole:
            return None
        place = at if known.in_front else -at - 1
        return known.items[place] if 0 <= place < len(known.items) else None

    def written(self, op: Op, known: dict[Value, _Known]) -> None:
        """Update what is known of a list after an op outside of loops has changed it."""
        xs = op.operands[0]
        if op.name == "list.append" and not known[xs].in_front:
            known[xs] = _Known([op.operands[1], *known[xs].items], known[xs].is_whole)
        else:
            del known[xs]

    # -- loops --

    def carried(self, loop: Op, xs: Value, known: _Known) -> _Known | None:
        """Carry the items that the steps read as variables. Return what is known of the list after
        the loop."""
        added = self.added(loop, xs)
        if added is None or xs.type != ListType(t.TENSOR):
            return None
        if added.in_front and not (known.is_whole or known.in_front):
            return None
        if known.in_front and not added.in_front:
            return None
        items = known.items[::-1] if added.in_front and known.is_whole else known.items
        reads = dict(self.reads(loop, xs, added, len(items) if known.is_whole else None))
        depth = max(reads.values(), default=-1) + 1
        if not 0 < depth <= min(len(items), _DEEPEST):
            return None
        (body,) = loop.blocks
        args = [Value("", t.TENSOR) for _ in range(depth)]
        results = [Value("", t.TENSOR) for _ in range(depth)]
        loop.operands += items[:depth]
        body.args += args
        body.terminator.operands += [added.item, *args[:-1]]
        loop.results += results
        stand_ins = {op.result: args[k] if k >= 0 else added.item for op, k in reads.items()}
        body.terminator.operands = [final(v, stand_ins) for v in body.terminator.operands]
        stand_ins = {v: final(v, stand_ins) for v in stand_ins}
        drop(body, set(reads))
        _rename(body, stand_ins)
        self.stand_ins.update(stand_ins)
        return _Known(results, False, added.in_front)

    def added(self, loop: Op, xs: Value) -> _Added | None:
        """Return the op by which each step of the loop changes the list, if it is the only one."""
        (body,) = loop.blocks
        found: _Added | None = None
        for place, op in enumerate(body.ops):
            writes = [o for o in with_inner(op) if o.name in _WRITERS and o.operands[0] is xs]
            if not writes:
                continue
            if found is not None or writes != [op]:
                return None
            if op.name == "list.append":
                found = _Added(op, place, op.operands[1], False)
            elif op.name == "list.insert" and constant(op.operands[1], self.makers) == 0:
                found = _Added(op, place, op.operands[2], True)
            else:
                return None
        return found

    def reads(
        self, loop: Op, xs: Value, added: _Added, length: int | None
    ) -> Iterator[tuple[Op, int]]:
        """Yield each op that reads a known item, with the index of the variable; -1 for the item
        just added."""
        (body,) = loop.blocks
        for place, op in enumerate(body.ops):
            is_after = place > added.place
            for get in with_inner(op):
                if get.name != "list.get" or get.operands[0] is not xs:
                    continue
                at = self.distance(get.operands[1], body, added.in_front, length, is_after)
                if at is not None and at - is_after >= (-1 if is_after else 0):
                    yield get, at - is_after

    def distance(
        self, index: Value, body: Block, in_front: bool, length: int | None, is_after: bool
    ) -> int | None:
        """Return the distance of an index from the end that grows, 0 for the item there; None if
        unknown."""
        at = number_of(index, self.makers)
        if at is not None:
            if in_front:
                return at if at >= 0 else None
            return -at - 1 if at < 0 else None
        ahead = evolution(index, body.args[0], self.makers).ahead
        if ahead is None or length is None or in_front:
            return None
        found = length + is_after - ahead - 1
        return found if ahead >= 0 and found >= 0 else None


def _touches(op: Op, xs: Value) -> bool:
    return any(xs in o.operands for o in with_inner(op))


def _rename(block: Block, stand_ins: dict[Value, Value]) -> None:
    for op in walk(block):
        op.operands = [stand_ins.get(v, v) for v in op.operands]
