"""Decides whether definitions may share a GPU kernel, whose programs run in any order.

In:  definitions over unified axes, their common axes, likely sizes. Out: a bool.

    dw[i, j] = sum[n](g[n, i] * x[n, j])    no: db has no axis j, so a program for both would hold
    db[i] = sum[n](g[n, i])                 all j of dw

    p[c, s] = sum[k](x[s, k, c])            no: only c is parallel, so few programs would compute
    r[c] = sum[s](p[c, s])                  the long sums p, which are cheap to store

    s[i, j] = sum[c](q[i, c] * k[j, c])     yes: s is never stored
    o[i, d] = sum[j](s[i, j] * v[j, d])

The `parallel` axes are those that all members have and none reduces over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lowtide.texpr.expr import Def, Reduce
from lowtide.texpr.index import Axis
from lowtide.tile.axes import own_axes, parallel_axes, points, reduced_axes, sources

MAX_HELD = 512  # accumulators per row, if sharing a kernel avoids storing a reduction
FREELY_HELD = 128  # the same, if sharing only saves reads
MANY_ROWS = 1 << 13  # of fewer rows, no accumulators are held only to save reads
FEW_PROGRAMS = 256  # fewer parallel points do not occupy the GPU
MUCH = 1 << 18  # elements or terms: too much work for few programs
LONG_SUM = 1 << 10  # terms: small values with sums of this length are stored


def may_share(
    defs: Mapping[str, Def], common: list[Axis], hints: Mapping[str, int], stored: int
) -> bool:
    """Return whether the definitions may share a kernel. `stored`: a value with at most this number
    of elements is cheap to store."""
    if not fits_independent_programs(defs, common):
        return False
    parallel = parallel_axes(defs, common)
    return not any(
        _holds_too_much(d, defs, parallel, hints)
        or _waits_for_long_sums(d, defs, parallel, hints, stored)
        if isinstance(d.expr, Reduce)
        else _is_left_to_few(d, defs, parallel, hints)
        for d in defs.values()
    )


def _is_left_to_few(
    d: Def, defs: Mapping[str, Def], parallel: list[Axis], hints: Mapping[str, int]
) -> bool:
    """Return whether few programs would write a large pointwise value that reads small sums only.
    If the sums are stored, another kernel writes it with many programs."""
    if points(parallel, hints) >= FEW_PROGRAMS or points(own_axes(d), hints) < MUCH:
        return False
    return all(set(own_axes(u)) <= set(parallel) for u in _reductions_read(d, defs))


def _holds_too_much(
    d: Def, defs: Mapping[str, Def], parallel: list[Axis], hints: Mapping[str, int]
) -> bool:
    """Return whether a program would need more accumulators for `d` than sharing is worth."""
    swept = {a for n in _readers(d.name, defs) for a in reduced_axes(defs[n])}
    held = points((a for a in own_axes(d) if a not in parallel and a not in swept), hints)
    if held == 1:
        return False
    inner = {a for u in _reductions_read(d, defs) for a in own_axes(u)}
    if not inner.isdisjoint(reduced_axes(d)):
        return held > MAX_HELD
    return held > FREELY_HELD or points(parallel, hints) < MANY_ROWS


def _waits_for_long_sums(
    d: Def, defs: Mapping[str, Def], parallel: list[Axis], hints: Mapping[str, int], stored: int
) -> bool:
    """Return whether `d` reduces over a small value that takes long to compute: by long sums, or by
    much work that few programs would share."""
    are_few = points(parallel, hints) < FEW_PROGRAMS
    return any(
        not set(own_axes(u)).isdisjoint(reduced_axes(d))
        and points(own_axes(u), hints) <= stored
        and (
            points(reduced_axes(u), hints) >= LONG_SUM
            or (are_few and points((*own_axes(u), *reduced_axes(u)), hints) >= MUCH)
        )
        for u in _reductions_read(d, defs)
    )


def _reductions_read(d: Def, defs: Mapping[str, Def]) -> Iterator[Def]:
    """Yield the reductions in `defs` that `d` reads, directly or through other definitions."""
    todo, seen = [d.name], {d.name}
    while todo:
        for name in sources(defs[todo.pop()]) & (defs.keys() - seen):
            seen.add(name)
            todo.append(name)
            if isinstance(defs[name].expr, Reduce):
                yield defs[name]


def fits_independent_programs(defs: Mapping[str, Def], common: list[Axis]) -> bool:
    """Return whether independent programs, one for each tile of the parallel axes, can compute the
    definitions. If a reduction keeps another axis, only its readers may reduce over that axis."""
    parallel = parallel_axes(defs, common)
    if len(defs) > 1 and not parallel:
        return all(not own_axes(d) for d in defs.values())
    for name, d in defs.items():
        if not isinstance(d.expr, Reduce):
            continue
        kept = [a for a in own_axes(d) if a not in parallel]
        others = defs.keys() - _readers(name, defs)
        if any(a in reduced_axes(defs[n]) for n in others for a in kept):
            return False
    return True


def _readers(name: str, defs: Mapping[str, Def]) -> set[str]:
    """Return `name` and the names of all definitions that read it, directly or indirectly."""
    found = {name}
    while more := {n for n, d in defs.items() if n not in found and found & sources(d)}:
        found |= more
    return found
