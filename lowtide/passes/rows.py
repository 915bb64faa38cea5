"""Reads a row from the tensor instead of from a list of its rows.

In, out: a Function. Invariant: a list that is returned, changed, unpacked or passed on stays.

    %xs: List[Tensor] = torch.unbind(%x, %0)       %n: int = torch.size.dim(%x, %0)
    %n: int = py.len(%xs)                      →
    %row: Tensor = list.get(%xs, %i)               %row: Tensor = torch.getitem(%x, %i)

A reversed list, `xs[::-1]`, is read from the other end. A read of x[i] can become a tensor
expression for any i; a read of a list item cannot.

Of a row that is written in place, the read stays, or becomes, `unbound`: autograd refuses such a
write, for the row is one of several results of `unbind`. Of other rows it is plain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lowtide.ir import types as t
from lowtide.ir.aliases import written_by
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.ir.differentiated import differentiated, sources_of
from lowtide.passes.ir_queries import (
    RESIZING,
    constant,
    make_constant,
    makers_of,
    reverses_list,
    users_of,
)

_READERS: Final = ("py.len", "list.get")


def read_rows(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    if not any(op.attrs.get("target") in RESIZING for op in result.walk()):
        _Rows(result).block(result.block)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The source of rows: the tensor, the dim, their number, and whether they are reversed."""

    tensor: Value
    dim: Value
    length: Value
    is_reversed: bool


class _Rows:
    def __init__(self, fn: Function) -> None:
        self.makers = makers_of(fn)
        self.users = users_of(fn)
        self.sources: dict[Value, _Source] = {}
        self.stand_ins: dict[Value, Value] = {}
        self.differentiated = differentiated(fn)  # rows that stay the tensors that they are
        self.written = sources_of(fn, [v for op in fn.walk() for v in written_by(op)])
        self.counters: set[Value] = set()  # of loops: never negative

    def block(self, block: Block) -> None:
        kept: list[Op] = []
        for op in block.ops:
            op.operands = [self.stand_ins.get(v, v) for v in op.operands]
            if op.name == "loop":
                self.counters.add(op.blocks[0].args[0])
            for inner in op.blocks:
                self.block(inner)
            kept.extend(self.op(op))
        block.ops = kept

    def op(self, op: Op) -> list[Op]:
        if "unbound" in op.attrs and op.result not in self.written:
            del op.attrs["unbound"]
        source = self.sources.get(op.operands[0]) if op.operands else None
        if op.name == "torch.unbind" and self._may_go(op, op.result):
            length = Value("", t.INT)
            x, dim = op.operands
            self.sources[op.result] = _Source(tensor=x, dim=dim, length=length, is_reversed=False)
            return [Op(name="torch.size.dim", operands=[x, dim], results=[length], loc=op.loc)]
        if source is None:
            return [op]
        if op.name == "list.slice":
            self.sources[op.result] = _Source(
                tensor=source.tensor,
                dim=source.dim,
                length=source.length,
                is_reversed=not source.is_reversed,
            )
            return []
        if op.name == "py.len":
            self.stand_ins[op.result] = source.length
            return []
        return self.row(op, source)

    def _may_go(self, op: Op, rows: Value) -> bool:
        if rows in self.differentiated or not self.is_only_read(rows):
            return False
        return rows not in self.written or self._along_first(op.operands[1])

    def _along_first(self, dim: Value) -> bool:
        return constant(dim, self.makers) == 0

    def row(self, op: Op, source: _Source) -> list[Op]:
        """Return the ops that replace `list.get` by a view of the tensor."""
        made: list[Op] = []
        index = op.operands[1]
        if source.is_reversed:
            one, last, turned = (Value("", t.INT) for _ in range(3))
            if index in self.counters:  # x[n - 1 - i], which is affine
                made += [make_constant(one, 1, op), _subtract(source.length, one, last, op)]
            else:  # x[-1 - i], for i may count from the end
                made.append(make_constant(last, -1, op))
            made.append(_subtract(last, index, turned, op))
            index = turned
        x, results, loc = source.tensor, op.results, op.loc
        if self._along_first(source.dim):
            read = Op(name="torch.getitem", operands=[x, index], results=results, loc=loc)
            read.attrs.update(spec=("int",), rows=True)
            if op.result in self.written:
                read.attrs["unbound"] = True
        else:
            operands = [x, source.dim, index]
            read = Op(name="torch.select", operands=operands, results=results, loc=loc)
        return [*made, read]

    def is_only_read(self, rows: Value) -> bool:
        """Return whether the list is only read: its length, its items, or the same of its
        reverse."""
        for user in self.users[rows]:
            if user.operands[0] is not rows or rows in user.operands[1:]:
                return False
            if reverses_list(user, self.makers):
                if not self.is_only_read(user.result):
                    return False
            elif user.name not in _READERS:
                return False
        return True


def _subtract(a: Value, b: Value, result: Value, like: Op) -> Op:
    return Op(name="py.sub", operands=[a, b], results=[result], loc=like.loc)
