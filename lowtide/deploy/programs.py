"""The programs that a compiled object has, as they are to be saved.

In: a ScriptFunction or a ScriptMethod. Out: `Program`s: the one for the annotated types, then those
made for the arguments seen so far, each with the facts about its modules that it relies on.

    f(x, n: int)      for (Tensor, int); after f(x, 2.0) for (Tensor, float), too

Always holds: equal programs stand once. Without annotations, what was used is saved; before any
use, parameters are Tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from lowtide.errors import CompileError
from lowtide.frontend.script.module_methods import method_types
from lowtide.frontend.script.module_state import Guard
from lowtide.frontend.script.script import script_function, signature_types
from lowtide.ir.core import Function
from lowtide.passes.standard import tidy
from lowtide.pipeline.script import ScriptFunction
from lowtide.pipeline.script_method import ScriptMethod, Variant


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and what its guards gave when it was made; guards of hooks have no fact."""

    function: Function
    guards: tuple[Guard, ...] = ()
    facts: tuple[Any, ...] = ()


def of_function(f: ScriptFunction) -> list[Program]:
    """All programs of a function; raises CompileError."""
    saved: list[Program] | None = getattr(f, "__lowtide_programs__", None)
    if saved is not None:
        return saved
    fn: Any = f.__lowtide_function__
    made = [d.function for d in f.drivers()]
    parameters = inspect.signature(fn, follow_wrapped=False).parameters.values()
    if not made or _is_annotated(parameters):
        try:
            types = tuple(signature_types(fn).values())
            made.insert(0, tidy(script_function(fn, types)))
        except CompileError:
            if not made:
                raise
    return _distinct(Program(function) for function in made)


def _is_annotated(parameters: Iterable[inspect.Parameter]) -> bool:
    empty = inspect.Parameter.empty
    return all(p.annotation is not empty or p.default is not empty for p in parameters)


def of_method(method: ScriptMethod) -> list[Program]:
    """All programs of a method that fit its modules' parameters as they are; raises CompileError."""
    saved: list[Program] | None = getattr(method, "__lowtide_programs__", None)
    if saved is not None:
        return saved
    source = method.source
    if not isinstance(source, FunctionType):
        return [Program(source)]
    types = tuple(method_types(source, ()).values())
    made: list[Program] = []
    try:
        made += [_program(v) for v in _in_both_modes(method, lambda: method.variant_for(types))]
    except CompileError:
        if not method.variants():
            raise
    made += [_program(v) for v in method.variants() if v.is_readable()]
    return _distinct(made)


def _in_both_modes(method: ScriptMethod, make: Callable[[], Variant]) -> list[Variant]:
    """The variant; where the mode decided how it was compiled, one for the other mode, too."""
    first = make()
    modes = [g for g in first.guards if g.kind == "value" and g.path.endswith("training")]
    if not modes:
        return [first]
    before = [(m, m.training) for m in method.root.modules()]
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


def _distinct(programs: Iterable[Program]) -> list[Program]:
    found: dict[str, Program] = {}
    for program in programs:
        key = f"{program.function}\n{program.guards!r}\n{program.facts!r}"
        found.setdefault(key, program)
    return list(found.values())
