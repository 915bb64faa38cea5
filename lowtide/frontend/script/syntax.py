"""What is outside the language, found at decoration time.

In: a function. Out: nothing, or CompileError at the first piece of syntax that is not compiled,
with what to write instead. The table is the list of what the language still lacks.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from lowtide.errors import CompileError
from lowtide.frontend.script.source import FunctionSource, read_source, unwrap

_OUTSIDE: dict[type[ast.AST], tuple[str, str]] = {
    ast.Yield: ("`yield` is not compiled", "return a list or a tuple"),
    ast.YieldFrom: ("`yield from` is not compiled", "return a list or a tuple"),
    ast.Await: ("`await` is not compiled", "a plain call"),
    ast.AsyncFor: ("`async for` is not compiled", "`for`"),
    ast.AsyncWith: ("`async with` is not compiled", "the calls themselves"),
    ast.AsyncFunctionDef: ("`async def` is not compiled", "`def`"),
    ast.FunctionDef: ("a function inside a compiled function is not compiled", "a global `def`"),
    ast.ClassDef: ("a class inside a compiled function is not compiled", "a global class"),
    ast.Lambda: ("a lambda is not compiled", "a global `def`"),
    ast.Try: ("`try` is not compiled", "a test before the call, with `if`"),
    ast.With: ("`with` is not compiled", "`with` around the call of the compiled function"),
    ast.Global: ("`global` is not compiled", "an argument and a returned value"),
    ast.Nonlocal: ("`nonlocal` is not compiled", "an argument and a returned value"),
    ast.Match: ("`match` is not compiled", "`if` and `elif`"),
    ast.NamedExpr: ("`:=` is not compiled", "an assignment before the expression"),
    ast.Dict: ("a dict is not compiled", "a tuple or a list"),
    ast.DictComp: ("a dict is not compiled", "a list"),
    ast.Set: ("a set is not compiled", "a tuple or a list"),
    ast.SetComp: ("a set is not compiled", "a list"),
}
if hasattr(ast, "TryStar"):
    _OUTSIDE[ast.TryStar] = _OUTSIDE[ast.Try]


def check_syntax(fn: Callable[..., Any]) -> None:
    """Raises CompileError if the function uses syntax outside the language; nothing is compiled."""
    check_source(read_source(unwrap(fn)))


def check_source(source: FunctionSource) -> None:
    """As `check_syntax`, for source already read."""
    arguments = source.node.args
    for star in (arguments.vararg, arguments.kwarg):
        if star is not None:
            raise CompileError(
                f"`*{star.arg}`: a variable number of parameters is not compiled",
                source.loc(star),
                "named parameters, or one list",
            )
    for statement in source.node.body:
        for node in _in_order(statement):
            outside = _OUTSIDE.get(type(node))
            if outside is not None:
                raise CompileError(outside[0], source.loc(node), outside[1])


def _in_order(node: ast.AST) -> list[ast.AST]:
    found = [node]
    for child in ast.iter_child_nodes(node):
        found.extend(_in_order(child))
    return found
