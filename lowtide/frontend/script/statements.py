"""Statements other than loops: assignments, `if`, `with`, `return`, `assert`, `raise`, `del`.

In: statement AST nodes, and the statements after them in their list. Out: ops and variables.

    if n > 0:               %y: Tensor = if(%0)
        y = x                 block(): yield(%x)
    else:                     block(): yield(%1)
        y = -x

Invariant: a handler that returns True has compiled the statements after it, too.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
from collections.abc import Callable, Sequence

from lowtide.errors import CompileError
from lowtide.frontend.script import classes, dict_views
from lowtide.frontend.script.context import RAISED, RETURN_VALUE, RETURNED, Context, Step, statement
from lowtide.frontend.script.expressions import local_function
from lowtide.frontend.script.flow import branch_on, run, run_inside
from lowtide.frontend.script.narrowing import narrow
from lowtide.frontend.script.nodes import Node, PythonObject, describe
from lowtide.frontend.script.operators import BINARY, augmented, right_side, truth
from lowtide.frontend.script.targets import assign, augmented_attribute, augmented_item, delete
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value
from lowtide.ir.types import DictType, ListType, OptionalType, TupleType, Type


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
    """Return the value at its declared type: `[]` and `{}` become containers of that."""
    if not isinstance(value, Value) or declared is None or value.type == declared:
        return value
    whole = declared
    if isinstance(declared, OptionalType):
        declared = declared.elem
    maker = c.builder.makers.get(value)
    if maker is not None:
        for inner, type_ in zip(maker.operands, _declared_within(maker, declared), strict=False):
            inner_maker = c.builder.makers.get(inner)
            if inner_maker is not None and inner_maker.name in _LITERALS:
                as_declared(c, inner, type_)
    is_new = maker is not None and maker.name in ("list.make", "dict.make", "dict.of")
    if is_new and type(declared) is type(value.type) and t.is_subtype(value.type, declared):
        c.builder.widen(value, declared)
    elif _says_less(value.type, declared):
        return c.builder.emit("cast", [value], [whole]).result
    return value


def _says_less(type_: Type, declared: Type) -> bool:
    """Return whether a declaration replaces the type of a value, because that type says less. A
    type that may be a tensor or a number stays, whatever is declared."""
    vague = t.is_dynamic(type_) and not t.is_tensor_or_number(type_)
    return vague and not t.is_dynamic(declared)


_LITERALS = ("list.make", "dict.make", "tuple.make")


def _declared_within(maker: Op, declared: Type) -> Sequence[Type]:
    """Return the types that a declaration gives to the elements of a literal."""
    if maker.name == "list.make" and isinstance(declared, ListType):
        return [declared.elem] * len(maker.operands)
    if maker.name == "dict.make" and isinstance(declared, DictType):
        return [declared.key, declared.value] * (len(maker.operands) // 2)
    if maker.name == "tuple.make" and isinstance(declared, TupleType):
        return declared.elems
    return ()


@statement(ast.AugAssign)
def compile_augmented(c: Context, node: ast.AugAssign, rest: Sequence[Step]) -> None:
    """`a += value`: in place for a tensor or a list, as in Python."""
    name, _ = BINARY[type(node.op)]
    if isinstance(node.target, ast.Subscript):
        augmented_item(c, node, node.target, name)
        return
    if isinstance(node.target, ast.Attribute):
        augmented_attribute(c, node, name)
        return
    old = c.value(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
    new = augmented(c, node, name, old, right_side(c, node, old))
    c.frame.vars[node.target.id] = new
    new.name = new.name or node.target.id


@statement(ast.Expr)
def compile_expression(c: Context, node: ast.Expr, rest: Sequence[Step]) -> None:
    """An expression for its effect; a docstring is nothing."""
    if not isinstance(node.value, ast.Constant):
        c.expr(node.value)


@statement(ast.Pass)
def compile_pass(c: Context, node: ast.Pass, rest: Sequence[Step]) -> None:
    """Nothing to do."""


@statement(ast.Import, ast.ImportFrom)
def compile_import(c: Context, node: ast.Import | ast.ImportFrom, rest: Sequence[Step]) -> None:
    """`import m`, `from m import f`: done while compiling."""
    package = str(c.frame.names.get("__package__") or "")
    for alias in node.names:
        try:
            if isinstance(node, ast.Import):
                whole = importlib.import_module(alias.name)
                root = importlib.import_module(alias.name.partition(".")[0])
                found: object = whole if alias.asname else root
            else:
                name = "." * node.level + (node.module or "")
                found = getattr(importlib.import_module(name, package), alias.name)
        except (ImportError, AttributeError) as error:
            raise c.error(node, f"`{ast.unparse(node)}`: {error}") from error
        local = alias.asname or alias.name.partition(".")[0]
        c.frame.vars[local] = c.python_object(node, found)


@statement(ast.Delete)
def compile_delete(c: Context, node: ast.Delete, rest: Sequence[Step]) -> None:
    """`del x, xs[0]`: a variable's name is gone; an item is taken out."""
    for target in node.targets:
        delete(c, target)


@statement(ast.If)
def compile_if(c: Context, node: ast.If, rest: Sequence[Step]) -> bool:
    """`if test: … else: …`; a test that is known leaves only one branch."""
    condition = truth(c, node.test, c.value(node.test))

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
    found = c.const(None) if node.value is None else c.expr(node.value)
    is_outermost = c.frame.fn is c.frames[0].fn
    if is_outermost:
        c.check_no_iterator(found, node.value or node)
        found = dict_views.storable(c, found, node.value or node)
    if is_outermost or c.builder.block is not c.frame.block:  # or the run decides which returns
        found = c.as_value(found, node.value or node)
    c.frame.vars[RETURN_VALUE] = found
    c.frame.vars[RETURNED] = c.const(True)


@statement(ast.Assert)
def compile_assert(c: Context, node: ast.Assert, rest: Sequence[Step]) -> None:
    """`assert test, message`."""
    condition = truth(c, node.test, c.value(node.test))
    known = c.builder.constant(condition)
    message = node.msg
    if known is False or (message is not None and not isinstance(message, ast.Constant)):
        branch_on(c, node, condition, lambda: None, lambda: _fail(c, node, message))
    elif known is not True:
        c.builder.emit("assert", [condition, *([] if message is None else [c.value(message)])])
    narrow(c, node.test, True)


def _fail(c: Context, node: ast.Assert, message: ast.expr | None) -> None:
    """Compile a failing assertion. Its message is computed only if the test fails."""
    narrow(c, node.test, False)
    operands = [] if message is None else [c.value(message)]
    c.builder.emit("raise", operands, exception="AssertionError")
    c.frame.vars[RAISED] = c.const(True)


@statement(ast.Raise)
def compile_raise(c: Context, node: ast.Raise, rest: Sequence[Step]) -> None:
    """`raise ValueError(message)`, with the user's own exceptions too."""
    if node.exc is None:
        raise c.error(node, "`raise` alone is not compiled", 'raise ValueError("...")')
    call = node.exc if isinstance(node.exc, ast.Call) else None
    found = c.expr(call.func if call else node.exc)
    if isinstance(found, Value):
        raise c.error(node, f"{describe(found)} cannot be raised", 'raise ValueError("...")')
    cls = found.obj if isinstance(found, PythonObject) else None
    if not isinstance(cls, type) or not issubclass(cls, BaseException):
        raise c.error(
            node, f"{describe(found)} is not an exception class", 'raise ValueError("...")'
        )
    plain = getattr(builtins, cls.__name__, None) is cls
    name = cls.__name__ if plain else python_objects.name_of(cls)
    operands, keywords = _exception_arguments(c, call) if call else ([], ())
    op = c.builder.emit("raise", operands, exception=name)
    op.attrs.update({"kwnames": keywords} if keywords else {})
    c.frame.vars[RAISED] = c.const(True)


def _exception_arguments(c: Context, call: ast.Call) -> tuple[list[Value], tuple[str, ...]]:
    for keyword in call.keywords:
        if keyword.arg is None:
            raise c.error(call, "`**` in `raise` is not compiled", "the keywords one by one")
    values = [c.value(a) for a in (*call.args, *(k.value for k in call.keywords))]
    return values, tuple(k.arg for k in call.keywords if k.arg is not None)


@statement(ast.With)
def compile_with(c: Context, node: ast.With, rest: Sequence[Step]) -> None:
    """`with manager as name: body`; the manager is Python's own object, as a dispose scope is."""
    _with(c, node, node.items)


def _with(c: Context, node: ast.With, items: Sequence[ast.withitem]) -> None:
    if not items:
        run(c, c.steps(node.body))
        return
    first, *more = items
    manager = c.value(first.context_expr)
    entered = Value("", classes.entered_type(c, manager.type))
    leave: Callable[[], Block] | None = None
    if _is_inlined(c, first.context_expr, manager):
        leave = functools.partial(_leaving, c, first.context_expr, manager)
        found = classes.call_method(c, first.context_expr, manager, "__enter__", [])
        manager = c.as_value(found, first.context_expr)
        entered = Value("", manager.type)
    c.builder.born([entered])

    def body() -> None:
        if first.optional_vars is not None:
            assign(c, first.optional_vars, entered)
        _with(c, node, more)

    run_inside(c, "with", [manager], [entered], body, leave)


def _is_inlined(c: Context, node: ast.expr, manager: Value) -> bool:
    """Return whether `__enter__` and `__exit__` have source that compiles; else Python calls
    them."""
    if any(classes.method_of(manager.type, n) is None for n in ("__enter__", "__exit__")):
        return False
    depth, outer = len(c.frames), dict(c.frame.vars)
    try:
        with c.builder.inside(Block()):
            classes.call_method(c, node, manager, "__enter__", [])
        _leaving(c, node, manager)
    except CompileError:
        del c.frames[depth:]
        return False
    finally:
        c.frame.vars = outer
    return True


def _leaving(c: Context, node: ast.expr, manager: Value) -> Block:
    """Return `manager.__exit__(type, error, traceback)` as a block."""
    block = Block([Value(name, t.ANY) for name in ("type", "error", "traceback")])
    c.builder.born(block.args)
    outer = dict(c.frame.vars)
    with c.builder.inside(block):
        found = classes.call_method(c, node, manager, "__exit__", block.args)
        c.builder.emit("yield", [c.as_value(found, node)])
    c.frame.vars = outer
    return block


@statement(ast.FunctionDef)
def compile_local_function(c: Context, node: ast.FunctionDef, rest: Sequence[Step]) -> None:
    """A function inside a function: compiled where it is called."""
    if node.decorator_list:
        raise c.error(node, "a decorated inner function is not compiled", "a global `def`")
    c.frame.vars[node.name] = local_function(c, node)
