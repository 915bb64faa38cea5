"""Puts ops into blocks: what front ends and passes write IR with.

In: op names and operands. Out: values, each made by an op at the end of the current block. Ops on
Python constants are computed at once, so that `if mask is None` is decided while building.

    b = Builder(block)
    n = b.const(2)
    m = b.py("py.mul", n, n)          # no op: a const 4
    with b.inside(body): ...          # further ops go to the end of `body`

Invariant: what `constant` says is what the program would compute. What a list holds is known
only while nothing can have changed it: `changed` are the values that something has. A loop's body
that changed what it had relied on is compiled again: see `mark`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

from lowtide.errors import UNKNOWN_LOC
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Attr, Block, Op, Value
from lowtide.ir.literals import is_literal
from lowtide.ir.types import DictType, ListType, TupleType, Type


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
_LONGEST_FOLDED = 4096  # characters or elements: `"a" * 10**9` stays an op


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of building: how much had happened."""

    news: int
    writes: int
    births: int


class Builder:
    """Appends ops to a block: holds their source line, and which op made each value."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.loc = UNKNOWN_LOC
        self.makers: dict[Value, Op] = {}
        self.changed: set[Value] = set()
        self.held: set[Value] = set()  # containers that another container or an object holds
        self._births: dict[Value, int] = {}
        self._news: list[Value] = []  # changed first, held first, or found to be of a wider type
        self._writes: list[Value] = []  # what was changed

    @contextmanager
    def inside(self, block: Block) -> Generator[Block]:
        """Puts ops into another block for a while."""
        outer, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = outer

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        results: Sequence[Type] = (),
        /,
        *,
        blocks: Sequence[Block] = (),
        **attrs: Attr,
    ) -> Op:
        """Adds one op; its results are unnamed."""
        op = Op(
            name=name,
            operands=list(operands),
            attrs=attrs,
            results=[Value("", r) for r in results],
            blocks=list(blocks),
            loc=self.loc,
        )
        self.add(op)
        return op

    def add(self, op: Op) -> None:
        """Adds a finished op."""
        self.block.ops.append(op)
        self.makers.update((r, op) for r in op.results)
        self.born(op.results)
        self._note_effects(op)

    def graft(self, op: Op) -> None:
        """Adds an op of a finished program, whose blocks were built elsewhere."""
        self.add(op)
        inner = [o for block in op.blocks for o in block.ops]
        while inner:
            nested = inner.pop(0)
            self._note_effects(nested)
            inner += [o for block in nested.blocks for o in block.ops]

    def _note_effects(self, op: Op) -> None:
        mutable = [v for v in op.operands if _is_container(v)]
        if opdefs.writes(op.name):
            self.change(op.operands[0])
            self.hold(mutable[1:])
        elif op.name in _OPAQUE:
            for value in mutable:
                self.change(value)
            self._writes += [_ANYTHING] if mutable else []
        elif op.name in _HOLDING:
            self.hold(mutable)

    def hold(self, values: Sequence[Value]) -> None:
        """These values may from now on be reached in a second way."""
        for value in values:
            if value not in self.held:
                parts = [v for v in self._parts(value) if not t.is_immutable(v.type)]
                found = [v for v in (value, *parts) if v not in self.held]
                self._news += [v for v in found if _is_container(v)]
                self.held.update(found)

    def _parts(self, value: Value) -> list[Value]:
        maker = self.makers.get(value)
        return maker.operands if maker is not None and maker.name == "tuple.make" else []

    def change(self, value: Value) -> None:
        """Something changes this list, dict or object, which may be known by other values too."""
        maker = self.makers.get(value)
        found = {value}
        if maker is None or maker.name not in _MAKING:
            found |= self.held
        self._news.extend(found - self.changed)
        self._writes.extend(found)
        self.changed |= found

    def widen(self, value: Value, type_: Type) -> None:
        """Give the value a wider type, such as that of `[]` once its items are known."""
        if value.type == type_:
            return
        value.type = type_
        self._news.append(value)
        for result, op in list(self.makers.items()):
            if value in op.operands and op.name in ("tuple.make", "list.make", "dict.make"):
                self.widen(result, _holding(result.type, op.operands))
            elif value in op.operands and op.name in ("tuple.get", "list.get", "dict.item"):
                self.widen(result, _item_of(type_, op, result.type))
            elif op.name in ("if", "loop", "with"):
                self._widen_carried(value, op)
        maker = self.makers.get(value)
        if maker is not None and maker.name in _READING:
            self.widen(maker.operands[0], _with_item(maker.operands[0].type, type_))
        elif maker is not None and maker.name == "cast" and _may_be_none(maker.operands[0]):
            self.widen(maker.operands[0], t.optional(type_))
        elif maker is not None and maker.name == "if":
            k = maker.results.index(value)
            for given in (block.terminator.operands[k] for block in maker.blocks):
                if type(given.type) is type(type_) and _is_container(given):
                    self.widen(given, t.join(given.type, type_))
        elif maker is not None and maker.name == "loop":
            self.widen(maker.blocks[0].args[maker.results.index(value) + 1], type_)

    def _widen_carried(self, value: Value, op: Op) -> None:
        """Widen the results of an op of which a block yields the value, or to which a loop carries
        it."""
        is_loop = op.name == "loop"
        blocks = op.blocks[:1] if op.name == "with" else op.blocks
        given = [block.terminator.operands[is_loop:] for block in blocks]
        given += [op.operands[2:]] if is_loop else []
        for k, result in enumerate(op.results):
            if any(value is values[k] for values in given):
                type_ = t.join(result.type, value.type)
                self.widen(result, type_)
                if is_loop:
                    self.widen(op.blocks[0].args[k + 1], type_)

    def born(self, values: Sequence[Value]) -> None:
        """These values, arguments of a block, are made from here on."""
        for value in values:
            self._births[value] = len(self._births)

    def mark(self, start: Mark | None = None) -> Mark:
        """Return a mark of this moment. With `start`, it is for news of values older than
        `start`."""
        births = len(self._births) if start is None else start.births
        return Mark(len(self._news), len(self._writes), births)

    def has_changed(self, since: Mark) -> bool:
        """Return whether a value older than `since` was changed or held for the first time after
        it."""
        return any(self._births.get(v, -1) < since.births for v in self._news[since.news :])

    def was_written(self, value: Value, since: Mark) -> bool:
        """Return whether the value may have been changed after `since`, under any name."""
        writes = self._writes[since.writes :]
        if value in writes:
            return True
        return not self._is_alone(value) and any(self._may_be(w, value) for w in writes)

    def _is_made_here(self, value: Value) -> bool:
        maker = self.makers.get(value)
        return maker is not None and maker.name in _MAKING

    def _is_alone(self, value: Value) -> bool:
        """Return whether no other value can be the same list."""
        return self._is_made_here(value) and value not in self.held

    def _may_be(self, written: Value, value: Value) -> bool:
        """Return whether two values may be one list or dict: not if both are new, or of unlike
        types."""
        if written is _ANYTHING:
            return True
        if self._is_alone(written) or (self._is_made_here(written) and self._is_made_here(value)):
            return False
        a, b = written.type, value.type
        if any(t.is_dynamic(s) and not t.is_tensor_or_number(s) for s in (a, b)):
            return True
        return type(a) is type(b) and (t.is_subtype(a, b) or t.is_subtype(b, a))

    def const(self, value: object) -> Value:
        """Return a constant; see `literals.is_literal` for what it may be."""
        type_ = t.type_of(value)
        assert type_ is not None, f"not a constant: {value!r}"
        assert is_literal(value), f"not a constant: {value!r}"
        return self.emit("const", (), [type_], value=value).result

    def undef(self, type_: Type = t.NEVER) -> Value:
        """Return a value that nothing reads."""
        return self.emit("undef", (), [type_]).result

    def constant(self, value: Value) -> object:
        """Return the constant that the value is, or UNKNOWN."""
        if value.type == t.NONE:
            return None
        maker = self.makers.get(value)
        if maker is None:
            return UNKNOWN
        if maker.name == "const":
            return maker.attrs["value"]
        if maker.name == "tuple.make" and not maker.attrs:
            elems = tuple(self.constant(v) for v in maker.operands)
            return UNKNOWN if any(e is UNKNOWN for e in elems) else elems
        return UNKNOWN

    def py(self, name: str, *operands: Value) -> Value | None:
        """Emit an op on Python values. Return its result, known now if possible; None if types do
        not fit."""
        definition = opdefs.find(name)
        assert definition is not None, f"no op {name}"
        known = self._shortcut(name, operands)
        if known is not None:
            return known
        result = definition.result([v.type for v in operands])
        if result is None:
            return None
        if not definition.writes:
            folded = fold(name, [self.constant(v) for v in operands])
            if folded is not UNKNOWN:
                return self.const(folded)
        return self.emit(name, operands, [result]).result

    def _shortcut(self, name: str, operands: Sequence[Value]) -> Value | None:
        maker = self.makers.get(operands[0]) if operands else None
        if name == "py.len" and isinstance(operands[0].type, TupleType):
            return self.const(len(operands[0].type.elems))
        if name in ("py.is", "py.is_not") and self._is_none_test(operands):
            return self._none_test(name, operands[0])
        if name == "py.bool" and operands[0].type == t.BOOL:
            return operands[0]
        if maker is None or maker.name != "list.make" or operands[0] in self.changed:
            return None
        if name == "py.len":
            return self.const(len(maker.operands))
        if name == "list.get" and isinstance(index := self.constant(operands[1]), int):
            count = len(maker.operands)
            return maker.operands[index] if -count <= index < count else None
        return None

    def _is_none_test(self, operands: Sequence[Value]) -> bool:
        of, none = operands[0].type, operands[1].type
        return none == t.NONE and not t.is_subtype(t.NONE, of) and of != t.NEVER

    def _none_test(self, name: str, value: Value) -> Value | None:
        return self.const(name == "py.is_not")  # a type without None

    def tuple_get(self, value: Value, index: int) -> Value:
        """Element `index` (not negative) of a tuple."""
        type_ = value.type
        assert isinstance(type_, TupleType)
        maker = self.makers.get(value)
        if maker is not None and maker.name == "tuple.make":
            return maker.operands[index]
        if maker is not None and maker.name == "const":
            elems = maker.attrs["value"]
            assert isinstance(elems, tuple)
            return self.const(cast("tuple[object, ...]", elems)[index])
        return self.emit("tuple.get", [value], [type_.elems[index]], index=index).result

    def tuple_make(self, elems: Sequence[Value], names: Sequence[str] = (), cls: str = "") -> Value:
        """Return a tuple of values, with field names and a class if it is a named one."""
        type_ = TupleType(tuple(e.type for e in elems), tuple(names), cls)
        op = self.emit("tuple.make", elems, [type_])
        if cls:
            op.attrs["cls"] = cls
        return op.result

    def list_make(self, elems: Sequence[Value], elem_type: Type = t.NEVER) -> Value:
        """Return a list of values."""
        joined = t.join_all([elem_type, *(e.type for e in elems)])
        return self.emit("list.make", elems, [ListType(joined)]).result

    def list_elements(self, value: Value) -> list[Value] | None:
        """Return the elements of a list that is made in sight and that nothing can have changed;
        else None."""
        maker = self.makers.get(value)
        if maker is None or maker.name != "list.make" or value in self.changed:
            return None
        return list(maker.operands)


_ANYTHING = Value("", t.ANY)  # what Python may change, called with an object or a list of lists
_READING = ("list.get", "dict.item", "dict.get", "dict.setdefault")
_MAKING = ("list.make", "dict.make", "object.new")
_OPAQUE = ("py.call", "py.call_method", "call_module")  # may change what they are given


def _holding(type_: Type, operands: Sequence[Value]) -> Type:
    """Return the type of a container that is made of these values, no narrower than `type_`."""

    def wider(before: Type, values: Sequence[Value]) -> Type:
        fits = all(t.is_subtype(v.type, before) for v in values)
        return before if fits else t.join_all(v.type for v in values)

    if isinstance(type_, TupleType):
        elems = (wider(e, [v]) for e, v in zip(type_.elems, operands, strict=True))
        return TupleType(tuple(elems), type_.names, type_.cls)
    if isinstance(type_, DictType):
        return DictType(wider(type_.key, operands[::2]), wider(type_.value, operands[1::2]))
    return ListType(wider(type_.elem, operands)) if isinstance(type_, ListType) else type_


def _item_of(type_: Type, op: Op, before: Type) -> Type:
    """Return the type of an item that was read from a container whose type has become `type_`.
    `before`: the item's type so far, which only a container's item changes."""
    match type_:
        case TupleType(elems) if op.name == "tuple.get":
            found = elems[cast("int", op.attrs["index"])]
        case ListType(elem) | DictType(_, elem):
            found = elem
        case _:
            return before
    return t.join(before, found) if isinstance(before, ListType | DictType | TupleType) else before


def _with_item(type_: Type, item: Type) -> Type:
    """Return the type of a list or dict that also has such an item. A None item may stand for a
    missing one."""
    item = item.elem if isinstance(item, t.OptionalType) else item
    if isinstance(type_, t.OptionalType):
        return t.optional(_with_item(type_.elem, item))
    if isinstance(type_, DictType):
        return DictType(type_.key, t.join(type_.value, item))
    return ListType(t.join(type_.elem, item)) if isinstance(type_, ListType) else type_


def _may_be_none(value: Value) -> bool:
    """Return whether the value is a container or None. A cast returns its operand."""
    return isinstance(value.type, t.OptionalType) and _is_container(Value("", value.type.elem))


def _is_container(value: Value) -> bool:
    return not t.is_immutable(value.type) and value.type != t.TENSOR


_HOLDING = ("tuple.make", "list.make", "dict.make", "if", "loop", "yield", "attr.set")


def fold(name: str, operands: Sequence[object]) -> object:
    """Return the result of an op on Python values for constants. It is UNKNOWN if an operand is, if
    the op would raise, or if the result is no literal or too long."""
    definition = opdefs.find(name)
    if definition is None or any(o is UNKNOWN for o in operands) or _is_huge(name, operands):
        return UNKNOWN
    try:
        result = definition.run(*operands)
    except Exception:  # the user's error belongs to the run, with its own type and place
        return UNKNOWN
    if not is_literal(result):
        return UNKNOWN
    return UNKNOWN if _length(result) > _LONGEST_FOLDED else result


def _length(value: object) -> int:
    return len(cast("str", value)) if isinstance(value, str | tuple) else 1


def _is_huge(name: str, operands: Sequence[object]) -> bool:
    """Return whether folding could take long. Big powers, shifts and repetitions stay ops."""
    if name not in ("py.pow", "py.lshift", "py.mul"):
        return False
    return any(isinstance(o, int) and abs(o) > _LONGEST_FOLDED for o in operands[1:]) and (
        name != "py.mul" or isinstance(operands[0], str | tuple)
    )
