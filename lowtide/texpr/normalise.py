"""Program → Program in normal form: what fusion works on.

In:  definitions as the ops wrote them, views and all.
Out: the same values, where
  - every Def is either pointwise or one reduction of a pointwise body;
  - views are gone: they became changes of index;
  - a pointwise value with one user is inlined; a costly one with several users stays a Def
    (`shared`), so that fusion sees that they use one value;
  - axes of extent 1 do not occur in expressions; unused definitions are dropped;
  - an axis that is only used in parts (l // W, l % W) is two axes: the output's elements lie in
    memory as before, but its definition may have more dims than the output;
  - sums over contiguous channels have one axis over all of them (`along_memory`).

    t1[i, c] = x[i, c] - m[c]             t3[i] = sum[c](mul(x[i,c] - m[c], x[i,c] - m[c]))
    t2[i, c] = t1[i, c] * t1[i, c]    ->
    t3[i]    = sum[c](t2[i, c])
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices, over_numbers, simplify
from lowtide.texpr.along_memory import along_memory
from lowtide.texpr.borders import with_borders
from lowtide.texpr.expr import Apply, Def, Expr, Load, Program, Reduce, Rewriter, Select
from lowtide.texpr.few_elements import few_elements
from lowtide.texpr.index import Axis, FloorDiv, Mod, as_index, deep_atoms
from lowtide.texpr.narrow import narrowed
from lowtide.texpr.phases import in_phases
from lowtide.texpr.shifted_reads import OffAxes, is_costly_at
from lowtide.texpr.sizes import elements, points
from lowtide.texpr.softmax import with_late_division
from lowtide.texpr.split import split_axes
from lowtide.texpr.sums import in_order, merged_sums

MOST_OF_PHASES = 3.0  # 2 terms of 3 places for a stride of 2, in two dims, and the border
INLINE_NODES = 600  # an expression that grew past this is stored instead of written into its users


def normalise(program: Program, hints: Mapping[str, int]) -> Program:
    """Inline, unroll, extract reductions, drop what is dead. `hints` are likely sizes."""
    roots = dict.fromkeys([*program.outputs, *program.checks])
    added_to = program.added_to()
    current = [_without_units(d) for d in _live(program.defs, roots, _never_read(program))]
    current = _reduced_once(current, roots, program.shared_sums.keys() | added_to)
    io_elements = sum(elements(i.shape, hints) for i in program.inputs.values())
    io_elements += sum(points(d.axes, hints) for d in current if d.name in roots and not d.adds_to)
    current, bordered = with_borders(
        split_axes(_inlined(current, roots, hints, io_elements, added_to))
    )
    current = _extracted(current, added_to)
    current = _few_elements(current, roots, hints, bordered, io_elements, added_to)
    current = [in_order(d) for d in split_axes(current)]
    if not program.delays:  # steps come first in what is carried
        strides = {n: i.strides for n, i in program.inputs.items()}
        current = along_memory(current, strides, hints, roots.keys(), added_to)
    defs = {d.name: d for d in _live({d.name: d for d in current}, roots)}
    used = {load.source for d in defs.values() for load in ex.loads(d.expr)}
    return Program(
        inputs={n: i for n, i in program.inputs.items() if n in used or n in roots},
        defs=defs,
        outputs=program.outputs,
        checks=program.checks,
        equalities=program.equalities,
        shared_sums=program.shared_sums,
    )


def is_reduction(d: Def) -> bool:
    return isinstance(d.expr, Reduce)


def _live(
    defs: Mapping[str, Def],
    roots: Mapping[str, None],
    rewrite: Callable[[Expr], Expr] | None = None,
) -> list[Def]:
    """Return the definitions that the roots need, rewritten."""
    needed = set(roots)
    kept: list[Def] = []
    for d in reversed(list(defs.values())):
        if d.name in needed:
            d = _renamed(d, rewrite(d.expr)) if rewrite else d
            kept.append(d)
            needed.update(load.source for load in ex.loads(d.expr))
    return kept[::-1]


def _never_read(program: Program) -> Callable[[Expr], Expr] | None:
    """Replace loads from empty tensors by 0. Vector code evaluates both sides of a select."""
    shapes = {n: v.shape for n, v in (*program.inputs.items(), *program.defs.items())}
    empty = {name for name, shape in shapes.items() if any(size.const == 0 for size in shape)}

    def nothing(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in empty:
            return ex.const(0, node.dtype)
        return None

    return Rewriter(nothing) if empty else None


def _renamed(d: Def, expr: Expr) -> Def:
    return Def(name=d.name, axes=d.axes, expr=expr, loc=d.loc, op=d.op)


def _without_units(d: Def) -> Def:
    zero = {a: as_index(0) for a in d.axes if a.extent.const == 1}
    return _renamed(d, at_indices(d.expr, zero) if zero else d.expr)


# ---- the same reduction twice ---------------------------------------------------------------


def _reduced_once(defs: Sequence[Def], roots: Mapping[str, None], apart: Set[str]) -> list[Def]:
    """Replace a reduction by an equal one. Two kernels might add in different orders. A root
    becomes a copy. `apart`: definitions whose formula stays."""
    result: list[Def] = []
    first: dict[Hashable, str] = {}  # by formulas that read what `same` names
    same: dict[str, str] = {}
    gone: dict[str, str] = {}
    for d in defs:
        expr = ex.reading(d.expr, gone)
        if d.name not in apart and not d.adds_to:
            name = first.setdefault(_formula(d, same), d.name)
            if name != d.name:
                same[d.name] = name
                if isinstance(d.expr, Reduce) and d.name not in roots:
                    gone[d.name] = name
                    continue
                if isinstance(d.expr, Reduce):
                    copied = _renamed(d, ex.load(name, [as_index(a) for a in d.axes], d.dtype))
                    expr = _without_units(copied).expr
        result.append(_renamed(d, expr) if expr is not d.expr else d)
    return result


def _formula(d: Def, names: Mapping[str, str]) -> Hashable:
    """Return a key that is equal for definitions which compute the same value."""
    e = d.expr
    fn, body, reduced = (e.fn, e.body, e.axes) if isinstance(e, Reduce) else ("", e, ())
    axes = (*d.axes, *reduced)
    formula = over_numbers(ex.reading(body, names), axes)
    return fn, d.dtype, tuple(a.extent for a in axes), len(d.axes), formula


# ---- inlining -------------------------------------------------------------------------------


def _inlined(
    defs: list[Def],
    roots: Mapping[str, None],
    hints: Mapping[str, int],
    io_elements: int,
    added_to: Set[str],
) -> list[Def]:
    users: dict[str, list[Def]] = {}
    for d in defs:
        for source in {load.source for load in ex.loads(d.expr)}:
            users.setdefault(source, []).append(d)
    written_in: dict[str, Def] = {}
    sums: dict[str, Def] = {}
    whole: dict[str, Def] = {}
    result: list[Def] = []
    known: dict[str, Def] = {}
    heavy = set[str]()  # pairs, of which each is a sum or is made of one

    def count(axes: tuple[Axis, ...]) -> int:
        return points(axes, hints)

    for given in defs:
        d = given
        expr = inline(d.expr, written_in)
        parts, narrow = _few_terms(d, expr)
        for p in parts:
            expr_of_p = merged_sums(p, p.expr, sums, count, MOST_OF_PHASES)
            result.append(_renamed(p, simplify(expr_of_p)))
        expr = merged_sums(d, narrow, sums, count)
        if isinstance(expr, Reduce) and d.name not in roots and _is_summed_up(d.name, users):
            sums[d.name] = whole[d.name] = _renamed(d, expr)  # not written out in another sum
            result.append(whole[d.name])
            continue
        if isinstance(expr, Reduce) and _sums_up(expr, heavy):
            simple: Expr = ex.reduce(expr.fn, expr.axes, simplify(expr.body), expr.dtype)
        else:
            simple = simplify(expr)
        new = known[d.name] = _renamed(d, with_late_division(simple, known))
        result.append(new)
        if count(d.axes) > io_elements and (
            is_reduction(new) or any(load.source in heavy for load in ex.loads(new.expr))
        ):
            heavy.add(d.name)
        if d.name in added_to:
            continue
        if not _has_reduction(new.expr):
            if _is_cheap(new, users.get(d.name, ()), hints, io_elements):
                written_in[d.name] = new
        elif is_reduction(new) and d.name not in roots and _is_read_once(d.name, users):
            sums[d.name] = new
    read = {load.source for d in result for load in ex.loads(d.expr)} & whole.keys()
    return [_renamed(d, simplify(d.expr)) if d.name in read else d for d in result]


def _sums_up(node: Reduce, heavy: Set[str]) -> bool:
    """Return whether a reduction runs over an axis of pairs that are dear to compute. Written out,
    it would read them at several places, and they would be stored."""
    found = (load for load in ex.loads(node.body) if load.source in heavy)
    return any(not load.free.isdisjoint(node.axes) for load in found)


def _few_terms(d: Def, expr: Expr) -> tuple[list[Def], Expr]:
    """Sums over the places where their conditions hold, by phases if that divides."""
    made: list[Def] = []

    def visit(node: Expr) -> Expr | None:
        new = narrowed(node) if isinstance(node, Reduce) else None
        if not isinstance(new, Reduce):
            return new
        found = in_phases(d, new, f"{d.name}p{len(made)}")
        if found is None:
            return None if _divides(new) else new
        made.append(found[0])
        return found[1]

    return made, Rewriter(visit)(expr)


def _divides(e: Expr) -> bool:
    atoms = (a for node in ex.walk(e) for i in ex.indices(node) for a in deep_atoms(i))
    return any(isinstance(a, FloorDiv | Mod) for a in atoms)


def _is_read_once(name: str, users: Mapping[str, list[Def]]) -> bool:
    """Return whether one definition reads the value, or a view of it."""
    while len(found := users.get(name, ())) == 1:
        if not isinstance(found[0].expr, Load):
            return True
        name = found[0].name
    return False


def _is_summed_up(name: str, users: Mapping[str, list[Def]]) -> bool:
    """Return whether the value is read once, by a sum of its elements under a condition."""
    while len(found := users.get(name, ())) == 1:
        (d,) = found
        if isinstance(d.expr, Reduce):
            return isinstance(d.expr.body, Select) and isinstance(d.expr.body.yes, Load)
        if not isinstance(d.expr, Load):
            return False
        name = d.name
    return False


def inline(expr: Expr, defs: Mapping[str, Def]) -> Expr:
    """Loads of these definitions replaced by their formulas."""

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in defs:
            d = defs[node.source]
            return at_indices(d.expr, dict(zip(d.axes, node.index, strict=True)))
        return None

    return Rewriter(visit)(expr) if defs else expr


def _is_cheap(d: Def, users: Sequence[Def], hints: Mapping[str, int], io_elements: int) -> bool:
    nodes = list(ex.walk(d.expr))
    if len(nodes) > INLINE_NODES:
        return False
    if len(users) > 1:
        return not any(isinstance(n, Apply | Select) for n in nodes)
    reads = [load for u in users for load in set(ex.loads(u.expr)) if load.source == d.name]
    is_stencil = len(reads) > 1 and len({load.free for load in reads}) == 1
    may_be_stored = is_stencil and points(d.axes, hints) <= io_elements
    return not (may_be_stored and is_costly_at(reads, d, hints))


def _has_reduction(expr: Expr) -> bool:
    return any(isinstance(node, Reduce) for node in ex.walk(expr))


# ---- reductions become definitions of their own ----------------------------------------------


def _extracted(defs: list[Def], added_to: Set[str]) -> list[Def]:
    result: list[Def] = []
    known: dict[Expr, str] = {}  # with axes that depend only on their order and extent
    for d in defs:
        serial = 0

        def visit(node: Expr, d: Def = d) -> Expr | None:
            nonlocal serial
            if not isinstance(node, Reduce):
                return None
            axes = ex.ordered_axes(node, d.axes)
            same = over_numbers(node, axes)
            if same not in known:
                serial += 1
                known[same] = f"{d.name}r{serial}"
                new = Def(name=known[same], axes=axes, expr=node, loc=d.loc, op=d.op)
                result.append(new)
            return ex.load(known[same], [as_index(a) for a in axes], node.dtype)

        if isinstance(d.expr, Reduce):
            body = Rewriter(visit)(d.expr.body)
            expr = ex.reduce(d.expr.fn, d.expr.axes, body, d.expr.dtype)
            result.append(_renamed(d, expr))
            if d.axes == ex.ordered_axes(expr, d.axes) and d.name not in added_to:
                known.setdefault(over_numbers(expr, d.axes), d.name)
        else:
            result.append(_renamed(d, Rewriter(visit)(d.expr)))
    return result


# ---- a reduction that is read at a few places only is not stored for them ----------------------


def _few_elements(
    defs: list[Def],
    roots: Mapping[str, None],
    hints: Mapping[str, int],
    kept: Set[str],
    io_elements: int,
    added_to: Set[str],
) -> list[Def]:
    """Inline values that are loaded at other than plain axes; then see `few_elements`."""
    defs = _live({d.name: d for d in defs}, roots)
    kept = kept | added_to
    free = {d.name: d for d in defs if d.name not in kept}
    written = _live({d.name: d for d in defs}, roots, OffAxes(free, roots, hints, io_elements))
    # A sum that has lost a factor by that is no longer alone.
    written = _extracted(written, added_to)
    return few_elements(written, {*roots, *kept}, hints, io_elements)
