"""Program → Program in normal form: what fusion works on.

In:  definitions as the ops wrote them, views and all.
Out: the same values, where
  - every Def is either pointwise or one reduction of a pointwise body;
  - views are gone: they were changes of index;
  - a pointwise value with one user is written into it; one with several users that costs
    something stays a Def (`shared`), so that fusion can see that they use the same value;
  - axes of extent 1 do not occur in expressions; what nobody uses is dropped.

    t1[i, c] = x[i, c] - m[c]             t3[i] = sum[c](mul(x[i,c] - m[c], x[i,c] - m[c]))
    t2[i, c] = t1[i, c] * t1[i, c]    ->
    t3[i]    = sum[c](t2[i, c])
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices, simplify
from lowtide.texpr.expr import Apply, Def, Expr, Load, Program, Reduce, Rewriter, Select
from lowtide.texpr.index import Axis, Index, as_index, evaluate, the_axis

INLINE_NODES = 600  # an expression that grew past this is stored instead of written into its users


def normalise(program: Program, hints: Mapping[str, int]) -> Program:
    """Inline, unroll, extract reductions, drop what is dead. `hints` are likely sizes."""
    roots = dict.fromkeys([*program.outputs, *program.checks])
    current = [_without_units(d) for d in _live(program.defs, roots)]
    current = _inlined(current, roots)
    current = _extracted(current)
    current = _cloned(current, roots, hints)
    defs = {d.name: d for d in _live({d.name: d for d in current}, roots)}
    used = {load.source for d in defs.values() for load in ex.loads(d.expr)}
    return Program(
        inputs={n: i for n, i in program.inputs.items() if n in used or n in roots},
        defs=defs,
        outputs=program.outputs,
        checks=program.checks,
        equalities=program.equalities,
    )


def is_reduction(d: Def) -> bool:
    return isinstance(d.expr, Reduce)


def _live(defs: Mapping[str, Def], roots: Mapping[str, None]) -> list[Def]:
    needed = set(roots)
    kept: list[Def] = []
    for d in reversed(list(defs.values())):
        if d.name in needed:
            kept.append(d)
            needed.update(load.source for load in ex.loads(d.expr))
    return kept[::-1]


def _renamed(d: Def, expr: Expr) -> Def:
    return Def(name=d.name, axes=d.axes, expr=expr, loc=d.loc, op=d.op)


def _without_units(d: Def) -> Def:
    zero = {a: as_index(0) for a in d.axes if a.extent.const == 1}
    return _renamed(d, at_indices(d.expr, zero) if zero else d.expr)


# ---- inlining -------------------------------------------------------------------------------


def _inlined(defs: list[Def], roots: Mapping[str, None]) -> list[Def]:
    users: dict[str, int] = {}
    for d in defs:
        for source in {load.source for load in ex.loads(d.expr)}:
            users[source] = users.get(source, 0) + 1
    written_in: dict[str, Def] = {}
    result: list[Def] = []
    for d in defs:
        new = _renamed(d, simplify(inline(d.expr, written_in)))
        result.append(new)
        if not _has_reduction(new.expr) and _is_cheap(new, users.get(d.name, 0)):
            written_in[d.name] = new
    return result


def inline(expr: Expr, defs: Mapping[str, Def]) -> Expr:
    """Loads of these definitions replaced by their formulas."""

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in defs:
            d = defs[node.source]
            return at_indices(d.expr, dict(zip(d.axes, node.index, strict=True)))
        return None

    return Rewriter(visit)(expr) if defs else expr


def _is_cheap(d: Def, users: int) -> bool:
    nodes = list(ex.walk(d.expr))
    if len(nodes) > INLINE_NODES:
        return False
    return users <= 1 or not any(isinstance(n, Apply | Select) for n in nodes)


def _has_reduction(expr: Expr) -> bool:
    return any(isinstance(node, Reduce) for node in ex.walk(expr))


# ---- reductions become definitions of their own ----------------------------------------------


def _extracted(defs: list[Def]) -> list[Def]:
    result: list[Def] = []
    known: dict[Reduce, Expr] = {}
    for d in defs:
        serial = 0

        def visit(node: Expr, d: Def = d) -> Expr | None:
            nonlocal serial
            if not isinstance(node, Reduce):
                return None
            if node not in known:
                axes = tuple(sorted(ex.free_axes(node), key=lambda a: a.key))
                serial += 1
                new = Def(name=f"{d.name}r{serial}", axes=axes, expr=node, loc=d.loc, op=d.op)
                result.append(new)
                known[node] = ex.load(new.name, [as_index(a) for a in axes], node.dtype)
            return known[node]

        if isinstance(d.expr, Reduce):
            body = Rewriter(visit)(d.expr.body)
            expr = ex.reduce(d.expr.fn, d.expr.axes, body, d.expr.dtype)
            result.append(_renamed(d, expr))
            known.setdefault(expr, ex.load(d.name, [as_index(a) for a in d.axes], d.dtype))
        else:
            result.append(_renamed(d, Rewriter(visit)(d.expr)))
    return result


# ---- a reduction read at a few places only is computed there -----------------------------------


def _cloned(defs: list[Def], roots: Mapping[str, None], hints: Mapping[str, int]) -> list[Def]:
    """`logits[n, target[n]]`: n dot products instead of a stored n × v matrix."""
    by_name = {d.name: d for d in defs}
    result: list[Def] = []
    for whole in defs:
        d = _renamed(whole, _inlined_off_axes(whole.expr, by_name))

        def visit(node: Expr, d: Def = d) -> Expr | None:
            producer = by_name.get(node.source) if isinstance(node, Load) else None
            if producer is None or not isinstance(node, Load) or aligned(node):
                return None
            if producer.name in roots or not isinstance(producer.expr, Reduce):
                return None
            axes = tuple(sorted(ex.free_axes(node), key=lambda a: a.key))
            few = _points(axes, hints) * 4 <= _points(producer.axes, hints)
            if not few:
                return None
            fresh = {a: as_index(Axis(a.name, a.extent)) for a in producer.expr.axes}
            moved = at_indices(
                producer.expr, {**fresh, **dict(zip(producer.axes, node.index, strict=True))}
            )
            name = f"{producer.name}at{len(result)}"
            result.append(Def(name=name, axes=axes, expr=moved, loc=d.loc, op=producer.op))
            return ex.load(name, [as_index(a) for a in axes], node.dtype)

        result.append(_renamed(d, Rewriter(visit)(d.expr)))
    return result


def _inlined_off_axes(expr: Expr, defs: Mapping[str, Def]) -> Expr:
    """Pointwise values read at other than plain axes, written out down to what they read.

    Each value is written out once for each place it is read at, and not where that grows past
    INLINE_NODES: the first token of a deep network is read at one place only, too."""

    def visit(node: Expr) -> Expr | None:
        producer = defs.get(node.source) if isinstance(node, Load) else None
        if producer is None or not isinstance(node, Load) or isinstance(producer.expr, Reduce):
            return None
        if aligned(node) or _is_large(producer.expr):
            return None
        moved = at_indices(producer.expr, dict(zip(producer.axes, node.index, strict=True)))
        written_out = rewrite(moved)
        return None if _is_large(written_out) else written_out

    rewrite = Rewriter(visit)
    return rewrite(expr)


def _is_large(expr: Expr) -> bool:
    return sum(1 for _ in ex.walk(expr)) > INLINE_NODES


def aligned(node: Load) -> bool:
    """Are the indices distinct plain axes (or 0 along an axis of extent 1)?"""
    axes = [the_axis(i) for i in node.index if i.const != 0]
    return None not in axes and len(set(axes)) == len(axes)


def _points(axes: tuple[Axis, ...], hints: Mapping[str, int]) -> int:
    return math.prod(likely(a.extent, hints) for a in axes)


def likely(size: Index, hints: Mapping[str, int]) -> int:
    """A size at the sizes of the first call."""
    return max(evaluate(size, hints), 1)
