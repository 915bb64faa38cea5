"""List, set and dict comprehensions, and generators, which are lists.

In: a comprehension's AST. Out: the elements themselves where their number is small and known, else
a loop that appends.

    [f(x) for x in (a, b)]  →  list.make(f(a), f(b))
    [f(x) for x in xs]      →  %r = list.make();  loop …: list.append(%r, f(x))
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from lowtide.frontend.script.context import Context, expression
from lowtide.frontend.script.displays import list_of_nodes, run_over, settled
from lowtide.frontend.script.expressions import make_dict
from lowtide.frontend.script.flow import Vars, branch_on
from lowtide.frontend.script.iteration import Iteration, iterate, static_length
from lowtide.frontend.script.loops import loop_over
from lowtide.frontend.script.mutation import named_inside
from lowtide.frontend.script.node_tables import CALL_OF
from lowtide.frontend.script.nodes import Call, LocalFunction, Node
from lowtide.frontend.script.operators import truth
from lowtide.frontend.script.targets import assign, widen
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import DictType, ListType

Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp


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
    """`any(test for …)`, `all(test for …)`: what follows the deciding element is not computed.

    any(f(x) for x in xs)  →  for x in xs:
                                  if f(x): return True
                              return False"""
    if named_inside(generator):
        raise c.error(generator, "`:=` in a generator is not compiled", "a `for` loop")
    decides = generator.elt if is_any else ast.UnaryOp(ast.Not(), generator.elt)
    body: list[ast.stmt] = [ast.If(decides, [ast.Return(ast.Constant(is_any))], [])]
    for part in reversed(generator.generators):
        for test in reversed(part.ifs):
            body = [ast.If(test, body, [])]
        body = [ast.For(part.target, part.iter, body, [])]
    body.append(ast.Return(ast.Constant(not is_any)))
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef("<genexpr>", none, body, [])
    ast.fix_missing_locations(ast.copy_location(function, generator))
    local = LocalFunction(function, c.frame, {})
    return CALL_OF[LocalFunction](c, local, Call(node=node, args=[]))


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
        key, value = c.value(node.key), c.value(node.value)
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
    """A list of what `element` compiles, once in each round."""
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
        value = c.as_value(element(), node)
        if isinstance(made.type, ListType):
            widen(c, made, ListType(t.join(made.type.elem, value.type)))
        c.effect("list.append", made, value)

    _looped(c, node, generators, append, iteration)
    _restore(c, node, outer)
    return made


def _restore(c: Context, node: ast.expr, outer: Vars) -> None:
    """The variables as before: a comprehension's are its own, but for those of `:=`; what it has
    read to the end stays so."""
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
    """The elements one by one."""
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
    """`outermost`: what the first of the generators runs over, if that is compiled already."""
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
