"""List, set and dict comprehensions, and generators, which are lists.

In: a comprehension's AST. Out: the elements themselves where their number is small and known, else
a loop that appends.

    [f(x) for x in (a, b)]  →  list.make(f(a), f(b))
    [f(x) for x in xs]      →  %r = list.make();  loop …: list.append(%r, f(x))
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.context import Context, expression
from lowtide.frontend.script.dict_views import storable, storable_value
from lowtide.frontend.script.displays import list_of_nodes, run_over, settled
from lowtide.frontend.script.expressions import make_dict
from lowtide.frontend.script.flow import Vars, branch_on
from lowtide.frontend.script.iteration import Iteration, iterate, static_length
from lowtide.frontend.script.loops import loop_over
from lowtide.frontend.script.mutation import named_inside
from lowtide.frontend.script.node_tables import CALL_OF
from lowtide.frontend.script.nodes import Call, LocalFunction, ModuleRef, Node, PythonObject
from lowtide.frontend.script.operators import truth
from lowtide.frontend.script.targets import assign, widen
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import DictType, ListType


@expression(ast.ListComp, ast.GeneratorExp)
def compile_comprehension(c: Context, node: ast.ListComp | ast.GeneratorExp) -> Node:
    """`[element for target in iterable if test]`."""
    if isinstance(node, ast.GeneratorExp) and named_inside(node):
        raise c.error(node, "`:=` in a generator, which is computed at once", "a `for` loop")
    if isinstance(node, ast.ListComp):
        return collected(c, node, node.generators, lambda: c.expr(node.elt))
    made = c.as_value(collected(c, node, node.generators, lambda: c.value(node.elt)), node)
    c.iterators.add(made)
    return made


def decided_early(c: Context, node: ast.Call, generator: ast.GeneratorExp, is_any: bool) -> Node:
    """Compile `any(test for …)` and `all(test for …)`, which end at the deciding element.

    any(f(x) for x in xs)  →  for x in xs:
                                  if f(x): return True
                              return False
    """
    if named_inside(generator):
        raise c.error(generator, "`:=` in a generator is not compiled", "a `for` loop")
    decides = generator.elt if is_any else ast.UnaryOp(ast.Not(), generator.elt)
    found = ast.If(decides, [ast.Return(ast.Constant(is_any))], [])
    otherwise = ast.Return(ast.Constant(not is_any))
    return _searched(c, node, generator.generators, found, otherwise, [])


def first_of(c: Context, node: ast.Call) -> Node:
    """Return `next(iterator, default)` of an iterator that is made in the call.

    next(x for x in xs if x > 0)  →  for x in xs:
                                         if x > 0: return x
                                     raise StopIteration
    """
    match node.args:
        case [ast.GeneratorExp(element, generators), *default] if not named_inside(node.args[0]):
            pass
        case [ast.Call(callee) as made, *default] if _makes_iterator(c, made, callee):
            iterable = made.args[0] if _is(c, callee, iter) else made
            element, target = ast.Name(_FIRST, ast.Load()), ast.Name(_FIRST, ast.Store())
            generators = [ast.comprehension(target, iterable, [], 0)]
        case _:
            raise c.error(
                node,
                "next() is compiled only of an iterator that is made in the call",
                "a `for` loop that ends at its first element",
            )
    if len(default) > 1 or node.keywords:
        raise c.error(node, "next() takes an iterator and a default", "these")
    none: ast.stmt = ast.Raise(ast.Name("StopIteration", ast.Load()))
    if default:
        none = ast.Return(ast.Name(_DEFAULT, ast.Load()))
    found = ast.Return(element)
    return _searched(c, node, generators, found, none, [c.expr(d) for d in default])


def _is(c: Context, callee: ast.expr, builtin: object) -> bool:
    found = c.callee(callee)
    return isinstance(found, PythonObject) and found.obj is builtin


def _makes_iterator(c: Context, made: ast.Call, callee: ast.expr) -> bool:
    if isinstance(callee, ast.Attribute):
        in_parts = callee.attr.removeprefix("named_") in _PARTS
        return in_parts and isinstance(c.expr(callee.value), ModuleRef)
    return any(_is(c, callee, x) for x in _LAZY) or (_is(c, callee, iter) and len(made.args) == 1)


_FIRST, _DEFAULT = "_first_of_all", "_where_there_is_none"
_LAZY = (enumerate, filter, map, reversed, zip)
_PARTS = ("buffers", "parameters")


def _searched(
    c: Context,
    node: ast.Call,
    generators: Sequence[ast.comprehension],
    found: ast.stmt,
    otherwise: ast.stmt,
    default: list[Node],
) -> Node:
    """Compile the loops of a generator, with `found` in the innermost, then `otherwise`."""
    body: list[ast.stmt] = [found]
    for part in reversed(generators):
        for test in reversed(part.ifs):
            body = [ast.If(test, body, [])]
        body = [ast.For(part.target, part.iter, body, [])]
    body.append(otherwise)
    args = [ast.arg(_DEFAULT) for _ in default]
    taken = ast.arguments(posonlyargs=[], args=args, kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef("<genexpr>", taken, body, [])
    ast.fix_missing_locations(ast.copy_location(function, node.args[0]))
    local = LocalFunction(function, c.frame, {})
    return CALL_OF[LocalFunction](c, local, Call(node=node, args=default))


@expression(ast.SetComp)
def compile_set_comprehension(c: Context, node: ast.SetComp) -> Node:
    """`{element for target in iterable}`."""
    made = collected(c, node, node.generators, lambda: c.value(node.elt))
    return c.py(node, "set.of", c.as_value(made, node))


@expression(ast.DictComp)
def compile_dict_comprehension(c: Context, node: ast.DictComp) -> Node:
    """`{key: value for target in iterable}`."""
    made = make_dict(c, [], [])

    def put() -> None:
        key, value = c.value(node.key), storable_value(c, node.value)
        if isinstance(made.type, DictType):
            widen(c, made, t.join(made.type, DictType(key.type, value.type)))
        c.effect("dict.set", made, key, value)

    outer = dict(c.frame.vars)
    _looped(c, node, node.generators, put)
    _restore(c, node, outer)
    return made


def collected(
    c: Context,
    node: ast.expr,
    generators: Sequence[ast.comprehension],
    element: Callable[[], Node],
) -> Node:
    """Return a list of the values of `element`, one for each iteration."""
    outer = dict(c.frame.vars)
    iteration = _iteration(c, generators[0])
    is_plain = len(generators) == 1 and not generators[0].ifs and iteration.exists is None
    count = static_length(c, iteration) if is_plain else None
    if count is not None:
        target = generators[0].target
        nodes = _unrolled(c, target, iteration, count, lambda: settled(c, element(), node))
        _restore(c, node, outer)
        return list_of_nodes(c, node, nodes)
    made = c.builder.list_make([])

    def append() -> None:
        value = c.as_value(storable(c, element(), node), node)
        if isinstance(made.type, ListType):
            widen(c, made, ListType(t.join(made.type.elem, value.type)))
        c.effect("list.append", made, value)

    _looped(c, node, generators, append, iteration)
    _restore(c, node, outer)
    return made


def _restore(c: Context, node: ast.expr, outer: Vars) -> None:
    """Restore the variables after a comprehension, except those of `:=`. Iterators that it has
    consumed stay consumed."""
    inner = c.frame.vars
    read = [n for n, v in outer.items() if c.is_iterator(v)]
    c.frame.vars = outer | {n: inner[n] for n in (*named_inside(node), *read) if n in inner}


def _unrolled(
    c: Context,
    target: ast.expr,
    iteration: Iteration,
    count: int,
    element: Callable[[], Node],
) -> list[Node]:
    """Return the elements one by one."""
    nodes: list[Node] = []
    for k in range(count):
        assign(c, target, iteration.element(c.const(k)))
        nodes.append(element())
    if iteration.finish is not None:
        iteration.finish()
    return nodes


def _iteration(c: Context, generator: ast.comprehension) -> Iteration:
    return iterate(c, run_over(c, generator.iter), generator.iter)


def _looped(
    c: Context,
    node: ast.expr,
    generators: Sequence[ast.comprehension],
    innermost: Callable[[], None],
    outermost: Iteration | None = None,
) -> None:
    """Compile the loops around `innermost`. `outermost`: the first, if already compiled."""
    if not generators:
        innermost()
        return
    generator, *more = generators
    iteration = outermost or _iteration(c, generator)

    def body(i: Value) -> None:
        assign(c, generator.target, iteration.element(i))
        _where(c, generator.ifs, lambda: _looped(c, node, more, innermost))

    loop_over(c, node, [node], iteration, body)


def _where(c: Context, tests: Sequence[ast.expr], body: Callable[[], None]) -> None:
    if not tests:
        body()
        return
    first, *more = tests
    condition = truth(c, first, c.value(first))
    branch_on(c, first, condition, lambda: _where(c, more, body), lambda: None)


BUILTINS[next] = lambda c, call: first_of(c, call.node)
