"""What a test tells about Optional variables: after `x is not None`, x is no longer optional.

In: the AST of a test and which way it went. Out: the names that are known not to be None there.

    if x is None or n == 0: return y     after it, x: Tensor
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeVar

from lowtide.frontend.script.context import Context
from lowtide.ir.core import Value
from lowtide.ir.types import OptionalType

Result = TypeVar("Result")


def narrow(c: Context, test: ast.expr, outcome: bool) -> None:
    """Rebinds the Optional variables that the test shows to be something."""
    for name in _not_none(test, outcome):
        value = c.frame.vars.get(name)
        if isinstance(value, Value) and isinstance(value.type, OptionalType):
            inner = c.builder.emit("cast", [value], [value.type.elem]).result
            inner.name = name
            c.frame.vars[name] = inner


def narrowed(
    c: Context, test: ast.expr, outcome: bool, compile_body: Callable[[], Result]
) -> Callable[[], Result]:
    """`compile_body`, to be called where the test went that way."""

    def with_narrowed() -> Result:
        outer = dict(c.frame.vars)
        narrow(c, test, outcome)
        try:
            return compile_body()
        finally:
            c.frame.vars = outer

    return with_narrowed


def _not_none(test: ast.expr, outcome: bool) -> set[str]:
    match test:
        case ast.Compare(ast.Name(id), [ast.IsNot()], [ast.Constant(None)]):
            return {id} if outcome else set()
        case ast.Compare(ast.Name(id), [ast.Is()], [ast.Constant(None)]):
            return set() if outcome else {id}
        case ast.UnaryOp(ast.Not(), operand):
            return _not_none(operand, not outcome)
        case ast.Call(ast.Name("isinstance"), [ast.Name(id), *_]):
            return {id} if outcome else set()
        case ast.BoolOp(ast.And(), values) if outcome:
            return {n for v in values for n in _not_none(v, True)}
        case ast.BoolOp(ast.Or(), values) if not outcome:
            return {n for v in values for n in _not_none(v, False)}
        case _:
            return set()
