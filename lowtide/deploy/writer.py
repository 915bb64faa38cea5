"""Collects the programs and the state of a file that is written.

In: entries, the root module. Out: texts of IR, rows of the manifest.

    six equal layers      one text, code/layers.0.forward.ir, and one row with six modules

Invariant: equal texts are one entry of the file. Each program passes the checks of the reader, and
its text parses back to the same program.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

from lowtide.deploy import class_table, modules, sources
from lowtide.deploy.allowed import Refusal, check_sizes
from lowtide.deploy.check import check
from lowtide.deploy.class_names import ClassNames, needed_method
from lowtide.deploy.class_table import ClassEntry, NotSaved, class_named
from lowtide.deploy.entries import Entry
from lowtide.deploy.fitting import Program
from lowtide.deploy.rename import named_class, rename_classes
from lowtide.deploy.storages import TensorTable
from lowtide.deploy.values import Encoder, can_encode
from lowtide.errors import UNKNOWN_LOC, CompileError, Loc
from lowtide.frontend.script.module_state import Guard, follow, join_path
from lowtide.ir.core import Function, Op, Value, print_function
from lowtide.ir.literals import is_literal
from lowtide.ir.parser import parse_function
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
    """See the module's text. `root`: None for a function."""

    def __init__(self, root: torch.nn.Module | None) -> None:
        self.root = root
        self.names = ClassNames()
        self.tensors = TensorTable()
        self.encoder = Encoder(self.tensors, self.names.id, self.names.use)
        self.codes: dict[str, str] = {}  # texts of programs, and their names in the file
        self._paths = {} if root is None else modules.in_order(root)
        self._rows = {module: k for k, module in enumerate(self._paths)}
        self._written: dict[int, tuple[Function, Function, str]] = {}  # original, renamed, text
        self._needs: dict[tuple[int, str], object] = {}

    # -- programs --

    def programs(self, entry: Entry) -> list[str]:
        """Return the names of an entry's programs in the file. Raises CompileError."""
        found: list[str] = []
        for program in entry.programs:
            fn = program.function
            if id(fn) not in self._written:
                self._note_classes(fn)
                made = rename_classes(fn, self.names.id_of_name)
                made.name = _plain(made.name).replace(".", "_")
                for op in made.walk():
                    op.attrs.pop("owner", None)  # the reader adds it
                self._written[id(fn)] = (fn, made, self._text(made))
            text = self._written[id(fn)][2]
            self._note_needs(program, entry.module)
            found.append(self.codes.get(text) or self._named(text, entry))
        return found

    def _named(self, text: str, entry: Entry) -> str:
        path = "" if entry.module is None else self._paths[entry.module]
        stem = _plain(join_path(path, entry.name))
        name, count, taken = f"code/{stem}.ir", 0, set(self.codes.values())
        while name in taken:
            count += 1
            name = f"code/{stem}.{count}.ir"
        self.codes[text] = name
        return name

    def _text(self, fn: Function) -> str:
        text = print_function(fn, full_paths=True)
        if print_function(parse_function(text), full_paths=True) != text:
            raise CompileError(f"{fn.name}() has IR that does not parse back", fn.loc)
        return text

    def _note_classes(self, fn: Function) -> None:
        """Give every class of the program an id, and note the attributes that are used."""
        for value in fn.arguments:
            self._at(fn.loc, lambda v=value: self._note_type(v.type))
        for value, path in zip(fn.params[len(fn.arguments) :], fn.captures, strict=True):
            self._at(fn.loc, lambda v=value: self._note_type(v.type), f"the attribute {path!r}, ")
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
            if op.name == "attr.set" and cls is not None and class_table.sets_in_python(cls):
                what = f"an assignment to `{op.attrs['name']}` of {cls.__name__}, whose __setattr__"
                raise NotSaved(f"{what} can only run in Python")
        method = needed_method(op)
        if method:
            raise NotSaved(f"the method {method}, which {op.name} calls")

    def _at(self, loc: Loc, note: Any, what: str = "") -> None:
        try:
            note()
        except NotSaved as error:
            raise _not_saved(f"{what}{error}", loc, error.remedy) from error

    # -- state --

    def _note_needs(self, program: Program, module: torch.nn.Module | None) -> None:
        fn = program.function
        captured = dict(zip(fn.params[len(fn.arguments) :], fn.captures, strict=True))
        for path in captured.values():
            self._at(fn.loc, lambda p=path: self._need(module, p))
        for guard in program.guards:
            paths = () if guard.kind in ("has", "fits", "hooks") else (guard.path, guard.other)
            for path in filter(None, paths):
                self._at(fn.loc, lambda p=path, k=guard.kind: self._need(module, p, only_plain=k))
        for path, loc in self._in_place(fn).items():
            self._at(loc, lambda p=path: self._need(module, p))

    def _in_place(self, fn: Function) -> dict[str, Loc]:
        """Return the attributes of captured modules that the program reads or writes in place."""
        captured = dict(zip(fn.params[len(fn.arguments) :], fn.captures, strict=True))
        return {
            join_path(captured[op.operands[0]], str(op.attrs["name"])): op.loc
            for op in fn.walk()
            if op.name in ("attr.get", "attr.set") and self._is_module(captured, op.operands[0])
        }

    def _is_module(self, captured: Mapping[Value, str], value: Value) -> bool:
        cls = _class_of(value) if value in captured else None
        return cls is not None and issubclass(cls, torch.nn.Module)

    def _need(self, root: torch.nn.Module | None, path: str, only_plain: str = "") -> None:
        assert root is not None
        owner, name = follow(root, path)
        if not name:
            return
        own = vars(owner)
        if _is_state(owner, name):
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
        if not only_plain or can_encode(value):
            self._needs[id(owner), name] = value

    def _has(self, root: torch.nn.Module | None, path: str) -> bool:
        """Return whether the attribute will be in the file."""
        if path.startswith("@"):
            return False
        owner, name = follow(cast("torch.nn.Module", root), path)
        return _is_state(owner, name) or (id(owner), name) in self._needs

    def modules(self) -> list[object]:
        """Return the rows of the module tree. Raises CompileError."""
        if self.root is None:
            return []
        try:
            return modules.encode(self._paths, self._needs, self.encoder, self.names)
        except NotSaved as error:
            raise _not_saved(str(error), self._first_loc(), error.remedy) from error

    def places(self, entry: Entry) -> list[int]:
        """Return the row of the entry's module; none for a function."""
        return [] if entry.module is None else [self._rows[entry.module]]

    def parameter(self, entry: Entry, parameter: inspect.Parameter) -> dict[str, object]:
        """Return the row of a parameter. Raises CompileError."""
        row: dict[str, object] = {"name": parameter.name, "kind": parameter.kind.name.lower()}
        if parameter.default is not inspect.Parameter.empty:
            hint = f"{entry.name}.{parameter.name}"
            loc = entry.programs[0].function.loc
            self._at(loc, lambda: row.update(default=self.encoder.value(parameter.default, hint)))
        return row

    def guards(self, entry: Entry, program: Program) -> list[object]:
        """Return the rows of a program's guards, without those that a file cannot hold. A guard on
        a type becomes one on being None; a guard on a function, one on the attribute's absence."""
        facts: Iterator[Any] = iter(program.facts)
        in_place = self._in_place(program.function)  # their types are in the program
        rows: list[object] = []

        def add(guard: Guard, fact: object) -> None:
            rows.append([guard.kind, guard.path, guard.other, self.encoder.value(fact, "guard")])

        for guard in program.guards:
            if guard.kind == "hooks":
                add(guard, None)
                continue
            fact = next(facts)
            if guard.kind == "fits":
                continue
            is_there = self._has(entry.module, guard.path)
            if guard.kind == "type":
                if guard.path not in in_place and is_there:
                    add(Guard("none", guard.path), fact is type(None))
            elif guard.kind != "has" and is_literal(fact):
                add(guard, fact)
            elif is_there or not _given_by_class(entry.module, guard.path):
                add(Guard("has", guard.path), is_there)
        return rows

    # -- at the end --

    def finish(self) -> dict[str, ClassEntry]:
        """Return the class table, after all programs are checked. Raises CompileError."""
        try:
            classes = self.names.entries()
        except NotSaved as error:
            raise _not_saved(str(error), self._first_loc(), error.remedy) from error
        for _, made, _ in self._written.values():
            try:
                check_sizes(made)
                check(made, classes)
            except Refusal as error:
                raise _not_saved(error.problem, error.loc, error.remedy) from error
        return classes

    def sources(self) -> list[object]:
        """Return the source lines of the programs' locations."""
        return sources.rows_of(made for _, made, _ in self._written.values())

    def _first_loc(self) -> Loc:
        return next((fn.loc for fn, _, _ in self._written.values()), UNKNOWN_LOC)


def _given_by_class(root: torch.nn.Module | None, path: str) -> bool:
    """Return whether the path is a global, or an attribute that all loaded modules of this class
    have."""
    if path.startswith("@"):
        return True
    owner, name = follow(cast("torch.nn.Module", root), path)
    return not name or hasattr(class_table.container_of(owner), name)


def _is_state(module: torch.nn.Module, name: str) -> bool:
    held = ("_modules", "_parameters", "_buffers")
    return any(name in vars(module)[kind] for kind in held)


def _plain(name: str) -> str:
    """Return the name with letters, digits, dots and underscores only, for files and functions."""
    return re.sub(r"[^\w.]", "_", name, flags=re.ASCII)[:100]


def _class_of(value: Value) -> type | None:
    type_ = value.type.elem if isinstance(value.type, OptionalType) else value.type
    return class_named(type_.name) if isinstance(type_, ClassType) else None


def _not_saved(what: str, loc: Loc, remedy: str = "") -> CompileError:
    return CompileError(
        f"{what}: cannot be saved, because a file holds programs and data, not Python code",
        loc,
        remedy or "plain functions and attributes of numbers, strings, tensors and containers",
    )
