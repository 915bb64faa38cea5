"""Explains why a loaded method has no program for the present state of its modules.

In: programs and the module. Out: an error with the attributes that differ.

    m.cache = torch.zeros(3)    "`self.cache` was None, is not None"

Invariant: of several programs, the error is about the one with the fewest differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from lowtide.deploy.fitting import Program, takes
from lowtide.errors import CompileError
from lowtide.execute.captures import Reader
from lowtide.execute.differences import attribute, change, guard_change
from lowtide.frontend.script.module_state import Guard, follow
from lowtide.ir import types as t
from lowtide.ir.types import Type


def other_state(name: str, programs: Sequence[Program], root: torch.nn.Module) -> CompileError:
    """Return the error for a module whose state fits none of the programs of a method."""
    found = [(dict(_differences(p, root)), p.function.loc) for p in programs]
    differences, loc = min(found, key=lambda row: len(row[0]))
    return CompileError(
        f"{name}() was saved for other attributes than the module has now: "
        + ", ".join(differences),
        loc,
        ", ".join(dict.fromkeys(differences.values())),
    )


def held(root: torch.nn.Module, path: str) -> object:
    """Return the module's attribute at `path`. Raises KeyError, AttributeError."""
    owner, name = follow(root, path)
    return getattr(owner, name) if name else owner


def holds(type_: Type, value: object) -> bool:
    """Return whether a program that reads an attribute of this type may read this value."""
    found = t.type_of(value)
    if isinstance(type_, t.ClassType) or found is None:
        return True
    if t.holds_items(type_):  # a call checks the types of items exactly, too
        return t.is_subtype(found, type_)
    return takes(type_, found)


Difference = tuple[str, str]  # what differs, what to write instead

_CALL: Final = "a call in this state, before lt.save()"


def _declaration(path: str) -> str:
    name = path.rpartition(".")[2]
    return f"`{name}: Optional[…]` in the class that is saved, or {_CALL}"


def _differences(program: Program, root: torch.nn.Module) -> Iterator[Difference]:
    facts = iter(program.facts)
    for guard in program.guards:
        yield from _guard(guard, None if guard.kind == "hooks" else next(facts), root)
    fn = program.function
    types = (p.type for p in fn.params[len(fn.arguments) :])
    for path, type_ in (*zip(fn.captures, types, strict=True), *program.reads.items()):
        try:
            value = held(root, path)
        except (KeyError, AttributeError):
            yield _missing(path)
            continue
        if not holds(type_, value):
            remedy = _declaration(path) if value is None else _CALL
            yield change(f"type of `{attribute(path)}`", type_, t.type_of(value)), remedy


def _guard(guard: Guard, fact: object, root: torch.nn.Module) -> Iterator[Difference]:
    try:
        reader = Reader(root, (), (guard,))
        hooks, (_, facts) = reader.hooks(), reader.read()
    except (KeyError, AttributeError):
        yield _missing(guard.path)
        return
    if guard.kind != "hooks":
        if facts[0] != fact:
            remedies = {"none": _declaration(guard.path), "has": "it in place before lt.save()"}
            remedy = remedies.get(guard.kind, _CALL)
            yield guard_change(guard, fact, facts[0]), remedy
    elif any(hooks):
        yield f"`{attribute(guard.path)}` has a hook now", "the model without it"


def _missing(path: str) -> Difference:
    return f"`{attribute(path)}` is missing", "the attribute set again"
