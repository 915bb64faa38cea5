"""Arguments of calls: compiled from left to right, spread, and bound to parameters.

In: a call's AST, or a signature and what is compiled. Out: a `Call`, or what each parameter gets.

    f(a, *xs, k=v)     →  Call(args=[%a, …], keywords={"k": %v})
    x.view(*s, -1)     →  one list of all, where it is not known how many there are
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch

from lowtide.frontend.script.captured import capture_default
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.expressions import known_elements, make_dict, plain, python_object
from lowtide.frontend.script.functions import parameter_node
from lowtide.frontend.script.nodes import (
    NODES,
    BoundMethod,
    Call,
    FinishedMethod,
    LocalFunction,
    Members,
    ModuleRef,
    Node,
    PythonObject,
)
from lowtide.frontend.script.targets import unpacked
from lowtide.ir import types as t
from lowtide.ir.core import Value

# what a tuple of values cannot hold without being less known
_KNOWN_ONLY = (ModuleRef, BoundMethod, FinishedMethod, Members, PythonObject, LocalFunction)


def compile_arguments(c: Context, node: ast.Call) -> Call:
    call = Call(node=node, args=[])
    spread: list[Value] = []
    for arg in node.args:
        if not isinstance(arg, ast.Starred):
            call.args.append(c.expr(arg))
            continue
        found = c.expr(arg.value)
        if isinstance(found, Members):
            call.args.extend(found.nodes)
            continue
        xs = plain(c, found, arg.value)
        known = known_elements(c, xs)
        call.args.extend([xs] if known is None else known)
        spread.extend([xs] if known is None else [])
    if spread:
        call.args = [_one_list(c, node, call.args, spread)]
        call.unpacked = True
    for keyword in node.keywords:
        if keyword.arg is None:
            call.keywords |= _spread_keywords(c, keyword.value)
        else:
            call.keywords[keyword.arg] = c.expr(keyword.value)
    return call


def _spread_keywords(c: Context, node: ast.expr) -> dict[str, Node]:
    """Return the keywords of `**{"dim": 1}`, a dict that is made in this function."""
    given = c.value(node)
    maker = c.builder.makers.get(given)
    if maker is None or maker.name != "dict.make" or given in c.builder.changed:
        raise c.error(node, "`**` of a dict that is made elsewhere", "the keywords one by one")
    keys = [c.constant(k) for k in maker.operands[::2]]
    return {str(k): v for k, v in zip(keys, maker.operands[1::2], strict=True)}


REST = "**"  # stands for a keyword in `handed_on`


def _one_list(c: Context, node: ast.Call, args: Sequence[Node], spread: Sequence[Value]) -> Value:
    """Return all arguments as one list, some being lists of unknown length: `x.view(*x.shape[:1],
    -1)`."""
    parts: list[Value] = []
    for arg in args:
        value = c.as_value(arg, node)
        parts.append(value if value in spread else c.builder.tuple_make([value]))
    return unpacked(c, node, parts)


def forwarded_call(
    c: Context,
    node: ast.AST,
    parameters: Iterable[inspect.Parameter],
    arguments: Sequence[Value],
) -> Call:
    """Return the call of a function with the arguments of the whole program."""
    place = ast.copy_location(ast.Call(ast.Constant(None), [], []), node)
    call = Call(node=place, args=[])
    for value, parameter in zip(arguments, parameters, strict=True):
        found = parameter_node(value)
        if parameter.kind is parameter.VAR_POSITIONAL:
            call.args.extend(known_elements(c, value) or ())
        elif parameter.kind is parameter.KEYWORD_ONLY:
            call.keywords[value.name] = found
        elif parameter.kind is parameter.VAR_KEYWORD:
            if value.type != t.DictType(t.NEVER, t.NEVER):  # there are some
                call.keywords[REST] = found
        else:
            call.args.append(found)
    return call


def check_count(c: Context, call: Call) -> None:
    """Raises CompileError if the number of arguments is unknown."""
    if call.unpacked:
        raise c.error(call.node, "`*` of a list of unknown length", "the elements one by one")


def bind_python(
    c: Context,
    node: ast.AST,
    name: str,
    signature: inspect.Signature,
    args: Sequence[Node],
    keywords: Mapping[str, Node],
) -> dict[str, Node]:
    """Return the node for each parameter, defaults included. Raises CompileError."""
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError as error:
        problem = _described(str(error), signature, keywords)
        raise c.error(node, f"{name}(): {problem}", f"{name}{signature}") from error
    values: dict[str, Node] = dict(bound.arguments)
    for key, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = cast("tuple[Node, ...]", values.get(key, ()))
            if any(isinstance(v, _KNOWN_ONLY) for v in rest):
                values[key] = Members(rest)
            else:
                values[key] = c.builder.tuple_make([c.as_value(v, node) for v in rest])
        elif parameter.kind is parameter.VAR_KEYWORD:
            named = cast("dict[str, Node]", values.get(key, {}))
            if REST in named:
                values[key] = named[REST]
                continue
            keys = [c.const(k) for k in named]
            values[key] = make_dict(c, keys, [c.as_value(v, node) for v in named.values()])
        elif key not in values:
            values[key] = default_value(c, node, key, parameter.default)
    return values


def _described(problem: str, signature: inspect.Signature, keywords: Mapping[str, Node]) -> str:
    """Return the error of `bind`. An unknown keyword is reported first, as Python does."""
    parameters = signature.parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return problem
    known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = next((f"{k!r}" for k in keywords if k not in known), "")
    if not unknown or unknown in problem:
        return problem
    return f"got an unexpected keyword argument {unknown}; {problem}"


def default_value(c: Context, node: ast.AST, name: str, found: object) -> Node:
    """Return the default of a parameter or field: a Python object, or a node of a local
    function."""
    if isinstance(found, torch.Tensor):
        return capture_default(c, name, found)
    c.assumed.note_contents(name, found)
    return cast("Node", found) if isinstance(found, NODES) else python_object(c, node, found, "")
