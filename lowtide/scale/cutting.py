"""Splits a program at the axes that are cut: what each task computes, and what is done once.

In: an `Outer` and `Axis` records. Out: a `Cutting`: two Functions and the joins between them.

    def f(a, b):                          def f_chunk(a, b):         of parts of a and b
        d = cdist(a, b)                       d = cdist(a, b)
        m = d.min(1).values          →        return d.min(1)        a `Join`: min.dim over b's axis
        return m.mean()                   def f_finish(m):           m: [N], joined
                                              return m.mean()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import torch

from lowtide.budget.outer import Outer
from lowtide.budget.reduced_axes import Reduced
from lowtide.budget.whole_axes import Axis, no_axis
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone_op, free_values
from lowtide.ir.types import TupleType

Tensor = torch.Tensor
_HALF: Final = (torch.float16, torch.bfloat16)
_STRUCTURE: Final = ("tuple.", "list.", "dict.", "return", "unpack", "cast")
ROWS: Final = Reduced(kind="rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A record of outputs of tasks, and of the values of the program that they become.

    `outputs`: positions among the outputs of a task. `taken`: which of them the program reads, and
    `values`: as what. `cuts`: axis → dim of these values; `reduced`: the axes over which parts are
    combined by `rule`. `forms`: of the whole values, on the meta device. `divide`: for a mean."""

    rule: Reduced
    outputs: tuple[int, ...]
    taken: tuple[int, ...]
    values: tuple[Value, ...]
    cuts: Mapping[int, int]
    reduced: tuple[int, ...]
    forms: tuple[Tensor, ...]
    divide: float = 1.0
    loc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """`task`: takes parts of the parameters `inputs` (positions); axis k cuts parameter p along
    `cuts[p][k]`. `finish`: takes values of joins, by (join, place), then the parameters `whole`.
    `direct`: for each value that is returned, the (join, place) that it is, else None; `returned`:
    those values on the meta device. `work`: for each value that tasks compute, its bytes, whole,
    and the axes that cut it; `finish_work`: bytes of values that are computed once."""

    axes: tuple[Axis, ...]
    task: Function
    inputs: tuple[int, ...]
    cuts: tuple[Mapping[int, int], ...]
    joins: tuple[Join, ...]
    finish: Function
    read: tuple[tuple[int, int], ...]
    whole: tuple[int, ...]
    direct: tuple[tuple[int, int] | None, ...]
    returned: tuple[Any, ...]
    is_single: bool
    is_trivial: bool
    work: tuple[tuple[int, frozenset[int]], ...]
    finish_work: int


def cutting(outer: Outer, axes: Sequence[Axis], records: bool = False) -> Cutting:
    """Return how the program is split. `records`: gradients will be computed."""
    return _Cutter(outer, tuple(axes), records).made()


@dataclass(slots=True)
class _Output:
    """Values that a task returns for one op, or one value."""

    rule: Reduced
    task_values: list[Value]
    taken: tuple[int, ...]
    values: tuple[Value, ...]
    reduced: tuple[int, ...]
    operand: Value | None = None
    loc: str = ""


@dataclass(slots=True)
class _Cutter:
    outer: Outer
    axes: tuple[Axis, ...]
    records: bool
    late: set[Value] = field(default_factory=set[Value])
    combined: dict[Op, tuple[int, ...]] = field(default_factory=dict[Op, tuple[int, ...]])
    makers: dict[Value, Op] = field(default_factory=dict[Value, Op])
    in_task: set[Op] = field(default_factory=set[Op])
    finish_ops: set[Op] = field(default_factory=set[Op])
    outputs: list[_Output] = field(default_factory=list[_Output])
    whole: set[Value] = field(default_factory=set[Value])  # returned by the only task
    needed: dict[Value, None] = field(default_factory=dict[Value, None])  # parameters of `finish`
    constants: dict[Value, Any] = field(default_factory=dict[Value, Any])

    def made(self) -> Cutting:
        ops = self.outer.ops
        after = {op for axis in self.axes or (no_axis(self.outer),) for op in axis.after}
        for op in ops[:-1]:
            self.makers.update((v, op) for v in op.results)
            if op in after or not self.late.isdisjoint(op.operands):
                self.late.update(op.results)
                self.finish_ops.add(op)
                continue
            reducing = tuple(k for k, axis in enumerate(self.axes) if op in axis.combined)
            if reducing:
                self.combined[op] = reducing
                self.late.update(op.results)
        lasting = [op for op in self.finish_ops if not opdefs.is_removable(op) and op.name != "use"]
        self.finish_ops.clear()
        returned = self._returned()
        if not self.axes:  # one task
            self.whole = {v for v in returned if v in self.makers and v not in self.late}
        for op in (*lasting, ops[-1]):
            self._include(op)
        finish = self._finish()
        task, inputs = self._task()
        joins = tuple(self._joins())
        places = {v: (j, i) for j, join in enumerate(joins) for i, v in enumerate(join.values)}
        params = self.outer.function.params
        read = [v for v in finish.read if v in places]
        whole = [v for v in finish.read if v not in places]
        direct = tuple(places.get(v) for v in returned)
        names = {"tuple.make", "list.make", "return", "const"}
        return Cutting(
            axes=self.axes,
            task=task,
            inputs=tuple(params.index(v) for v in inputs),
            cuts=tuple(
                {k: axis.seeds[v] for k, axis in enumerate(self.axes) if v in axis.seeds}
                for v in params
            ),
            joins=joins,
            finish=_ordered(finish.function, read, whole, finish.read),
            read=tuple(places[v] for v in read),
            whole=tuple(params.index(v) for v in whole),
            direct=direct,
            returned=tuple(self.outer.known.get(v) for v in returned),
            is_single=returned == [ops[-1].operands[0]],
            is_trivial=all(op.name in names for op in finish.function.block.ops),
            work=tuple(self._work()),
            finish_work=sum(self._nbytes(op) for op in self.finish_ops),
        )

    def _work(self) -> Iterator[tuple[int, frozenset[int]]]:
        for op in self.outer.ops[:-1]:
            if op not in self.in_task:
                continue
            held = [x for v in op.operands for x in self.outer.tensors(v)]
            cutting = {k for k, a in enumerate(self.axes) if any(id(x) in a.cut for x in held)}
            yield self._nbytes(op), frozenset(cutting)

    def _nbytes(self, op: Op) -> int:
        """Return the bytes that an op reads and makes; a view moves none."""
        if opdefs.has_kind(op.name, ("view", "size")) or op.name.startswith(_STRUCTURE):
            return 0
        return sum(x.nbytes for v in (*op.operands, *op.results) for x in self.outer.tensors(v))

    # -- what is done once --

    def _include(self, op: Op) -> None:
        """Put an op into `finish`, and what it reads."""
        waiting = [op]
        while waiting:
            op = waiting.pop()
            if op in self.finish_ops:
                continue
            self.finish_ops.add(op)
            for v in free_values([op]):
                maker = self._maker(v)
                if maker is not None:
                    waiting.append(maker)

    def _maker(self, v: Value) -> Op | None:
        """Return the op to include for a value, None if it is given or a constant."""
        if v in self.constants or v in self.needed:
            return None
        maker = self.makers.get(v)
        if maker is None:
            self.needed[v] = None
            return None
        if maker in self.combined:
            self._take_combined(maker)
            self.needed[v] = None
            return None
        if v in self.late:
            return maker
        known = self.outer.known[v]
        if opdefs.has_kind(maker.name, ("size",)):
            self.constants[v] = known
            return None
        is_cut = v in self.whole or any(id(known) in axis.cut for axis in self.axes)
        if isinstance(known, Tensor) and is_cut:
            self._take_rows(v)
            self.needed[v] = None
            return None
        return maker

    def _take_rows(self, v: Value) -> None:
        self.outputs.append(_Output(ROWS, [v], (0,), (v,), (), loc=str(self.makers[v].loc)))

    def _take_combined(self, op: Op) -> None:
        if any(op.results[0] in out.values or op.results[-1] in out.values for out in self.outputs):
            return
        reducing = self.combined[op]
        rule, values = self.axes[reducing[0]].combined[op], op.results
        is_pair = rule.kind in ("min.dim", "max.dim") and len(values) == 2
        if is_pair and not self.records and not self._is_read(values[1]):
            rule, values = replace(rule, kind=rule.kind[:3]), values[:1]
        self.outputs.append(
            _Output(rule, [], (), tuple(values), reducing, op.operands[0], str(op.loc))
        )

    def _is_read(self, v: Value) -> bool:
        return any(v in free_values([op]) for op in self.outer.ops)

    def _returned(self) -> list[Value]:
        """Return the values that the program returns: one, or the items of a tuple."""
        (v,) = self.outer.ops[-1].operands
        maker = self.makers.get(v)
        is_nest = maker is not None and maker.name in ("tuple.make", "list.make")
        return list(maker.operands) if maker is not None and is_nest else [v]

    def _finish(self) -> _Finish:
        mapping = {v: Value(v.name, v.type) for v in self.needed}
        args = list(mapping.values())
        ops = list[Op]()
        for v, value in self.constants.items():
            mapping[v] = _size(ops, v, value)
        ops += [clone_op(op, mapping) for op in self.outer.ops if op in self.finish_ops]
        fn = self.outer.function
        return _Finish(
            Function(f"{fn.name}_finish", Block(args, ops), fn.result, {}, fn.loc),
            list(self.needed),
        )

    # -- what each task does --

    def _task(self) -> tuple[Function, list[Value]]:
        maker = _TaskMaker(self.outer)
        for out in self.outputs:
            if out.rule is not ROWS:
                out.task_values, out.taken = maker.combined(self.makers[out.values[0]], out.rule)
        values = [v for out in self.outputs for v in out.task_values]
        needed, ops = set(values), list[Op]()
        for op in reversed(self.outer.ops[:-1]):
            instead = maker.instead.get(op, [op])
            for o in reversed(instead):
                if not needed.isdisjoint(o.results):
                    self.in_task.add(op)
                    ops.append(o)
                    needed.update(free_values([o]))
        ops.reverse()
        fn = self.outer.function
        inputs = [v for v in fn.params if v in needed]
        result = TupleType(tuple(t.TENSOR for _ in values))
        both = Value("", result)
        ops.append(Op(name="tuple.make", operands=values, results=[both]))
        ops.append(Op(name="return", operands=[both]))
        mapping = {v: Value(v.name, v.type) for v in inputs}
        body = [clone_op(op, mapping) for op in ops]
        block = Block([mapping[v] for v in inputs], body)
        return Function(f"{fn.name}_chunk", block, result, {}, fn.loc), inputs

    def _joins(self) -> list[Join]:
        found, begin = list[Join](), 0
        for out in self.outputs:
            end = begin + len(out.task_values)
            forms = [self.outer.known[v] for v in out.values]
            found.append(
                Join(
                    rule=out.rule,
                    outputs=tuple(range(begin, end)),
                    taken=out.taken,
                    values=out.values,
                    cuts=self._cuts(out),
                    reduced=out.reduced,
                    forms=tuple(forms),
                    divide=self._divisor(out, forms[0]),
                    loc=out.loc,
                )
            )
            begin = end
        return found

    def _divisor(self, out: _Output, whole: Tensor) -> float:
        if not out.rule.divide or out.operand is None:
            return 1.0
        count = whole.numel()
        return self.outer.known[out.operand].numel() / count if count else 1.0

    def _cuts(self, out: _Output) -> dict[int, int]:
        """Return the dim along which each axis cuts the values. All values of a group are alike."""
        found = dict[int, int]()
        for k, axis in enumerate(self.axes):
            dims = {axis.cut.get(id(self.outer.known[v])) for v in out.values}
            (dim,) = dims
            if dim is not None:
                found[k] = dim
        return found


@dataclass(frozen=True, slots=True)
class _Finish:
    function: Function
    read: list[Value]


def _ordered(
    fn: Function, read: Sequence[Value], whole: Sequence[Value], given: Sequence[Value]
) -> Function:
    """Return the function with parameters in this order."""
    by_value = dict(zip(given, fn.params, strict=True))
    block = Block([by_value[v] for v in (*read, *whole)], fn.block.ops)
    return Function(fn.name, block, fn.result, {}, fn.loc)


def _size(ops: list[Op], v: Value, value: Any) -> Value:
    """Return the size of a whole value, or a list of its sizes, as a constant."""
    like = Op(name="const")
    if not isinstance(value, tuple | list):
        return _const(ops, value, v.type, like)
    items = [_const(ops, n, t.INT, like) for n in cast("Sequence[int]", value)]
    made = Value(v.name, v.type)
    ops.append(Op(name="list.make", operands=items, results=[made]))
    return made


class _TaskMaker:
    """Makes the ops that compute parts of reductions. `instead`: by the program's op."""

    def __init__(self, outer: Outer) -> None:
        self.outer = outer
        self.instead: dict[Op, list[Op]] = {}

    def combined(self, op: Op, rule: Reduced) -> tuple[list[Value], tuple[int, ...]]:
        """Return what a task returns for an op that reduces a cut axis, and which of these values
        the program reads."""
        match rule.kind:
            case "sum":
                return self._sum(op), (0,)
            case "flat.min.dim" | "flat.max.dim" | "min.dim" | "max.dim":
                return self._extreme(op, rule)
            case "min" | "max" if len(op.results) == 2:
                return self._least(op, rule), (0,)
            case "topk":
                return self._topk(op, rule), (0, 1)
            case "weighted":
                return self._weighted(op), (0,)
            case _:
                return [op.result], (0,)

    def _sum(self, op: Op) -> list[Value]:
        """A sum in half precision is float32 until all parts are added."""
        dtype = self.outer.known[op.result].dtype
        if op.name not in ("torch.sum", "torch.mean"):
            return [op.result]
        ops, operands = list[Op](), list(op.operands)
        if dtype in _HALF:
            operands[3] = _const(ops, torch.float32, t.DTYPE, op)
        part = Value(op.result.name, t.TENSOR)
        ops.append(replace(op, name="torch.sum", operands=operands, results=[part]))
        self._put(op, ops)
        return [part]

    def _extreme(self, op: Op, rule: Reduced) -> tuple[list[Value], tuple[int, ...]]:
        kind = rule.kind.removeprefix("flat.")
        if op.name == f"torch.{kind}":
            return list(op.results), (0, 1)
        ops, x, along = list[Op](), op.operands[0], rule.dim
        if rule.kind != kind:
            size = _const(ops, -1, t.INT, op)
            shape = Value("", TupleType((t.INT,)))
            ops.append(Op(name="tuple.make", operands=[size], results=[shape], loc=op.loc))
            flat, along = Value("", t.TENSOR), 0
            ops.append(Op(name="torch.reshape", operands=[x, shape], results=[flat], loc=op.loc))
            x = flat
        operands = [x, _const(ops, along, t.INT, op), _const(ops, rule.keepdim, t.BOOL, op)]
        parts = [Value("values", t.TENSOR), Value("indices", t.TENSOR)]
        ops.append(Op(name=f"torch.{kind}", operands=operands, results=list(parts), loc=op.loc))
        self._put(op, ops)
        return parts, (1,)

    def _least(self, op: Op, rule: Reduced) -> list[Value]:
        """The values of `min(x, dim)`, whose positions nobody reads."""
        ops = list[Op]()
        dims, part = Value("", TupleType((t.INT,))), Value("values", t.TENSOR)
        dim = _const(ops, rule.dim, t.INT, op)
        ops.append(Op(name="tuple.make", operands=[dim], results=[dims], loc=op.loc))
        operands = [op.operands[0], dims, _const(ops, rule.keepdim, t.BOOL, op)]
        name = f"torch.a{rule.kind}"
        ops.append(Op(name=name, operands=operands, results=[part], loc=op.loc))
        self._put(op, ops)
        return [part]

    def _topk(self, op: Op, rule: Reduced) -> list[Value]:
        """A part may have fewer than k elements."""
        ops, operands = list[Op](), list(op.operands)
        names = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
        place = len(operands) - len(names) + names.index("k") if "k" in names else 1
        size, fewer = Value("", t.INT), Value("", t.INT)
        dim = _const(ops, rule.dim, t.INT, op)
        ops.append(
            Op(name="torch.size.dim", operands=[operands[0], dim], results=[size], loc=op.loc)
        )
        ops.append(Op(name="py.min", operands=[operands[place], size], results=[fewer], loc=op.loc))
        operands[place] = fewer
        parts = [Value(v.name, v.type) for v in op.results]
        ops.append(replace(op, operands=operands, results=list(parts)))
        self._put(op, ops)
        return parts

    def _weighted(self, op: Op) -> list[Value]:
        """The product with the softmax of a part, and the logarithm of the part's sum."""
        weights = op.operands[0]
        softmax = next(o for o in self.outer.ops if weights in o.results)
        ops = list[Op]()
        dim = _const(ops, -1, t.INT, op)
        dims, lse = Value("", TupleType((t.INT,))), Value("lse", t.TENSOR)
        ops.append(Op(name="tuple.make", operands=[dim], results=[dims], loc=op.loc))
        keepdim = _const(ops, True, t.BOOL, op)
        operands = [softmax.operands[0], dims, keepdim]
        ops.append(Op(name="torch.logsumexp", operands=operands, results=[lse], loc=op.loc))
        self._put(op, [*ops, op])
        return [op.result, lse]

    def _put(self, op: Op, ops: list[Op]) -> None:
        self.instead[op] = [*self.instead.get(op, [op]), *(o for o in ops if o is not op)]


def _const(ops: list[Op], value: Any, kind: t.Type, like: Op) -> Value:
    result = Value("", kind)
    ops.append(Op(name="const", attrs={"value": value}, results=[result], loc=like.loc))
    return result
