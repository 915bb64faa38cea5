"""Operators: on tensors they are PyTorch's, on numbers, strings, lists and tuples they are
Python's.

In: operator AST nodes. Out: ops. Which operator is which op stands in the tables.

    x @ w + 1   →  torch.matmul, torch.add           a < b < c   →  both, `b` computed once
    n // 2      →  py.floordiv                       a and b     →  `if`: `b` only where needed
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from types import FunctionType, UnionType
from typing import Any, cast

from torch.torch_version import TorchVersion

from lowtide.errors import CompileError
from lowtide.frontend.script import class_operators, classes, dict_views, doubts
from lowtide.frontend.script.context import Context, expression
from lowtide.frontend.script.flow import choose
from lowtide.frontend.script.iteration import iterate, static_length
from lowtide.frontend.script.module_containers import compare_nodes
from lowtide.frontend.script.narrowing import narrowed
from lowtide.frontend.script.node_tables import VALUE_OF
from lowtide.frontend.script.nodes import (
    ITERATORS,
    Chosen,
    Members,
    Node,
    PythonObject,
    describe,
    is_choosable,
)
from lowtide.frontend.script.remedies import fitting
from lowtide.frontend.script.torch_calls import torch_call
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Block, Value
from lowtide.ir.python_ops.row import element
from lowtide.ir.types import ClassType, DictType, ListType

# Python's operator: the name in module `operator`, the op on Python values.
BINARY: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("add", "py.add"),
    ast.Sub: ("sub", "py.sub"),
    ast.Mult: ("mul", "py.mul"),
    ast.Div: ("truediv", "py.truediv"),
    ast.FloorDiv: ("floordiv", "py.floordiv"),
    ast.Mod: ("mod", "py.mod"),
    ast.Pow: ("pow", "py.pow"),
    ast.MatMult: ("matmul", ""),
    ast.LShift: ("lshift", "py.lshift"),
    ast.RShift: ("rshift", "py.rshift"),
    ast.BitAnd: ("and_", "py.and"),
    ast.BitOr: ("or_", "py.or"),
    ast.BitXor: ("xor", "py.xor"),
}
UNARY: dict[type[ast.unaryop], tuple[str, str]] = {
    ast.USub: ("neg", "py.neg"),
    ast.UAdd: ("pos", "py.pos"),
    ast.Invert: ("invert", "py.invert"),
}
COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("lt", "py.lt"),
    ast.LtE: ("le", "py.le"),
    ast.Gt: ("gt", "py.gt"),
    ast.GtE: ("ge", "py.ge"),
    ast.Eq: ("eq", "py.eq"),
    ast.NotEq: ("ne", "py.ne"),
}
_INPLACE = {"and_": "iand", "or_": "ior"}


@expression(ast.BinOp)
def compile_binary(c: Context, node: ast.BinOp) -> Node:
    """`left op right`."""
    sides = c.expr(node.left), c.expr(node.right)
    united = isinstance(node.op, ast.BitOr) and any(isinstance(s, PythonObject) for s in sides)
    if united and all(_is_class(s) for s in sides):
        a, b = (cast("Any", s.obj if isinstance(s, PythonObject) else None) for s in sides)
        return PythonObject(a | b)
    joined = _joined(c, node.op, *sides)
    if joined is not None:
        return joined
    left, right = c.as_value(sides[0], node.left), c.as_value(sides[1], node.right)
    return binary(c, node, *BINARY[type(node.op)], left, right)


def _joined(c: Context, op: ast.operator, left: Node, right: Node) -> Members | None:
    """Compile `[self.a] + [self.b]` and `(self.a,) * 3` of modules."""
    if isinstance(op, ast.Add) and isinstance(left, Members) and isinstance(right, Members):
        return Members(left.nodes + right.nodes)
    count = c.constant(right)
    if isinstance(op, ast.Mult) and isinstance(left, Members) and isinstance(count, int):
        return Members(left.nodes * count)
    return None


def _is_class(found: Node) -> bool:
    """Return whether it can be an operand of `int | None`."""
    if isinstance(found, Value):
        return found.type == t.NONE
    return isinstance(found, PythonObject) and isinstance(found.obj, type | UnionType)


def binary(c: Context, node: ast.AST, name: str, py_name: str, left: Value, right: Value) -> Value:
    """Return a binary operator on compiled operands."""
    on_object = class_operators.binary(c, node, py_name, left, right)
    if on_object is not None:
        return on_object
    left, right = dict_views.as_operands(c, node, py_name, left, right)
    sides = left.type, right.type
    if _is_torch(py_name, sides):
        found = torch_call(c, node, f"operator.{name}", [left, right], {})
        return c.as_value(found, node)
    known = c.builder.py(py_name or "py.matmul", left, right)
    if known is None and t.NONE in sides:
        known = c.builder.py(py_name or "py.matmul", c.not_none(left), c.not_none(right))
    if known is None and c.may_be_skipped:
        known = c.builder.py(py_name or "py.matmul", c.unknown(left), c.unknown(right))
    if known is None:
        problem = f"`{_symbol(node)}` does not take ({left.type}, {right.type})"
        raise c.error(node, problem, fitting(py_name, sides))
    return known


def _is_torch(py_name: str, sides: Sequence[t.Type]) -> bool:
    """Return whether the operator is certainly PyTorch's: one operand is a tensor, and PyTorch
    takes the other. `==` with a possible None is not."""
    if py_name in ("py.eq", "py.ne") and any(t.is_subtype(t.NONE, s) for s in sides):
        return False
    vague = (s for s in sides if not t.is_tensor_or_number(s))
    return any(map(t.is_tensor, sides)) and not any(map(t.is_dynamic, vague))


def right_side(c: Context, node: ast.AugAssign, old: Value) -> Value:
    """Return the right side of `old op= value`; `xs += reversed(ys)` consumes it."""
    is_read = isinstance(old.type, ListType) and isinstance(node.op, ast.Add)
    return c.read_value(node.value) if is_read else c.value(node.value)


def augmented(c: Context, node: ast.AugAssign, name: str, old: Value, value: Value) -> Value:
    """Compile `old op= value`. If `old` is a tensor or a list, it changes in place and is
    returned."""
    _, py_name = BINARY[type(node.op)]
    inplace = _INPLACE.get(name, f"i{name}")
    match old.type:
        case ListType(elem) if isinstance(node.op, ast.Add):
            added = element(value.type)
            c.builder.widen(old, ListType(t.join(elem, t.ANY if added is None else added)))
            c.effect("list.extend", old, value)
            return old
        case DictType() if isinstance(node.op, ast.BitOr):
            if isinstance(value.type, DictType):
                c.builder.widen(old, t.join(old.type, value.type))
            c.effect("dict.update", old, value)
            return old
        case ListType() if isinstance(node.op, ast.Mult):
            c.effect("list.repeat", old, value)
            return old
        case ClassType() if classes.method_of(old.type, f"__{inplace.rstrip('_')}__") is not None:
            method = f"__{inplace.rstrip('_')}__"
            return c.as_value(classes.call_method(c, node, old, method, [value]), node)
        case type_ if t.is_tensor(type_):
            result = t.TENSOR
            return c.builder.emit(
                "mutate", [old, value], [result], target=f"operator.{inplace}", kwnames=()
            ).result
        case type_ if t.is_dynamic(type_):
            definition = opdefs.find(py_name or "py.matmul")
            result = definition and definition.result([old.type, value.type])
            return c.builder.emit(
                "mutate", [old, value], [result or t.ANY], target=f"operator.{inplace}", kwnames=()
            ).result
        case _:
            return binary(c, node, name, py_name, old, value)


@expression(ast.UnaryOp)
def compile_unary(c: Context, node: ast.UnaryOp) -> Node:
    """`-x`, `+x`, `~x`, `not x`."""
    operand = c.value(node.operand)
    if isinstance(node.op, ast.Not):
        return c.py(node, "py.not", truth(c, node, operand))
    name, py_name = UNARY[type(node.op)]
    on_object = class_operators.unary(c, node, operand, f"__{name}__")
    if on_object is not None:
        return on_object
    if t.is_tensor(operand.type):
        return torch_call(c, node, f"operator.{name}", [operand], {})
    return c.py(node, py_name, operand)


def truth(c: Context, node: ast.AST, value: Value) -> Value:
    """Compile `bool(value)`, by the object's own `__bool__` or `__len__` if it has one."""
    for method in ("__bool__", "__len__"):
        found = class_operators.unary(c, node, value, method)
        if found is not None:
            return c.truth(found)
    return c.truth(value)


@expression(ast.Compare)
def compile_compare(c: Context, node: ast.Compare) -> Node:
    """`a < b`, chains of comparisons, `is`, `in`."""
    left = c.expr(node.left)
    return _chain(c, node, left, list(zip(node.ops, node.comparators, strict=True)))


def _chain(
    c: Context, node: ast.Compare, left: Node, rest: Sequence[tuple[ast.cmpop, ast.expr]]
) -> Value:
    (op, right_node), *more = rest
    right = c.expr(right_node)
    first = _compare(c, node, op, left, right)
    if not more:
        return first
    return choose(c, node, c.truth(first), lambda: _chain(c, node, right, more), lambda: first)


def _compare_versions(c: Context, op: ast.cmpop, left: Node, right: Node) -> Value | None:
    """Compile `torch.__version__ >= "1.6"` as a constant."""
    objects = [x.obj for x in (left, right) if isinstance(x, PythonObject)]
    if type(op) not in _ORDERS or not any(isinstance(x, TorchVersion) for x in objects):
        return None
    a, b = (x.obj if isinstance(x, PythonObject) else c.constant(x) for x in (left, right))
    return None if UNKNOWN in (a, b) else c.const(_ORDERS[type(op)](a, b))


_ORDERS: dict[type[ast.cmpop], Any] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _compare(c: Context, node: ast.Compare, op: ast.cmpop, left: Node, right: Node) -> Value:
    by_value = isinstance(op, ast.Eq | ast.NotEq) and any(map(_has_own_equality, (left, right)))
    if not by_value and isinstance(left, PythonObject) and isinstance(right, PythonObject):
        return _compare_objects(c, node, op, left, right)
    known = None if by_value else compare_nodes(c, node, op, left, right)
    if known is None:
        known = _compare_versions(c, op, left, right)
    if known is not None:
        return known
    if isinstance(left, Value) and isinstance(op, ast.In | ast.NotIn):
        found = _among(c, node, left, right)
        if found is not None:
            return c.py(node, "py.not", found) if isinstance(op, ast.NotIn) else found
    seek = c.read if isinstance(op, ast.In | ast.NotIn) else c.as_value
    a, b = c.as_value(left, node), seek(right, node)
    if isinstance(op, ast.Is | ast.IsNot) and t.NONE in (a.type, b.type):
        a, b = classes.as_found(c, a), classes.as_found(c, b)
    match op:
        case ast.Is():
            return c.py(node, "py.is", a, b)
        case ast.IsNot():
            return c.py(node, "py.is_not", a, b)
        case ast.In() | ast.NotIn():
            found = _contains(c, node, b, a)
            return c.py(node, "py.not", found) if isinstance(op, ast.NotIn) else found
        case _:
            if isinstance(op, ast.Eq | ast.NotEq):
                doubts.size_and_list(c, node, a, b)
            return binary(c, node, *COMPARE[type(op)], a, b)


def _contains(c: Context, node: ast.AST, container: Value, item: Value) -> Value:
    if classes.method_of(container.type, "__contains__") is not None:
        found = classes.call_method(c, node, container, "__contains__", [item])
        return c.truth(c.as_value(found, node))
    if t.is_tensor(container.type):
        found = torch_call(c, node, "operator.contains", [container, item], {})
        return c.as_value(found, node)
    return c.py(node, "py.contains", container, item)


def _among(c: Context, node: ast.AST, item: Value, container: Node) -> Value | None:
    """Compile `item in modules`, compared one by one; return None if the members can be values."""
    if isinstance(container, Value) or type(container) in VALUE_OF:
        return None
    if isinstance(container, ITERATORS):
        return None
    iteration = iterate(c, container, node)  # pyright: ignore[reportArgumentType]
    count = static_length(c, iteration)
    if count is None:
        raise c.error(node, f"`in` {describe(container)} of unknown length", "comparisons")
    found: Value = c.const(False)
    for k in range(count):
        equal = c.py(node, "py.eq", item, c.as_value(iteration.element(c.const(k)), node))
        found = c.py(node, "py.or", found, equal)
    return found


def _has_own_equality(node: Node) -> bool:
    """Return whether the object's class may define equality, which Python then asks at run time.
    Callables and the like equal only themselves."""
    if not isinstance(node, PythonObject) or isinstance(node.obj, type | tuple):
        return False
    own: object = type(node.obj).__eq__
    is_data = own is not object.__eq__ and not callable(node.obj)
    return is_data or isinstance(own, FunctionType)


def _compare_objects(
    c: Context, node: ast.AST, op: ast.cmpop, left: PythonObject, right: PythonObject
) -> Value:
    same = left.obj is right.obj
    if isinstance(op, ast.Is | ast.Eq):
        return c.const(same)
    if isinstance(op, ast.IsNot | ast.NotEq):
        return c.const(not same)
    if isinstance(right.obj, tuple):
        found = left.obj in right.obj
        return c.const(found != isinstance(op, ast.NotIn))
    raise c.error(
        node, "Python objects can only be compared by `is`, `==` or `in`", "`is`, `==` or `in`"
    )


@expression(ast.BoolOp)
def compile_bool(c: Context, node: ast.BoolOp) -> Node:
    """`a and b or c`: the right side is computed only if it decides."""
    return _bool(c, node, node.values)


def _bool(c: Context, node: ast.BoolOp, parts: Sequence[ast.expr]) -> Value:
    first, *rest = parts
    value = c.value(first)
    if not rest:
        return value
    truth_ = truth(c, first, value)
    is_and = isinstance(node.op, ast.And)

    def decided() -> Value:
        return c.const(not is_and) if value.type == t.BOOL else value

    with_rest = narrowed(c, first, is_and, lambda: _bool(c, node, rest))
    if is_and:
        return choose(c, node, truth_, with_rest, decided)
    return choose(c, node, truth_, decided, with_rest)


@expression(ast.IfExp)
def compile_ternary(c: Context, node: ast.IfExp) -> Node:
    """`a if test else b`; a test that is known leaves only one side."""
    test = truth(c, node.test, c.value(node.test))
    known = c.builder.constant(test)
    if known is not UNKNOWN:
        return c.expr(node.body if known else node.orelse)
    sides = _known_sides(c, node)
    if sides is not None:
        return Chosen(test, sides)
    return choose(
        c,
        node,
        test,
        narrowed(c, node.test, True, lambda: c.value(node.body)),
        narrowed(c, node.test, False, lambda: c.value(node.orelse)),
    )


def _known_sides(c: Context, node: ast.IfExp) -> tuple[Node, Node] | None:
    """Return both sides of `self.a if test else self.b`, if they are modules or functions."""
    if not all(isinstance(side, ast.Name | ast.Attribute) for side in (node.body, node.orelse)):
        return None
    outer = dict(c.frame.vars)  # to read a variable that may be unbound binds it
    with c.builder.inside(Block()):  # what is read to find out is read again
        try:
            sides = c.expr(node.body), c.expr(node.orelse)
        except CompileError:
            return None  # it may be narrowed by the test
        finally:
            c.frame.vars = outer
    return sides if all(map(is_choosable, sides)) else None


def _symbol(node: ast.AST) -> str:
    return ast.unparse(node)[:60]
