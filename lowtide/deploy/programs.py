"""Collects the programs of a compiled object that are saved.

In: a ScriptFunction or a ScriptMethod. Out: `Program`s: the one for the annotated types, then those
compiled for earlier calls, each with the facts about its modules that it relies on.

    f(x, n: int)               for (Tensor, int); after f(x, 2.0) for (Tensor, float), too
    cache: Optional[Tensor]    one for its present type, one for a Tensor or None

Without annotations, the programs of earlier calls are saved; without calls, that for Tensors.
Invariant: no two programs are equal.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch

from lowtide.api.script_function import ScriptFunction, program_of
from lowtide.api.script_method import ScriptMethod, Variant
from lowtide.deploy.fitting import Program, Types, fitting
from lowtide.errors import CompileError
from lowtide.execute.driver import Driver
from lowtide.frontend.script.module_attributes import optional_type
from lowtide.frontend.script.module_methods import method_types
from lowtide.frontend.script.module_state import follow, is_torch_class, root_of
from lowtide.frontend.script.script import signature_types
from lowtide.frontend.script.source import parameters_of
from lowtide.ir import types as t
from lowtide.ir.core import Function
from lowtide.ir.types import TupleType


def of_function(f: ScriptFunction) -> list[Program]:
    """Return all programs of a function. Raises CompileError."""
    saved: list[Program] | None = getattr(f, "__lowtide_programs__", None)
    if saved is not None:
        return saved
    fn: Any = f.__lowtide_function__
    made = [_as_now(fn, driver) for driver in f.drivers()]
    parameters = parameters_of(fn).values()
    if (not made or _is_annotated(parameters)) and not _is_variadic(parameters):
        try:
            types = tuple(signature_types(fn).values())
            made.insert(0, program_of(fn, types))
        except CompileError:
            if not made:
                raise
    if not made:
        raise _no_variadic(f.__name__)
    return _distinct(Program(function) for function in made)


def _as_now(fn: Any, driver: Driver) -> Function:
    """Return the driver's program. If globals have changed since it was made, or it reads changing
    numbers at each call, return a program with their present values."""
    function = driver.function
    if driver.is_outdated() or _reads_numbers(function):
        return program_of(fn, [a.type for a in function.arguments])
    return function


def _variant_as_now(method: ScriptMethod, variant: Variant) -> Variant:
    """Return `_as_now` of a method."""
    function = variant.driver.function
    if variant.driver.is_outdated() or _reads_numbers(function):
        return method.anew(tuple(a.type for a in function.arguments))
    return variant


def _reads_numbers(function: Function) -> bool:
    """Return whether the program reads a global number."""
    read = zip(function.params[len(function.arguments) :], function.captures, strict=True)
    return any(t.is_number(value.type) and path.startswith("@") for value, path in read)


def _is_variadic(parameters: Iterable[inspect.Parameter]) -> bool:
    return any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _no_variadic(name: str) -> CompileError:
    return CompileError(
        f"{name}() takes `*args`, and has not been called yet: its program depends on their number",
        remedy="a call with the number of arguments that the saved program should take",
    )


def _is_annotated(parameters: Iterable[inspect.Parameter]) -> bool:
    empty = inspect.Parameter.empty
    return all(p.annotation is not empty or p.default is not empty for p in parameters)


def of_method(method: ScriptMethod, called: Iterable[Types] = ()) -> list[Program]:
    """Return all programs of a method that fit its modules' present state. Raises CompileError.

    `called`: argument types with which other programs call it."""
    saved: list[Program] | None = getattr(method, "__lowtide_programs__", None)
    if saved is not None:
        return saved
    source = method.source
    if not isinstance(source, FunctionType):
        return [Program(source, method.ties, tuple(True for _ in method.ties))]
    parameters = method.signature.parameters.values()
    wanted = [types for types in called if len(types) == len(parameters)]
    is_declared = _is_annotated(parameters) or is_torch_class(source)
    if not _is_variadic(parameters) and (is_declared or not wanted):
        wanted.insert(0, tuple(method_types(source, ()).values()))
    made, failed = _for_each(method, wanted)
    made += [v for v in method.variants() if v.is_readable()]
    made = [_variant_as_now(method, v) for v in made]
    made = [v for v in made if _takes_rest(v.driver.function, parameters)]
    if not made:
        raise failed or _no_variadic(method.__name__)
    made += _as_declared(method, made)
    return _distinct(map(_program, dict.fromkeys(made)))


def _for_each(
    method: ScriptMethod, wanted: Iterable[Types]
) -> tuple[list[Variant], CompileError | None]:
    """Return a program for each of these types that no other program takes, and the first
    failure."""
    made: list[Variant] = []
    failed: CompileError | None = None
    for types in wanted:
        if not fitting(map(_program, made), types):
            try:
                made += _in_both_modes(method, lambda t=types: method.variant_for(t))
            except CompileError as error:
                failed = failed or error
    return made, failed


def _as_declared(method: ScriptMethod, made: Sequence[Variant]) -> list[Variant]:
    """Return programs for the same arguments in which attributes declared Optional may be None or
    not. Programs that do not compile are left out."""
    found: list[Variant] = []
    optional = [v.driver.function for v in made if _reads_optional(v, method.root)]
    for types in dict.fromkeys(tuple(p.type for p in f.arguments) for f in optional):
        with contextlib.suppress(CompileError):
            found += _in_both_modes(method, lambda t=types: method.anew(t, as_declared=True))
    return found


def _reads_optional(variant: Variant, root: torch.nn.Module) -> bool:
    paths = (*variant.reader.paths, *(g.path for g in variant.guards if g.kind in ("none", "type")))
    places = (follow(root, path) for path in paths if not path.startswith("@"))
    return any(name and optional_type(owner, name) is not None for owner, name in places)


def _takes_rest(function: Function, parameters: Iterable[inspect.Parameter]) -> bool:
    """Return whether `*args` has the type of a call, a tuple, not that of its annotation."""
    rows = zip(function.arguments, parameters, strict=True)
    return all(isinstance(v.type, TupleType) for v, p in rows if p.kind is p.VAR_POSITIONAL)


def _in_both_modes(method: ScriptMethod, make: Callable[[], Variant]) -> list[Variant]:
    """Return the variant, and one for the other training mode if a guard is about the mode."""
    first = make()
    modes = [g for g in first.guards if g.kind == "value" and g.path.endswith("training")]
    if not modes:
        return [first]
    before = [(m, m.training) for m in map(root_of, method.root.modules())]
    try:
        for module, training in before:
            _set_mode(module, not training)
        return [first, make()]
    finally:
        for module, training in before:
            _set_mode(module, training)


def _set_mode(module: torch.nn.Module, training: bool) -> None:
    vars(module)["training"] = training  # not train(): it may do more


def _program(variant: Variant) -> Program:
    return Program(variant.driver.function, variant.guards, variant.facts)


def _distinct(given: Iterable[Program]) -> list[Program]:
    programs = list(given)
    if len(programs) == 1:
        return programs  # the usual case; printing a program for its key is slow
    found: dict[str, Program] = {}
    for program in programs:
        key = f"{program.function}\n{program.guards!r}\n{program.facts!r}"
        found.setdefault(key, program)
    return list(found.values())
