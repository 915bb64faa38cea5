"""Folds Python operators on constants, and removes branches and loops that constants decide.

In, out: a Function. Invariant: an operator that would raise stays, and raises at run time.

    %2: int = const {value=2}
    %n: int = py.mul(%2, %2)        →   %n: int = const {value=4}
    %t: bool = py.gt(%n, %2)            return(%x)
    %r: Tensor = if(%t) …(%x) …(%y)
    return(%r)
"""

from __future__ import annotations

from lowtide.ir.builder import UNKNOWN, fold
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.ir.types import TupleType


def fold_constants(fn: Function) -> Function:
    """Return the function with constants in place of ops on constants."""
    result = clone(fn)
    _Folder().block(result.block)
    return result


class _Folder:
    def __init__(self) -> None:
        self.known: dict[Value, object] = {}
        self.stand_ins: dict[Value, Value] = {}
        self.tuples: dict[Value, list[Value]] = {}

    def block(self, block: Block) -> None:
        kept: list[Op] = []
        for op in block.ops:
            kept.extend(self.op(op))
        block.ops = kept

    def op(self, op: Op) -> list[Op]:
        op.operands = [self.stand_ins.get(v, v) for v in op.operands]
        if op.name == "if" and self.value(op.operands[0]) is not UNKNOWN:
            return self.taken(op)
        if op.name == "loop" and self.never_runs(op):
            self.stand_ins.update(zip(op.results, op.operands[2:], strict=True))
            return []
        for inner in op.blocks:
            self.block(inner)
        return self.plain(op)

    def plain(self, op: Op) -> list[Op]:
        if op.name == "const":
            self.known[op.result] = op.attrs["value"]
        elif op.name == "tuple.make":
            self.tuples[op.result] = op.operands
            values = tuple(self.value(v) for v in op.operands)
            if UNKNOWN not in values and not op.attrs:
                self.known[op.result] = values
        elif op.name == "tuple.get":
            return self.element(op)
        elif op.name == "py.len" and isinstance(op.operands[0].type, TupleType):
            return [self.constant(op, len(op.operands[0].type.elems))]
        else:
            folded = fold(op.name, [self.value(v) for v in op.operands])
            if folded is not UNKNOWN:
                return [self.constant(op, folded)]
        return [op]

    def value(self, value: Value) -> object:
        return self.known.get(value, UNKNOWN)

    def constant(self, op: Op, value: object) -> Op:
        self.known[op.result] = value
        return Op(name="const", attrs={"value": value}, results=op.results, loc=op.loc)

    def element(self, op: Op) -> list[Op]:
        index = op.attrs["index"]
        elems = self.tuples.get(op.operands[0])
        if elems is None or not isinstance(index, int):
            return [op]
        self.stand_ins[op.result] = elems[index]
        return []

    def taken(self, op: Op) -> list[Op]:
        block = op.blocks[0 if self.value(op.operands[0]) else 1]
        self.block(block)
        self.stand_ins.update(zip(op.results, block.terminator.operands, strict=True))
        return block.ops[:-1]

    def never_runs(self, op: Op) -> bool:
        trips, going = (self.value(v) for v in op.operands[:2])
        return going is False or (isinstance(trips, int) and trips <= 0)
