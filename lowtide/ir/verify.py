"""Checks that a Function keeps the rules of the IR.

In: a Function. Out: nothing, or VerifyError with the function printed and the bad ops marked.

What always holds, and is checked here:
- a value is made once, and used only where its op or block argument is in sight (dominance);
- a function's block ends in one `return` of one value, any other in one `yield`; none elsewhere;
- `if` has a bool and two blocks that yield its results; `loop` as in `core`; no other has blocks;
- operands and results of `torch.NAME` fit its record, those of ops on Python values their table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lowtide.errors import VerifyError
from lowtide.ir import object_ops, opdefs
from lowtide.ir import types as t
from lowtide.ir.core import TERMINATORS, Block, Function, Op, Value, print_function
from lowtide.ir.literals import is_literal
from lowtide.ir.signature import accepts, result_type
from lowtide.ir.types import ListType, TupleType, is_subtype


def verify(fn: Function, after: str = "") -> None:
    """Raises VerifyError if the function breaks a rule; `after` names the pass that made it."""
    checker = _Checker()
    checker.block(fn.block, "return", [fn.result], set())
    if checker.faults:
        marks: dict[Op, str] = {}
        for op, fault in checker.faults:
            marks.setdefault(op, fault)
        by = f" after pass {after!r}" if after else ""
        what = "; ".join(fault for _, fault in checker.faults[:3])
        text = print_function(fn, marks=marks)
        raise VerifyError(f"the IR of {fn.name!r} is broken{by}: {what}\n{text}")


class _Checker:
    def __init__(self) -> None:
        self.faults: list[tuple[Op, str]] = []
        self.made: set[Value] = set()

    def block(self, block: Block, end: str, results: Sequence[t.Type], outer: set[Value]) -> None:
        if not block.ops:
            self.faults.append((Op(name=end), f"a block without {end}"))
            return
        visible = set(outer)
        self.make(block.ops[0], block.args, visible)
        for op in block.ops:
            is_last = op is block.ops[-1]
            if (op.name in TERMINATORS) != is_last or (is_last and op.name != end):
                self.fault(op, f"a block must end in one {end}")
            for value in op.operands:
                if value not in visible:
                    self.fault(op, f"{value!r} is used before it is made, or out of sight")
            self.check(op, visible)
            self.make(op, op.results, visible)
        self.fits(block.terminator, block.terminator.operands, results)

    def make(self, op: Op, values: Sequence[Value], visible: set[Value]) -> None:
        for value in values:
            if value in self.made:
                self.fault(op, f"{value!r} is made twice")
            self.made.add(value)
            visible.add(value)

    def fits(self, op: Op, values: Sequence[Value], types: Sequence[t.Type]) -> None:
        if len(values) != len(types):
            self.fault(op, f"{len(values)} values where {len(types)} are expected")
        for value, type_ in zip(values, types, strict=False):
            if not is_subtype(value.type, type_):
                self.fault(op, f"{value!r} where {type_} is expected")

    def fault(self, op: Op, what: str) -> None:
        self.faults.append((op, what))

    def check(self, op: Op, visible: set[Value]) -> None:
        if op.name == "if":
            self.check_if(op, visible)
        elif op.name == "loop":
            self.check_loop(op, visible)
        elif op.name == "with":
            self.check_with(op, visible)
        elif op.blocks:
            self.fault(op, f"{op.name} takes no blocks")
        else:
            for fault in _faults(op):
                self.fault(op, fault)

    def check_if(self, op: Op, visible: set[Value]) -> None:
        self.fits(op, op.operands, [t.BOOL])
        if len(op.blocks) != 2 or any(b.args for b in op.blocks):
            self.fault(op, "if takes two blocks without arguments")
        for block in op.blocks:
            self.block(block, "yield", [r.type for r in op.results], visible)

    def check_loop(self, op: Op, visible: set[Value]) -> None:
        carried = [r.type for r in op.results]
        self.fits(op, op.operands, [t.INT, t.BOOL, *carried])
        if len(op.blocks) != 1 or len(op.blocks[0].args) != len(carried) + 1:
            self.fault(op, "loop takes one block with arguments (i, carried...)")
            return
        args = [a.type for a in op.blocks[0].args]
        if args != [t.INT, *carried]:
            self.fault(op, "the block's arguments and the results of a loop have equal types")
        self.block(op.blocks[0], "yield", [t.BOOL, *carried], visible)

    def check_with(self, op: Op, visible: set[Value]) -> None:
        counts = [len(block.args) for block in op.blocks]
        if len(op.operands) != 1 or counts not in ([1], [1, 3]):
            self.fault(op, "with takes one object, a block with one argument and one with three")
            return
        self.block(op.blocks[0], "yield", [r.type for r in op.results], visible)
        for leaving in op.blocks[1:]:
            self.block(leaving, "yield", [t.ANY], visible)


def _faults(op: Op) -> Iterator[str]:
    check = _CHECKS.get(op.name)
    if check is not None:
        if not check(op):
            yield f"{op.name} has operands, results or attributes that do not fit"
        return
    if op.name in TERMINATORS:
        return
    definition = opdefs.find(op.name)
    if definition is not None:
        yield from _python_faults(op, definition)
    elif op.name.startswith("torch."):
        yield from _torch_faults(op)
    else:
        yield f"{op.name} is not an op"


def _python_faults(op: Op, definition: opdefs.OpDef) -> Iterator[str]:
    types = [v.type for v in op.operands]
    try:
        expected = definition.result(types)
        if expected is None and any(t.is_dynamic(r.type) for r in op.results):
            types = [t.ANY if v in (t.TENSOR, t.NONE) else v for v in types]  # known only now
            expected = definition.result(types)
    except (IndexError, ValueError):
        expected = None
    if expected is None:
        yield f"{op.name} takes no ({', '.join(str(v.type) for v in op.operands)})"
    elif len(op.results) != 1:
        yield f"{op.name} has one result"
    elif not is_subtype(expected, op.results[0].type) and all(
        t.is_immutable(v.type) for v in op.operands
    ):  # what a list holds may be found out after its first use, so that types differ
        yield f"{op.name} has one result, of type {expected}"


def _torch_faults(op: Op) -> Iterator[str]:
    try:
        record = opdefs.torch_record(op.name)
    except KeyError:
        yield f"{op.name} is not in the table of torch ops"
        return
    if len(record.params) != len(op.operands):
        yield f"{op.name} takes {len(record.params)} operands"
    for param, value in zip(record.params, op.operands, strict=False):
        if not accepts(param, value.type):
            yield f"{value!r} for the parameter {param.name}: {'|'.join(param.types)} of {op.name}"
    results = [result_type(r) for r in record.results]
    if [r.type for r in op.results] != results:
        yield f"{op.name} has results ({', '.join(map(str, results))})"


def _const_fits(op: Op) -> bool:
    value = op.attrs.get("value")
    found = t.type_of(value)
    return not op.operands and is_literal(value) and found is not None and len(op.results) == 1


def _tuple_get_fits(op: Op) -> bool:
    type_, index = op.operands[0].type, op.attrs.get("index")
    if not isinstance(type_, TupleType) or not isinstance(index, int):
        return False
    return 0 <= index < len(type_.elems) and is_subtype(type_.elems[index], op.result.type)


def _tuple_make_fits(op: Op) -> bool:
    made = TupleType(tuple(v.type for v in op.operands))
    return is_subtype(made, op.result.type)


def _list_make_fits(op: Op) -> bool:
    return isinstance(op.result.type, ListType)  # of what may have been found out later


def _spec_fits(op: Op) -> bool:
    spec = op.attrs.get("spec")
    if not isinstance(spec, tuple) or not all(w in opdefs.Indexing.ARITY for w in spec):  # pyright: ignore[reportUnknownVariableType]
        return False
    items = sum(opdefs.Indexing.ARITY[str(w)] for w in spec)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return len(op.operands) == items + (2 if op.name == "mutate" else 1) and len(op.results) == 1


def _call_fits(op: Op) -> bool:
    return isinstance(op.attrs.get("target"), str) and isinstance(op.attrs.get("kwnames"), tuple)


def _mutate_fits(op: Op) -> bool:
    return _call_fits(op) and ("spec" not in op.attrs or _spec_fits(op))


_CHECKS: dict[str, Callable[[Op], bool]] = {
    "const": _const_fits,
    "undef": lambda op: not op.operands and len(op.results) == 1,
    "cast": lambda op: len(op.operands) == len(op.results) == 1,
    "tuple.make": _tuple_make_fits,
    "tuple.get": _tuple_get_fits,
    "list.make": _list_make_fits,
    "unpack": lambda op: len(op.operands) == 1,
    "py.format": lambda op: isinstance(op.attrs.get("template"), str),
    "dict.make": lambda op: len(op.operands) % 2 == 0 and len(op.results) == 1,
    "set.make": lambda op: len(op.results) == 1,
    "torch.getitem": _spec_fits,
    "call_torch": _call_fits,
    "mutate": _mutate_fits,
    "assert": lambda op: len(op.operands) in (1, 2) and op.operands[0].type == t.BOOL,
    "raise": lambda op: isinstance(op.attrs.get("exception"), str) and not op.results,
    "print": lambda op: not op.results,
    "use": lambda op: len(op.operands) == 1 and not op.results,
    **object_ops.CHECKS,
}
