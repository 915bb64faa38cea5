"""Puts ops into blocks: what front ends and passes write IR with.

In: op names and operands. Out: values, each made by an op at the end of the current block. Ops on
Python constants are computed at once, so that `if mask is None` is decided while building.

    b = Builder(block)
    n = b.const(2)
    m = b.py("py.mul", n, n)          # no op: a const 4
    with b.inside(body): ...          # further ops go to the end of `body`

Always holds: what `constant` says is what the program would compute.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, cast

from lowtide.errors import UNKNOWN_LOC
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Attr, Block, Op, Value
from lowtide.ir.literals import is_literal
from lowtide.ir.types import ListType, TupleType, Type


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
_LONGEST_FOLDED = 4096  # characters or elements: `"a" * 10**9` stays an op


class Builder:
    """Where the next op goes, the place in the source it stands for, and who made each value."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.loc = UNKNOWN_LOC
        self.makers: dict[Value, Op] = {}

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
        self.block.ops.append(op)
        self.makers.update((r, op) for r in op.results)
        return op

    def const(self, value: object) -> Value:
        """A constant; see `literals.is_literal` for what it may be."""
        type_ = t.type_of(value)
        assert type_ is not None, f"not a constant: {value!r}"
        assert is_literal(value), f"not a constant: {value!r}"
        return self.emit("const", (), [type_], value=value).result

    def undef(self, type_: Type = t.NEVER) -> Value:
        """A value that is never looked at."""
        return self.emit("undef", (), [type_]).result

    def constant(self, value: Value) -> object:
        """What the value is if that is known now, else UNKNOWN."""
        if value.type == t.NONE:
            return None
        maker = self.makers.get(value)
        if maker is None:
            return UNKNOWN
        if maker.name == "const":
            return maker.attrs["value"]
        if maker.name == "tuple.make":
            elems = tuple(self.constant(v) for v in maker.operands)
            return UNKNOWN if any(e is UNKNOWN for e in elems) else elems
        return UNKNOWN

    def py(self, name: str, *operands: Value) -> Value | None:
        """An op on Python values, or its result where it is known now; None if types do not fit."""
        definition = opdefs.find(name)
        assert definition is not None, f"no op {name}"
        known = self._shortcut(name, operands)
        if known is not None:
            return known
        result = definition.result([v.type for v in operands])
        if result is None:
            return None
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
        if maker is None or maker.name != "list.make":
            return None
        if name == "py.len":
            return self.const(len(maker.operands))
        if name == "list.get" and isinstance(index := self.constant(operands[1]), int):
            count = len(maker.operands)
            return maker.operands[index] if -count <= index < count else None
        return None

    def _is_none_test(self, operands: Sequence[Value]) -> bool:
        return operands[1].type == t.NONE and t.join(operands[0].type, t.NONE) != operands[0].type

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

    def tuple_make(self, elems: Sequence[Value], names: Sequence[str] = ()) -> Value:
        """A tuple of values, with field names if it is a named one."""
        type_ = TupleType(tuple(e.type for e in elems), tuple(names))
        return self.emit("tuple.make", elems, [type_]).result

    def list_make(self, elems: Sequence[Value], elem_type: Type | None = None) -> Value | None:
        """A list of values; None if they are not alike."""
        joined: Type | None = t.NEVER if elem_type is None else elem_type
        for elem in elems:
            joined = None if joined is None else t.join(joined, elem.type)
        if joined is None:
            return None
        return self.emit("list.make", elems, [ListType(joined)]).result


def fold(name: str, operands: Sequence[object]) -> object:
    """What an op on Python values gives for constants; UNKNOWN if one is, or if it would raise."""
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
    """Whether folding could take long: big powers, shifts and repetitions stay ops."""
    if name not in ("py.pow", "py.lshift", "py.mul"):
        return False
    return any(isinstance(o, int) and abs(o) > _LONGEST_FOLDED for o in operands[1:]) and (
        name != "py.mul" or isinstance(operands[0], str | tuple)
    )
