"""The iterables of `for` and comprehensions: their length, and the element at an index.

In: a compiled expression (range, enumerate, zip, reversed, tuple, list, tensor, str). Out: an
`Iteration`.

    enumerate(xs)  →  length py.len(%xs), element(i) = (i, list.get(%xs, i))

Invariant: a tuple is unrolled, for its elements may differ in type; anything else may stay a
loop.
"""

from __future__ import annotations

import ast
import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from lowtide.frontend.script import classes
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.dict_views import view_of
from lowtide.frontend.script.flow import branch_on, some
from lowtide.frontend.script.module_protocols import call_own
from lowtide.frontend.script.node_tables import ELEMENTS_OF
from lowtide.frontend.script.nodes import (
    Enumerate,
    Members,
    Method,
    Node,
    PythonObject,
    Range,
    Reversed,
    Zip,
    describe,
)
from lowtide.frontend.script.torch_calls import torch_call
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.opdefs import MAX_TRIPS

_LARGEST_UNROLLED = 64


class Reading(enum.Enum):
    """The values that Python's own iterator reads, an element at a time. Others are read at
    once."""

    OBJECTS = enum.auto()
    OBJECTS_AND_UNKNOWN = enum.auto()  # of unknown type, where the loop may end early
    NOTHING = enum.auto()  # several at a time; an iterator is refused


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Iteration:
    """`length`: an int value. `element` compiles the element at an index value. `sources`: the
    lists or dicts that are iterated over. If the loop changes one, `within` compiles the test
    whether there is an element at an index; `exists` does so in an unrolled loop, where a list may
    end before a tuple. `finish` compiles the code after the last element. `is_drawn`: `within`
    takes the element from an iterator of Python's, so that each step asks it."""

    length: Value
    element: Callable[[Value], Node]
    must_unroll: bool = False
    sources: tuple[Value, ...] = ()
    within: Callable[[Value], Value] | None = None
    exists: Callable[[Value], Value] | None = None
    finish: Callable[[], None] | None = None
    is_drawn: bool = False


def iterate(
    c: Context, found: Node, node: ast.expr, reading: Reading = Reading.OBJECTS
) -> Iteration:
    """Return the iteration over a compiled expression. Raises CompileError if it is not
    iterable."""
    own = call_own(c, node, found, "__iter__")
    if own is not None:
        return iterate(c, own, node, reading)
    match found:
        case Range():
            return _over_range(c, found, node)
        case Enumerate(inner, start):
            return _over_enumerate(c, iterate(c, inner, node, reading), start, node)
        case Zip(inners, strict):
            each = reading if len(inners) == 1 else Reading.NOTHING
            return _over_zip(c, [iterate(c, i, node, each) for i in inners], node, strict)
        case Reversed(inner):
            return _over_reversed(c, iterate(c, inner, node), node)
        case Value():
            found = some(c, node, found, "'NoneType' object is not iterable")
            return _over_value(c, c.not_none(found), node, reading)
        case Method():
            return iterate(c, c.as_value(found, node), node, reading)
        case _ if type(found) in ELEMENTS_OF:
            return _over_nodes(c, ELEMENTS_OF[type(found)](c, node, found))
        case PythonObject(obj) if isinstance(obj, enum.EnumMeta):
            return _over_enum(c, obj, node)
        case PythonObject(obj) if isinstance(obj, tuple):
            return _over_nodes(c, [PythonObject(x) for x in cast("tuple[object, ...]", obj)])
        case _:
            raise c.error(node, f"{describe(found)} cannot be run over", "range, list, tuple, zip")


def static_length(c: Context, iteration: Iteration) -> int | None:
    """Return the number of elements, if it is known and small enough to unroll."""
    known = c.builder.constant(iteration.length)
    if not isinstance(known, int):
        return None
    return known if iteration.must_unroll or known <= _LARGEST_UNROLLED else None


def if_there(
    c: Context, node: ast.AST, iteration: Iteration, i: Value, body: Callable[[], None]
) -> None:
    """Compile the body of an unrolled loop for one element, if that element exists."""
    if iteration.exists is None:
        body()
    else:
        branch_on(c, node, iteration.exists(i), body, lambda: None)


def _over_nodes(c: Context, nodes: Sequence[Node]) -> Iteration:
    """Return the iteration over compile-time nodes, such as the modules of a list."""
    return Iteration(
        length=c.const(len(nodes)), element=lambda i: nodes[_known(c, i)], must_unroll=True
    )


def _tuple_of(c: Context, nodes: Sequence[Node]) -> Node:
    values = [n for n in nodes if isinstance(n, Value)]
    return c.builder.tuple_make(values) if len(values) == len(nodes) else Members(tuple(nodes))


def _over_range(c: Context, r: Range, node: ast.expr) -> Iteration:
    length = c.py(node, "py.range_len", r.start, r.stop, r.step)

    def element(i: Value) -> Node:
        step, start = c.builder.constant(r.step), c.builder.constant(r.start)
        scaled = i if step == 1 else c.py(node, "py.mul", i, r.step)
        return scaled if start == 0 else c.py(node, "py.add", scaled, r.start)

    if c.builder.constant(r.start) == 0 and c.builder.constant(r.step) == 1:
        stop = c.builder.constant(r.stop)
        length = length if isinstance(stop, int) else r.stop  # a negative count runs zero times
    return Iteration(length=length, element=element)


def _over_enumerate(c: Context, inner: Iteration, start: Value, node: ast.expr) -> Iteration:
    def element(i: Value) -> Node:
        value = inner.element(i)
        count = i if c.builder.constant(start) == 0 else c.py(node, "py.add", i, start)
        return _tuple_of(c, [count, value])

    return Iteration(
        length=inner.length,
        element=element,
        must_unroll=inner.must_unroll,
        sources=inner.sources,
        within=inner.within,
        exists=inner.exists,
        finish=inner.finish,
        is_drawn=inner.is_drawn,
    )


def _over_zip(c: Context, inners: list[Iteration], node: ast.expr, strict: bool) -> Iteration:
    if not inners:
        raise c.error(node, "zip() of nothing", "zip(xs, ys)")
    shortest = inners[0].length
    for inner in inners[1:]:
        shortest = c.py(node, "py.min", shortest, inner.length)
    unroll = any(i.must_unroll for i in inners)
    known = [c.builder.constant(i.length) for i in inners]
    counts = [n for n in known if isinstance(n, int)]
    may_end = [i.exists for i in inners if i.exists is not None]
    if unroll and len(counts) < len(inners):
        may_end.append(_below(c, node, shortest))

    def exists(i: Value) -> Value:
        return functools.reduce(lambda a, b: c.py(node, "py.and", a, b), [e(i) for e in may_end])

    def element(i: Value) -> Node:
        return _tuple_of(c, [inner.element(i) for inner in inners])

    def within(i: Value) -> Value:
        tests = [inner.within or _below(c, node, inner.length) for inner in inners]
        left = tests[0](i)
        for test in tests[1:]:
            left = c.py(node, "py.and", left, test(i))
        return left

    sources = tuple(s for inner in inners for s in inner.sources)
    return Iteration(
        length=c.const(min(counts)) if unroll else shortest,
        element=element,
        must_unroll=unroll,
        sources=sources,
        within=within,
        exists=exists if may_end else None,
        finish=(lambda: _check_as_long(c, node, inners)) if strict else None,
    )


def _check_as_long(c: Context, node: ast.expr, inners: list[Iteration]) -> None:
    """Add the check of a strict zip() at its end. The error names the first argument that ended,
    or, if that is the first of all, the first one that did not."""
    first, *others = (inner.length for inner in inners)
    shortest = first
    for length in others:
        shortest = c.py(node, "py.min", shortest, length)
    goes_on = c.py(node, "py.gt", first, shortest)
    ends = [c.py(node, "py.eq", length, shortest) for length in others]
    wrong = [("shorter", k, c.py(node, "py.and", goes_on, e)) for k, e in enumerate(ends, 1)]
    wrong += [("longer", k, c.py(node, "py.not", e)) for k, e in enumerate(ends, 1)]
    for word, k, is_so in wrong:
        before = "argument 1" if k == 1 else f"arguments 1-{k}"
        message = c.const(f"zip() argument {k + 1} is {word} than {before}")
        branch_on(c, node, is_so, functools.partial(_fail, c, message), lambda: None)


def _fail(c: Context, message: Value) -> None:
    c.builder.emit("raise", [message], exception="ValueError")


def _below(c: Context, node: ast.expr, length: Value) -> Callable[[Value], Value]:
    return lambda i: c.py(node, "py.lt", i, length)


def _over_reversed(c: Context, inner: Iteration, node: ast.expr) -> Iteration:
    last = c.py(node, "py.sub", inner.length, c.const(1))
    return Iteration(
        length=inner.length,
        element=lambda i: inner.element(c.py(node, "py.sub", last, i)),
        must_unroll=inner.must_unroll,
    )


def _over_value(c: Context, value: Value, node: ast.expr, reading: Reading) -> Iteration:
    match value.type:
        case t.TupleType(elems):
            return Iteration(
                length=c.const(len(elems)),
                element=lambda i: c.builder.tuple_get(value, _known(c, i)),
                must_unroll=True,
            )
        case t.ListType() if (view := _view(c, value)) is not None:
            return _over_dict(c, *view, node)
        case t.ListType() | t.STR:
            return Iteration(
                length=c.py(node, "py.len", value),
                element=lambda i: c.py(node, "list.get", value, i),
                sources=(value,) if isinstance(value.type, t.ListType) else (),
                within=lambda i: c.py(node, "py.lt", i, c.py(node, "py.len", value)),
            )
        case t.DictType():
            return _over_dict(c, value, "dict.keys", node)
        case type_ if t.is_dynamic(type_) or classes.is_iterable(type_):
            if reading is Reading.NOTHING:
                return _over_value(c, c.py(node, "iter.whole", value), node, reading)
            if reading is Reading.OBJECTS and t.is_dynamic(type_):
                return _over_value(c, c.py(node, "py.iter", value), node, reading)
            return _drawn(c, value, node)
        case type_ if t.is_tensor(type_):
            rows = torch_call(c, node, "Tensor.size", [value, c.const(0)], {})
            return Iteration(
                length=c.as_value(rows, node),
                element=lambda i: (
                    c.builder.emit(
                        "torch.getitem", [value, i], [t.TENSOR], spec=("int",), unbound=True
                    ).result
                ),
            )
        case _:
            raise c.error(
                node, f"a value of type {value.type} cannot be run over", "a list, a tuple, range"
            )


def _drawn(c: Context, value: Value, node: ast.expr) -> Iteration:
    """Return the iteration over an object: Python's own, one element at a time."""
    drawn = c.py(node, "iter.of", value)
    return Iteration(
        length=c.const(MAX_TRIPS),
        element=lambda i: c.py(node, "iter.item", drawn),
        within=lambda i: c.py(node, "iter.goes_on", drawn, i),
        is_drawn=True,
    )


def _view(c: Context, value: Value) -> tuple[Value, str] | None:
    """Return the dict and the op, if this is its keys, values or items, which a loop sees live."""
    maker = view_of(c, value)
    return None if maker is None else (maker.operands[0], maker.name)


def _over_dict(c: Context, d: Value, part: str, node: ast.expr) -> Iteration:
    keys = c.py(node, "dict.keys", d)

    def element(i: Value) -> Node:
        key = c.py(node, "list.get", keys, i)
        if part == "dict.keys":
            return key
        value = c.py(node, "dict.item", d, key)
        return value if part == "dict.values" else c.builder.tuple_make([key, value])

    return Iteration(
        length=c.py(node, "py.len", keys),
        element=element,
        sources=(d,),
        within=lambda i: c.py(node, "dict.goes_on", d, keys, i),
    )


def _over_enum(c: Context, obj: enum.EnumMeta, node: ast.expr) -> Iteration:
    members = [classes.enum_member(c, m) for m in cast("list[enum.Enum]", list(obj))]
    return Iteration(
        length=c.const(len(members)), element=lambda i: members[_known(c, i)], must_unroll=True
    )


def _known(c: Context, i: Value) -> int:
    known = c.builder.constant(i)
    assert isinstance(known, int)
    return known
