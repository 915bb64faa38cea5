"""Lists that a lifted loop fills, during the loop and after it.

    rows = [first]                          Rows(first, Chunk(t7))      t7: [n, m]
    for i in range(n): rows.append(f(i))
    torch.stack(rows)                  ->   cat([first[None], t7])
    rows[1:]                           ->   Rows(Chunk(t7))
    rows[j]                            ->   t7[j - 1]

Invariant: such a list never leaves the region. If it would, or if an op reads it that is not in
the tables here, the loop is not lifted (`Escaped`). An item that is read stands for the tensor in
PyTorch's list: nothing writes into it, and it does not outlive the region next to an alias of the
same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lowtide.ir.core import Op, Value, walk
from lowtide.ops.indexing import lower_getitem
from lowtide.ops.joins import lower_cat, lower_stack
from lowtide.ops.operands import dim_of
from lowtide.ops.views import reshape, view
from lowtide.specialise.abstract import Abs, Map, Pending, Seq, constant, tensors_in
from lowtide.specialise.lifting.inplace import root_of
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.index import Index, as_index


class Escaped(Exception):
    """The list that this loop filled is needed as a list; `cut`: only since the region ends."""

    def __init__(self, op: Op, why: str, cut: bool) -> None:
        super().__init__(why)
        self.op = op
        self.cut = cut


@dataclass(slots=True, eq=False)
class Growing(Pending):
    """A list in the body of a loop: what one iteration adds, at its end or in front."""

    elems: list[Abs] = field(default_factory=list[Abs])
    in_front: list[Abs] = field(default_factory=list[Abs])


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Items that a loop made: the slices of `whole` along its first dim. `last`: the carried value
    that is the last item. `aliases`: all carried values that may be an item. `are_views`: the items
    are views of tensors from before the loop."""

    whole: Val
    last: Abs | None = None
    aliases: tuple[Abs, ...] = ()
    are_views: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Pending):
    """A list of single items, and of chunks that loops made; `op` is the last of these loops."""

    pieces: tuple[Abs | Chunk, ...]
    op: Op
    used: list[str] = field(default_factory=list[str])  # joined as: another time it is a copy


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """An item that was read from a list: the loop that made it, and tensors that may be the same.
    `aliases` is None for a view of unknown memory. `is_choice`: a tensor that iterations may leave
    as it was, instead of an item."""

    op: Op
    aliases: tuple[Abs, ...] | None
    is_choice: bool = False

    def may_be(self, other: Item) -> bool:
        """Return whether both may be one tensor. Items of lists may always be."""
        if not self.is_choice or not other.is_choice:
            return True
        return other.aliases is None or not set(self.aliases or ()).isdisjoint(other.aliases)


class Host(Protocol):
    """The members of the specialiser that are used here."""

    b: Builder
    items: dict[Abs, Item]
    blocked: set[Abs]

    def decide(self, index: Index) -> bool | None: ...


# ---- as one tensor ------------------------------------------------------------------------------


def joined(b: Builder, name: str, rows: Rows, dim: Any) -> Val:
    """Return the stack or cat of such a list; raises Unsupported."""
    fresh = all(isinstance(x, Chunk) for x in rows.pieces)
    if name == "stack":
        whole = _whole(b, rows)
        d = dim_of(b, dim, whole.ndim)
        if d == 0 and rows.used and fresh and len(rows.pieces) == 1:
            return view(b, whole, whole.shape, list)
        rows.used.append(name)
        return _moved(b, whole, d)
    parts = [_side_by_side(b, x, dim) for x in rows.pieces]
    return lower_cat(b, parts, dim) if len(parts) > 1 else parts[0]


def _whole(b: Builder, rows: Rows) -> Val:
    """Return all items, stacked along a new first dim."""
    parts: list[Val] = []
    for x in rows.pieces:
        if isinstance(x, Chunk):
            parts.append(x.whole)
        elif isinstance(x.value, Val):
            parts.append(lower_stack(b, [x.value], 0))
    if len(parts) != len(rows.pieces) or any(v.dtype is not parts[0].dtype for v in parts):
        raise Unsupported("a list with items besides those of a loop")
    if len(parts) == 1:
        return parts[0]
    return lower_cat(b, parts, 0)


def _side_by_side(b: Builder, x: Abs | Chunk, dim: Any) -> Val:
    """Return the items of one piece, joined along a dim that they have."""
    if isinstance(x, Abs):
        if not isinstance(x.value, Val):
            raise Unsupported("a list with items besides those of a loop")
        return x.value
    whole = x.whole
    if whole.ndim < 2:
        raise b.error("cat of 0-dim tensors")
    d = dim_of(b, dim, whole.ndim - 1)
    moved = _moved(b, whole, d)
    size = as_index(moved.shape[d]) * moved.shape[d + 1]
    one = size if size.const is None else size.const
    return reshape(b, moved, [*moved.shape[:d], one, *moved.shape[d + 2 :]])


def _moved(b: Builder, x: Val, d: int) -> Val:
    """Return the tensor with its first dim moved to place d."""
    if d == 0:
        return x
    shape = [*x.shape[1 : d + 1], x.shape[0], *x.shape[d + 1 :]]

    def index(idx: tuple[Index, ...]) -> list[Index]:
        return [idx[d], *idx[:d], *idx[d + 1 :]]

    return view(b, x, shape, index)


# ---- as a list ----------------------------------------------------------------------------------


def turned(b: Builder, pieces: Sequence[Abs | Chunk]) -> tuple[Abs | Chunk, ...]:
    """Return the items from the last to the first."""

    def one(x: Abs | Chunk) -> Abs | Chunk:
        if isinstance(x, Abs):
            return x
        w, last = x.whole, as_index(x.whole.shape[0]) - 1
        flipped = view(b, w, w.shape, lambda idx: [last - idx[0], *idx[1:]])
        known = (x.last, *x.aliases) if x.last is not None else x.aliases
        return Chunk(flipped, None, known, x.are_views)

    return tuple(map(one, reversed(pieces)))


def _length(rows: Rows) -> Index:
    sizes = (as_index(x.whole.shape[0] if isinstance(x, Chunk) else 1) for x in rows.pieces)
    return sum(sizes, as_index(0))


def _len(_: Host, rows: Rows) -> Abs:
    return constant(_length(rows))


def _bool(host: Host, rows: Rows) -> Abs:
    known = host.decide(_length(rows) - 1)
    if known is None:
        raise Unsupported("the length of a list is known only at run time")
    return Abs(known)


def _not(host: Host, rows: Rows) -> Abs:
    return Abs(not _bool(host, rows).value)


def _get(host: Host, rows: Rows, index: Abs) -> Abs:
    i = index.value
    if isinstance(i, bool) or not isinstance(i, int | Index):
        raise Unsupported("an item that is known only at run time")
    found = _single(rows, i)
    if found is not None:
        return found
    aliases = [a for x in rows.pieces for a in _names(x)]
    whole = _whole(host.b, rows)
    read = Abs(lower_getitem(host.b, ("int",), whole, i))
    are_views = any(isinstance(x, Chunk) and x.are_views for x in rows.pieces)
    host.items[read] = Item(rows.op, None if are_views else tuple(aliases))
    host.blocked.add(read)
    return read


def _names(x: Abs | Chunk) -> list[Abs]:
    """Return the tensors that may be one of its items."""
    if isinstance(x, Abs):
        return [x]
    return [*x.aliases, *([x.last] if x.last is not None else [])]


def _single(rows: Rows, i: int | Index) -> Abs | None:
    """Return an item that has a name of its own."""
    if isinstance(i, Index):
        return None
    from_end = i < 0
    pieces = rows.pieces[::-1] if from_end else rows.pieces
    for k, x in enumerate(pieces[: (-i if from_end else i + 1)]):
        at_last = k == (-i - 1 if from_end else i)
        if isinstance(x, Chunk):
            return x.last if at_last and from_end else None
        if at_last:
            return x
    return None


def _slice(host: Host, rows: Rows, start: Abs, stop: Abs, step: Abs) -> Abs:
    bounds = start.value, stop.value, step.value
    if bounds == (None, None, -1):
        return Abs(Rows(turned(host.b, rows.pieces), rows.op))
    first, last, by = bounds
    if by not in (None, 1) or not isinstance(first, int | None) or not isinstance(last, int | None):
        raise Unsupported("a part of a list that is known only at run time")
    if (first or 0) < 0 or (last or -1) >= 0:
        raise Unsupported("a part of a list that is known only at run time")
    pieces = _without(host, rows.pieces, first or 0)
    if last is not None:
        pieces = _without(host, pieces[::-1], -last, at_end=True)[::-1]
    return Abs(Rows(pieces, rows.op))


def _without(
    host: Host, pieces: tuple[Abs | Chunk, ...], n: int, at_end: bool = False
) -> tuple[Abs | Chunk, ...]:
    """Without the first items; of the chunk that is cut, at least one is left."""
    while n > 0 and pieces:
        x = pieces[0]
        if isinstance(x, Abs):
            pieces, n = pieces[1:], n - 1
            continue
        size = as_index(x.whole.shape[0]) - n
        if host.decide(size - 1) is not True:
            raise Unsupported("a part of a list that may be shorter")
        shape = [size if size.const is None else size.const, *x.whole.shape[1:]]
        cut = _from(host.b, x.whole, 0 if at_end else n, shape)
        known = tuple(_names(x))
        left = Chunk(cut, None if at_end else x.last, known, x.are_views)
        return (left, *pieces[1:])
    return pieces


def _from(b: Builder, x: Val, start: int, shape: Sequence[Index | int]) -> Val:
    return view(b, x, shape, lambda idx: [idx[0] + start, *idx[1:]])


def _copied(_: Host, rows: Rows) -> Abs:
    return Abs(Rows(rows.pieces, rows.op))


def _reversed(host: Host, rows: Rows) -> Abs:
    return Abs(Rows(turned(host.b, rows.pieces), rows.op))


_READING: Final[Mapping[str, Callable[..., Abs]]] = {
    "py.len": _len,
    "py.bool": _bool,
    "py.not": _not,
    "list.get": _get,
    "list.slice": _slice,
    "list.of": _copied,
    "list.reversed": _reversed,
}


def read(host: Host, op: Op, operands: Sequence[Abs]) -> Abs:
    """Return the result of an op that reads such a list. Raises Unsupported."""
    first = operands[0].value
    if op.name == "py.add" and len(operands) == 2:
        return Abs(_both(operands[0], operands[1]))
    rule = _READING.get(op.name)
    if rule is None or not isinstance(first, Rows):
        raise Unsupported("what a loop has collected is read as a list")
    return rule(host, first, *operands[1:])


def changed(host: Host, op: Op, operands: Sequence[Abs]) -> object:
    """Return the list after an op that changes it. Raises Unsupported."""
    xs, *others = operands
    before = xs.value
    if isinstance(before, Growing):
        if op.name == "list.append":
            return Growing([*before.elems, others[0]], before.in_front)
        if op.name == "list.insert" and others[0].value == 0:
            return Growing(before.elems, [*before.in_front, others[1]])
        raise Unsupported("a loop changes a list otherwise than by adding to it")
    if op.name == "list.extend":
        return _both(xs, others[0])
    if isinstance(before, Rows):
        if op.name == "list.append":
            return Rows((*before.pieces, others[0]), before.op)
        if op.name == "list.insert" and others[0].value == 0:
            return Rows((others[1], *before.pieces), before.op)
        if op.name == "list.reverse":
            return Rows(turned(host.b, before.pieces), before.op)
    raise Unsupported("what a loop has collected is changed as a list")


def _both(x: Abs, y: Abs) -> Rows:
    """Return one list after another."""
    pieces: list[Abs | Chunk] = []
    op: Op | None = None
    for part in (x.value, y.value):
        if isinstance(part, Rows):
            pieces += part.pieces
            op = part.op
        elif isinstance(part, Seq) and part.kind is list:
            pieces += part.elems
        else:
            raise Unsupported("a list and something else")
    assert op is not None
    return Rows(tuple(pieces), op)


def pieces_of(before: object) -> tuple[Abs | Chunk, ...]:
    """Return the items of a list before a loop. Raises Unsupported."""
    if isinstance(before, Rows):
        return before.pieces
    if isinstance(before, Seq) and before.kind is list:
        return before.elems
    raise Unsupported("a list that is known only at run time")


# ---- what must not leave the region --------------------------------------------------------------


def escaping(
    alive: Mapping[Value, Abs], items: Mapping[Abs, Item], later: Sequence[Op]
) -> tuple[Op, str] | None:
    """Return the loop that filled a list which must stay a list, and the reason. The list, or an
    item with another name, outlives the region."""
    for value, x in alive.items():
        found = _list_in(x)
        if found is not None:
            return found, f"its list is needed as a list{_reader(value, later)}"
    roots = [root_of(x) for v in alive.values() for x in tensors_in(v)]
    for x in roots:
        item = items.get(x)
        if item is None:
            continue
        if item.aliases is None:
            return item.op, "what it carries is a view of a tensor from before it"
        others = [y for y in roots if y is not x]
        if any(y in item.aliases or (y in items and item.may_be(items[y])) for y in others):
            return item.op, "two names of what may be one tensor are needed"
    return None


def _list_in(x: Abs) -> Op | None:
    if isinstance(x.value, Rows):
        return x.value.op
    if isinstance(x.value, Seq | Map):
        return next((op for op in map(_list_in, x.value.elems) if op is not None), None)
    return None


def _reader(value: Value, later: Sequence[Op]) -> str:
    """Return text that names the op which needs a value; "" if there is none."""
    for op in later:
        for inner in (op, *(o for b in op.blocks for o in walk(b))):
            if value in inner.operands:
                return f" by {inner.name} at {inner.loc}"
    return ""
