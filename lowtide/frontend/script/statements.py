"""Statements other than loops: assignments, `if`, `return`, `assert`, `raise`, `pass`, expressions.

In: statement AST nodes, and the steps that follow them in their list. Out: ops and variables.

Always holds: a handler that gives True has compiled the steps that follow, too.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from lowtide.frontend.script.context import (
    RAISED,
    RETURN_VALUE,
    RETURNED,
    Context,
    Step,
    statement,
)
from lowtide.frontend.script.flow import branch_on, run
from lowtide.frontend.script.narrowing import narrow
from lowtide.frontend.script.nodes import Node, Poison
from lowtide.frontend.script.operators import BINARY, augmented
from lowtide.frontend.script.targets import (
    assign,
    augmented_item,
    check_unshared,
    store_attribute,
)
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir.core import Value
from lowtide.ir.types import ListType, Type


@statement(ast.Assign)
def compile_assign(c: Context, node: ast.Assign, rest: Sequence[Step]) -> None:
    """`a = b = value`."""
    value = c.expr(node.value)
    for target in node.targets:
        assign(c, target, value)


@statement(ast.AnnAssign)
def compile_annotated(c: Context, node: ast.AnnAssign, rest: Sequence[Step]) -> None:
    """`a: type = value`; the type decides what an empty list holds."""
    if node.value is None:
        return
    value = c.expr(node.value)
    declared = type_from_annotation(ast.unparse(node.annotation), c.frame.names)
    assign(c, node.target, as_declared(c, value, declared))


def as_declared(c: Context, value: Node, declared: Type | None) -> Node:
    """The value at its declared type: `[]` becomes a list of that, None an Optional."""
    if not isinstance(value, Value) or declared is None or value.type == declared:
        return value
    maker = c.builder.makers.get(value)
    is_empty = maker is not None and maker.name == "list.make" and not maker.operands
    if is_empty and isinstance(declared, ListType):
        return c.builder.emit("list.make", (), [declared]).result
    return value


@statement(ast.AugAssign)
def compile_augmented(c: Context, node: ast.AugAssign, rest: Sequence[Step]) -> None:
    """`a += value`: in place for a tensor, as in PyTorch."""
    name, _ = BINARY[type(node.op)]
    if isinstance(node.target, ast.Subscript):
        augmented_item(c, node, node.target, name)
        return
    if isinstance(node.target, ast.Attribute):
        read = ast.Attribute(node.target.value, node.target.attr, ast.Load())
        old = c.value(ast.copy_location(read, node.target))
        if store_attribute(c, node.target, augmented(c, node, name, old, c.value(node.value))):
            return
    if not isinstance(node.target, ast.Name):
        raise c.error(node, "attributes cannot be assigned in a function", "a local variable")
    old = c.value(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
    if isinstance(old.type, ListType):
        check_unshared(c, node, old)
    new = augmented(c, node, name, old, c.value(node.value))
    c.frame.vars[node.target.id] = new
    new.name = new.name or node.target.id


@statement(ast.Expr)
def compile_expression(c: Context, node: ast.Expr, rest: Sequence[Step]) -> None:
    """An expression for its effect; a docstring is nothing."""
    if not isinstance(node.value, ast.Constant):
        c.expr(node.value)


@statement(ast.Pass, ast.Import, ast.ImportFrom)
def compile_pass(c: Context, node: ast.Pass, rest: Sequence[Step]) -> None:
    """Nothing to do."""


@statement(ast.Delete)
def compile_delete(c: Context, node: ast.Delete, rest: Sequence[Step]) -> None:
    """`del x`: the name is gone; its memory is freed after its last use in any case."""
    for target in node.targets:
        if not isinstance(target, ast.Name):
            raise c.error(target, "only variables can be deleted", "a slice without it")
        loc = c.frame.source.loc(node)
        c.frame.vars[target.id] = Poison(f"{target.id!r} was deleted", "it before `del`", loc)


@statement(ast.If)
def compile_if(c: Context, node: ast.If, rest: Sequence[Step]) -> bool:
    """`if test: … else: …`; a test that is known leaves only one branch."""
    condition = c.truth(c.value(node.test))

    def then() -> None:
        narrow(c, node.test, True)
        run(c, c.steps(node.body))

    def otherwise() -> None:
        narrow(c, node.test, False)
        run(c, c.steps(node.orelse))

    return branch_on(c, node, condition, then, otherwise, rest)


@statement(ast.Return)
def compile_return(c: Context, node: ast.Return, rest: Sequence[Step]) -> None:
    """`return value`."""
    value = c.const(None) if node.value is None else c.value(node.value)
    c.frame.vars[RETURN_VALUE] = value
    c.frame.vars[RETURNED] = c.const(True)


@statement(ast.Assert)
def compile_assert(c: Context, node: ast.Assert, rest: Sequence[Step]) -> None:
    """`assert test, message`."""
    condition = c.truth(c.value(node.test))
    known = c.builder.constant(condition)
    if known is not True:
        message = [] if node.msg is None else [c.value(node.msg)]
        c.builder.emit("assert", [condition, *message])
    narrow(c, node.test, True)


@statement(ast.Raise)
def compile_raise(c: Context, node: ast.Raise, rest: Sequence[Step]) -> None:
    """`raise ValueError(message)`."""
    call = node.exc
    args = call.args if isinstance(call, ast.Call) else []
    name = call.func if isinstance(call, ast.Call) else call
    found = getattr(builtins, name.id, None) if isinstance(name, ast.Name) else None
    if not isinstance(found, type) or not issubclass(found, Exception):
        raise c.error(node, "only Python's own exceptions can be raised", 'raise ValueError("...")')
    c.builder.emit("raise", [c.value(a) for a in args], exception=found.__name__)
    c.frame.vars[RAISED] = c.const(True)
