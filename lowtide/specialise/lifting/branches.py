"""An `if` whose condition differs between the iterations of a lifted loop: both branches, and a
select.

In: a condition that kernels compute, and functions that specialise either branch. Out: the abstract
results. A tensor that a branch writes in place becomes a select, too.

    if j < i:                         t1[] = abs(x[i] - x[j])
        s = s + abs(x[i] - x[j])  ->  t2[] = s[] + t1[]
                                      t3[] = t2[] if j < i else s[]

A branch is also computed in iterations that do not take it, and dropped. There its loads are
clamped (`Builder.assumed`), and loads that carry gradients read 0 (`Builder.mask`), so that no
cotangent is 0 * inf.

A result that is one of two tensors may be an alias of an earlier tensor. None of these may be
written in place (`blocked`), and a tensor from before the loop must not leave the region as such an
alias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from lowtide.ir.core import Op, Value
from lowtide.specialise import varying
from lowtide.specialise.abstract import Abs, Map, Seq, concrete, is_constant
from lowtide.specialise.lifting import rows
from lowtide.specialise.lifting.inplace import root_of
from lowtide.texpr.build import Builder, Unsupported, Val, symbols, varies
from lowtide.texpr.conditions import joined, nonnegative_if, nonnegative_unless, parts_of
from lowtide.texpr.expr import Expr, Reduce
from lowtide.texpr.index import Axis, Index, deep_atoms
from lowtide.texpr.index_ranges import substitute
from lowtide.texpr.sizes import evaluate

TraceBranch = Callable[[], list[Abs]]
MOST_POINTS: Final = 1 << 18  # of a sum; to run an iteration from Python takes longer than these


@dataclass(frozen=True, slots=True)
class _Branch:
    """The results of a branch at its end, and the old values of what it has changed outside."""

    results: Sequence[tuple[Abs, object]]
    changed: Mapping[Abs, object]


def chosen(
    run: Any, op: Op, cond: Expr, env: Mapping[Value, Abs], yes: TraceBranch, no: TraceBranch
) -> list[Abs]:
    """Trace both branches of an `if`. Raises Unsupported if their results cannot be chosen
    between."""
    outer = reachable(env.values())
    taken = _traced_branch(run, cond, nonnegative_if(cond), yes, outer)
    other = _traced_branch(run, varying.negated(cond), nonnegative_unless(cond), no, outer)
    for x in {**taken.changed, **other.changed}:
        a, b = (branch.changed.get(x, x.value) for branch in (taken, other))
        run.change(x, _choice(run.b, cond, a, b))
    return [
        _result(run, op, cond, a, b, outer)
        for a, b in zip(taken.results, other.results, strict=True)
    ]


def _traced_branch(
    run: Any, cond: Expr, known: Sequence[Index], trace_branch: TraceBranch, outer: set[Abs]
) -> _Branch:
    since = run.mark()[3]
    with within(run.b, cond, known):
        results = trace_branch()
        run.refresh(results)
    first: dict[Abs, object] = {}
    for x, before in run.changes(since):
        first.setdefault(x, before)
    # a view of what has changed is made again when it is next looked at
    changed = {x: x.value for x in first if x.base is None and x in outer}
    found = [(x, x.value) for x in results]
    for x, before in first.items():
        run.change(x, before)
    return _Branch(found, changed)


@contextmanager
def within(b: Builder, cond: Expr, known: Sequence[Index]) -> Generator[None]:
    """While a branch is traced that is taken where the condition holds."""
    assumed, mask, unmasked = b.assumed, b.mask, b.unmasked
    parts = parts_of(cond) if mask is None else [*parts_of(mask), *parts_of(cond)]
    b.assumed, b.mask, b.unmasked = [*assumed, *known], joined(parts), set()
    b.branched = True
    try:
        yield
    finally:
        b.assumed, b.mask, b.unmasked = assumed, mask, unmasked


def affordable(run: Any, trace_branch: TraceBranch, most: int) -> list[Abs]:
    """Return the results of a branch. Raises Unsupported if one of its sums has more than `most`
    points: the kernels compute it even where the branch is not taken."""
    since = len(run.b.program.defs)
    results = trace_branch()
    for d in list(run.b.program.defs.values())[since:]:
        if isinstance(d.expr, Reduce):
            sizes = (_likely(run, a.extent) for a in (*d.axes, *d.expr.axes))
            if math.prod(sizes) > most:
                raise Unsupported("is too much to compute where it is not needed")
    return results


def _likely(run: Any, size: Index) -> int:
    """Return a size in this call, the largest of all iterations; 1 if it is not known yet."""
    while varies(size):
        size = substitute(size, {a: a.extent for a in deep_atoms(size) if isinstance(a, Axis)})
    return evaluate(size, run.numbers) if symbols(size) <= run.numbers.keys() else 1


def _result(
    run: Any, op: Op, cond: Expr, yes: tuple[Abs, object], no: tuple[Abs, object], outer: set[Abs]
) -> Abs:
    (x, a), (y, b) = yes, no
    if x is y:  # where a branch has changed it, that is a choice already
        return x
    if isinstance(a, Val) and isinstance(b, Val):
        found = Abs(_choice(run.b, cond, a, b))
        _note_names(run, op, found, [s for s in (x, y) if root_of(s) in outer])
        return found
    same = Abs(a), Abs(b)
    if isinstance(a, Seq) and isinstance(b, Seq) and _is_alike(a, b):
        pairs = zip(a.elems, b.elems, strict=True)
        elems = [_result(run, op, cond, (s, s.value), (t, t.value), outer) for s, t in pairs]
        return Abs(Seq(a.kind, tuple(elems)))
    if isinstance(a, Index) and a is b:
        return x
    if all(map(is_constant, same)) and type(a) is type(b) and _are_equal(*same):
        return x
    # `a and b` of a tensor and a truth: whatever else than a truth is made of it is not followed
    found = varying.chosen(cond, *(_truth(run, x) for x in same))
    if found is None:
        raise Unsupported("makes a value that differs from iteration to iteration")
    return found


def _truth(run: Any, x: Abs) -> Abs:
    found = run.truth(x) if isinstance(x.value, Val) else None
    return x if found is None else found


def _is_alike(a: Seq, b: Seq) -> bool:
    return a.kind is b.kind is not list and len(a.elems) == len(b.elems)


def _are_equal(a: Abs, b: Abs) -> bool:
    return bool(concrete(a) == concrete(b))


def _note_names(run: Any, op: Op, found: Abs, names: Iterable[Abs]) -> None:
    """Note that the result may be another name of one of these values."""
    for x in names:
        root = root_of(x)
        run.blocked.update((found, root))
        if run.loop is None:
            run.items[found] = _one_of(run, op, found, x)
        elif root is not x or root.origin is not None or root in run.items:
            run.items[found] = run.items.get(root, rows.Item(run.loop, None))
        run.chosen.add(found)


def _one_of(run: Any, op: Op, found: Abs, x: Abs) -> rows.Item:
    """Return the aliases of a choice outside of loops, which may be `x`."""
    root = root_of(x)
    own, other = (run.items[y].aliases if y in run.items else () for y in (found, root))
    is_made_here = root is x and root.origin is None
    known = None if not is_made_here or own is None or other is None else (*own, *other, root)
    return rows.Item(op, known, is_choice=True)


def _choice(b: Builder, cond: Expr, yes: object, no: object) -> object:
    """Return the choice between two tensors, as a tensor."""
    if yes is no:
        return yes
    if not isinstance(yes, Val) or not isinstance(no, Val):
        raise Unsupported("changes a list in some iterations only")
    if yes.dtype is not no.dtype or yes.ndim != no.ndim:
        raise Unsupported("makes tensors of several dtypes or shapes")
    if not all(map(b.equal, yes.shape, no.shape)):
        raise Unsupported("makes tensors of several shapes")
    b.op = "if"  # not that of the op before, which may hand no gradient on
    return b.tensor(
        yes.shape, yes.dtype, lambda idx: b.select(cond, b.load(yes, idx), b.load(no, idx))
    )


def reachable(values: Iterable[Abs]) -> set[Abs]:
    """These, their elements, and the tensors that they view."""
    found: set[Abs] = set()
    stack = list(values)
    while stack:
        x = stack.pop()
        if x in found:
            continue
        found.add(x)
        if isinstance(x.value, Seq | Map):
            stack.extend(x.value.elems)
        if x.base is not None:
            stack.append(x.base)
    return found
