"""Programs and state of one file, while it is written.

In: entries, the root module. Out: texts of IR, rows of the manifest.

Always holds: what is written has passed the checks that reading makes, and its text reads back to
the same program.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lowtide.deploy import class_table, modules, sources
from lowtide.deploy.allowed import Refusal, check_sizes
from lowtide.deploy.check import check
from lowtide.deploy.class_names import ClassNames, needed_method
from lowtide.deploy.class_table import ClassEntry, NotSaved, class_named
from lowtide.deploy.entries import Entry
from lowtide.deploy.programs import Program
from lowtide.deploy.rename import named_class, rename_classes
from lowtide.deploy.storages import TensorTable
from lowtide.deploy.values import Encoder
from lowtide.errors import CompileError, Loc
from lowtide.frontend.script.module_state import follow, join_path
from lowtide.ir.core import Function, Op, Value
from lowtide.ir.literals import is_literal
from lowtide.ir.parser import parse_function
from lowtide.ir.printer import print_function
from lowtide.ir.types import (
    ClassType,
    FunctionType,
    OptionalType,
    TupleType,
    Type,
    parse_type,
    types_in,
)


class Writer:
    """See the module's text; `root` is None for a function."""

    def __init__(self, root: torch.nn.Module | None) -> None:
        self.root = root
        self.names = ClassNames()
        self.tensors = TensorTable()
        self.encoder = Encoder(self.tensors, self.names.id, self.names.use)
        self._written: list[tuple[Function, Function]] = []  # as it is, as it stands in the file
        self._needs: dict[tuple[int, str], object] = {}

    # -- programs --

    def programs(self, entry: Entry) -> list[tuple[str, str]]:
        """Names and texts of an entry's programs; raises CompileError."""
        found: list[tuple[str, str]] = []
        for k, program in enumerate(entry.programs):
            fn = program.function
            self._note_classes(fn)
            self._note_needs(program)
            made = rename_classes(fn, self.names.id_of_name)
            made.name = re.sub(r"\W", "_", made.name, flags=re.ASCII)[:100]
            for op in made.walk():
                op.attrs.pop("owner", None)  # what reading has added
            self._written.append((fn, made))
            stem = re.sub(r"\W", "_", entry.name, flags=re.ASCII)[:100]
            name = f"code/{stem}.{k}.ir" if k else f"code/{stem}.ir"
            found.append((name, self._text(made)))
        return found

    def _text(self, fn: Function) -> str:
        text = print_function(fn, full_paths=True)
        if parse_function(text) != fn:
            raise CompileError(f"{fn.name}() prints to IR that does not read back", fn.loc)
        return text

    def _note_classes(self, fn: Function) -> None:
        """Gives every class of the program an id, and notes the attributes that are used."""
        for value in fn.params:
            self._at(fn.loc, lambda v=value: self._note_type(v.type))
        self._at(fn.loc, lambda: self._note_type(fn.result))
        for op in fn.walk():
            self._at(op.loc, lambda o=op: self._note_op(o))

    def _note_type(self, type_: Type) -> None:
        for part in types_in(type_):
            if isinstance(part, ClassType):
                self.names.id(class_named(part.name))
            elif isinstance(part, TupleType) and part.cls:
                self.names.id(class_named(part.cls))
            elif isinstance(part, FunctionType):
                raise NotSaved("a function as a value")

    def _note_op(self, op: Op) -> None:
        for value in (*op.results, *(a for b in op.blocks for a in b.args)):
            self._note_type(value.type)
        if op.name == "py.isinstance":
            self._note_type(parse_type(str(op.attrs["type"])))
        if named_class(op) and op.name != "py.call":
            self.names.id(class_named(named_class(op)))
        if op.name in ("attr.get", "attr.set"):
            cls = _class_of(op.operands[0])
            if cls is not None:
                self.names.use(cls, str(op.attrs["name"]))
        method = needed_method(op)
        if method:
            raise NotSaved(f"the method {method}, which {op.name} calls")

    def _at(self, loc: Loc, note: Any) -> None:
        try:
            note()
        except NotSaved as error:
            raise _not_saved(str(error), loc) from error

    # -- state --

    def _note_needs(self, program: Program) -> None:
        fn = program.function
        captured = dict(zip(fn.params[len(fn.arguments) :], fn.captures, strict=True))
        for path in captured.values():
            self._at(fn.loc, lambda p=path: self._need(p))
        for guard in program.guards:
            paths = () if guard.kind in ("hooks", "has") else (guard.path, guard.other)
            for path in filter(None, paths):
                self._at(fn.loc, lambda p=path, k=guard.kind: self._need(p, only_plain=k))
        for op in fn.walk():
            if op.name in ("attr.get", "attr.set") and self._is_module(captured, op.operands[0]):
                path = join_path(captured[op.operands[0]], str(op.attrs["name"]))
                self._at(op.loc, lambda p=path: self._need(p))

    def _is_module(self, captured: Mapping[Value, str], value: Value) -> bool:
        cls = _class_of(value) if value in captured else None
        return cls is not None and issubclass(cls, torch.nn.Module)

    def _need(self, path: str, only_plain: str = "") -> None:
        assert self.root is not None
        owner, name = follow(self.root, path)
        if not name:
            return
        own = vars(owner)
        if any(name in own[held] for held in ("_modules", "_parameters", "_buffers")):
            return
        if name in own:
            value = own[name]
        else:
            value = inspect.getattr_static(type(owner), name, modules.MISSING)
            if value is not modules.MISSING and class_table.is_computed(value):
                if only_plain:
                    return
                raise NotSaved(f"{path!r}, which is computed in Python (a parametrization, say)")
            if value is modules.MISSING:
                raise NotSaved(f"{path!r}, which __getattr__ gives")
        if not only_plain or is_literal(value):
            self._needs[id(owner), name] = value

    def modules(self) -> list[object]:
        """The rows of the module tree; raises CompileError."""
        if self.root is None:
            return []
        loc = self._written[0][0].loc if self._written else Loc("<unknown>", 0)
        try:
            return modules.encode(self.root, self._needs, self.encoder, self.names)
        except NotSaved as error:
            raise _not_saved(str(error), loc) from error

    def parameter(self, entry: Entry, parameter: inspect.Parameter) -> dict[str, object]:
        """The row of a parameter; raises CompileError."""
        row: dict[str, object] = {"name": parameter.name, "kind": parameter.kind.name.lower()}
        if parameter.default is not inspect.Parameter.empty:
            hint = f"{entry.name}.{parameter.name}"
            loc = entry.programs[0].function.loc
            self._at(loc, lambda: row.update(default=self.encoder.value(parameter.default, hint)))
        return row

    def guards(self, program: Program) -> list[object]:
        """The rows of a program's guards; those that no file can hold are left out."""
        facts: Iterator[Any] = iter(program.facts)
        rows: list[object] = []
        for guard in program.guards:
            if guard.kind == "hooks":
                rows.append([guard.kind, guard.path, "", None])
                continue
            fact = next(facts)
            if guard.kind in ("type", "has"):
                continue  # the program tells the type; a file's modules get no attributes
            if is_literal(fact):
                rows.append(
                    [guard.kind, guard.path, guard.other, self.encoder.value(fact, "guard")]
                )
        return rows

    # -- at the end --

    def finish(self) -> dict[str, ClassEntry]:
        """The class table, once all programs have passed the checks; raises CompileError."""
        try:
            classes = self.names.entries()
        except NotSaved as error:
            raise _not_saved(str(error), self._written[0][0].loc) from error
        for _, made in self._written:
            try:
                check_sizes(made)
                check(made, classes)
            except Refusal as error:
                raise _not_saved(error.problem, error.loc, error.remedy) from error
        return classes

    def sources(self) -> list[object]:
        """The lines that the programs point at."""
        return sources.rows_of(made for _, made in self._written)


def _class_of(value: Value) -> type | None:
    type_ = value.type.elem if isinstance(value.type, OptionalType) else value.type
    return class_named(type_.name) if isinstance(type_, ClassType) else None


def _not_saved(what: str, loc: Loc, remedy: str = "") -> CompileError:
    return CompileError(
        f"{what}: cannot be saved, for a file holds programs and data, no Python",
        loc,
        remedy or "plain functions and attributes of numbers, strings, tensors and containers",
    )
