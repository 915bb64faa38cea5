"""From a Python function to a Function.

In: a function object, and the types of the caller's arguments. Out: the program as IR, verified.

    def f(x, n: int = 3):          script_function(f, [TENSOR, INT]) →
        return x.sum(0) * n            def f(%x: Tensor, %n: int = 3) -> Tensor: ...

Invariant: the same function and types give the same program. What is known from the types alone
(a `None`, an isinstance) is decided here; nothing is known of a tensor but that it is one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from lowtide.compiler import simplified
from lowtide.errors import CompileError
from lowtide.frontend.script import (
    calls,
    checkpoints,
    chosen,
    closures,
    comprehensions,
    expressions,
    itertools_calls,
    left_to_python,
    local_calls,
    loops,
    module_attributes,
    module_calls,
    operators,
    questions,
    slices,
    statements,
    subscripts,
)
from lowtide.frontend.script.arguments import forwarded_call
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.functions import (
    compile_body,
    parameter_node,
    push_frame,
    signature_annotations,
)
from lowtide.frontend.script.global_containers import check_unchanged
from lowtide.frontend.script.leaves import leaf_classes
from lowtide.frontend.script.module_state import Restart
from lowtide.frontend.script.outside import Assumptions
from lowtide.frontend.script.rechecked import put_rechecks
from lowtide.frontend.script.source import (
    decorated,
    is_decorated,
    parameters_of,
    read_source,
    unwrap,
)
from lowtide.frontend.script.syntax import check_syntax
from lowtide.ir import types as t
from lowtide.ir.builder import Builder
from lowtide.ir.core import Block, Function, Value
from lowtide.ir.literals import is_literal
from lowtide.ir.types import DictType, ListType, OptionalType, TupleType, Type
from lowtide.ir.verify import verify

__all__ = ["check_syntax", "script_function", "signature_types"]

# Importing these fills the tables of `context`.
LANGUAGE = (
    *(calls, checkpoints, chosen, closures, comprehensions, expressions, subscripts),
    *(itertools_calls, left_to_python, local_calls, loops, operators, questions, slices),
    *(statements, module_attributes, module_calls),  # `super()` is that of plain classes, too
)
_DECORATED = 1  # the owner of a decorated function's frame within that of its program


def script_function(
    fn: Callable[..., Any],
    arg_types: Sequence[Type | None] | None = None,
    assumed: Assumptions | None = None,
) -> Function:
    """Return the program of a Python function for arguments of these types, one per parameter.
    `assumed` is given what it relies on.

    A type that is None, or left out at the end, comes from the annotation, else from the default,
    else it is Tensor. Raises CompileError, with the place in the user's file.
    """
    assumed = Assumptions() if assumed is None else assumed
    while True:  # until no container from outside is changed that is a constant
        try:
            return _compiled(unwrap(fn), arg_types, assumed)
        except Restart:
            assumed.found.clear()


def simplified_function(
    fn: Callable[..., Any],
    arg_types: Sequence[Type | None] | None = None,
    assumed: Assumptions | None = None,
) -> tuple[Function, tuple[type[Any], ...]]:
    """Return the simplified program, and the classes that it assumes to have no subclasses
    (`leaves`)."""
    compiled = script_function(fn, arg_types, assumed)
    return simplified(compiled), leaf_classes(compiled)


def _compiled(
    plain: FunctionType, arg_types: Sequence[Type | None] | None, assumed: Assumptions
) -> Function:
    source = read_source(plain)
    types = signature_types(plain, arg_types)
    builder = Builder(Block())
    c = Context(builder)
    c.assumed = assumed
    c.assumed.note_function(plain)
    frame = push_frame(c, plain, source)
    builder.loc = source.loc(source.node)
    builder.block.args.extend(Value(name, type_) for name, type_ in types.items())
    if is_decorated(plain):
        call = forwarded_call(c, source.node, parameters_of(plain).values(), builder.block.args)
        found = c.inline(plain, call.node, call.args, call.keywords, owner=_DECORATED)
    else:
        frame.vars.update({v.name: parameter_node(v) for v in builder.block.args})
        found = compile_body(c)
    result = c.as_value(found, source.node)
    check_unchanged(c)
    builder.emit("return", [result])
    given = zip(builder.block.args, types.values(), strict=True)
    c.assumed.puts_more = any(v.type != type_ for v, type_ in given)
    c.assumed.settle_methods({**dict(enumerate(builder.block.args)), **c.captured})
    builder.block.args.extend(c.captured.values())
    put_rechecks(c)
    compiled = Function(
        plain.__name__,
        builder.block,
        result.type,
        _defaults(plain),
        source.loc(source.node),
        tuple(c.captured),
    )
    verify(compiled, after="script")
    return compiled


def signature_types(
    fn: Callable[..., Any], arg_types: Sequence[Type | None] | None = None
) -> dict[str, Type]:
    """Return the type of every parameter, in order; see `script_function`."""
    plain = unwrap(fn)
    own = decorated(plain)
    declared = signature_annotations(own, read_source(own).node)
    given = list(arg_types or ())
    parameters = parameters_of(plain)
    if len(given) > len(parameters):
        raise CompileError(
            f"{plain.__name__}() takes {len(parameters)} arguments, {len(given)} were given"
        )
    given.extend([None] * (len(parameters) - len(given)))
    return {
        name: _parameter_type(parameter, type_, declared.get(name))
        for (name, parameter), type_ in zip(parameters.items(), given, strict=True)
    }


def _parameter_type(
    parameter: inspect.Parameter, given: Type | None, declared: Type | None
) -> Type:
    if given is not None and not _is_vague(given):
        return given
    if declared is not None:
        return declared
    if parameter.default is not parameter.empty:
        found = t.type_of(parameter.default)
        if found is not None and found != t.NONE:
            return found
        if found == t.NONE:
            return OptionalType(t.TENSOR)
    if parameter.kind is parameter.VAR_POSITIONAL:
        return given or TupleType(())
    if parameter.kind is parameter.VAR_KEYWORD:
        return given or t.DictType(t.NEVER, t.NEVER)
    return given or t.TENSOR


def _is_vague(type_: Type) -> bool:
    match type_:
        case ListType(elem):
            return _is_vague(elem)
        case TupleType(elems):
            return any(_is_vague(e) for e in elems)
        case DictType(key):
            return key == t.NEVER
        case _:
            return type_ == t.NEVER


def _defaults(fn: FunctionType) -> dict[str, object]:
    parameters = parameters_of(fn).values()
    return {p.name: p.default for p in parameters if is_literal(p.default)}
