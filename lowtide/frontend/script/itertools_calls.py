"""`itertools`, `functools` and `operator`, where the result is a list or a function.

In: a call of `repeat`, `chain`, `product`, `islice`, `reduce`, `partial` and the like. Out: lists,
made where the call stands; a `Partial` for `partial`.

    chain(xs, ys)        →  py.add(%xs, %ys)
    product(xs, ys)      →  a loop in a loop that appends pairs
    operator.add(a, b)   →  what `a + b` is
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any, cast

from lowtide.frontend.script.arguments import check_count
from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.expressions import known_elements
from lowtide.frontend.script.flow import branch_on
from lowtide.frontend.script.iterable_calls import Builtin, append, each, folded
from lowtide.frontend.script.node_tables import CALL_OF
from lowtide.frontend.script.nodes import Call, Node, Partial
from lowtide.frontend.script.operators import BINARY, COMPARE, binary, truth
from lowtide.frontend.script.targets import unpacked
from lowtide.ir import types as t
from lowtide.ir.core import Value

_MOST_CHOSEN = 8  # elements whose combinations are written out
_MOST_KNOWN = 64  # copies of a value that are written out


def _repeat(c: Context, call: Call) -> Node:
    if len(call.args) != 2:
        raise c.error(call.node, "repeat() without an end", "repeat(value, count)")
    value, count = (c.as_value(a, call.node) for a in call.args)
    known = c.builder.constant(count)
    if isinstance(known, int) and known <= _MOST_KNOWN:
        return c.builder.list_make([value] * known)
    return c.py(call.node, "py.mul", c.builder.list_make([value]), count)


def _chain(c: Context, call: Call) -> Node:
    lists = [c.list_of(a, call.node) for a in call.args]
    return _joined(c, call.node, lists)


def _joined(c: Context, node: ast.AST, lists: Sequence[Value]) -> Value:
    known = [known_elements(c, xs) for xs in lists]
    if all(k is not None for k in known):
        return c.builder.list_make([v for k in known for v in k or ()])
    return unpacked(c, node, lists)


def _chain_from_iterable(c: Context, call: Call) -> Node:
    made = c.builder.list_make([])

    def put_all(inner: Value) -> None:
        each(c, inner, call.node, lambda value: append(c, made, value))

    each(c, call.args[0], call.node, put_all)
    return made


def _product(c: Context, call: Call) -> Node:
    repeat = c.constant(call.keywords.get("repeat", c.const(1)))
    if not isinstance(repeat, int):
        raise c.error(call.node, "product() with a `repeat` that the run decides", "loops")
    lists = [c.list_of(a, call.node) for a in call.args] * repeat
    made = c.builder.list_make([])

    def put(chosen: list[Value]) -> None:
        if len(chosen) == len(lists):
            append(c, made, c.builder.tuple_make(chosen))
        else:
            each(c, lists[len(chosen)], call.node, lambda value: put([*chosen, value]))

    put([])
    return made


def _islice(c: Context, call: Call) -> Node:
    xs, *rest = call.args
    bounds = [c.as_value(b, call.node) for b in rest]
    none = c.const(None)
    bounds = [none, *bounds] if len(bounds) == 1 else bounds
    bounds += [none] * (3 - len(bounds))
    return c.py(call.node, "list.slice", c.list_of(xs, call.node), *bounds)


def _starmap(c: Context, call: Call) -> Node:
    fn, source = call.args
    made = c.builder.list_make([])

    def put(value: Value) -> None:
        known = known_elements(c, value)
        if known is None:
            raise c.error(call.node, "starmap() over lists of unknown length", "tuples")
        found = c.call_function(call.node, fn, list(known))
        append(c, made, c.as_value(found, call.node))

    each(c, source, call.node, put)
    return made


def _pairwise(c: Context, call: Call) -> Node:
    xs = c.list_of(call.args[0], call.node)
    none = c.const(None)
    behind = c.py(call.node, "list.slice", xs, c.const(1), none, none)
    zipped = BUILTINS[zip](c, Call(node=call.node, args=[xs, behind]))
    return c.list_of(zipped, call.node)


def _reduce(c: Context, call: Call) -> Node:
    fn, source, *start = call.args
    xs = c.list_of(source, call.node)
    if not start:
        none = c.const(None)
        _check_some(c, call, xs)
        start = [c.py(call.node, "list.get", xs, c.const(0))]
        xs = c.py(call.node, "list.slice", xs, c.const(1), none, none)
    first = c.as_value(start[0], call.node)

    def step(a: Value, b: Value) -> Value:
        return c.as_value(c.call_function(call.node, fn, [a, b]), call.node)

    return folded(c, call, xs, first, step)


def _accumulate(c: Context, call: Call) -> Node:
    source, *given = call.args
    fn = given[0] if given else call.keywords.get("func")
    start = c.as_value(call.keywords.get("initial", c.const(None)), call.node)
    made = c.builder.list_make([])

    def step(a: Value, b: Value) -> Value:
        if fn is None or (isinstance(fn, Value) and fn.type == t.NONE):
            found: Node = binary(c, call.node, *BINARY[ast.Add], a, b)
        else:
            found = c.call_function(call.node, fn, [a, b])
        value = c.as_value(found, call.node)
        append(c, made, value)
        return value

    xs = c.list_of(source, call.node)
    if start.type != t.NONE:
        append(c, made, start)
        folded(c, call, xs, start, step)
        return made

    def fold_some() -> None:
        none = c.const(None)
        first = c.py(call.node, "list.get", xs, c.const(0))
        append(c, made, first)
        folded(c, call, c.py(call.node, "list.slice", xs, c.const(1), none, none), first, step)

    branch_on(c, call.node, c.py(call.node, "py.bool", xs), fold_some, lambda: None)
    return made


def _combinations(c: Context, call: Call) -> Node:
    source, given = [*call.args, *(v for k, v in call.keywords.items() if k == "r")]
    xs, size = c.list_of(source, call.node), c.as_value(given, call.node)
    known, count = known_elements(c, xs), c.constant(size)
    is_short = known is not None and len(known) <= _MOST_CHOSEN
    if known is not None and is_short and isinstance(count, int) and count >= 0:
        chosen = itertools.combinations(known, count)
        return c.builder.list_make([c.builder.tuple_make(v) for v in chosen])
    return c.inline(cast("FunctionType", _choose), call.node, [xs, size], {})


def _choose(xs: list[Any], size: int) -> list[tuple[Any, ...]]:
    """Return `itertools.combinations(xs, size)` as a list. Compiled as a script function."""
    if size < 0:
        raise ValueError("r must be non-negative")
    places = list(range(size))
    found: list[tuple[Any, ...]] = []
    going = size <= len(xs)
    while going:
        found.append(tuple([xs[i] for i in places]))
        k = size - 1
        while k >= 0 and places[k] == k + len(xs) - size:
            k -= 1
        going = k >= 0
        if going:
            places[k] += 1
            for j in range(k + 1, size):
                places[j] = places[j - 1] + 1
    return found


def _check_some(c: Context, call: Call, xs: Value) -> None:
    def fail() -> None:
        message = "reduce() of empty iterable with no initial value"
        c.builder.emit("raise", [c.const(message)], exception="TypeError")

    empty = c.py(call.node, "py.eq", c.py(call.node, "py.len", xs), c.const(0))
    branch_on(c, call.node, empty, fail, lambda: None)


def _partial(c: Context, call: Call) -> Node:
    fn, *args = call.args
    return Partial(fn, tuple(args), call.keywords)


def _partial_call(c: Context, partial: Partial, call: Call) -> Node:
    check_count(c, call)
    args = [*partial.args, *call.args]
    return c.call_function(call.node, partial.callee, args, {**partial.keywords, **call.keywords})


def _operator(name: str, py_name: str) -> Builtin:
    def compile_operator(c: Context, call: Call) -> Node:
        a, b = (c.as_value(x, call.node) for x in call.args)
        return binary(c, call.node, name, py_name, a, b)

    return compile_operator


def _negation(c: Context, call: Call) -> Node:
    (operand,) = (c.as_value(a, call.node) for a in call.args)
    return c.py(call.node, "py.not", truth(c, call.node, operand))


BUILTINS.update(
    {getattr(operator, n): _operator(n, py) for n, py in (*BINARY.values(), *COMPARE.values())}
)
BUILTINS.update(
    {
        operator.not_: _negation,
        itertools.repeat: _repeat,
        itertools.chain: _chain,
        itertools.chain.from_iterable: _chain_from_iterable,
        itertools.product: _product,
        itertools.islice: _islice,
        itertools.starmap: _starmap,
        itertools.pairwise: _pairwise,
        itertools.accumulate: _accumulate,
        itertools.combinations: _combinations,
        functools.reduce: _reduce,
        functools.partial: _partial,
    }
)
CALL_OF[Partial] = _partial_call
