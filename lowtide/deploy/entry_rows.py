"""Reads the entries of a manifest: the programs of each method of each module.

In: untrusted rows, the module tree. Out: `Method`s: first with the file's names of classes; after
all checks, with the names of this process.

    {"modules": [2, 5], "name": "forward", "parameters": [...],
     "programs": [{"code": "code/layers.0.forward.ir", "guards": [...]}]}

Invariant: a text is read once, however many methods share it. Each attribute that a program reads
exists in all modules that have the program's method.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from lowtide.deploy import limits, sources
from lowtide.deploy.archive import Archive
from lowtide.deploy.class_table import may_be_method
from lowtide.deploy.fitting import Program
from lowtide.deploy.jsontext import Node
from lowtide.deploy.reader import check_paths, read_code, read_guard, use_names
from lowtide.deploy.values import Decoder
from lowtide.errors import LoadError

_KINDS: Final = {k.name.lower(): k for k in type(inspect.Parameter.VAR_KEYWORD)}


@dataclass(frozen=True, slots=True)
class Method:
    """A function, if it has no `modules`; else a method that these modules share."""

    name: str
    modules: tuple[int, ...]
    signature: inspect.Signature
    programs: list[Program]


class EntryReader:
    """See the module's text."""

    def __init__(
        self, opened: Archive, decoder: Decoder, modules: Sequence[torch.nn.Module]
    ) -> None:
        self._archive = opened
        self._decoder = decoder
        self._modules = modules
        self._codes: dict[str, Program] = {}  # without guards
        self._code_of: dict[int, str] = {}  # of a program, by its id
        self._path_chars = 0

    def methods(self, rows: Node) -> list[Method]:
        """Return all rows, checked. Raises LoadError."""
        found: list[Method] = []
        taken: set[tuple[int, str]] = set()
        for row in rows.items_of(limits.ENTRIES):
            method = self._method(row.only("name", "modules", "parameters", "programs"))
            for place in method.modules:
                if (place, method.name) in taken:
                    raise row.get("modules").fail("modules without a method of this name")
                taken.add((place, method.name))
            found.append(method)
        if not self._modules and len(found) != 1:
            raise rows.fail("one entry of a function")
        return found

    def _method(self, row: Node) -> Method:
        places = tuple(p.index(len(self._modules)) for p in row.get("modules").items_of())
        modules = [self._modules[place] for place in places]
        if bool(modules) != bool(self._modules):
            raise row.get("modules").fail("the modules whose method it is, none for a function")
        _check_name(row.get("name"), modules)
        signature = _signature(row.get("parameters"), self._decoder)
        rows = row.get("programs").items_of(limits.PROGRAMS)
        if not rows:
            raise row.get("programs").fail("a program")
        programs = [self._program(r, signature, modules) for r in rows]
        return Method(row.get("name").text(), places, signature, programs)

    def _program(
        self, row: Node, signature: inspect.Signature, modules: Sequence[torch.nn.Module]
    ) -> Program:
        code = row.only("code", "guards").get("code")
        name = code.text()
        if not name.startswith("code/"):
            raise code.fail("an entry in code/")
        if name not in self._codes:
            raw = self._archive.read(name, limits.CODE_BYTES)
            self._codes[name] = read_code(name, raw, self._decoder.entries)
        guards = [read_guard(g, self._decoder) for g in row.get("guards").items_of()]
        facts = tuple(fact for guard, fact in guards if guard.kind != "hooks")
        program = replace(self._codes[name], guards=tuple(g for g, _ in guards), facts=facts)
        if len(program.function.arguments) != len(signature.parameters):
            raise LoadError(f"{name} has other parameters than its entry")
        self._check_paths(code, program, modules)
        self._code_of[id(program)] = name
        return program

    def _check_paths(
        self, code: Node, program: Program, modules: Sequence[torch.nn.Module]
    ) -> None:
        guarded = [path for guard in program.guards for path in (guard.path, guard.other)]
        paths = [*program.function.captures, *guarded]
        if paths and not modules:
            raise LoadError(f"{code.text()} is a function, so it cannot read a module's state")
        self._path_chars += len(modules) * sum(len(path) + 1 for path in paths)
        if self._path_chars > limits.PATH_CHARS:
            raise code.fail("programs that read less of their modules")
        for module in modules:
            check_paths(code.text(), program, module)

    def named(
        self, methods: Sequence[Method], classes: Mapping[str, type], lines: sources.Lines
    ) -> list[Method]:
        """Return the methods with names of classes of this process."""
        codes = {
            name: use_names(program, self._decoder.entries, classes, lines)
            for name, program in self._codes.items()
        }
        found: list[Method] = []
        for method in methods:
            programs = [
                replace(codes[self._code_of[id(p)]], guards=p.guards, facts=p.facts)
                for p in method.programs
            ]
            found.append(replace(method, programs=programs))
        return found


def _check_name(name: Node, modules: Sequence[torch.nn.Module]) -> None:
    """Check that a method hides no attribute of its modules."""
    if not name.text().isidentifier() or name.text().startswith("__"):
        raise name.fail("the name of an entry point")
    for module in modules:
        own = vars(module)
        held = (own, own["_parameters"], own["_buffers"], own["_modules"])
        if not may_be_method(type(module), name.text()) or any(name.text() in h for h in held):
            raise name.fail("the name of an entry point")


def _signature(rows: Node, decoder: Decoder) -> inspect.Signature:
    parameters: list[inspect.Parameter] = []
    for row in rows.items_of(1000):
        row.only("name", "kind", "default")
        name, kind = row.get("name"), _KINDS[row.get("kind").text(_KINDS)]
        if not name.text().isidentifier() or keyword.iskeyword(name.text()):
            raise name.fail("the name of a parameter")
        default = (
            decoder.value(row.get("default")) if row.has("default") else inspect.Parameter.empty
        )
        if row.has("default") and kind in (_KINDS["var_positional"], _KINDS["var_keyword"]):
            raise row.fail("a `*` parameter without a default")
        parameters.append(inspect.Parameter(name.text(), kind, default=default))
    try:
        return inspect.Signature(parameters)
    except ValueError as error:
        raise rows.fail("parameters in an order that Python takes") from error
