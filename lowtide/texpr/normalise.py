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

MOVED_NODES = 120  # the same for an expression that is written in at other than plain axes
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
    written: dict[Load, Expr | None] = {}
    expanded = [_renamed(d, _inlined_off_axes(d.expr, by_name, written)) for d in defs]
    few = _read_at_few(expanded, by_name, hints) - set(roots)
    result: list[Def] = []
    for d in expanded:

        def visit(node: Expr, d: Def = d) -> Expr | None:
            if not isinstance(node, Load) or aligned(node) or node.source not in few:
                return None
            producer = by_name[node.source]
            assert isinstance(producer.expr, Reduce)
            axes = tuple(sorted(ex.free_axes(node), key=lambda a: a.key))
            fresh = {a: as_index(Axis(a.name, a.extent)) for a in producer.expr.axes}
            moved = at_indices(
                producer.expr, {**fresh, **dict(zip(producer.axes, node.index, strict=True))}
            )
            name = f"{producer.name}at{len(result)}"
            result.append(Def(name=name, axes=axes, expr=moved, loc=d.loc, op=producer.op))
            return ex.load(name, [as_index(a) for a in axes], node.dtype)

        result.append(_renamed(d, Rewriter(visit)(d.expr)))
    return result


def _read_at_few(defs: list[Def], by_name: Mapping[str, Def], hints: Mapping[str, int]) -> set[str]:
    """Reductions whose elements at other than plain axes are few, all such reads taken together."""
    reads = {x for d in defs for x in ex.loads(d.expr) if not aligned(x)}
    points: dict[str, int] = {}
    for x in reads:
        producer = by_name.get(x.source)
        if producer is not None and isinstance(producer.expr, Reduce):
            count = _points(tuple(ex.free_axes(x)), hints)
            points[x.source] = points.get(x.source, 0) + count
    return {n for n, count in points.items() if count * 4 <= _points(by_name[n].axes, hints)}


def _inlined_off_axes(
    expr: Expr, defs: Mapping[str, Def], written: dict[Load, Expr | None]
) -> Expr:
    """Pointwise values read at other than plain axes, written out down to what they read, unless
    that grows too large. `written` remembers what each load became."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or aligned(node):
            return None
        if node not in written:
            written[node] = write(node)
        return written[node]

    def write(node: Load) -> Expr | None:
        producer = defs.get(node.source)
        if producer is None or isinstance(producer.expr, Reduce):
            return None
        if not _is_short(producer.expr):
            return None
        moved = at_indices(producer.expr, dict(zip(producer.axes, node.index, strict=True)))
        full = _inlined_off_axes(moved, defs, written)
        return full if _is_short(full) else None

    return Rewriter(visit)(expr)


def _is_short(expr: Expr) -> bool:
    return all(k < MOVED_NODES for k, _ in enumerate(ex.walk(expr)))


def aligned(node: Load) -> bool:
    """Are the indices distinct plain axes (or 0 along an axis of extent 1)?"""
    axes = [the_axis(i) for i in node.index if i.const != 0]
    return None not in axes and len(set(axes)) == len(axes)


def _points(axes: tuple[Axis, ...], hints: Mapping[str, int]) -> int:
    return math.prod(likely(a.extent, hints) for a in axes)


def likely(size: Index, hints: Mapping[str, int]) -> int:
    """A size at the sizes of the first call."""
    return max(evaluate(size, hints), 1)
