"""Decides whether definitions may share a kernel for a GPU, whose programs run in any order.

In:  definitions over unified axes, their common axes, likely sizes. Out: a bool.

    dw[i, j] = sum[n](g[n, i] * x[n, j])    db[i] = sum[n](g[n, i])      no: for db, a program would
                                                                         have to hold all j of dw
    p[c, s] = sum[k](x[s, k, c])            r[c] = sum[s](p[c, s])       no: few programs would be
                                                                         left for a long sum
    s[i, j] = sum[c](q[i, c] * k[j, c])     o[i, d] = sum[j](s * v[j, d])    yes: s is never stored
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lowtide.texpr.expr import Def, Reduce
from lowtide.texpr.index import Axis
from lowtide.tile.axes import apart_axes, own_axes, points, reduced_axes, sources

MAX_HELD = 512  # points of an axis that a program may hold for each row
FREELY_HELD = 128  # the same if holding them only saves reads, and there are
MANY_ROWS = 1 << 13  # rows, which keep many programs busy
FEW_PROGRAMS = 256
MUCH = 1 << 18  # elements: more than few programs should write or compute
LONG_SUM = 1 << 10  # terms of a value that is better stored than swept over by few programs


def may_share(
    defs: Mapping[str, Def], common: list[Axis], hints: Mapping[str, int], stored: int
) -> bool:
    """See the module's text. `stored`: elements of a value that may as well be stored."""
    if not takes_apart(defs, common):
        return False
    apart = apart_axes(defs, common)
    return not any(
        _holds_too_much(d, defs, apart, hints)
        or _waits_for_long_sums(d, defs, apart, hints, stored)
        if isinstance(d.expr, Reduce)
        else _is_left_to_few(d, defs, apart, hints)
        for d in defs.values()
    )


def _is_left_to_few(
    d: Def, defs: Mapping[str, Def], apart: list[Axis], hints: Mapping[str, int]
) -> bool:
    """Return whether few programs would have to write, once the sums are known, what many could
    write."""
    if points(apart, hints) >= FEW_PROGRAMS or points(own_axes(d), hints) < MUCH:
        return False
    return all(set(own_axes(u)) <= set(apart) for u in _reductions_read(d, defs))


def _holds_too_much(
    d: Def, defs: Mapping[str, Def], apart: list[Axis], hints: Mapping[str, int]
) -> bool:
    """Return whether a program would have to hold more of the value than the merge is worth."""
    swept = {a for n in _readers(d.name, defs) for a in reduced_axes(defs[n])}
    held = points((a for a in own_axes(d) if a not in apart and a not in swept), hints)
    if held == 1:
        return False
    inner = {a for u in _reductions_read(d, defs) for a in own_axes(u)}
    if not inner.isdisjoint(reduced_axes(d)):
        return held > MAX_HELD
    return held > FREELY_HELD or points(apart, hints) < MANY_ROWS


def _waits_for_long_sums(
    d: Def, defs: Mapping[str, Def], apart: list[Axis], hints: Mapping[str, int], stored: int
) -> bool:
    """Return whether the definition sweeps over small values that take long to compute: long sums,
    or much work that few programs share."""
    are_few = points(apart, hints) < FEW_PROGRAMS
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
    """Yield the reductions among these definitions that `d` reads, directly or through others."""
    todo, seen = [d.name], {d.name}
    while todo:
        for name in sources(defs[todo.pop()]) & (defs.keys() - seen):
            seen.add(name)
            todo.append(name)
            if isinstance(defs[name].expr, Reduce):
                yield defs[name]


def takes_apart(defs: Mapping[str, Def], common: list[Axis]) -> bool:
    """Return whether independent programs may run these definitions, tile by tile of the apart
    axes. Then no sum keeps an axis that another member sweeps over, unless that member reads the
    sum."""
    apart = apart_axes(defs, common)
    if len(defs) > 1 and not apart:
        return all(not own_axes(d) for d in defs.values())
    for name, d in defs.items():
        if not isinstance(d.expr, Reduce):
            continue
        kept = [a for a in own_axes(d) if a not in apart]
        others = defs.keys() - _readers(name, defs)
        if any(a in reduced_axes(defs[n]) for n in others for a in kept):
            return False
    return True


def _readers(name: str, defs: Mapping[str, Def]) -> set[str]:
    """Return the names of a value, its readers, and theirs."""
    found = {name}
    while more := {n for n, d in defs.items() if n not in found and found & sources(d)}:
        found |= more
    return found
