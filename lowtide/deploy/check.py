"""Checks a program of a file against a positive list, before it is written and after it is read.

In: a verified Function with the file's names of classes, and the class table. Out: nothing; raises
`Refusal` with the reason and the line.

    call_torch(%x) {target="torch.load", …}       refused: not in `torch_names`
    attr.get(%x) {name="__class__"}               refused: no field of that name
    py.format(%x) {template="{0.__class__}"}      refused: reads an attribute of its operand
    raise(%x) {exception="open"}                  refused: no exception of Python's

Invariant: a checked program calls only functions of PyTorch and Python that Lowtide's tables name.
It reads and writes only fields that the file's classes declare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from lowtide.deploy import limits
from lowtide.deploy.allowed import ATTRIBUTES, ATTRS, METHODS, PLAIN, WARN, Refusal, is_flat
from lowtide.deploy.class_table import EXCEPTIONS, FOREIGN, WARNINGS, ClassEntry
from lowtide.deploy.rename import named_class, values_of
from lowtide.deploy.torch_names import MODES, is_pure_method, may_call, remedy_for
from lowtide.errors import Loc
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.named_results import RESULTS, field_names
from lowtide.ir.types import ClassType, FunctionType, OptionalType, TupleType, Type, types_in


def check(fn: Function, classes: Mapping[str, ClassEntry]) -> None:
    """Raise Refusal if the program has an op, a type or a name that no file may have."""
    checker = _Checker(classes)
    for value in values_of(fn.block):
        checker.type(value.type, fn.loc)
    checker.type(fn.result, fn.loc)
    checker.block(fn.block)


def owner_of(op: Op, classes: Mapping[str, ClassEntry]) -> ClassEntry | None:
    """Return the file's class whose field `attr.get` or `attr.set` accesses, by the operand's
    type."""
    type_ = op.operands[0].type
    if isinstance(type_, OptionalType):
        type_ = type_.elem
    return classes.get(type_.name) if isinstance(type_, ClassType) else None


class _Checker:
    def __init__(self, classes: Mapping[str, ClassEntry]) -> None:
        self.classes = classes
        self.makers: dict[Value, Op] = {}

    def type(self, type_: Type, loc: Loc) -> None:
        for part in types_in(type_):
            match part:
                case FunctionType():
                    raise Refusal("a function as a value", loc, "a call of the function itself")
                case ClassType(name) if name not in self.classes and name not in FOREIGN:
                    raise Refusal(f"the class {name!r}, which the file does not have", loc)
                case TupleType(elems, names, cls) if cls:
                    known = self.fields(cls)
                    if known != names or len(names) != len(elems):
                        raise Refusal(f"the named tuple {cls!r}, which the file does not have", loc)
                case _:
                    pass

    def fields(self, cls: str) -> tuple[str, ...]:
        """Return the fields of a named tuple, of the file or of PyTorch."""
        if cls in RESULTS:
            return field_names(RESULTS[cls])
        entry = self.classes.get(cls)
        if entry is None or entry.kind != "named_tuple":
            return ()
        return tuple(f.name for f in entry.fields)

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)
            self.makers.update((r, op) for r in op.results)
            for inner in op.blocks:
                self.block(inner)

    def op(self, op: Op) -> None:
        rule = _RULES.get(op.name)
        extra = op.attrs.keys() - ATTRS.get(op.name, frozenset())
        if extra and op.name != "call_module":
            raise Refusal(f"{op.name} with an attribute {min(extra)!r}", op.loc)
        if rule is not None:
            rule(self, op)
        elif op.name not in PLAIN and not self.is_record(op):
            raise Refusal(f"the op {op.name!r}", op.loc)

    def is_record(self, op: Op) -> bool:
        try:
            return op.name.startswith("torch.") and bool(opdefs.torch_record(op.name))
        except KeyError:
            return False

    def kwnames(self, op: Op) -> tuple[str, ...]:
        names = cast("tuple[object, ...]", op.attrs.get("kwnames", ()))
        receiver = 1 if op.name == "py.call_method" else 0
        fits = isinstance(names, tuple) and len(names) <= len(op.operands) - receiver  # pyright: ignore[reportUnnecessaryIsInstance]
        if not fits or not all(map(limits.is_identifier, names)):
            raise Refusal(f"{op.name} with keywords that are not identifiers", op.loc)
        return cast("tuple[str, ...]", names)

    def call_torch(self, op: Op) -> None:
        self.kwnames(op)
        target = str(op.attrs["target"])
        if not may_call(target):
            raise Refusal(f"a call of {target[:80]}", op.loc, remedy_for(target))

    def attribute(self, op: Op) -> None:
        name, entry = str(op.attrs["name"]), owner_of(op, self.classes)
        if entry is None:
            if op.name == "attr.get" and name in ATTRIBUTES:
                return
            kind = op.operands[0].type
            raise Refusal(
                f"the attribute {name[:80]!r} of {_shown(kind)}",
                op.loc,
                "an annotation or an isinstance() with its class",
            )
        if not entry.has(name) or (entry.kind == "enum" and op.name == "attr.set"):
            raise Refusal(f"{entry.name}.{name[:80]}, which is no field", op.loc)
        if op.attrs.get("frozen") and entry.kind != "record":
            raise Refusal(f"{entry.name} is not a dataclass", op.loc)

    def call_method(self, op: Op) -> None:
        self.kwnames(op)
        name, entry = str(op.attrs["name"]), owner_of(op, self.classes)
        if entry is not None:
            raise Refusal(
                f"the method {name}() of {entry.name}, which only Python can run",
                op.loc,
                "a method whose source can be compiled",
            )
        if name == "format":
            self.template(op)
        elif name not in METHODS and not is_pure_method(name):
            raise Refusal(
                f"the method {name[:80]}() of {_shown(op.operands[0].type)}",
                op.loc,
                "an annotation",
            )

    def format(self, op: Op) -> None:
        if not is_flat(str(op.attrs["template"])):
            raise Refusal(
                "a template that reads attributes or items of its operands", op.loc, "f'{x.y}'"
            )

    def template(self, op: Op) -> None:
        maker = self.makers.get(op.operands[0]) if op.operands else None
        text = maker.attrs.get("value") if maker is not None and maker.name == "const" else None
        if not isinstance(text, str) or not is_flat(text):
            raise Refusal("str.format() of a string that is not constant", op.loc, "an f-string")

    def raises(self, op: Op) -> None:
        name = str(op.attrs["exception"])
        self.kwnames(op)
        entry = self.classes.get(name)
        known = name in EXCEPTIONS or (entry is not None and entry.kind == "exception")
        if name and not known:
            raise Refusal(f"`raise {name[:80]}`", op.loc, "an exception derived from Exception")

    def prints(self, op: Op) -> None:
        if not set(self.kwnames(op)) <= {"sep", "end", "flush"}:
            raise Refusal("print() to a file", op.loc, "print() without `file=`")

    def enters(self, op: Op) -> None:
        if len(op.blocks) == 2:
            return  # entering and leaving are ops of the program, which are checked, too
        maker = self.makers.get(op.operands[0])
        if maker is None or maker.attrs.get("target") not in MODES:
            raise Refusal(
                "`with` on a Python context manager",
                op.loc,
                "torch.no_grad() and the like, or a function without `with`",
            )

    def makes(self, op: Op) -> None:
        kinds = {"enum.const": "enum", "enum.get": "enum", "object.new": "record"}
        entry = self.classes.get(named_class(op))
        if entry is None or entry.kind != kinds[op.name]:
            raise Refusal(f"{op.name} of a class that is no {kinds[op.name]}", op.loc)
        names = [m for m, _ in entry.members]
        if op.name == "enum.const" and op.attrs["member"] not in names:
            raise Refusal(f"{entry.name} has no member {op.attrs['member']!r}", op.loc)

    def tuple_make(self, op: Op) -> None:
        if "cls" in op.attrs:
            names = self.fields(named_class(op))
            if not names or len(names) != len(op.operands):
                raise Refusal("a tuple of a class that is not a named tuple", op.loc)

    def isinstance(self, op: Op) -> None:
        self.type(t.parse_type(str(op.attrs["type"])), op.loc)

    def py_call(self, op: Op) -> None:
        target = str(op.attrs["target"])
        if not target.startswith(WARN) or target.removeprefix(WARN) not in WARNINGS:
            remedy = "@lt.unused, or a function that can be compiled"
            if target.endswith(".apply"):  # of an autograd.Function
                remedy = "lt.trace under torch.no_grad(), which records the ops of its forward"
            raise Refusal(f"a call of the Python function {target[:80]}", op.loc, remedy)
        if self.kwnames(op) or len(op.operands) != 1:
            raise Refusal("a warning with more than a message", op.loc)

    def call_module(self, op: Op) -> None:
        why = str(op.attrs.get("why", ""))[:200]
        raise Refusal(
            f"a module that runs in Python ({why})", op.loc, "a module whose forward compiles"
        )


_Rule = Callable[[_Checker, Op], None]
_RULES: Final[Mapping[str, _Rule]] = {
    "call_torch": _Checker.call_torch,
    "mutate": _Checker.call_torch,
    "attr.get": _Checker.attribute,
    "attr.set": _Checker.attribute,
    "py.call_method": _Checker.call_method,
    "py.format": _Checker.format,
    "str.format": _Checker.template,
    "raise": _Checker.raises,
    "print": _Checker.prints,
    "with": _Checker.enters,
    "enum.const": _Checker.makes,
    "enum.get": _Checker.makes,
    "object.new": _Checker.makes,
    "tuple.make": _Checker.tuple_make,
    "py.isinstance": _Checker.isinstance,
    "py.call": _Checker.py_call,
    "call_module": _Checker.call_module,
}


def _shown(type_: Type) -> str:
    return "a value of unknown type" if t.is_dynamic(type_) else f"{type_}"[:80]
