"""Reads a program of a file: parses, verifies and checks it, then uses names of this process.

In: the text of an entry in `code/`, the file's class table and modules. Out: a `Program`.

    code/forward.ir with call_torch {target="torch.load"}      LoadError at the line of the call

Invariant: any text gives a checked program or a LoadError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import torch

from lowtide.deploy import limits, sources
from lowtide.deploy.allowed import WARN, Refusal, check_sizes
from lowtide.deploy.check import check, owner_of
from lowtide.deploy.class_table import EXCEPTIONS, FOREIGN, ClassEntry
from lowtide.deploy.fitting import Program
from lowtide.deploy.jsontext import Node
from lowtide.deploy.rename import rename_classes, rename_type, values_of
from lowtide.deploy.values import Decoder
from lowtide.errors import LoadError, LowtideError
from lowtide.frontend.script.left_to_python import warner
from lowtide.frontend.script.module_state import Guard, Kind, follow, join_path
from lowtide.ir import python_objects
from lowtide.ir.core import Function, Op
from lowtide.ir.parser import parse_function
from lowtide.ir.types import Type
from lowtide.ir.verify import verify

_BROKEN: Final = (
    *(LowtideError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError),
    *(AssertionError, RecursionError, MemoryError),
)
_GUARDS: Final = ("value", "none", "same", "has", "hooks")


def read_code(code: str, raw: bytes, entries: Mapping[str, ClassEntry]) -> Program:
    """Return the program without guards, with the file's names of classes. Raises LoadError."""
    function = _function(code, raw, entries)
    return Program(function, reads=_reads(function, entries))


def read_guard(row: Node, decoder: Decoder) -> tuple[Guard, Any]:
    """Return a guard, and its value when the program was compiled. Raises LoadError."""
    kind, path, other, fact = row.row(4)
    guard = Guard(cast("Kind", kind.text(_GUARDS)), path.text(), other.text())
    match guard.kind:
        case "hooks":
            return guard, None
        case "value":
            return guard, decoder.value(fact)
        case _:
            return guard, fact.flag()


def check_paths(code: str, program: Program, module: torch.nn.Module) -> None:
    """Raise LoadError if the module lacks an attribute that the program reads."""
    for path in program.function.captures:
        _check_path(code, module, path)
    for guard in program.guards:
        path = guard.path.rpartition(".")[0] if guard.kind == "has" else guard.path
        of_module = guard.kind in ("has", "hooks") and path
        _check_path(code, module, f"{path}." if of_module else path)
        if guard.kind == "same":
            _check_path(code, module, guard.other)


def _reads(function: Function, entries: Mapping[str, ClassEntry]) -> dict[str, Type]:
    """Return the attributes of captured modules that the program reads in place, and their
    types."""
    captured = dict(zip(function.params[len(function.arguments) :], function.captures, strict=True))
    return {
        join_path(captured[op.operands[0]], str(op.attrs["name"])): op.result.type
        for op in function.walk()
        if op.name == "attr.get" and op.operands[0] in captured and _is_module(op, entries)
    }


def _is_module(op: Op, entries: Mapping[str, ClassEntry]) -> bool:
    entry = owner_of(op, entries)
    return entry is not None and entry.kind == "module"


def _function(code: str, raw: bytes, entries: Mapping[str, ClassEntry]) -> Function:
    try:
        text = raw.decode("utf-8")
        _check_text(text)
        function = parse_function(text)
        check_sizes(function)
        verify(function)
        check(function, entries)
    except Refusal as error:
        raise LoadError(f"{code}: {error.problem} may not be in a file ({error.loc})") from error
    except _BROKEN as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise LoadError(f"{code} is not a valid program: {why}") from error
    return function


_INDENT: Final = re.compile(r"[ ]*")


def _check_text(text: str) -> None:
    for line in text.split("\n"):
        if len(line) > limits.LINE_CHARS:
            raise ValueError(f"a line of {len(line)} characters")
        indent = _INDENT.match(line)
        if indent is not None and indent.end() > 4 * limits.NESTING:
            raise ValueError("blocks nested too deep")


def _check_path(code: str, root: torch.nn.Module, path: str) -> None:
    try:
        if path.startswith("@"):  # a global of this process
            raise KeyError(path)
        owner, name = follow(root, path)
        held = vars(owner)
        found = not name or any(
            name in held[kind] for kind in ("_parameters", "_buffers", "_modules")
        )
        found = found or name == "training" or (not name.startswith("_") and name in held)
        found = found or (name.startswith("_") and name in _own_attributes(owner))
    except (KeyError, AttributeError):
        found = False
    if not found:
        raise LoadError(f"{code} reads {path[:80]!r}, which the file's modules do not have")


_INTERNAL: Final = frozenset(vars(torch.nn.Module()))


def _own_attributes(module: torch.nn.Module) -> set[str]:
    return set(vars(module)) - _INTERNAL


# ---- names of this process --------------------------------------------------------------------


def use_names(
    program: Program,
    entries: Mapping[str, ClassEntry],
    classes: Mapping[str, type],
    lines: sources.Lines,
) -> Program:
    """Return the program with names of classes of this process and complete locations, which the
    driver can run."""

    def name(id_: str) -> str:
        if id_.startswith(WARN):
            return id_
        return python_objects.name_of(classes[id_] if id_ in classes else FOREIGN[id_])

    fn = program.function
    owners: list[tuple[Op, str]] = []
    made = rename_classes(fn, name)
    for before, after in zip(fn.walk(), made.walk(), strict=True):
        if before.name in ("attr.get", "attr.set"):
            entry = owner_of(before, entries)
            if entry is not None:
                owners.append((after, name(entry.id)))
    for op, owner in owners:
        op.attrs["owner"] = owner
    for value in values_of(made.block):
        value.name = _HINT.sub("_", value.name)[:100]
    sources.restore(made, lines)
    for op in made.walk():
        target = str(op.attrs.get("target", ""))
        if op.name == "py.call" and target.startswith(WARN):
            category: Any = EXCEPTIONS[target.removeprefix(WARN)]
            warns = warner(category, op.loc.file, op.loc.line)
            op.attrs["target"] = python_objects.name_of(warns)
    reads = {path: rename_type(type_, name) for path, type_ in program.reads.items()}
    return Program(made, program.guards, program.facts, reads)


_HINT: Final = re.compile(r"[^A-Za-z0-9_.$]", re.ASCII)
