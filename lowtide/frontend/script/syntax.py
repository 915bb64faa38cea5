"""Finds syntax outside the language, at decoration time.

In: a function. Out: nothing, or CompileError at the first piece of syntax that is not compiled,
with what to write instead. Branches on `is_scripting()` are left alone: they may hold anything.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from lowtide.errors import CompileError
from lowtide.frontend.script.context import OUTSIDE
from lowtide.frontend.script.source import FunctionSource, read_source, unwrap


def check_syntax(fn: Callable[..., Any]) -> None:
    """Raises CompileError if the function uses syntax outside the language; nothing is compiled."""
    source = read_source(unwrap(fn))
    if isinstance(source.node, ast.Lambda):
        place = source.loc(source.node)
        raise CompileError("a lambda is not compiled", place, "def f(...): return ...")
    check_source(source)


def check_source(source: FunctionSource) -> None:
    """Like `check_syntax`, for source that was already read."""
    body = source.node.body
    for statement in body if isinstance(body, list) else [body]:
        for node in _in_order(statement):
            outside = OUTSIDE.get(type(node))
            if outside is not None:
                raise CompileError(outside[0], source.loc(node), outside[1])


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and "scripting" in ast.unparse(node.test):
        return
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
